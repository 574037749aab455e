"""From an ONNX file to a serialised engine: one way for the container's TensorRT and for the compile check.

Networks are strongly typed: the types of the graph are those of the engine, and no builder flag changes one. That is
the only kind that TensorRT 11 has.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from canopy_backend.errors import ExportError
from canopy_export.tensorrt.bindings import RTX, trt
from canopy_export.tensorrt.profiles import WINDOW, Profile, profiles_for

#: Memory that the builder may use for a layer's scratch, in bytes.
WORKSPACE: Final = 4 << 30
#: A remark on every int64 input; these inputs are int64 from end to end.
_KNOWN: Final = "Int64 binding"


class Log(trt.ILogger):
    """Keeps what TensorRT says from warnings upwards."""

    def __init__(self) -> None:
        trt.ILogger.__init__(self)
        self.lines: list[str] = []
        self.errors: list[str] = []

    def log(self, severity: trt.ILogger.Severity, msg: str) -> None:
        """Called by TensorRT."""
        if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR):
            self.errors.append(msg)
        elif severity == trt.ILogger.WARNING and _KNOWN not in msg and msg not in self.lines:
            self.lines.append(msg)


@dataclass(frozen=True, slots=True, eq=False)
class Engine:
    """A built engine.

    Attributes:
        plan: The serialised engine.
        profiles: Its profiles, in the order of their numbers.
        seconds: Time of parsing and building.
        warnings: What TensorRT remarked.
        timing: The timing cache after the build; empty where there is none.
    """

    plan: bytes
    profiles: tuple[Profile, ...]
    seconds: float
    warnings: tuple[str, ...]
    timing: bytes


def version() -> str:
    """TensorRT's version."""
    return str(trt.__version__)


def build_engine(
    path: Path,
    *,
    capabilities: Sequence[str] = (),
    window: int = WINDOW,
    rows: int | None = None,
    timing: bytes = b"",
    workspace: int = WORKSPACE,
) -> Engine:
    """Build an engine with all profiles of its graph.

    Args:
        path: The ONNX file; weights beside it are found.
        capabilities: Compute capabilities such as ``SM89`` to build for, TensorRT for RTX only; by default the GPU of
            this machine.
        window: Most tokens of one sequence, for the profiles of a text graph.
        rows: Most rows of one call, for the same; by default what the window allows.
        timing: A timing cache of an earlier build on a GPU of this kind, container's TensorRT only.
        workspace: Most scratch memory of a layer in bytes.

    Raises:
        ExportError: The file cannot be parsed or built; the message has TensorRT's own.
    """
    started = time.monotonic()
    log = Log()
    builder = trt.Builder(log)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, log)
    if not path.is_file():
        raise ExportError(f"{path}: no such file")
    if not parser.parse_from_file(str(path)):
        reasons = [str(parser.get_error(place)) for place in range(parser.num_errors)]
        raise ExportError(f"{path}: TensorRT cannot parse it: {'; '.join(reasons) or '; '.join(log.errors)}")
    config = builder.create_builder_config()
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, workspace)
    # Rounding float32 to 19 bits is not for the builder to choose: what is reduced is so in the graph.
    config.clear_flag(trt.BuilderFlag.TF32)
    if capabilities:
        _set_capabilities(config, capabilities)
    save_timing = _set_timing(config, timing)
    profiles = profiles_for(_inputs(network), window, rows)
    for profile in profiles:
        config.add_optimization_profile(_optimisation(builder, profile))
    plan = builder.build_serialized_network(network, config)
    if plan is None or log.errors:
        raise ExportError(f"{path}: TensorRT cannot build it: {'; '.join(log.errors) or 'no reason given'}")
    seconds = time.monotonic() - started
    return Engine(bytes(plan), profiles, seconds, tuple(log.lines), save_timing())


def _inputs(network: trt.INetworkDefinition) -> dict[str, tuple[int, ...]]:
    tensors = [network.get_input(place) for place in range(network.num_inputs)]
    return {str(tensor.name): tuple(int(size) for size in tensor.shape) for tensor in tensors}


def _optimisation(builder: trt.Builder, profile: Profile) -> trt.IOptimizationProfile:
    made = builder.create_optimization_profile()
    for name, (smallest, usual, largest) in profile.shapes.items():
        made.set_shape(name, smallest, usual, largest)
    return made


def _set_capabilities(config: trt.IBuilderConfig, capabilities: Sequence[str]) -> None:
    """Build for other GPUs than this machine's; only TensorRT for RTX can, and it needs none for it."""
    if not RTX:
        raise ExportError("compute capabilities are chosen by the GPU; only TensorRT for RTX builds for others")
    known = trt.ComputeCapability.__members__
    config.num_compute_capabilities = len(capabilities)
    for place, name in enumerate(capabilities):
        if name not in known:
            raise ExportError(f"compute capability {name!r}: expected one of {', '.join(sorted(known))}")
        config.set_compute_capability(known[name], place)


def _set_timing(config: trt.IBuilderConfig, timing: bytes) -> Callable[[], bytes]:
    """Use and keep measured times of kernels; TensorRT for RTX measures on the user's machine and has none."""
    if RTX:
        return lambda: b""
    # A cache of another TensorRT or GPU is refused, and the build starts with an empty one.
    if not config.set_timing_cache(config.create_timing_cache(timing), ignore_mismatch=False):
        config.set_timing_cache(config.create_timing_cache(b""), ignore_mismatch=False)
    return lambda: bytes(config.get_timing_cache().serialize())
