"""Peers beside the method: other systems' own code on the same questions, items and encoder."""
