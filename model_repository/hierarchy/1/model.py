"""What Triton loads; the adapter is in the package."""

from canopy_backend.triton.hierarchy import HierarchyModel as TritonPythonModel

__all__ = ["TritonPythonModel"]
