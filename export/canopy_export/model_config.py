"""Triton model configurations as typed objects, and their text form.

Field names are those of Triton's ``model_config.proto``; only the fields that this repository uses are here. The text
is written by :func:`to_pbtxt` rather than by protobuf's printer because the printer leaves out zeros, and
``max_batch_size: 0`` must be seen by readers and by Triton's own completion.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from typing import Any, Final

HEADER: Final = (
    "# Written by canopy_export.configs: change the objects there and run `python -m canopy_export.configs`.\n"
)


class DataType(Enum):
    """Element types of tensors."""

    STRING = "TYPE_STRING"
    UINT8 = "TYPE_UINT8"
    UINT32 = "TYPE_UINT32"
    INT32 = "TYPE_INT32"
    INT64 = "TYPE_INT64"
    FP32 = "TYPE_FP32"
    BOOL = "TYPE_BOOL"


class Kind(Enum):
    """Where instances run."""

    CPU = "KIND_CPU"
    GPU = "KIND_GPU"
    MODEL = "KIND_MODEL"


class TimeoutAction(Enum):
    """What happens to a request that waited too long."""

    REJECT = "REJECT"
    DELAY = "DELAY"


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output: name, element type, dimensions without the batch axis; -1 is any size.

    Requests may leave an optional input out.
    """

    name: str
    data_type: DataType
    dims: tuple[int, ...]
    optional: bool = False


@dataclass(frozen=True, slots=True)
class InstanceGroup:
    """How many copies of the model run, on what, and which of a plan's profiles each takes, by number."""

    count: int = 1
    kind: Kind = Kind.CPU
    profile: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """A bounded queue: more than ``max_queue_size`` waiting requests are refused at once.

    One that has waited ``default_timeout_microseconds`` is refused then, sooner where its caller says so.
    """

    max_queue_size: int
    timeout_action: TimeoutAction = TimeoutAction.REJECT
    default_timeout_microseconds: int = 0
    allow_timeout_override: bool = True


@dataclass(frozen=True, slots=True)
class DynamicBatching:
    """Requests of equal shape that wait at the same time are executed together."""

    default_queue_policy: QueuePolicy
    max_queue_delay_microseconds: int = 0


@dataclass(frozen=True, slots=True)
class ResponseCache:
    """Answers to equal requests come from the server's cache, where it has one."""

    enable: bool = True


@dataclass(frozen=True, slots=True)
class WarmupInput:
    """Zeros of one shape."""

    data_type: DataType
    dims: tuple[int, ...]
    zero_data: bool = True


@dataclass(frozen=True, slots=True)
class Warmup:
    """One execution before the model counts as ready."""

    name: str
    batch_size: int
    inputs: dict[str, WarmupInput]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter's value."""

    string_value: str


@dataclass(frozen=True, slots=True)
class Step:
    """One model of an ensemble: its tensors by the ensemble's names."""

    model_name: str
    input_map: dict[str, str]
    output_map: dict[str, str]
    model_version: int = -1


@dataclass(frozen=True, slots=True)
class EnsembleScheduling:
    """The steps of an ensemble; Triton orders them by their tensors."""

    step: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class TransactionPolicy:
    """A decoupled model answers a request with any number of responses."""

    decoupled: bool = False


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One ``config.pbtxt``. Empty fields and false ones are not written, except ``max_batch_size``."""

    name: str
    input: tuple[Tensor, ...]
    output: tuple[Tensor, ...]
    backend: str = ""
    platform: str = ""
    default_model_filename: str = ""
    max_batch_size: int = field(default=0, metadata={"always": True})
    model_transaction_policy: TransactionPolicy | None = None
    dynamic_batching: DynamicBatching | None = None
    instance_group: tuple[InstanceGroup, ...] = ()
    response_cache: ResponseCache | None = None
    ensemble_scheduling: EnsembleScheduling | None = None
    model_warmup: tuple[Warmup, ...] = ()
    parameters: dict[str, Parameter] = field(default_factory=dict)


def to_pbtxt(config: ModelConfig) -> str:
    """The text form of a configuration, protobuf text format, stable from run to run."""
    return HEADER + "\n".join(_message(config, "")) + "\n"


def _message(message: Any, indent: str) -> Iterator[str]:
    for one in fields(message):
        value = getattr(message, one.name)
        if value or one.metadata.get("always"):
            yield from _field(one.name, value, indent)


def _field(name: str, value: Any, indent: str) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield f"{indent}{name} {{"
            yield f"{indent}  key: {json.dumps(key)}"
            yield from _field("value", inner, indent + "  ")
            yield f"{indent}}}"
    elif is_dataclass(value):
        yield f"{indent}{name} {{"
        yield from _message(value, indent + "  ")
        yield f"{indent}}}"
    elif isinstance(value, tuple) and value and not isinstance(value[0], int):
        for inner in value:
            yield from _field(name, inner, indent)
    else:
        yield f"{indent}{name}: {_scalar(value)}"


def _scalar(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case Enum():
            return str(value.value)
        case str():
            return json.dumps(value)
        case tuple():
            return f"[{', '.join(map(str, value))}]"
        case _:
            return str(value)
