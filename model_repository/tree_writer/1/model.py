"""What Triton loads; the adapter is in the package."""

from canopy_backend.triton.tree_writer import TreeWriterModel as TritonPythonModel

__all__ = ["TritonPythonModel"]
