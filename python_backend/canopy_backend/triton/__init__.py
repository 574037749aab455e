"""Adapters between Triton's Python backend and the method: they decode, call, encode and map errors, nothing else.

Only code that runs inside the server imports ``triton_python_backend_utils``, and only when it runs, so everything
here can be imported and tested anywhere.
"""
