"""What Triton loads; the adapter is in the package."""

from canopy_backend.triton.arrival import ArrivalModel as TritonPythonModel

__all__ = ["TritonPythonModel"]
