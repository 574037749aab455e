"""CANOPY's method: items, their hierarchies, and the walk that keeps what a query needs.

Nothing in here knows a server, but for :mod:`canopy_backend.triton`, which holds the adapters that Triton loads.
"""
