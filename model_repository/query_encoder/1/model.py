"""What Triton loads in the embedded profile; the adapter is in the package."""

from canopy_backend.triton.encoder import EncoderModel as TritonPythonModel

__all__ = ["TritonPythonModel"]
