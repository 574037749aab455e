"""Ablations: what each choice of the method and of its service is worth, a row each, on the same questions."""
