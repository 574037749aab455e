"""The critic of the embedded profile; the vllm backend brings a model of its own."""

from canopy_backend.triton.critic import CriticModel

TritonPythonModel = CriticModel
