"""The peers' own code beside the rule, in the environment that `make peers` makes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from benchmarks.peers.arms import ARMS, EVERYTHING
from benchmarks.peers.contenders import BEST, LANGCHAIN, LLAMAINDEX, NODES, SENTENCES
from benchmarks.peers.process import PYTHON, ROOT, Worker, worker
from benchmarks.peers.protocol import Asked, AskedItem, Job, Reply
from benchmarks.peers.report import Comparison
from canopy_export.example import example_model

pytestmark = pytest.mark.skipif(not PYTHON.is_file(), reason="no peers' environment: make peers")

TEXT = (
    "Ada Lovelace was born in London in 1815. She met Babbage at a party.  Her notes hold a program.\n"
    "Dr. Smith liked tea. The tea was warm. She died in 1852."
)
ROWS = ["| 1815 | birth of Ada Lovelace |", "| 1833 | first party |", "| 1852 | death |"]
TITLE = "Lives\n| year | event |\n| --- | --- |"


@pytest.fixture(scope="module")
def peers() -> Iterator[Worker]:
    with worker(PYTHON, example_model(), deadline=300) as started:
        yield started


@pytest.fixture(scope="module")
def reply(peers: Worker) -> Reply:
    items = [
        AskedItem(prefix="Ada Lovelace", text=TEXT, lines=[]),
        AskedItem(prefix=TITLE, text=None, lines=ROWS),
        AskedItem(prefix="Nothing", text="", lines=[]),
    ]
    return peers.ask(
        Asked(
            place=7,
            question="When was Ada Lovelace born?",
            timed=True,
            items=items,
            groups={"all": [0, 1, 2], "gold": [0]},
        )
    )


def kept(reply: Reply, arm: str, knob: float, group: str = "all") -> list[list[int]]:
    chosen = next(one for one in ARMS if one.name == arm)
    return reply["peers"][chosen.peer]["arms"][arm]["kept"][group][chosen.knobs.index(knob)]


def test_pieces_carry_their_places(reply: Reply) -> None:
    assert reply["place"] == 7
    for answer in reply["peers"].values():
        assert answer["lost"] == []
        assert answer["seconds"] > 0
        text, rows, nothing = answer["pieces"]
        assert rows == [[0, 1], [1, 2], [2, 3]]
        assert nothing == []
        assert all(start < end for start, end in text)
        assert all(before[1] <= after[0] for before, after in pairwise(text))
    sentences = [TEXT[start:end] for start, end in reply["peers"]["recomp"]["pieces"][0]]
    assert sentences[0] == "Ada Lovelace was born in London in 1815."
    assert sentences[3] == "Dr. Smith liked tea."
    assert reply["peers"]["langchain"]["pieces"][0] == reply["peers"]["recomp"]["pieces"][0]
    # The untrained splitter of LlamaIndex takes "Dr." for a sentence.
    assert [TEXT[slice(*span)] for span in reply["peers"]["llamaindex"]["pieces"][0][3:5]] == [
        "Dr.",
        "Smith liked tea.",
    ]


def test_every_arm_answers_at_every_setting_for_every_item(reply: Reply) -> None:
    for arm in ARMS:
        answer = reply["peers"][arm.peer]["arms"][arm.name]
        for group, n_items in (("all", 3), ("gold", 1)):
            assert len(answer["kept"][group]) == len(answer["refused"][group]) == len(arm.knobs)
            assert all(len(items) == n_items for items in answer["kept"][group])


def test_recomp_takes_the_best_of_all_items(reply: Reply) -> None:
    assert kept(reply, "recomp", 1) == [[0], [], []]
    assert sum(map(len, kept(reply, "recomp", 4))) == 4
    assert list(map(len, kept(reply, "recomp", EVERYTHING))) == [6, 3, 0]
    assert kept(reply, "recomp", 1, "gold") == [[0]]


def test_langchain_keeps_what_is_over_the_threshold(reply: Reply) -> None:
    assert kept(reply, "langchain_threshold", 0.9) == [[], [], []]
    assert [sorted(one) for one in kept(reply, "langchain_threshold", -1.0)] == [[0, 1, 2, 3, 4, 5], [0, 1, 2], []]
    sizes = [sum(map(len, one)) for one in reply["peers"]["langchain"]["arms"]["langchain_threshold"]["kept"]["all"]]
    assert sizes == sorted(sizes)
    assert sum(map(len, kept(reply, "langchain_k", 20))) == 9


def test_llamaindex_repeats_context_and_refuses_items(reply: Reply) -> None:
    count = len(reply["peers"]["llamaindex"]["pieces"][0])
    bare = kept(reply, "llamaindex_percentile_bare", 0.5)[0]
    assert len(bare) == len(set(bare)) == count // 2
    whole = kept(reply, "llamaindex_percentile", 1.0)[0]
    assert len(whole) > count  # what lies in two contexts is repeated
    assert set(whole) == set(range(count))
    # A share that rounds down to nothing keeps everything, out of order.
    assert sorted(kept(reply, "llamaindex_percentile_bare", 0.05)[0]) == list(range(count))
    answer = reply["peers"]["llamaindex"]["arms"]["llamaindex_threshold"]
    assert kept(reply, "llamaindex_threshold", 0.9) == [[], [], []]
    assert answer["refused"]["all"][0] == 3
    assert answer["refused"]["all"][-1] == 1  # nothing to keep of the empty text


def test_the_command_compares_and_writes(tmp_path: Path) -> None:
    gold = {"item_id": "ada", "kind": "answer", "span": [0, 10]}
    items = [
        {"id": "ada", "modality": "text", "title": "Ada", "text": TEXT},
        {"id": "lives", "modality": "table", "title": "Lives", "columns": ["y", "e"], "rows": [["1815", "birth"]] * 3},
    ]
    lines = [
        {"id": f"q{place}", "split": "dev", "question": question, "items": items, "gold": [gold]}
        for place, question in enumerate(("When was Ada Lovelace born?", "Who wrote notes?"))
    ]
    data = tmp_path / "few.jsonl"
    data.write_bytes(b"\n".join(map(msgspec.json.encode, lines)))
    out = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.peers.run", "--data", data, "--out", out, "--resamples", "200"],
        cwd=ROOT,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    comparison = msgspec.json.decode((out / "peers.json").read_bytes(), type=Comparison)
    assert comparison.questions == 2
    assert {one.arm for one in comparison.arms} == {arm.name for arm in ARMS}
    whole = next(one for one in comparison.own if one.system == "whole items" and one.mode == "all")
    best = next(one for one in comparison.arms if one.arm == "recomp" and one.mode == "all")
    assert best.recalls[-1] == 1.0
    assert (
        best.tokens[-1] == whole.tokens.value
    )  # both cut this text alike, so all sentences cost what all fragments do
    assert {one.name for one in comparison.timings} >= {"recomp", "the rule, frozen, separate"}
    assert (out / "peers.png").is_file()
    assert (out / "peers.md").read_text() in done.stdout + "\n"


@pytest.mark.parametrize("name", [LANGCHAIN, LLAMAINDEX, SENTENCES, NODES])
def test_a_contender_of_the_load_bench_does_its_jobs(name: str) -> None:
    items = [AskedItem(prefix="Lives", text=TEXT, lines=[]), AskedItem(prefix=TITLE, text=None, lines=ROWS)]
    job = Job(question="When was Ada born?", items=items, nodes=[TEXT, *ROWS], texts=[], repeats=3, at_once=1)
    with worker(
        PYTHON, example_model(), deadline=300, module="benchmarks.peers.speed", more=["--contender", name]
    ) as one:
        alone = one.time(job)
        together = one.time(Job(**{**job, "at_once": 2}))  # type: ignore[typeddict-item]
        texts = one.time(Job(**{**job, "texts": ["a", "b"], "repeats": 1}))  # type: ignore[typeddict-item]
    assert len(alone["seconds"]) == len(together["seconds"]) == 3
    assert alone["kept"] == together["kept"]
    assert texts["kept"] == []
    if name != NODES:
        assert len(alone["pieces"]) == 2
        kept = [place for one in alone["kept"] for place in one]
        assert 0 < len(kept) <= BEST
