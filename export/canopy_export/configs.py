"""Every configuration of the model repository, written from here and nowhere else.

``python -m canopy_export.configs`` writes them again; a test compares the committed files with these objects.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from google.protobuf import text_format
from msgspec import structs
from tritonclient.grpc import model_config_pb2

from canopy_backend.errors import ExportError
from canopy_backend.limits import Limits
from canopy_export.model_config import (
    DataType,
    DynamicBatching,
    EnsembleScheduling,
    InstanceGroup,
    Kind,
    ModelConfig,
    Parameter,
    QueuePolicy,
    ResponseCache,
    Step,
    Tensor,
    TimeoutAction,
    TransactionPolicy,
    Warmup,
    WarmupInput,
    to_pbtxt,
)
from canopy_export.tensorrt.profiles import plan_rows, text_profiles

#: Dimension of the example encoder, all-MiniLM-L6-v2; an export of another model writes the files again.
DIMENSION: Final = 384
#: Window of the same encoder: how wide its rows can be, and with that how many of them a TensorRT plan takes.
WINDOW: Final = 256
#: Requests that may wait for an encoder; one more is refused at once, which the client sees as an overloaded server.
#: Models without a batch axis get no such queue: it is the dynamic batcher's, which in Triton 24.10 loses wake-ups
#: where it cannot merge requests, and then takes one from its queue only when another comes in. See MAX_WAIT_MS.
MAX_QUEUE_SIZE: Final = 256
#: Longest wait for an encoder, in microseconds; a caller's own timeout can only shorten it.
MAX_QUEUE_US: Final = 120_000_000
#: Longest wait of a request with trees for its last step, in milliseconds: some hundred requests on two cores.
MAX_WAIT_MS: Final = 1000
_QUEUE: Final = DynamicBatching(QueuePolicy(MAX_QUEUE_SIZE, TimeoutAction.REJECT, MAX_QUEUE_US))
#: Tokens of one ONNX Runtime call in the embedded profile: what a core's cache holds. Larger calls are slower.
CHUNK_TOKENS: Final = 1024

#: The file of each profile in a model's folder; the default one is TensorRT's.
_TENSORRT, _ONNX, _EMBEDDED = "config.pbtxt", "configs/onnx.pbtxt", "configs/embedded.pbtxt"

_STRING, _INT64, _FP32, _INT32, _UINT32, _UINT8, _BOOL = (
    DataType.STRING,
    DataType.INT64,
    DataType.FP32,
    DataType.INT32,
    DataType.UINT32,
    DataType.UINT8,
    DataType.BOOL,
)
_QUERY: Final = Tensor("QUERY", _STRING, (1,))
_QUERIES: Final = Tensor("QUERY", _STRING, (-1,))
_ITEMS: Final = Tensor("ITEMS", _STRING, (-1,))
_PLAN: Final = Tensor("PLAN", _UINT8, (-1,))
_ARRIVAL: Final = Tensor("ARRIVAL", _INT64, (1,))
_EVIDENCE: Final = (
    Tensor("EVIDENCE", _STRING, (-1,)),
    Tensor("REGIONS", _INT32, (-1, 4)),
    Tensor("SCORES", _FP32, (-1,)),
    Tensor("TRACE", _STRING, (-1,)),
)
_NODE_ROWS: Final = tuple(
    Tensor(name, _INT64, (-1, -1)) for name in ("NODE_IDS", "NODE_SEGMENTS", "NODE_POSITIONS", "NODE_SLOTS")
)
_NODE_INPUTS: Final = ("input_ids", "segment_ids", "position_ids", "slot_ids")
_QUERY_INPUTS: Final = ("input_ids", "attention_mask")
#: The tensors that Triton's vLLM backend gives to every model that it serves.
_CRITIC_INPUTS: Final = (
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
_CRITIC_OUTPUTS: Final = (
    Tensor("text_output", _STRING, (-1,)),
    Tensor("finish_reason", _STRING, (-1,)),
    Tensor("cumulative_logprob", _FP32, (-1,)),
    Tensor("logprobs", _STRING, (-1,)),
    Tensor("num_input_tokens", _UINT32, (1,)),
    Tensor("num_output_tokens", _UINT32, (-1,)),
)


def repository_configs(
    dimension: int = DIMENSION, limits: Limits | None = None, window: int = WINDOW
) -> dict[str, ModelConfig]:
    """The configurations of the whole repository.

    Args:
        dimension: Size of the encoders' vectors.
        limits: Published limits; the defaults where not given. In the TensorRT profile requests have no more rows and
            queries than a plan takes.
        window: Most tokens of one sequence, of which the plans' profiles follow.

    Returns:
        Configurations by their path in the repository, for instance ``"query_encoder/configs/onnx.pbtxt"``.
    """
    limits = limits or Limits()
    configs: dict[str, ModelConfig] = {f"{config.name}/config.pbtxt": config for config in _ensembles(dimension)}
    for profile, own in _limits(limits, window).items():
        parameters = {name: Parameter(value) for name, value in own.to_parameters().items()}
        for config in _python_models(dimension, parameters):
            configs[f"{config.name}/{profile}"] = config
    for name, profile, config in (*_encoders(dimension, limits, window), *_critic()):
        configs[f"{name}/{profile}"] = config
    return configs


def write_configs(
    repository: Path, dimension: int = DIMENSION, limits: Limits | None = None, window: int = WINDOW
) -> list[Path]:
    """Write every configuration that differs from what is there; returns the files that were written."""
    written = []
    for name, config in repository_configs(dimension, limits, window).items():
        path, text = repository / name, to_pbtxt(config)
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written


def fit(repository: Path, dimension: int, window: int = WINDOW) -> bool:
    """Whether a repository's configurations are there, for the tensors of this version and vectors of this size.

    Those of the TensorRT profile must be for plans of this window, with at most the rows that such plans take.

    Raises:
        ExportError: The node encoder's configuration cannot be parsed.
    """
    path = repository / "node_encoder" / "config.pbtxt"
    if not all((repository / name).is_file() for name in repository_configs(dimension)):
        return False
    try:
        config = text_format.Parse(path.read_text(encoding="utf-8"), model_config_pb2.ModelConfig())
    except text_format.ParseError as error:
        raise ExportError(f"{path}: {error}") from None
    inputs = tuple(tensor.name for tensor in config.input)
    profiles = [len(group.profile) for group in config.instance_group]
    return (
        inputs == _NODE_INPUTS
        and [tensor.dims[-1] for tensor in config.output] == [dimension]
        and profiles == [text_profiles(window)]
        and config.max_batch_size <= plan_rows(window)
    )


def _limits(limits: Limits, window: int) -> dict[str, Limits]:
    """The limits of each profile, by the file that holds its configuration."""
    rows = plan_rows(window)
    of_plans = structs.replace(limits, max_rows=min(rows, limits.max_rows), max_queries=min(rows, limits.max_queries))
    return {_TENSORRT: of_plans, _ONNX: limits, _EMBEDDED: limits}


def _ensembles(dimension: int) -> tuple[ModelConfig, ...]:
    embedding = Tensor("EMBEDDING", _FP32, (-1, dimension))
    return (
        ModelConfig(
            name="compress",
            platform="ensemble",
            input=(_QUERY, _ITEMS),
            output=_EVIDENCE,
            ensemble_scheduling=EnsembleScheduling(
                (
                    _step("hierarchy", ("QUERY", "ITEMS"), ("QUERY_IDS", "QUERY_MASK", *_names(_NODE_ROWS), "PLAN")),
                    _encode("query_encoder", ("QUERY_IDS", "QUERY_MASK"), "QUERY_EMBEDDING"),
                    _encode("node_encoder", _names(_NODE_ROWS), "NODE_EMBEDDINGS"),
                    _step("refinement", ("ITEMS", "PLAN", "QUERY_EMBEDDING", "NODE_EMBEDDINGS"), _names(_EVIDENCE)),
                )
            ),
        ),
        # For requests whose items all bring their trees: nothing to plan, no node to encode, two hops less.
        ModelConfig(
            name="compress_indexed",
            platform="ensemble",
            input=(_QUERY, _ITEMS),
            output=_EVIDENCE,
            ensemble_scheduling=EnsembleScheduling(
                (
                    _step("tokenizer", ("QUERY",), ("IDS", "MASK", "ARRIVAL")),
                    _encode("query_encoder", ("IDS", "MASK"), "QUERY_EMBEDDING"),
                    _step("refinement", ("ITEMS", "QUERY_EMBEDDING", "ARRIVAL"), _names(_EVIDENCE)),
                )
            ),
        ),
        ModelConfig(
            name="index",
            platform="ensemble",
            input=(_ITEMS,),
            output=(Tensor("TREES", _STRING, (-1,)), Tensor("EMBEDDINGS", _FP32, (-1, dimension))),
            ensemble_scheduling=EnsembleScheduling(
                (
                    _step("planner", ("ITEMS",), (*_names(_NODE_ROWS), "ITEM_IDS", "ITEM_MASK", "PLAN")),
                    _encode("query_encoder", ("ITEM_IDS", "ITEM_MASK"), "ITEM_EMBEDDINGS"),
                    _encode("node_encoder", _names(_NODE_ROWS), "NODE_EMBEDDINGS"),
                    _step(
                        "tree_writer",
                        ("ITEMS", "PLAN", "NODE_EMBEDDINGS", "ITEM_EMBEDDINGS"),
                        ("TREES", "EMBEDDINGS"),
                    ),
                )
            ),
        ),
        ModelConfig(
            name="embed_query",
            platform="ensemble",
            input=(_QUERIES,),
            output=(embedding,),
            ensemble_scheduling=EnsembleScheduling(
                (
                    _step("tokenizer", ("QUERY",), ("IDS", "MASK")),
                    _encode("query_encoder", ("IDS", "MASK"), "EMBEDDING"),
                )
            ),
        ),
    )


def _python_models(dimension: int, limits: dict[str, Parameter]) -> tuple[ModelConfig, ...]:
    query_ids = tuple(Tensor(name, _INT64, (1, -1)) for name in ("QUERY_IDS", "QUERY_MASK"))
    item_ids = tuple(Tensor(name, _INT64, (-1, -1)) for name in ("ITEM_IDS", "ITEM_MASK"))
    node_embeddings = Tensor("NODE_EMBEDDINGS", _FP32, (-1, -1, dimension))
    # The first two come from compress, the last from compress_indexed.
    planned = tuple(replace(tensor, optional=True) for tensor in (_PLAN, node_embeddings, _ARRIVAL))
    return (
        _python("hierarchy", (_QUERY, _ITEMS), (*query_ids, *_NODE_ROWS, _PLAN), limits),
        _python(
            "refinement",
            (_ITEMS, Tensor("QUERY_EMBEDDING", _FP32, (1, dimension)), *planned),
            _EVIDENCE,
            limits | {"max_wait_ms": Parameter(str(MAX_WAIT_MS))},
        ),
        _python(
            "tokenizer",
            (_QUERIES,),
            (Tensor("IDS", _INT64, (-1, -1)), Tensor("MASK", _INT64, (-1, -1)), _ARRIVAL),
            limits,
        ),
        _python("planner", (_ITEMS,), (*_NODE_ROWS, *item_ids, _PLAN), limits),
        _python(
            "tree_writer",
            (_ITEMS, _PLAN, node_embeddings, Tensor("ITEM_EMBEDDINGS", _FP32, (-1, dimension))),
            (Tensor("TREES", _STRING, (-1,)), Tensor("EMBEDDINGS", _FP32, (-1, dimension))),
            limits,
        ),
    )


def _encoders(dimension: int, limits: Limits, window: int) -> list[tuple[str, str, ModelConfig]]:
    configs = []
    of_profile = _limits(limits, window)
    profiles = tuple(map(str, range(text_profiles(window))))
    for name, inputs, output, widths in (
        ("query_encoder", _QUERY_INPUTS, Tensor("embedding", _FP32, (dimension,)), (16, 32)),
        ("node_encoder", _NODE_INPUTS, Tensor("embeddings", _FP32, (-1, dimension)), (64, 128, 256)),
    ):
        for profile, platform, filename, kind in (
            (_TENSORRT, "tensorrt_plan", "model.plan", Kind.GPU),
            (_ONNX, "onnxruntime_onnx", "model.onnx", Kind.CPU),
            (_EMBEDDED, "", "model.py", Kind.CPU),
        ):
            config = ModelConfig(
                name=name,
                platform=platform,
                backend="" if platform else "python",
                default_model_filename=filename,
                max_batch_size=of_profile[profile].max_rows,
                input=tuple(Tensor(tensor, _INT64, (-1,)) for tensor in inputs),
                output=(output,),
                dynamic_batching=_QUEUE,
                # Of a plan's profiles the backend takes the one that fits a request best, and only of those named.
                instance_group=(InstanceGroup(1, kind, profiles if profile == _TENSORRT else ()),),
                # Queries repeat from round to round and from user to user; node rows hardly ever do.
                response_cache=ResponseCache() if name == "query_encoder" else None,
                model_warmup=tuple(_warmup(inputs, width) for width in widths),
                parameters={} if platform else _embedded_parameters(),
            )
            configs.append((name, profile, config))
    return configs


def _critic() -> list[tuple[str, str, ModelConfig]]:
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
            input=_CRITIC_INPUTS,
            output=_CRITIC_OUTPUTS,
            instance_group=(InstanceGroup(1, kind),),
            parameters=parameters,
        )
        configs.append((config.name, profile, config))
    return configs


def _embedded_parameters() -> dict[str, Parameter]:
    return {
        # 0 threads: one for each CPU that the process may use.
        "threads": Parameter("0"),
        "chunk_tokens": Parameter(str(CHUNK_TOKENS)),
    }


def _warmup(inputs: tuple[str, ...], width: int) -> Warmup:
    return Warmup(f"{width} tokens", 1, {name: WarmupInput(_INT64, (width,)) for name in inputs})


def _python(
    name: str, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...], parameters: dict[str, Parameter]
) -> ModelConfig:
    return ModelConfig(
        name=name,
        backend="python",
        input=inputs,
        output=outputs,
        instance_group=(InstanceGroup(1, Kind.CPU),),
        parameters=parameters,
    )


def _step(model: str, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Step:
    """A step whose tensors have the same names inside and outside."""
    return Step(model, {name: name for name in inputs}, {name: name for name in outputs})


def _encode(model: str, inputs: tuple[str, ...], output: str) -> Step:
    names, inner = (_QUERY_INPUTS, "embedding") if model == "query_encoder" else (_NODE_INPUTS, "embeddings")
    return Step(model, dict(zip(names, inputs, strict=True)), {inner: output})


def _names(tensors: tuple[Tensor, ...]) -> tuple[str, ...]:
    return tuple(tensor.name for tensor in tensors)


if __name__ == "__main__":
    write_configs(Path(__file__).resolve().parents[2] / "model_repository")
