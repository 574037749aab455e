"""Both clients against the real evidence server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from msgspec.structs import replace
from patience import PATIENCE_S, eventually

from canopy_backend.errors import DeadlineExceeded, InvalidItem, LimitExceeded, ServerUnavailable
from canopy_backend.items import Item, TableItem, TextItem
from canopy_backend.limits import Limits
from canopy_backend.sources import read_items
from canopy_client import AsyncCanopyClient, CanopyClient, RetryPolicy
from canopy_local.settings import StackSettings

pytestmark = pytest.mark.server

CORPUS = Path(__file__).resolve().parents[2] / "examples" / "corpus"
QUERY = "How high is the lighthouse that Ada Brannick designed?"


@pytest.fixture(scope="module")
def client(evidence_url: str) -> Iterator[CanopyClient]:
    with CanopyClient(evidence_url) as one:
        yield one


@pytest.fixture(scope="module")
def items() -> list[Item]:
    return [*read_items([CORPUS / "passages.jsonl"])][:7] + [*read_items([CORPUS / "tables"])][:1]


async def test_sync_and_async_say_the_same(client: CanopyClient, evidence_url: str, items: list[Item]) -> None:
    plain = client.compress(QUERY, items)
    assert [one.item_id for one in plain] == [item.id for item in items]
    async with AsyncCanopyClient(evidence_url) as other:
        assert [one.text for one in await other.compress(QUERY, items)] == [one.text for one in plain]
        assert await other.encoder() == client.encoder()
        assert await other.limits() == client.limits() == Limits()
        assert await other.sees_pixels() is client.sees_pixels() is False
        assert await other.ready()


def test_every_region_is_a_slice_of_its_item(client: CanopyClient, items: list[Item]) -> None:
    for item, evidence in zip(items, client.compress(QUERY, items), strict=True):
        if isinstance(item, TextItem):
            assert [item.text[one.start : one.end] for one in evidence.regions] == [r.text for r in evidence.regions]
        assert 0 < evidence.tokens_kept <= evidence.tokens_in


def test_a_trace_agrees_with_the_regions(client: CanopyClient, items: list[Item]) -> None:
    for evidence in client.compress(QUERY, items, trace=True):
        assert evidence.trace
        kept = [(node.first, node.last) for node in evidence.trace.nodes if node.outcome == "kept"]
        assert sorted(kept) == [(one.first, one.last) for one in evidence.regions]
        scores = {node.node: node.score for node in evidence.trace.nodes}
        for node in evidence.trace.nodes:
            if node.parent >= 0:
                assert (node.score >= scores[node.parent]) == (node.outcome != "dropped")


def test_indexed_items_compress_to_the_same_evidence(client: CanopyClient, items: list[Item]) -> None:
    cold = client.compress(QUERY, items)
    indexed = client.index(items)
    assert [one.item for one in indexed] == items
    warm = client.compress(QUERY, [replace(one.item, tree=one.tree) for one in indexed])
    assert [one.text for one in warm] == [one.text for one in cold]
    vectors = client.embed_query(["When was judo invented?", QUERY])
    assert vectors.shape == (2, client.encoder().dimension)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-3)
    best = max(indexed, key=lambda one: float(one.embedding @ vectors[0]))
    assert best.item.id == "canopy:text:judo"


def test_tables_are_kept_whole_on_request(client: CanopyClient, items: list[Item]) -> None:
    tables = [item for item in items if isinstance(item, TableItem)]
    assert all(one.whole for one in client.compress(QUERY, tables, keep_tables_whole=True))


def test_a_call_over_the_limit_is_split_and_keeps_its_order(client: CanopyClient) -> None:
    many = [TextItem(id=f"i{n}", text=f"Item {n} says so. It has number {n}.") for n in range(150)]
    evidence = client.compress("Which item has number 77?", many)
    assert [one.item_id for one in evidence] == [item.id for item in many]
    (alone,) = client.compress("Which item has number 77?", [many[77]])
    assert alone.text == evidence[77].text
    assert [one.score for one in alone.regions] == pytest.approx([one.score for one in evidence[77].regions], abs=1e-4)


def test_a_bad_item_far_behind_is_named_by_its_place(client: CanopyClient) -> None:
    many: list[Item] = [TextItem(id=f"i{n}", text="Fine.") for n in range(99)]
    many.append(TextItem(id="last", text="Fine.", tree=b"not a tree"))
    with pytest.raises(InvalidItem) as caught:
        client.compress("q", many)
    assert (caught.value.index, caught.value.item_id, caught.value.field) == (99, "last", "tree")
    long = TextItem(id="long", text="Word. " * 5000)
    with pytest.raises(LimitExceeded, match=r"item 1 \('long'\)"):
        client.compress("q", [many[0], long])
    assert client.ready()


async def test_many_calls_at_once_do_not_mix(evidence_url: str, items: list[Item]) -> None:
    async with AsyncCanopyClient(evidence_url) as client:
        queries = [f"What does item {n} tell of {items[n].title}?" for n in range(len(items))]
        alone = [(await client.compress(query, [item]))[0] for query, item in zip(queries, items, strict=False)]
        calls = (client.compress(query, [item]) for query, item in zip(queries, items, strict=False))
        together = [one for (one,) in await asyncio.gather(*calls)]
        assert [(one.item_id, one.text) for one in together] == [(one.item_id, one.text) for one in alone]


def test_deadlines_and_absent_servers(evidence_url: str, items: list[Item]) -> None:
    with CanopyClient(evidence_url) as client:
        client.limits()
        with pytest.raises(DeadlineExceeded):
            client.compress(QUERY, items, deadline_s=0.002)
    with CanopyClient("localhost:1", retry=RetryPolicy(attempts=2, first_pause_s=0.01)) as absent:
        with pytest.raises(ServerUnavailable, match="localhost:1"):
            absent.compress(QUERY, items)
        assert not absent.ready(deadline_s=1)


def test_work_that_nobody_waits_for_ends(client: CanopyClient, items: list[Item]) -> None:
    words = np.random.default_rng(5).integers(10_000, 99_999, (440, 90))
    sentences = ["He said " + " ".join(map(str, row)) for row in words.tolist()]
    started = time.monotonic()
    client.compress(QUERY, [TextItem(id="short", text=". ".join(sentences[400:]))], deadline_s=PATIENCE_S)
    tenth_s = time.monotonic() - started
    started = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        client.compress(QUERY, [TextItem(id="long", text=". ".join(sentences[:400]))], deadline_s=tenth_s / 2)
    assert client.ready(deadline_s=PATIENCE_S)
    assert time.monotonic() - started < 7 * tenth_s, "all of it takes ten of them"
    assert len(client.compress(QUERY, items)) == len(items)


def scraped(settings: StackSettings) -> dict[str, float]:
    """The server's series by name and labels."""
    text = httpx.get(f"http://127.0.0.1:{settings.metrics_port}/metrics", trust_env=False).text
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {series: float(value) for series, _, value in lines}


def scraped_at_rest(settings: StackSettings, enough: Callable[[dict[str, float]], bool]) -> dict[str, float]:
    """The series when there is enough in them and none of ours has changed for longer than models keep their sums."""
    seen: list[dict[str, float]] = []

    def rests() -> bool:
        seen.append(scraped(settings))
        ours = [{name: value for name, value in one.items() if name.startswith("canopy_")} for one in seen[-7:]]
        return len(ours) == 7 and all(one == ours[-1] for one in ours) and enough(seen[-1])

    eventually(rests, "the sums never came", pause_s=0.4)
    return seen[-1]


def test_every_stage_has_its_times_among_the_metrics(client: CanopyClient, stack: Any, items: list[Item]) -> None:
    stages = ("hierarchy", "planner", "tokenizer", "query_encoder", "node_encoder", "refinement", "tree_writer")
    before = scraped_at_rest(stack.settings, lambda _: True)
    trees = [replace(one.item, tree=one.tree) for one in client.index(items)]
    for _ in range(3):
        client.compress(QUERY, items)
    client.compress(QUERY, trees)
    client.embed_query(["A query that no other test has."])
    names = {stage: f'canopy_stage_seconds_count{{stage="{stage}"}}' for stage in stages}

    def every_stage(series: dict[str, float]) -> bool:
        return all(series.get(name, 0.0) > before.get(name, 0.0) for name in names.values())

    after = scraped_at_rest(stack.settings, every_stage)

    def grown(series: str) -> float:
        return after[series] - before.get(series, 0.0)

    counts = {stage: grown(name) for stage, name in names.items()}
    assert counts["refinement"] == 4
    assert counts["hierarchy"] == 3
    assert counts["planner"] == counts["tree_writer"] == 1
    assert counts["tokenizer"] == 2
    assert min(counts.values()) >= 1
    for stage in stages:
        buckets = [
            after[f'canopy_stage_seconds_bucket{{le="{le}",stage="{stage}"}}'] for le in ("0.001", "0.1", "+Inf")
        ]
        assert buckets == sorted(buckets)
        assert buckets[-1] == after[f'canopy_stage_seconds_count{{stage="{stage}"}}']
    tokens = [grown(f"canopy_tokens_{name}_total") for name in ("kept", "in")]
    assert 0 < tokens[0] <= tokens[1]
    # The server's own quantiles, of ensembles and of models that are not Python's too.
    version = 'model="compress_indexed",version="1",quantile="0.99"'
    assert after[f"nv_inference_request_summary_us{{{version}}}"] > 0
