"""What holds for all tests."""

from importlib.util import find_spec

# The environment of `make deploy-check` has no Hypothesis, and its tests need none.
if find_spec("hypothesis"):
    from hypothesis import settings

    # No test measures time: an example that a busy machine takes long for says nothing about the code.
    settings.register_profile("busy", deadline=None)
    settings.load_profile("busy")
