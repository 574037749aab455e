"""Fuzzing of everything that reads bytes from outside: ``make fuzz``, which is ``python -m canopy_fuzz``.

    kinds     what a target is
    targets   one for each decoder
    child     one target under atheris, in a process of its own
    parent    runs the targets one after the other and reads their figures
    report    the page of results

Nothing here is collected by pytest; ``tests/unit/fuzz`` runs each target some hundred times without atheris.
"""
