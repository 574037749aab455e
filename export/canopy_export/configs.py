"""Every configuration of the model repository, written from here and nowhere else.

``python -m canopy_export.configs`` writes them again; a test compares the committed files with these objects.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from google.protobuf import text_format
from msgspec import structs
from tritonclient.grpc import model_config_pb2

from canopy_backend.errors import ExportError
from canopy_backend.limits import Limits
from canopy_export.critic_config import critic_configs
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
    Warmup,
    WarmupInput,
    to_pbtxt,
)
from canopy_export.tensorrt.profiles import plan_rows, text_profiles
from canopy_export.vision_config import EMBEDDED, MAPS, ONNX, PROFILES, PUBLISHED, TENSORRT, Sight, vision_configs

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
#: Longest wait of a request with pictures for the step that looks at them: of `compress`, for which somebody waits, and
#: of `index`, which gets as long as it may wait for an encoder. To look at one takes seconds, not milliseconds, so a
#: shorter wait would refuse a request that stood behind a single other one.
MAX_LOOK_MS: Final = 10_000
MAX_INDEX_LOOK_MS: Final = MAX_QUEUE_US // 1000
_QUEUE: Final = DynamicBatching(QueuePolicy(MAX_QUEUE_SIZE, TimeoutAction.REJECT, MAX_QUEUE_US))
#: Tokens of one ONNX Runtime call in the embedded profile: what a core's cache holds. Larger calls are slower.
CHUNK_TOKENS: Final = 1024

_STRING, _INT64, _FP32, _INT32, _UINT8 = (
    DataType.STRING,
    DataType.INT64,
    DataType.FP32,
    DataType.INT32,
    DataType.UINT8,
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
#: An encoder's inputs, and how an ensemble calls the tensors of its rows, behind a prefix.
_NODE_INPUTS: Final = {"input_ids": "IDS", "segment_ids": "SEGMENTS", "position_ids": "POSITIONS", "slot_ids": "SLOTS"}
_QUERY_INPUTS: Final = {"input_ids": "IDS", "attention_mask": "MASK"}
#: The same of encoders that see pixels.
_PIXEL_NODE_INPUTS: Final = {
    "input_ids": "IDS", "segment_ids": "SEGMENTS", "places": "PLACES", "slot_ids": "SLOTS", "features": "FEATURES"
}  # fmt: skip
_PIXEL_QUERY_INPUTS: Final = {**_QUERY_INPUTS, "places": "PLACES", "features": "FEATURES"}
#: Axes of a position, and the feature of a token.
_PLACES: Final = 4
#: Models that only encoders that see pixels need.
_PIXEL_MODELS: Final = ("vision_encoder", "arrival")
#: Processes of a first step with pixels: while one decodes pictures and waits for the vision tower, the other plans.
PIXEL_STEPS: Final = 2


def repository_configs(
    dimension: int = DIMENSION, limits: Limits | None = None, window: int = WINDOW, sight: Sight | None = None
) -> dict[str, ModelConfig]:
    """The configurations of the whole repository.

    Args:
        dimension: Size of the encoders' vectors.
        limits: Published limits; the defaults where not given. In the TensorRT profile requests have no more rows and
            queries than a plan takes.
        window: Most tokens of one sequence, of which the plans' profiles follow.
        sight: The vision tower where the encoders see pixels.

    Returns:
        Configurations by their path in the repository, for instance ``"query_encoder/configs/onnx.pbtxt"``.
    """
    limits = limits or Limits()
    configs: dict[str, ModelConfig] = {f"{config.name}/config.pbtxt": config for config in _ensembles(dimension, sight)}
    for profile, own in _limits(limits, window).items():
        parameters = {name: Parameter(value) for name, value in own.to_parameters().items()}
        for config in _python_models(dimension, parameters, sight):
            configs[f"{config.name}/{profile}"] = config
    encoders = (*_encoders(dimension, limits, window, sight), *vision_configs(sight or PUBLISHED))
    for name, profile, config in (*encoders, *critic_configs()):
        configs[f"{name}/{profile}"] = config
    return configs


def write_configs(
    repository: Path,
    dimension: int = DIMENSION,
    limits: Limits | None = None,
    window: int = WINDOW,
    sight: Sight | None = None,
) -> list[Path]:
    """Write every configuration that differs from what is there; returns the files that were written."""
    written = []
    for name, config in repository_configs(dimension, limits, window, sight).items():
        path, text = repository / name, to_pbtxt(config)
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written


def fit(repository: Path, dimension: int, window: int = WINDOW, sight: Sight | None = None) -> bool:
    """Whether a repository's configurations are there, with the tensors and steps of this version and vectors' size.

    Those of the TensorRT profile must be for plans of this window, with at most the rows that such plans take. What
    else they say is an operator's own.

    Args:
        repository: The repository.
        dimension: Size of the encoders' vectors.
        window: Most tokens of one sequence.
        sight: The vision tower where the encoders see pixels.

    Raises:
        ExportError: A configuration cannot be parsed.
    """
    wanted = repository_configs(dimension, window=window, sight=sight)
    needed = {name: config for name, config in wanted.items() if sight or config.name not in _PIXEL_MODELS}
    if not all((repository / name).is_file() for name in needed):
        return False
    found = {name: _parsed((repository / name).read_text(encoding="utf-8"), str(repository / name)) for name in needed}
    if any(_interface(found[name]) != _interface(_parsed(to_pbtxt(config), name)) for name, config in needed.items()):
        return False
    encoder = found["node_encoder/config.pbtxt"]
    profiles = [len(group.profile) for group in encoder.instance_group]
    return profiles == [text_profiles(window)] and encoder.max_batch_size <= plan_rows(window)


def _parsed(text: str, name: str) -> model_config_pb2.ModelConfig:
    try:
        return text_format.Parse(text, model_config_pb2.ModelConfig())
    except text_format.ParseError as error:
        raise ExportError(f"{name}: {error}") from None


def _interface(config: model_config_pb2.ModelConfig) -> tuple[Any, ...]:
    """What a model's code and its neighbours rely on."""
    return list(config.input), list(config.output), config.ensemble_scheduling


def _limits(limits: Limits, window: int) -> dict[str, Limits]:
    """The limits of each profile, by the file that holds its configuration."""
    rows = plan_rows(window)
    of_plans = structs.replace(limits, max_rows=min(rows, limits.max_rows), max_queries=min(rows, limits.max_queries))
    return {TENSORRT: of_plans, ONNX: limits, EMBEDDED: limits}


def _ensembles(dimension: int, sight: Sight | None) -> tuple[ModelConfig, ...]:
    embedding = Tensor("EMBEDDING", _FP32, (-1, dimension))
    # Tensors in and between the steps; the vision tower is called by the first step, and only for items with pictures.
    asked, whole, plain = (_names(_rows(prefix, "query_encoder", sight)) for prefix in ("QUERY_", "ITEM_", ""))
    nodes = _names(_rows("NODE_", "node_encoder", sight))
    # A step in front of the one that looks at pictures says when a request came; without them nothing is slow there.
    since = ("ARRIVAL",) if sight else ()
    return (
        ModelConfig(
            name="compress",
            platform="ensemble",
            input=(_QUERY, _ITEMS),
            output=_EVIDENCE,
            ensemble_scheduling=EnsembleScheduling(
                (
                    *([_step("tokenizer", ("QUERY",), ("ARRIVAL",))] if sight else []),
                    _step("hierarchy", ("QUERY", "ITEMS", *since), (*asked, *nodes, "PLAN")),
                    _encode("query_encoder", asked, "QUERY_EMBEDDING", sight),
                    _encode("node_encoder", nodes, "NODE_EMBEDDINGS", sight),
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
                    _step("tokenizer", ("QUERY",), (*plain, "ARRIVAL")),
                    _encode("query_encoder", plain, "QUERY_EMBEDDING", sight),
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
                    *([_step("arrival", ("ITEMS",), ("ARRIVAL",))] if sight else []),
                    _step("planner", ("ITEMS", *since), (*nodes, *whole, "PLAN")),
                    _encode("query_encoder", whole, "ITEM_EMBEDDINGS", sight),
                    _encode("node_encoder", nodes, "NODE_EMBEDDINGS", sight),
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
                    _step("tokenizer", ("QUERY",), plain),
                    _encode("query_encoder", plain, "EMBEDDING", sight),
                )
            ),
        ),
    )


def _python_models(dimension: int, limits: dict[str, Parameter], sight: Sight | None) -> tuple[ModelConfig, ...]:
    asked = tuple(replace(tensor, dims=(1, *tensor.dims[1:])) for tensor in _rows("QUERY_", "query_encoder", sight))
    whole, plain = (_rows(prefix, "query_encoder", sight) for prefix in ("ITEM_", ""))
    nodes = _rows("NODE_", "node_encoder", sight)
    # Clients read here whether it is worth while to send pictures.
    first = limits | {"pixels": Parameter(str(sight is not None).lower())}
    steps = PIXEL_STEPS if sight else 1
    since = (replace(_ARRIVAL, optional=True),) if sight else ()

    def looking(longest_ms: int) -> dict[str, Parameter]:
        return first | ({"max_wait_ms": Parameter(str(longest_ms))} if sight else {})

    node_embeddings = Tensor("NODE_EMBEDDINGS", _FP32, (-1, -1, dimension))
    # The first two come from compress, the last from compress_indexed.
    planned = tuple(replace(tensor, optional=True) for tensor in (_PLAN, node_embeddings, _ARRIVAL))
    return (
        _python("hierarchy", (_QUERY, _ITEMS, *since), (*asked, *nodes, _PLAN), looking(MAX_LOOK_MS), steps),
        _python(
            "refinement",
            (_ITEMS, Tensor("QUERY_EMBEDDING", _FP32, (1, dimension)), *planned),
            _EVIDENCE,
            limits | {"max_wait_ms": Parameter(str(MAX_WAIT_MS))},
        ),
        _python(
            "tokenizer",
            (_QUERIES,),
            (*plain, _ARRIVAL),
            first,
        ),
        _python("arrival", (_ITEMS,), (_ARRIVAL,), {}),
        _python("planner", (_ITEMS, *since), (*nodes, *whole, _PLAN), looking(MAX_INDEX_LOOK_MS), steps),
        _python(
            "tree_writer",
            (_ITEMS, _PLAN, node_embeddings, Tensor("ITEM_EMBEDDINGS", _FP32, (-1, dimension))),
            (Tensor("TREES", _STRING, (-1,)), Tensor("EMBEDDINGS", _FP32, (-1, dimension))),
            limits,
        ),
    )


def _encoders(dimension: int, limits: Limits, window: int, sight: Sight | None) -> list[tuple[str, str, ModelConfig]]:
    configs = []
    of_profile = _limits(limits, window)
    profiles = tuple(map(str, range(text_profiles(window))))
    for name, output, widths in (
        ("query_encoder", Tensor("embedding", _FP32, (dimension,)), (16, 32)),
        ("node_encoder", Tensor("embeddings", _FP32, (-1, dimension)), (64, 128, 256)),
    ):
        # A row is an element of a batch, so its axis is not written.
        rows = zip(_inputs_of(name, sight), _rows("", name, sight), strict=True)
        inputs = tuple(Tensor(inner, tensor.data_type, tensor.dims[1:]) for inner, tensor in rows)
        for profile, platform, filename, kind in PROFILES:
            config = ModelConfig(
                name=name,
                platform=platform,
                backend="" if platform else "python",
                default_model_filename=filename,
                max_batch_size=of_profile[profile].max_rows,
                input=inputs,
                output=(output,),
                dynamic_batching=_QUEUE,
                # Of a plan's profiles the backend takes the one that fits a request best, and only of those named.
                instance_group=(InstanceGroup(1, kind, profiles if profile == TENSORRT else ()),),
                # Queries repeat from round to round and from user to user; node rows hardly ever do.
                response_cache=ResponseCache() if name == "query_encoder" else None,
                model_warmup=tuple(_warmup(inputs, width) for width in widths),
                parameters={} if platform else _embedded_parameters(),
            )
            configs.append((name, profile, config))
    return configs


def _embedded_parameters() -> dict[str, Parameter]:
    return {
        # 0 threads: one for each CPU that the process may use.
        "threads": Parameter("0"),
        "chunk_tokens": Parameter(str(CHUNK_TOKENS)),
    }


def _warmup(inputs: tuple[Tensor, ...], width: int) -> Warmup:
    """Rows of text: as many columns as tokens, and one line of features where a row has any."""

    def zeros(tensor: Tensor) -> WarmupInput:
        free = width if tensor.data_type is _INT64 else 1
        return WarmupInput(tensor.data_type, tuple(free if size == -1 else size for size in tensor.dims))

    return Warmup(f"{width} tokens", 1, {tensor.name: zeros(tensor) for tensor in inputs})


def _inputs_of(encoder: str, sight: Sight | None) -> dict[str, str]:
    if encoder == "query_encoder":
        return _PIXEL_QUERY_INPUTS if sight else _QUERY_INPUTS
    return _PIXEL_NODE_INPUTS if sight else _NODE_INPUTS


def _rows(prefix: str, encoder: str, sight: Sight | None) -> tuple[Tensor, ...]:
    """The tensors of an encoder's rows as its ensembles call them, in the order of its inputs."""
    hidden = sight.hidden if sight else 0
    shapes = {"places": (-1, _PLACES, -1), "features": (-1, MAPS, -1, hidden)}
    return tuple(
        Tensor(prefix + outer, _FP32 if inner == "features" else _INT64, shapes.get(inner, (-1, -1)))
        for inner, outer in _inputs_of(encoder, sight).items()
    )


def _python(
    name: str,
    inputs: tuple[Tensor, ...],
    outputs: tuple[Tensor, ...],
    parameters: dict[str, Parameter],
    instances: int = 1,
) -> ModelConfig:
    return ModelConfig(
        name=name,
        backend="python",
        input=inputs,
        output=outputs,
        instance_group=(InstanceGroup(instances, Kind.CPU),),
        parameters=parameters,
    )


def _step(model: str, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Step:
    """A step whose tensors have the same names inside and outside."""
    return Step(model, {name: name for name in inputs}, {name: name for name in outputs})


def _encode(model: str, inputs: tuple[str, ...], output: str, sight: Sight | None) -> Step:
    inner = "embedding" if model == "query_encoder" else "embeddings"
    return Step(model, dict(zip(_inputs_of(model, sight), inputs, strict=True)), {inner: output})


def _names(tensors: tuple[Tensor, ...]) -> tuple[str, ...]:
    return tuple(tensor.name for tensor in tensors)


if __name__ == "__main__":
    write_configs(Path(__file__).resolve().parents[2] / "model_repository")
