"""``python -m benchmarks.peers.run``: the method beside its peers on annotated questions."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from benchmarks.peers.collect import Collected, collect
from benchmarks.peers.compare import Draw, arm_results, own_results
from benchmarks.peers.process import PYTHON, worker
from benchmarks.peers.report import PAGE_FILE, Comparison, Timing
from canopy_backend.manifest import file_sha256
from canopy_backend.tokenization import TokenCounter
from canopy_client.settings import Settings
from canopy_export.example import EXAMPLE_NAME, example_model
from canopy_training.data import Question, first_of_each, read_questions
from canopy_training.evaluation.bootstrap import RESAMPLES
from canopy_training.evaluation.local import LocalSource, Setup, settle
from canopy_training.evaluation.scoring import ScoredQuestion, locate_all, score_questions, shared, unique_items

#: Questions between two lines of progress.
_STEP = 25


def main() -> None:
    """Score the questions, put them to the peers, compare, write."""
    options = _options()
    torch.set_num_threads(options.threads)
    questions = first_of_each(read_questions(options.data, options.split or None), options.limit)
    base = options.base or example_model()
    model = Settings.load().model_files()
    reader = options.reader_tokenizer or (model / "tokenizer.json" if model else base / "tokenizer.json")
    sources = _sources(options, base, reader)
    systems, timings = _score(sources, questions)
    with worker(options.python, base, threads=options.threads) as peers:
        first = next(iter(systems.values()))
        collected = collect(peers, first, questions, TokenCounter(reader), options.timed, _progress(len(first)))
        versions = peers.versions
    draw = Draw(options.resamples, options.seed)
    comparison = Comparison(
        command=shlex.join(["python", "-m", "benchmarks.peers.run", *sys.argv[1:]]),
        seed=options.seed,
        resamples=options.resamples,
        threads=options.threads,
        versions=versions,
        files={file.name: file_sha256(file) for file in options.data},
        split=options.split,
        questions=len(next(iter(systems.values()))),
        cards=[source.card for source in sources],
        own=own_results(systems, draw),
        arms=arm_results(collected, systems, draw),
        timings=timings + _timings(collected),
    )
    comparison.save(options.out)
    print((options.out / PAGE_FILE).read_text(encoding="utf-8"))


def _sources(options: argparse.Namespace, base: Path, reader: Path) -> list[LocalSource]:
    """The frozen encoder, and the tuned one where an adapter is given."""
    encoding, branching = settle(base, options.adapter, options.node_encoding, options.branching)
    adapters = [None, options.adapter] if options.adapter is not None and options.frozen else [options.adapter]
    name = None if options.base else EXAMPLE_NAME
    return [LocalSource(Setup(base, reader, adapter, encoding, branching, model_name=name)) for adapter in adapters]


def _score(
    sources: Sequence[LocalSource], questions: Sequence[Question]
) -> tuple[dict[str, list[ScoredQuestion]], list[Timing]]:
    """The questions scored by each encoder, by its name, and the time that each took."""
    located, lost = locate_all(questions)
    for line in lost:
        print(f"no place: {line}", file=sys.stderr)
    found, timings = [], []
    for source in sources:
        print(f"{source.card.name}: encoding", file=sys.stderr, flush=True)
        start = time.perf_counter()
        found.append(score_questions(source, questions, located))
        seconds = time.perf_counter() - start
        name = f"the rule, {source.card.name}, {source.card.node_encoding}"
        timings.append(Timing(name=name, items=len(unique_items(questions)), seconds=seconds))
        for what, reasons in (("item", source.omissions.items), ("question", source.omissions.queries)):
            for one, reason in reasons.items():
                print(f"left out: {what} {one:.80}: {reason}", file=sys.stderr)
    names = [source.card.name for source in sources]
    return dict(zip(names, shared(found), strict=True)), timings


def _progress(total: int) -> Callable[[int], None]:
    done = 0
    start = time.perf_counter()

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if done % _STEP == 0 or done == total:
            seconds = time.perf_counter() - start
            left = seconds / done * (total - done)
            line = f"peers: {done} of {total} questions, {seconds:.0f} s, about {left:.0f} s left"
            print(line, file=sys.stderr, flush=True)

    return advance


def _timings(collected: Collected) -> list[Timing]:
    return [
        Timing(name=name, items=one.timed, seconds=one.seconds, pieces=one.pieces, cut=one.cut, lost=one.lost)
        for name, one in collected.efforts.items()
    ]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.run", description=__doc__)
    parser.add_argument("--data", type=Path, nargs="+", action="extend", required=True, help="data files")
    parser.add_argument("--split", default="dev", help="split to compare on; empty for all questions")
    parser.add_argument("--limit", type=int, help="only so many questions of each data set")
    parser.add_argument("--out", type=Path, required=True, help="folder for peers.json, peers.md and peers.png")
    parser.add_argument("--base", type=Path, help="sentence-transformers folder of all; by default all-MiniLM-L6-v2")
    parser.add_argument("--adapter", type=Path, help="LoRA adapter folder of the method's node encoder")
    parser.add_argument("--no-frozen", dest="frozen", action="store_false", help="only with the adapter")
    parser.add_argument("--node-encoding", choices=["separate", "contextual"], help="by default as the adapter's")
    parser.add_argument("--branching", type=int, help="most children of a node; by default as the adapter's")
    parser.add_argument("--reader-tokenizer", type=Path, help="tokenizer.json of the reader; by default the stack's")
    parser.add_argument("--python", type=Path, default=PYTHON, help="interpreter of the peers' environment")
    parser.add_argument("--timed", type=int, default=5, help="questions of each data set on which peers are timed")
    parser.add_argument("--threads", type=int, default=1, help="threads of every encoder")
    parser.add_argument("--seed", type=int, default=0, help="of the bootstrap")
    parser.add_argument("--resamples", type=int, default=RESAMPLES, help="of the bootstrap")
    return parser.parse_args()


if __name__ == "__main__":
    main()
