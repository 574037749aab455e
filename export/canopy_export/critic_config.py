"""Configurations of the critic, in the vLLM backend and in the embedded profile."""

from __future__ import annotations

from typing import Final

from canopy_export.model_config import DataType, InstanceGroup, Kind, ModelConfig, Parameter, Tensor, TransactionPolicy

_STRING, _FP32, _UINT32, _BOOL = DataType.STRING, DataType.FP32, DataType.UINT32, DataType.BOOL
#: The tensors that Triton's vLLM backend gives to every model that it serves.
_INPUTS: Final = (
    Tensor("text_input", _STRING, (1,)),
    Tensor("image", _STRING, (-1,), optional=True),
    Tensor("stream", _BOOL, (1,), optional=True),
    Tensor("sampling_parameters", _STRING, (1,), optional=True),
    Tensor("exclude_input_in_output", _BOOL, (1,), optional=True),
    Tensor("return_finish_reason", _BOOL, (1,), optional=True),
    Tensor("return_cumulative_logprob", _BOOL, (1,), optional=True),
    Tensor("return_logprobs", _BOOL, (1,), optional=True),
    Tensor("return_num_input_tokens", _BOOL, (1,), optional=True),
    Tensor("return_num_output_tokens", _BOOL, (1,), optional=True),
)
_OUTPUTS: Final = (
    Tensor("text_output", _STRING, (-1,)),
    Tensor("finish_reason", _STRING, (-1,)),
    Tensor("cumulative_logprob", _FP32, (-1,)),
    Tensor("logprobs", _STRING, (-1,)),
    Tensor("num_input_tokens", _UINT32, (1,)),
    Tensor("num_output_tokens", _UINT32, (-1,)),
)


def critic_configs() -> list[tuple[str, str, ModelConfig]]:
    """Name, profile's file and configuration of each profile."""
    configs = []
    for profile, backend, filename, kind, parameters in (
        # The vLLM backend reads its engine from model.json and places it itself.
        ("config.pbtxt", "vllm", "", Kind.MODEL, {"REPORT_CUSTOM_METRICS": Parameter("true")}),
        ("configs/embedded.pbtxt", "python", "embedded.py", Kind.CPU, {"engine": Parameter("embedded.json")}),
    ):
        config = ModelConfig(
            name="critic",
            backend=backend,
            default_model_filename=filename,
            model_transaction_policy=TransactionPolicy(decoupled=True),
            input=_INPUTS,
            output=_OUTPUTS,
            instance_group=(InstanceGroup(1, kind),),
            parameters=parameters,
        )
        configs.append((config.name, profile, config))
    return configs
