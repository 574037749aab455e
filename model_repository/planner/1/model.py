"""What Triton loads; the adapter is in the package."""

from canopy_backend.triton.planner import PlannerModel as TritonPythonModel

__all__ = ["TritonPythonModel"]
