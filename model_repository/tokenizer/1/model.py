"""What Triton loads; the adapter is in the package."""

from canopy_backend.triton.tokenizer import TokenizerModel as TritonPythonModel

__all__ = ["TritonPythonModel"]
