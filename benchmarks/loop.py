"""What the loop itself costs a question, beside the language model, the search and the compression.

``python -m benchmarks.loop`` answers questions over stages that return at once and prints milliseconds a question: the
whole answer less the time inside the stages. Evidence is made of the example corpus and counted by the reader's
tokenizer where the local stack's model folder is here, so assembling prompts costs what it costs.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from canopy_backend.evidence import Evidence
from canopy_backend.items import Item
from canopy_backend.sources import read_items
from canopy_backend.tokenization import TokenCounter
from canopy_client import LoopOptions, Orchestrator
from canopy_client.assembly import Assembler
from canopy_client.critic import Critic
from canopy_client.llm import Completion, Message
from canopy_client.settings import Settings
from canopy_client.titles import TitleCritic
from canopy_client.whole import whole
from canopy_milvus import Hit

CORPUS: Final = Path("examples/corpus/passages.jsonl")
#: Milliseconds a question that the loop may cost.
AIM_MS: Final = 5.0
_K: Final = 10
#: Questions in front that do not count.
_WARM: Final = 10


class Clock:
    """Seconds spent inside the stages."""

    def __init__(self) -> None:
        self.inside = 0.0

    def add(self, started: float) -> None:
        """Count the time since ``started``."""
        self.inside += time.perf_counter() - started


class Stages:
    """Search, compression and language model that answer at once, on a clock."""

    name = "instant"

    def __init__(self, items: Sequence[Item], clock: Clock) -> None:
        self._clock = clock
        self._hits = [Hit(item=item, score=0.5, modality=item.modality) for item in items]
        self._evidence = {item.id: whole(item, 0.5, Assembler().count, trace=True) for item in items}
        self._round = itertools.count()

    async def search(self, query: str, k: int, **_: Any) -> list[Hit]:
        """Ten items, seven of them new in each round, as in a real follow-up."""
        started = time.perf_counter()
        first = (next(self._round) * (k - 3)) % (len(self._hits) - k)
        hits = self._hits[first : first + k]
        self._clock.add(started)
        return hits

    async def compress(self, query: str, items: Sequence[Item], **_: Any) -> list[Evidence]:
        """What was made of them before."""
        started = time.perf_counter()
        evidence = [self._evidence[item.id] for item in items]
        self._clock.add(started)
        return evidence

    async def generate(self, messages: Sequence[Message], *, schema: Any = None, **_: Any) -> Completion:
        """A verdict that asks for more, each time something else, or an answer."""
        started = time.perf_counter()
        fields = {"rationale": "One hop is there. " * 10, "answer": "none", "sufficient": "no"}
        wanted = f"the fact number {next(self._round)}"
        text = json.dumps(fields | {"missing": wanted, "query": wanted}) if schema else "It is so [1]."
        self._clock.add(started)
        return Completion(text)

    async def close(self) -> None:
        """Nothing."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Milliseconds a question of one arm: outside of the stages, and processor time, stages included."""

    name: str
    median_ms: float
    p99_ms: float
    cpu_ms: float
    rounds: float


def measure(name: str, items: Sequence[Item], questions: int, *, titles: bool = False, trace: bool = False) -> Measured:
    """Answer questions one after the other; the first few do not count."""
    clock = Clock()
    stages = Stages(items, clock)
    folder = Settings.load({}, {}).model_files()
    count = TokenCounter(folder / "tokenizer.json").count if folder is not None else None
    critic: Critic | None = TitleCritic(follow_ups=2) if titles else None
    options = LoopOptions(k=_K, trace=trace)

    def loop() -> Orchestrator:
        # A new one for each question: token counts are remembered, and two questions rarely share evidence.
        return Orchestrator(stages, stages, stages, critic=critic, options=options, assembler=Assembler(count=count))

    rows = asyncio.run(_answers(loop, clock, questions))
    times = np.array([row.seconds for row in rows]) * 1000
    cpu = np.array([row.cpu_seconds for row in rows]) * 1000
    rounds = float(np.mean([row.rounds for row in rows]))
    return Measured(name, float(np.median(times)), float(np.percentile(times, 99)), float(np.median(cpu)), rounds)


@dataclass(frozen=True, slots=True)
class _Row:
    """One question: seconds outside of the stages, and processor time in all."""

    seconds: float
    cpu_seconds: float
    rounds: int


async def _answers(loop: Callable[[], Orchestrator], clock: Clock, questions: int) -> list[_Row]:
    found = []
    for number in range(questions + _WARM):
        one = loop()
        clock.inside = 0.0
        started, cpu_started = time.perf_counter(), time.process_time()
        answer = await one.answer(f"Which towers did Ada Brannick draw, number {number}?", deadline_s=60)
        row = _Row(time.perf_counter() - started - clock.inside, time.process_time() - cpu_started, len(answer.rounds))
        if number >= _WARM:
            found.append(row)
    return found


def main(
    questions: Annotated[int, typer.Option(help="Questions of each arm.")] = 200,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Milliseconds a question that the loop costs beside its stages."""
    items = list(read_items([CORPUS]))
    gc.collect()
    arms = [
        measure("language model as critic", items, questions),
        measure("the same, with a trace", items, questions, trace=True),
        measure("titles as critic", items, questions, titles=True),
    ]
    if as_json:
        typer.echo(json.dumps([{name: getattr(arm, name) for name in arm.__slots__} for arm in arms], indent=2))
        return
    table = Table("arm", "rounds", "median ms", "p99 ms", "CPU ms", box=None, header_style="bold")
    for arm in arms:
        table.add_row(arm.name, f"{arm.rounds:.1f}", f"{arm.median_ms:.2f}", f"{arm.p99_ms:.2f}", f"{arm.cpu_ms:.2f}")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
