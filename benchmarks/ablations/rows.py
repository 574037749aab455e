"""The rows of the table: what is changed, and what it takes to measure it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.ablations.sources import Boundaries, EightBits, Onnx, Untitled
from canopy_backend.manifest import NodeEncoding
from canopy_backend.refinement import refine
from canopy_export.source import read_source
from canopy_training.data import Question
from canopy_training.evaluation.local import LocalSource, Setup
from canopy_training.evaluation.metrics import METRICS, count, fragments_of
from canopy_training.evaluation.scoring import ScoredQuestion, locate_all, score_questions
from canopy_training.evaluation.vectors import VectorSource
from canopy_training.manifest import adapter_card
from canopy_training.settings import TrainSettings
from canopy_training.train import train

SHOWN: Final = ("decision_accuracy", "pruned", "recall", "kept_share")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table.

    Attributes:
        group: The part of the table.
        name: What was changed.
        figures: :data:`SHOWN`, 0 to 1.
        agreement: Share of fragments that are kept or dropped as by the group's first row; ``None`` where fragments
            are decided by other nodes.
        encode_s: Seconds that encoding and scoring took, one machine, in turn.
        train_s: Seconds that the row's training took; 0 without one.
    """

    group: str
    name: str
    figures: dict[str, float]
    agreement: float | None = None
    encode_s: float
    train_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Lab:
    """What rows are made from.

    Attributes:
        base: The base model.
        reader: The reader's tokenizer.
        adapters: The shipped adapters by node encoding.
        default: The node encoding of the serving rows.
        short: The node encoding of the short runs.
        questions: What rows are measured on.
        training: What short runs learn from.
        work: Folder for adapters and graphs that are made on the way.
        model_name: The base model's name.
    """

    base: Path
    reader: Path
    adapters: dict[NodeEncoding, Path]
    default: NodeEncoding
    short: NodeEncoding
    questions: list[Question]
    training: list[Question]
    work: Path
    model_name: str

    def setup(self, encoding: NodeEncoding, *, tuned: bool = True, branching: int = 2) -> Setup:
        """A local encoder."""
        adapter = self.adapters[encoding] if tuned else None
        return Setup(self.base, self.reader, adapter, encoding, branching, model_name=self.model_name)


Maker = Callable[[Lab], tuple[VectorSource, float]]


def makers() -> dict[str, dict[str, Maker]]:
    """Groups of rows; the first row of a group is what its others are compared with."""
    return {
        "encoder": {
            "contextual, tuned": lambda lab: (LocalSource(lab.setup("contextual")), 0.0),
            "contextual, frozen": lambda lab: (LocalSource(lab.setup("contextual", tuned=False)), 0.0),
            "separate, tuned": lambda lab: (LocalSource(lab.setup("separate")), 0.0),
            "separate, frozen": lambda lab: (LocalSource(lab.setup("separate", tuned=False)), 0.0),
        },
        "serving": {
            "as shipped (B = 2, float16 vectors, torch)": lambda lab: (LocalSource(lab.setup(lab.default)), 0.0),
            "B = 3": lambda lab: (LocalSource(lab.setup(lab.default, branching=3)), 0.0),
            "B = 4": lambda lab: (LocalSource(lab.setup(lab.default, branching=4)), 0.0),
            "no title in the nodes' text": lambda lab: (Untitled(LocalSource(lab.setup(lab.default))), 0.0),
            "cuts moved to line ends": lambda lab: (Boundaries(lab.setup(lab.default)), 0.0),
            "int8 vectors": lambda lab: (EightBits(LocalSource(lab.setup(lab.default))), 0.0),
            "ONNX, float32": lambda lab: (_onnx(lab, eight_bits=False), 0.0),
            "ONNX, int8 weights (dynamic)": lambda lab: (_onnx(lab, eight_bits=True), 0.0),
        },
        "training": {
            "short run": lambda lab: _trained(lab),
            "rank 4": lambda lab: _trained(lab, rank=4, alpha=8.0),
            "rank 64": lambda lab: _trained(lab, rank=64, alpha=128.0),
            "lambda 10": lambda lab: _trained(lab, scale=10.0),
            "lambda 40": lambda lab: _trained(lab, scale=40.0),
            "gold children weighted 2": lambda lab: _trained(lab, gold_weight=2.0),
            "gold children weighted 4": lambda lab: _trained(lab, gold_weight=4.0),
            "B = 3": lambda lab: _trained(lab, branching=3),
            "B = 4": lambda lab: _trained(lab, branching=4),
            "no title in the nodes' text": lambda lab: _untitled(lab),
        },
    }


def measure(lab: Lab, group: str, name: str, make: Maker, first: Sequence[ScoredQuestion]) -> tuple[Row, list[Any]]:
    """Measure one row; ``first`` are the scores of the group's first row, empty for that row itself."""
    source, train_s = make(lab)
    located, _ = locate_all(lab.questions)
    started = time.perf_counter()
    scored = score_questions(source, lab.questions, located)
    elapsed = time.perf_counter() - started
    over, under = count(scored).fractions()
    values = dict(zip(METRICS, (over.sum(axis=0) / under.sum(axis=0)).tolist(), strict=True))
    row = Row(
        group=group,
        name=name,
        figures={metric: round(values[metric], 4) for metric in SHOWN},
        agreement=_agreement(first, scored) if first else 1.0,
        encode_s=round(elapsed, 1),
        train_s=round(train_s, 1),
    )
    return row, scored


def _agreement(first: Sequence[ScoredQuestion], other: Sequence[ScoredQuestion]) -> float | None:
    """Share of fragments with one fate in both."""
    same = total = 0
    for mine, theirs in zip(first, other, strict=True):
        for a, b in zip(mine.items, theirs.items, strict=True):
            kept = [fragments_of(one.hierarchy, refine(one.hierarchy, one.scores)) for one in (a, b)]
            same += int((kept[0] == kept[1]).sum())
            total += len(kept[0])
    return round(same / total, 5)


def _onnx(lab: Lab, *, eight_bits: bool) -> VectorSource:
    from canopy_export.export import export_encoders

    setup = lab.setup(lab.default)
    repository = lab.work / "repository"
    export_encoders(
        lab.base, repository, adapter=setup.adapter, node_encoding=lab.default, name=lab.model_name,
        reader_tokenizer=lab.reader,
    )  # fmt: skip
    graph = repository / "node_encoder" / "1" / "model.onnx"
    if eight_bits:
        from onnxruntime.quantization import QuantType, quantize_dynamic

        small = lab.work / "int8.onnx"
        quantize_dynamic(graph, small, weight_type=QuantType.QInt8, per_channel=True)
        graph = small
    return Onnx(setup, graph)


def _trained(lab: Lab, **changes: Any) -> tuple[VectorSource, float]:
    """A short run with one setting changed, and its time."""
    settings = TrainSettings(node_encoding=lab.short, epochs=1, dev_instances=0, check_every=1_000_000)
    settings = msgspec.structs.replace(settings, **changes)
    source = read_source(lab.base, name=lab.model_name)
    trained = train(source, settings, lab.training, [])
    folder = lab.work / "adapter"
    trained.model.save(folder, lab.model_name)
    adapter_card(source, settings).save(folder)
    setup = replace(lab.setup(lab.short, branching=settings.branching), adapter=folder)
    return LocalSource(setup), trained.seconds


def _untitled(lab: Lab) -> tuple[VectorSource, float]:
    bare = [
        msgspec.structs.replace(q, items=tuple(msgspec.structs.replace(item, title="") for item in q.items))
        for q in lab.training
    ]
    source, seconds = _trained(replace(lab, training=bare))
    return Untitled(source), seconds
