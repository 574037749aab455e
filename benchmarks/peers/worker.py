"""The peers' worker: reads questions from standard input, writes what each peer keeps to standard output.

Started by the comparison in the peers' environment; see :mod:`benchmarks.peers.protocol` for the lines.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TextIO

from benchmarks.peers import arms
from benchmarks.peers.pieces import Peer, Pieces
from benchmarks.peers.protocol import ArmReply, Asked, Hello, PeerReply, Reply, Timed

PACKAGES: Final = (
    "torch",
    "sentence-transformers",
    "langchain-classic",
    "langchain-community",
    "langchain-core",
    "langchain-text-splitters",
    "llama-index-core",
    "nltk",
)


def main() -> None:
    """Answer questions until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="sentence-transformers folder")
    parser.add_argument("--threads", type=int, default=1, help="threads of the encoder")
    options = parser.parse_args()
    # What a library prints must not get between the lines.
    output = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    os.environ["NLTK_DATA"] = str(nltk_data())
    from benchmarks.peers.encoder import Encoder

    encoder = Encoder(options.model, options.threads)
    peers = _peers(encoder)
    write_line(output, Hello(versions={name: version(name) for name in PACKAGES}))
    for line in sys.stdin:
        asked: Asked = json.loads(line)
        replies = {name: _ask(peer, arms.arms_of(name), asked, encoder) for name, peer in peers.items()}
        write_line(output, Reply(place=asked["place"], peers=replies))


def nltk_data() -> Path:
    """The sentence data that LlamaIndex carries, which NLTK would fetch otherwise."""
    found = find_spec("llama_index.core")
    if found is None or not found.origin:
        raise SystemExit("llama-index-core is not installed: run `make peers`")
    return Path(found.origin).parent / "_static" / "nltk_cache"


def _peers(encoder: Any) -> dict[str, Peer]:
    from benchmarks.peers import langchain
    from benchmarks.peers.llamaindex import LlamaIndex
    from benchmarks.peers.recomp import Recomp

    return {
        arms.LANGCHAIN: langchain.LangChain(encoder, langchain.sentences),
        arms.LANGCHAIN_TITLED: langchain.LangChain(encoder, langchain.sentences, titled=True),
        arms.LANGCHAIN_CHUNKS: langchain.LangChain(encoder, langchain.chunks),
        arms.LLAMAINDEX: LlamaIndex(encoder),
        arms.RECOMP: Recomp(encoder),
        arms.RECOMP_TITLED: Recomp(encoder, titled=True),
    }


def _ask(peer: Peer, own: Sequence[arms.Arm], asked: Asked, encoder: Any) -> PeerReply:
    """One peer's reply: one setting with nothing remembered where its time is asked for, then all of them."""
    question, groups = asked["question"], asked["groups"]
    seconds = 0.0
    if asked["timed"]:
        encoder.forget()
        start = time.perf_counter()
        _first(peer, own[0], asked)
        seconds = time.perf_counter() - start
    pieces = peer.cut(asked["items"])
    return PeerReply(
        seconds=seconds,
        cut=encoder.cut([text for one in pieces for text in peer.encoded(one)]),
        pieces=[[list(span or (-1, -1)) for span in one.spans] for one in pieces],
        lost=[
            (item, piece, one.texts[piece])
            for item, one in enumerate(pieces)
            for piece, span in enumerate(one.spans)
            if span is None
        ],
        arms={arm.name: _sweep(peer, arm, question, pieces, groups) for arm in own},
    )


def _first(peer: Peer, arm: arms.Arm, asked: Asked) -> None:
    """One setting of an arm on the first group."""
    pieces = peer.cut(asked["items"])
    group = next(iter(asked["groups"].values()))
    peer.run(asked["question"], [pieces[item] for item in group], arm, arm.knobs[len(arm.knobs) // 2])


def _sweep(
    peer: Peer, arm: arms.Arm, question: str, pieces: Sequence[Pieces], groups: dict[str, list[int]]
) -> ArmReply:
    """All settings of one arm on all groups."""
    reply = ArmReply(kept={}, refused={})
    for name, places in groups.items():
        items = [pieces[place] for place in places]
        results = [peer.run(question, items, arm, knob) for knob in arm.knobs]
        reply["kept"][name] = [kept for kept, _ in results]
        reply["refused"][name] = [refused for _, refused in results]
    return reply


def write_line(output: TextIO, line: Hello | Reply | Timed) -> None:
    """Write one object as one line."""
    output.write(json.dumps(line, ensure_ascii=False) + "\n")
    output.flush()


if __name__ == "__main__":
    main()
