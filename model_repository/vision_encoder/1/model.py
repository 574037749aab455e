"""What Triton loads in the embedded profile; the adapter is in the package."""

from canopy_backend.triton.vision import VisionModel as TritonPythonModel

__all__ = ["TritonPythonModel"]
