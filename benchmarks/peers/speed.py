"""One contender of the load bench in a process of its own.

Reads jobs from standard input, writes times and what it keeps to standard output. Started by the bench in the peers'
environment; see :mod:`benchmarks.peers.protocol` for the lines.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.peers import arms
from benchmarks.peers.contenders import Contender, arm_of, contender
from benchmarks.peers.pieces import Peer, Pieces
from benchmarks.peers.protocol import AskedItem, Hello, Job, Timed
from benchmarks.peers.worker import PACKAGES, nltk_data, write_line

Answer = tuple[list[Pieces], list[list[int]]]


class StaticEncoder:
    """A model2vec model with the encoder's interface."""

    def __init__(self, folder: str) -> None:
        from model2vec import StaticModel

        self._model = StaticModel.from_pretrained(folder)

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Float32 ``[n, D]``, unit length."""
        found: npt.NDArray[np.float32] = self._model.encode(list(texts), show_progress_bar=False).astype(np.float32)
        return found


def main() -> None:
    """Do jobs until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="sentence-transformers folder, or that of the static model")
    parser.add_argument("--threads", type=int, default=1, help="threads of the encoder")
    parser.add_argument("--contender", required=True, help="which one")
    options = parser.parse_args()
    # What a library prints must not get between the lines.
    output = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    os.environ["NLTK_DATA"] = str(nltk_data())
    chosen = contender(options.contender)
    encoder = _encoder(chosen, options.model, options.threads)
    write_line(output, Hello(versions=_versions()))
    for line in sys.stdin:
        write_line(output, _do(json.loads(line), chosen, encoder))


def _encoder(chosen: Contender, model: str, threads: int) -> Any:
    if chosen.static:
        return StaticEncoder(model)
    from benchmarks.peers.encoder import Encoder

    return Encoder(model, threads, remember=False)


def _versions() -> dict[str, str]:
    found = {}
    for name in (*PACKAGES, "model2vec"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _peer(chosen: Contender, encoder: Any) -> Peer:
    """A peer of its own for each thread: some hold the texts of a call."""
    from benchmarks.peers import langchain
    from benchmarks.peers.llamaindex import LlamaIndex
    from benchmarks.peers.recomp import Recomp

    peer = arm_of(chosen).peer
    if peer == arms.LANGCHAIN:
        return langchain.LangChain(encoder, langchain.sentences)
    return LlamaIndex(encoder) if peer == arms.LLAMAINDEX else Recomp(encoder)


def _do(job: Job, chosen: Contender, encoder: Any) -> Timed:
    calls = [_call(job, chosen, encoder) for _ in range(job["at_once"])]
    seconds: list[float] = []
    answers: list[Answer] = []
    left = [job["repeats"]]
    lock = threading.Lock()

    def work(call: Callable[[], Answer]) -> None:
        while True:
            with lock:
                if left[0] <= 0:
                    return
                left[0] -= 1
            start = time.perf_counter()
            answer = call()
            took = time.perf_counter() - start
            with lock:
                seconds.append(took)
                answers[:] = [answer]

    start = time.perf_counter()
    if len(calls) == 1:
        work(calls[0])
    else:
        threads = [threading.Thread(target=work, args=(call,)) for call in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    elapsed = time.perf_counter() - start
    if len(seconds) != job["repeats"]:
        raise SystemExit(f"{job['repeats'] - len(seconds)} of {job['repeats']} calls of {chosen.name} failed")
    return _timed(seconds, elapsed, answers[0])


def _call(job: Job, chosen: Contender, encoder: Any) -> Callable[[], Answer]:
    """One call of a job, nothing remembered from the one before."""
    texts, question, items = job["texts"], job["question"], job["items"]
    if texts:
        return lambda: _encoded(encoder, texts)
    if chosen.arm is None:
        return lambda: _encoded(encoder, [question, *job["nodes"]])
    peer, arm = _peer(chosen, encoder), arm_of(chosen)
    return lambda: _compressed(peer, arm, chosen.knob, question, items)


def _encoded(encoder: Any, texts: Sequence[str]) -> Answer:
    vectors = encoder.encode(texts)
    vectors[1:] @ vectors[0]
    return [], []


def _compressed(peer: Peer, arm: arms.Arm, knob: float, question: str, items: Sequence[AskedItem]) -> Answer:
    pieces = peer.cut(items)
    kept, _ = peer.run(question, pieces, arm, knob)
    return pieces, kept


def _timed(seconds: list[float], elapsed: float, answer: Answer) -> Timed:
    pieces, kept = answer
    return Timed(
        seconds=seconds,
        elapsed=elapsed,
        pieces=[[list(span or (-1, -1)) for span in one.spans] for one in pieces],
        lost=[
            (item, piece, one.texts[piece])
            for item, one in enumerate(pieces)
            for piece, span in enumerate(one.spans)
            if span is None
        ],
        kept=kept,
    )


if __name__ == "__main__":
    main()
