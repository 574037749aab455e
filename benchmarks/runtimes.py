"""The node encoder's graph in every runtime and setting that was considered: time, and what it decides.

``python -m benchmarks.runtimes`` needs exported encoders (``canopy up`` or ``canopy export``) and no server. All
candidates get the same packed rows of ten cold passages, in turn, and the same questions with ten items each.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from benchmarks import workload
from benchmarks.encoder import Repository, inputs_of
from benchmarks.machine import machine
from canopy_backend.packing import PackedRows
from canopy_backend.triton.artefacts import NODE_ENCODER, QUERY_ENCODER
from canopy_backend.triton.encoder import GRAPH_FILE, Encoder, OpenVinoSession, Session
from canopy_backend.triton.tensors import Array
from canopy_export.parity import OnnxEncoders, Outcome, run_encoders
from canopy_local.settings import StackSettings
from canopy_training.evaluation.tables import table

PAGE: Final = workload.ROOT / "docs" / "results" / "runtimes.md"
#: Tokens of one call, as the server's configuration has it, and others that were considered.
_CHUNK: Final = 1024
_OTHER_CHUNKS: Final = (256, 512, 2048, 8192)
_CORES: Final = 2
#: Least share of fragments that a candidate must keep or drop as float32 does.
_AGREEMENT: Final = 0.995


class OrtSession:
    """A graph in ONNX Runtime with options of its own."""

    def __init__(self, path: Path, *, threads: int = _CORES, **options: Any) -> None:
        settings = ort.SessionOptions()
        settings.intra_op_num_threads = threads
        settings.inter_op_num_threads = 1
        entries = {"session.intra_op.allow_spinning": "0"} | options.pop("entries", {})
        for name, value in entries.items():
            settings.add_session_config_entry(name, value)
        for name, value in options.items():
            setattr(settings, name, value)
        self._session = ort.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
        self.inputs = tuple(one.name for one in self._session.get_inputs())

    def __call__(self, inputs: Mapping[str, Array]) -> Array:
        """See :class:`canopy_backend.triton.encoder.Session`."""
        return np.asarray(self._session.run(None, dict(inputs))[0])


@dataclass(frozen=True)
class Candidate:
    """One way to run the graph.

    Attributes:
        label: What the table calls it.
        make: Loads it.
        chunk: Most tokens of one call.
        decides: Whether its arithmetic is its own, so that its decisions are counted.
    """

    label: str
    make: Callable[[], Session]
    chunk: int = _CHUNK
    decides: bool = False


class Nodes:
    """The query encoder of ONNX Runtime beside a candidate's node encoder."""

    def __init__(self, query: OnnxEncoders, node: Encoder) -> None:
        self._query, self._node = query, node

    def query(self, ids: npt.NDArray[np.int64], mask: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """See :class:`canopy_export.parity.Encoders`."""
        return self._query.query(ids, mask)

    def nodes(self, rows: PackedRows) -> npt.NDArray[np.float32]:
        """See :class:`canopy_export.parity.Encoders`."""
        return self._node(inputs_of(rows))


def candidates(graph: Path, folder: Path) -> list[Candidate]:
    """All of them; the first is what others are held against."""
    levels = ort.GraphOptimizationLevel
    found = [
        Candidate("ONNX Runtime, two threads", lambda: OrtSession(graph), decides=True),
        Candidate("… one thread", lambda: OrtSession(graph, threads=1)),
        Candidate("… threads spin", lambda: OrtSession(graph, entries={"session.intra_op.allow_spinning": "1"})),
        Candidate("… no memory arena", lambda: OrtSession(graph, enable_cpu_mem_arena=False)),
        Candidate("… no memory pattern", lambda: OrtSession(graph, enable_mem_pattern=False)),
        Candidate("… weights not packed ahead", lambda: OrtSession(graph, entries={"session.disable_prepacking": "1"})),
        Candidate(
            "… basic graph optimisation", lambda: OrtSession(graph, graph_optimization_level=levels.ORT_ENABLE_BASIC)
        ),
        Candidate(
            "… no graph optimisation", lambda: OrtSession(graph, graph_optimization_level=levels.ORT_DISABLE_ALL)
        ),
        Candidate("… dynamic int8, per tensor", lambda: OrtSession(_int8(graph, folder, False)), decides=True),
        Candidate("… dynamic int8, per channel", lambda: OrtSession(_int8(graph, folder, True)), decides=True),
        Candidate("OpenVINO, float32, two threads", lambda: OpenVinoSession(graph, threads=_CORES), decides=True),
        Candidate("… one thread", lambda: OpenVinoSession(graph, threads=1)),
        Candidate(
            "… bfloat16 products", lambda: OpenVinoSession(graph, threads=_CORES, precision="bf16"), decides=True
        ),
    ]
    served = found[-3].make
    return found + [Candidate(f"OpenVINO, float32, {chunk} tokens a call", served, chunk) for chunk in _OTHER_CHUNKS]


def _int8(graph: Path, folder: Path, per_channel: bool) -> Path:
    """The graph with its weights in int8; activations are quantised call by call."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    target = folder / f"int8-{per_channel}.onnx"
    if not target.exists():
        quantize_dynamic(graph, target, per_channel=per_channel, weight_type=QuantType.QInt8)
    return target


def times(encoders: Sequence[Encoder], rows: PackedRows, rounds: int) -> list[float]:
    """Median seconds of each, in turn round by round, after a call that does not count."""
    inputs = inputs_of(rows)
    taken: list[list[float]] = [[] for _ in encoders]
    for number in range(rounds + 1):
        for encoder, own in zip(encoders, taken, strict=True):
            start = time.perf_counter()
            encoder(inputs)
            if number:
                own.append(time.perf_counter() - start)
    return [float(np.median(own)) for own in taken]


def agreement(
    reference: Sequence[Outcome], actual: Sequence[Outcome], sizes: Sequence[Sequence[int]]
) -> tuple[int, int]:
    """Fragments that both keep or both drop, and all fragments; ``sizes`` are those of each question's items."""
    same = total = 0
    for left, right, fragments in zip(reference, actual, sizes, strict=True):
        for (query, item), runs in left.kept.items():
            masks = np.zeros((2, fragments[item]), np.bool_)
            for mask, kept in zip(masks, (runs, right.kept[query, item]), strict=True):
                for first, last in kept:
                    mask[first:last] = True
            same += int((masks[0] == masks[1]).sum())
            total += fragments[item]
    return same, total


def measure(repository: Repository, data: Path | None, questions: int, rounds: int) -> str:
    """Run all candidates; the table as Markdown."""
    from canopy_backend.fragments import fragment

    work = workload.build(data, questions=questions, items=10 * questions)
    sizes = [[len(fragment(item)) for item in question.items] for question in work.questions]
    rows, tokens = repository.planned(workload.passages())
    with tempfile.TemporaryDirectory() as folder:
        chosen = candidates(repository.folder / NODE_ENCODER / "1" / GRAPH_FILE, Path(folder))
        encoders = [Encoder(one.make(), chunk_tokens=one.chunk) for one in chosen]
        seconds = times(encoders, rows, rounds)
        query = OnnxEncoders(repository.folder)
        outcomes: dict[int, list[Outcome]] = {
            place: [
                run_encoders(Nodes(query, encoder), repository.folder, [one.question], one.items)
                for one in work.questions
            ]
            for place, (one, encoder) in enumerate(zip(chosen, encoders, strict=True))
            if one.decides
        }
    lines = []
    for place, (one, took) in enumerate(zip(chosen, seconds, strict=True)):
        same, total = agreement(outcomes[0], outcomes[place], sizes) if place in outcomes else (0, 0)
        share = f"{100 * same / total:.2f} % of {total}" if total else "as its kind"
        lines.append([one.label, f"{1000 * took:.0f}", f"{tokens / took:.0f}", f"{took / seconds[0]:.2f}", share])
    header = ["runtime", "ms", "tokens/s", "times the first", "fragments kept or dropped as in the first"]
    return "\n".join(
        [
            "# Runtimes of the node encoder",
            "",
            f"Machine: {machine()}. `{repository.manifest.node_encoding}` encoding, revision "
            f"{repository.manifest.revision}; ten passages of eight sentences, {tokens} tokens of nodes, medians of "
            f"{rounds} rounds in turn; decisions on {len(work.questions)} questions with ten items each "
            f"({work.source}). Command: `python -m benchmarks.runtimes --write`.",
            "",
            table(header, lines),
            "",
            f"A candidate needs {100 * _AGREEMENT:g} % of fragments kept or dropped as in float32. What is served is "
            "OpenVINO with two threads and 1,024 tokens a call: `bf16`, or `fp32` where bfloat16 does not agree enough "
            "([architecture](../architecture.md#precision)).",
            "",
        ]
    )


def main() -> None:
    """Measure and print; write with ``--write``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.runtimes", description=__doc__)
    parser.add_argument("--repository", type=Path, help="model repository; by default the local stack's")
    parser.add_argument("--data", type=Path, help="folder of question sets; by default data/ where there is one")
    parser.add_argument("--questions", type=int, default=120)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(workload.ROOT)}")
    options = parser.parse_args()
    folder = options.repository or StackSettings.from_environment().model_repository
    if not (folder / QUERY_ENCODER / "1" / GRAPH_FILE).is_file():
        raise SystemExit(f"{folder}: no exported encoders; run `canopy up` or `canopy export` first")
    text = measure(Repository(folder), options.data or workload.default_data(), options.questions, options.rounds)
    if options.write:
        PAGE.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
