"""Both clients over a transport without sockets: order, splitting, halving, retries, deadlines."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from client_fakes import FakeAioChannel, FakeChannel, FakeServer, Refused, text_item
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from canopy_backend.errors import (
    DeadlineExceeded,
    InvalidItem,
    InvalidRequest,
    LimitExceeded,
    Overloaded,
    ServerUnavailable,
)
from canopy_backend.items import TextItem
from canopy_backend.limits import Limits
from canopy_client import AsyncCanopyClient, CanopyClient, RetryPolicy
from canopy_client.jobs import plan

FAST = RetryPolicy(first_pause_s=0.001, max_pause_s=0.002)
Call = Callable[..., Any]


@pytest.fixture(params=["sync", "async"])
def call(request: pytest.FixtureRequest) -> Call:
    """``await call(server, "compress", ...)`` through either client."""

    async def run(server: FakeServer, method: str, *args: Any, **kwargs: Any) -> Any:
        client: Any
        if request.param == "sync":
            client = CanopyClient(retry=FAST, channel=FakeChannel(server))
        else:
            client = AsyncCanopyClient(retry=FAST, channel=FakeAioChannel(server))
        result = getattr(client, method)(*args, **kwargs)
        return await result if inspect.isawaitable(result) else result

    return run


async def test_evidence_comes_in_the_order_sent(call: Call) -> None:
    server = FakeServer()
    items = [text_item(name) for name in "cab"]
    evidence = await call(server, "compress", "q", items, trace=True, keep_tables_whole=True)
    assert [one.item_id for one in evidence] == ["c", "a", "b"]
    assert [node.outcome for node in evidence[0].trace.nodes] == ["split", "kept"]
    assert server.parameters[0].keys() == {"canopy_trace", "canopy_keep_tables_whole", "timeout"}


async def test_items_may_be_dicts(call: Call) -> None:
    (evidence,) = await call(FakeServer(), "compress", "q", [{"id": "a", "modality": "text", "text": "T.", "mine": 1}])
    assert evidence.text == "T."


async def test_nothing_to_do_makes_no_call(call: Call) -> None:
    server = FakeServer()
    assert await call(server, "compress", "q", []) == []
    assert await call(server, "index", []) == []
    assert (await call(server, "embed_query", [])).shape == (0, 0)
    assert server.requests == []


@pytest.mark.parametrize("query", ["", " \n\t", "\ud800"])
async def test_a_query_without_words_is_refused(call: Call, query: str) -> None:
    with pytest.raises(InvalidRequest, match="query"):
        await call(FakeServer(), "compress", query, [text_item("a")])
    with pytest.raises(InvalidRequest, match="query 1"):
        await call(FakeServer(), "embed_query", ["fine", query])


async def test_one_text_is_no_list_of_queries(call: Call) -> None:
    with pytest.raises(InvalidRequest, match="list of texts"):
        await call(FakeServer(), "embed_query", "fine")


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"id": "b", "modality": "song"}, "modality"),
        ({"modality": "text", "text": ""}, "id"),
        ("text", "expected an item or a dict"),
        ({"id": "b", "modality": "text", "text": object()}, "JSON"),
        ({"id": "a", "modality": "text", "text": ""}, "repeats the id of item 0"),
    ],
)
async def test_a_bad_item_is_named_before_it_is_sent(call: Call, bad: Any, words: str) -> None:
    server = FakeServer()
    with pytest.raises(InvalidItem, match=words) as caught:
        await call(server, "compress", "q", [text_item("a"), bad])
    assert caught.value.index == 1
    assert server.requests == []


async def test_large_calls_are_split_by_the_published_limits(call: Call) -> None:
    server = FakeServer(Limits(max_items=4, max_queries=3))
    items = [text_item(f"{n}") for n in range(11)]
    evidence = await call(server, "compress", "q", items)
    assert [one.item_id for one in evidence] == [item.id for item in items]
    assert sorted(len(request) for request in server.requests) == [3, 4, 4]
    indexed = await call(server, "index", items)
    assert [one.item for one in indexed] == items
    assert [one.tree for one in indexed] == [b"tree\0" + item.id.encode() for item in items]
    vectors = await call(server, "embed_query", ["a" * n for n in range(1, 8)])
    assert vectors.dtype == np.float32
    assert vectors[:, 0].tolist() == [1, 2, 3, 4, 5, 6, 7]


async def test_only_items_that_all_bring_trees_take_the_short_way(call: Call) -> None:
    server = FakeServer(Limits(max_items=2))
    trees = [replace(text_item(f"{n}"), tree=b"tree") for n in range(4)]
    await call(server, "compress", "q", [*trees, text_item("cold")])
    assert sorted(server.models) == ["compress", "compress_indexed", "compress_indexed"]
    await call(server, "compress", "q", [trees[0], text_item("cold")])
    assert server.models[-1] == "compress"


async def test_parts_with_too_many_rows_are_halved(call: Call) -> None:
    server = FakeServer(Limits(max_rows=10), rows_per_item=3)
    items = [text_item(f"{n}") for n in range(17)]
    evidence = await call(server, "compress", "q", items)
    assert [one.item_id for one in evidence] == [item.id for item in items]


async def test_one_item_over_a_limit_is_not_halved(call: Call) -> None:
    server = FakeServer(Limits(max_rows=2), rows_per_item=3)
    with pytest.raises(LimitExceeded) as caught:
        await call(server, "compress", "q", [text_item("a"), text_item("b")])
    assert (caught.value.name, caught.value.limit) == ("max_rows", 2)


async def test_a_bad_item_of_a_later_part_is_counted_in_the_whole_call(call: Call) -> None:
    server = FakeServer(Limits(max_items=4))
    items = [text_item(f"{n}") for n in range(10)]
    items[9] = text_item("bad")
    with pytest.raises(InvalidItem) as caught:
        await call(server, "compress", "q", items)
    assert (caught.value.index, caught.value.item_id, caught.value.field) == (9, "bad", "text")


@pytest.mark.parametrize("code", ["UNAVAILABLE", "RESOURCE_EXHAUSTED"])
async def test_refused_work_is_sent_again(call: Call, code: str) -> None:
    server = FakeServer()
    server.failures.extend([Refused(code, "busy")] * 3)
    assert len(await call(server, "compress", "q", [text_item("a")])) == 1
    assert len(server.timeouts) == 4


@pytest.mark.parametrize(("code", "kind"), [("UNAVAILABLE", ServerUnavailable), ("RESOURCE_EXHAUSTED", Overloaded)])
async def test_attempts_are_bounded(call: Call, code: str, kind: type[Exception]) -> None:
    server = FakeServer()
    server.failures.extend([Refused(code, "busy")] * 9)
    with pytest.raises(kind):
        await call(server, "compress", "q", [text_item("a")])
    assert len(server.timeouts) == FAST.attempts


@pytest.mark.parametrize("code", ["INVALID_ARGUMENT", "INTERNAL", "DEADLINE_EXCEEDED", "UNKNOWN", "CANCELLED"])
async def test_other_errors_are_final(call: Call, code: str) -> None:
    server = FakeServer()
    server.failures.extend([Refused(code, "no")] * 2)
    with pytest.raises(Exception, match="no"):
        await call(server, "compress", "q", [text_item("a")])
    assert len(server.timeouts) == 1


async def test_the_deadline_reaches_the_transport_and_the_scheduler(call: Call) -> None:
    server = FakeServer()
    await call(server, "compress", "q", [text_item("a")], deadline_s=500.0)
    assert server.timeouts[0] is not None
    assert 400 < server.timeouts[0] <= 500
    assert server.parameters[0]["timeout"] == "int64_param"


async def test_a_passed_deadline_sends_nothing(call: Call) -> None:
    server = FakeServer()
    with pytest.raises(DeadlineExceeded):
        await call(server, "compress", "q", [text_item("a")], deadline_s=0.0)
    assert server.timeouts == []


async def test_no_pause_outlasts_the_deadline() -> None:
    server = FakeServer()
    server.failures.extend([Refused("UNAVAILABLE", "busy")] * 9)
    client = CanopyClient(retry=RetryPolicy(first_pause_s=6000, max_pause_s=6000), channel=FakeChannel(server))
    with pytest.raises(ServerUnavailable):
        client.compress("q", [text_item("a")], deadline_s=600.0)
    assert len(server.timeouts) == 1


async def test_ready_is_a_real_inference(call: Call) -> None:
    server = FakeServer()
    assert await call(server, "ready")
    assert len(server.requests) == 1
    server.failures.extend([Refused("INTERNAL", "stub died")])
    assert not await call(server, "ready")


async def test_limits_are_read_from_the_server(call: Call) -> None:
    assert await call(FakeServer(Limits(max_items=7)), "limits") == Limits(max_items=7)


@pytest.mark.parametrize("url", ["", "http://localhost:8000", "https://x"])
def test_an_address_of_http_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match="host:port"):
        CanopyClient(url)


@given(st.lists(st.integers(0, 50), max_size=40), st.integers(1, 7), st.integers(1, 100))
def test_a_plan_covers_its_inputs_once_within_its_bounds(sizes: list[int], most: int, most_bytes: int) -> None:
    parts = plan(sizes, most=most, most_bytes=most_bytes)
    assert [place for part in parts for place in range(part.start, part.end)] == list(range(len(sizes)))
    for part in parts:
        assert 1 <= part.end - part.start <= most
        assert sum(sizes[part.start : part.end]) <= most_bytes or part.end - part.start == 1


def looped() -> dict[str, Any]:
    item: dict[str, Any] = {"modality": "text", "id": "a", "text": "x"}
    return item | {"more": [item.setdefault("self", item)]}


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (looped(), "cannot be written as JSON"),
        ({"modality": "text", "id": "a", "text": "x", "more": np.float64(1)}, "cannot be written as JSON"),
        (TextItem(id="a", text="\ud800"), "cannot be written as JSON"),
        (TextItem(id=["a"], text="x"), "item 1, field 'id': expected text, got list"),  # type: ignore[arg-type]
        (TextItem(id=b"a", text="x"), "item 1, field 'id': expected text, got bytes"),  # type: ignore[arg-type]
    ],
)
async def test_values_without_a_json_form_are_the_items_fault(call: Call, item: Any, words: str) -> None:
    with pytest.raises(InvalidItem, match=words) as caught:
        await call(FakeServer(), "compress", "why", [text_item("first"), item])
    assert caught.value.index == 1


@pytest.mark.parametrize("seconds", [1e9, 1e12, 1e300, float("inf")])
async def test_a_deadline_beyond_reach_is_none(call: Call, seconds: float) -> None:
    server = FakeServer()
    assert len(await call(server, "compress", "why", [text_item("a")], deadline_s=seconds)) == 1


@pytest.mark.parametrize("seconds", [float("nan"), "5"])
async def test_a_deadline_that_is_no_number_is_refused(call: Call, seconds: Any) -> None:
    with pytest.raises(InvalidRequest, match="is not a number of seconds"):
        await call(FakeServer(), "compress", "why", [text_item("a")], deadline_s=seconds)


def test_a_closed_client_is_told_as_an_error_of_the_project() -> None:
    client = CanopyClient("localhost:1", retry=FAST)
    client.close()
    client.close()
    with pytest.raises(InvalidRequest, match=r"localhost:1: .*closed"):
        client.compress("why", [text_item("a")])
    assert not client.ready()


def test_an_async_client_is_refused_in_a_second_event_loop() -> None:
    client = AsyncCanopyClient(retry=FAST, channel=FakeAioChannel(FakeServer()))
    assert len(asyncio.run(client.compress("why", [text_item("a")]))) == 1
    with pytest.raises(InvalidRequest, match="another event loop"):
        asyncio.run(client.compress("why", [text_item("a")]))
