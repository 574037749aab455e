"""The contenders' processes, from the bench's side: started together, asked one at a time."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import numpy as np

from benchmarks.peers.contenders import CONTENDERS, SENTENCES, Contender
from benchmarks.peers.measures import as_asked, cut_item, measure
from benchmarks.peers.process import PYTHON, ROOT, Worker, worker
from benchmarks.peers.protocol import Job, Timed
from benchmarks.peers.serving import SERVERS, EmbeddingServer, Kind, NoServer, serving
from canopy_backend.fragments import fragment, renderer
from canopy_backend.hierarchy import balanced
from canopy_backend.items import Item
from canopy_backend.templates import node_text
from canopy_backend.tokenization import TokenCounter
from canopy_training.gold import Located

_SPEED: Final = "benchmarks.peers.speed"


class Rivals:
    """All contenders that can run here.

    Args:
        model: sentence-transformers folder that all of them read with.
        home: Folder for the distilled model and for logs.
        threads: Threads of every encoder.
        servers: Embedding servers to start.

    Attributes:
        names: Contenders that run.
        servers: Embedding servers that run, by name.
        absent: Those that do not, and why.
        versions: Of the peers' packages.
    """

    def __init__(self, model: Path, home: Path, *, threads: int, servers: Sequence[Kind] = SERVERS) -> None:
        self._model, self._home, self._threads, self._kinds = model, home, threads, servers
        self._stack = contextlib.ExitStack()
        self._workers: dict[str, Worker] = {}
        self.servers: dict[str, EmbeddingServer] = {}
        self.absent: dict[str, str] = {}
        self.versions: dict[str, str] = {}

    def __enter__(self) -> Self:
        try:
            self._home.mkdir(parents=True, exist_ok=True)
            if PYTHON.is_file():
                for one in CONTENDERS:
                    self._start(one)
            else:
                self.absent |= {one.label: "not installed: `make peers`" for one in CONTENDERS}
            for kind in self._kinds:
                self._serve(kind)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def names(self) -> list[str]:
        """The contenders that run."""
        return list(self._workers)

    def compress(self, name: str, question: str, items: Sequence[Item], *, repeats: int, at_once: int = 1) -> Timed:
        """Have a contender compress items."""
        nodes = node_texts(items) if name == "nodes" else []
        asked = [as_asked(item) for item in items]
        job = Job(question=question, items=asked, nodes=nodes, texts=[], repeats=repeats, at_once=at_once)
        return self._workers[name].time(job)

    def encode(self, texts: Sequence[str], *, repeats: int) -> list[float]:
        """Seconds of sentence-transformers for texts."""
        job = Job(question="", items=[], nodes=[], texts=list(texts), repeats=repeats, at_once=1)
        return self._workers[SENTENCES].time(job)["seconds"]

    def kept(
        self, name: str, question: str, items: Sequence[Item], located: dict[str, Located], counter: TokenCounter
    ) -> tuple[float, float, int]:
        """Tokens that a contender keeps of items, gold fragments left, and gold fragments."""
        answer = self.compress(name, question, items, repeats=1)
        lost: list[dict[int, str]] = [{} for _ in items]
        for item, piece, text in answer["lost"]:
            lost[item][piece] = text
        cut = [
            cut_item(
                item,
                fragment(item),
                located[item.id].gold if item.id in located else None,
                answer["pieces"][place],
                lost[place],
                counter,
            )
            for place, item in enumerate(items)
        ]
        measured = measure(cut, [answer["kept"]])
        return float(measured.tokens[0]), float(measured.left_any[0]), measured.gold_any

    def _start(self, one: Contender) -> None:
        model = self._static() if one.static else self._model
        started = worker(PYTHON, model, threads=self._threads, module=_SPEED, more=["--contender", one.name])
        self._workers[one.name] = self._stack.enter_context(started)
        self.versions |= self._workers[one.name].versions

    def _serve(self, kind: Kind) -> None:
        log = self._home / f"{kind.name}.log"
        try:
            server = self._stack.enter_context(serving(kind, self._model, threads=self._threads, log=log))
        except NoServer as error:
            self.absent[kind.label] = str(error)
        else:
            self.servers[kind.name] = server

    def _static(self) -> Path:
        """The static model of the base, distilled when it is not there."""
        folder = self._home / "model2vec"
        if not (folder / "model.safetensors").is_file():
            command = [str(PYTHON), "-m", "benchmarks.peers.distill", "--model", str(self._model), "--out", str(folder)]
            subprocess.run(command, cwd=ROOT, check=True, timeout=1800, capture_output=True)
        return folder


def node_texts(items: Sequence[Item]) -> list[str]:
    """The text of every node of every item, as the separate encoding reads it."""
    return [text for item in items for text in _nodes(item)]


def _nodes(item: Item) -> Iterator[str]:
    fragments = fragment(item)
    show, hierarchy = renderer(item, fragments), balanced(len(fragments))
    for first, last in zip(hierarchy.first.tolist(), hierarchy.last.tolist(), strict=True):
        yield node_text(item, show(first, last))


def p50_ms(timed: Timed) -> float:
    """Median of the calls, in milliseconds."""
    return float(np.median(timed["seconds"]) * 1000)
