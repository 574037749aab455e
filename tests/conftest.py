"""What holds for all tests."""

from hypothesis import settings

# No test measures time: an example that a busy machine takes long for says nothing about the code.
settings.register_profile("busy", deadline=None)
settings.load_profile("busy")
