"""Faults under a steady load, and a long run of it: what becomes of the requests, and how soon all is well again."""
