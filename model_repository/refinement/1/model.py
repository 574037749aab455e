"""What Triton loads; the adapter is in the package."""

from canopy_backend.triton.refinement import RefinementModel as TritonPythonModel

__all__ = ["TritonPythonModel"]
