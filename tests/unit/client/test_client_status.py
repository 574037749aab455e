"""Every status of the server becomes the error that the server meant."""

from __future__ import annotations

import grpc
import pytest

from canopy_backend.errors import (
    CODES,
    CanopyError,
    DeadlineExceeded,
    EncoderFailure,
    EncoderMismatch,
    InvalidItem,
    InvalidRequest,
    LimitExceeded,
    Overloaded,
    Restricted,
    ServerUnavailable,
)
from canopy_client.status import error_from_status, placeless, shifted


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        ("INVALID_ARGUMENT", "hierarchy: query: is empty", InvalidRequest),
        ("INVALID_ARGUMENT", str(InvalidItem("is odd", index=1, item_id="a", field="text")), InvalidItem),
        ("INVALID_ARGUMENT", str(LimitExceeded("x", actual=2, limit=1, name="max_items")), LimitExceeded),
        (
            "INVALID_ARGUMENT",
            "item ('a'), field 'tree': made by encoder aa, this server runs bb; index the item again",
            EncoderMismatch,
        ),
        (
            "INVALID_ARGUMENT",
            "in ensemble 'index', [request id: 5e1f] expected 4 inputs but got 3 inputs for model 'tree_writer'. Got "
            "input(s) ['PLAN','ITEMS','NODE_EMBEDDINGS'], but missing required input(s) ['ITEM_EMBEDDINGS'].",
            ServerUnavailable,
        ),
        ("INVALID_ARGUMENT", "expected 2 inputs but got 1 inputs for model 'compress'. Got ...", InvalidRequest),
        ("RESOURCE_EXHAUSTED", "queue", Overloaded),
        ("UNAVAILABLE", "failed to connect", ServerUnavailable),
        ("UNAVAILABLE", "Exceeds maximum queue size", Overloaded),
        ("UNAVAILABLE", "This protocol is restricted, expecting header 'triton-grpc-protocol-k'", Restricted),
        ("UNAVAILABLE", "Request timeout expired", DeadlineExceeded),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded", DeadlineExceeded),
        ("CANCELLED", "given up", DeadlineExceeded),
        ("CANCELLED", "CANCELLED", ServerUnavailable),
        ("UNAVAILABLE", "refinement: waited 1.59 s for its turn; the limit is 1 s (parameter max_wait_ms)", Overloaded),
        ("INTERNAL", "node_encoder: item 1 ('a'): the encoder returned values that are not finite", EncoderFailure),
        ("INTERNAL", "stub died", CanopyError),
        ("INTERNAL", "\u00b1", ServerUnavailable),
        ("INTERNAL", "in ensemble 'compress', Stub process 'refinement_0_0' is not healthy.", ServerUnavailable),
        ("INTERNAL", "refinement: item 1 ('Stub process x is not healthy.'): broke", CanopyError),
        (
            "INTERNAL",
            "Failed to process the request(s) for model 'planner_0_0', message: Failed to increase the shared memory "
            "pool size for key 'k' to 9 bytes. Error: No space left on device",
            ServerUnavailable,
        ),
        ("NOT_FOUND", "Request for unknown model: 'compress' has no available versions", ServerUnavailable),
        ("NOT_FOUND", "Request for unknown model: 'compres' is not found", CanopyError),
    ],
)
def test_code_and_message(code: str, message: str, kind: type[CanopyError]) -> None:
    assert type(error_from_status(code, message)) is kind


@pytest.mark.parametrize("code", [one.name for one in grpc.StatusCode if one is not grpc.StatusCode.OK])
@pytest.mark.parametrize("message", ["", "a message"])
def test_every_code_has_an_error_that_says_something(code: str, message: str) -> None:
    error = error_from_status(code, message)
    assert isinstance(error, CanopyError)
    assert str(error)
    if code in CODES.values():
        assert CODES[type(error)] == code


def test_an_item_is_read_back_from_its_message() -> None:
    told = InvalidItem("has 3 cells, the header has 2", index=12, item_id="it's (1)", field="rows[4]")
    error = error_from_status("INVALID_ARGUMENT", f"in ensemble 'compress', hierarchy: {told}")
    assert isinstance(error, InvalidItem)
    assert (error.index, error.item_id, error.field) == (12, "it's (1)", "rows[4]")
    assert error.reason == told.reason


def test_a_limit_is_read_back_from_its_message() -> None:
    told = LimitExceeded("item 3 ('a'): fragments", actual=5000, limit=4096, name="max_fragments")
    error = error_from_status("INVALID_ARGUMENT", f"in ensemble 'index', planner: {told}")
    assert isinstance(error, LimitExceeded)
    assert (error.actual, error.limit, error.name) == (5000, 4096, "max_fragments")
    moved = shifted(error, 10)
    assert isinstance(moved, LimitExceeded)
    assert "item 13 ('a')" in str(moved)
    assert (moved.actual, moved.name) == (5000, "max_fragments")


@pytest.mark.parametrize(
    ("what", "shown"),
    [("item 3 ('x.csv#0'): token rows", "item ('x.csv#0'): token rows"), ("windows of the items", None)],
)
def test_a_limit_without_its_place_keeps_the_items_name(what: str, shown: str | None) -> None:
    told = placeless(LimitExceeded(what, actual=1100, limit=1024, name="max_rows"))
    assert str(told) == f"{shown or what}: 1100 is over the limit max_rows=1024"
    assert (told.actual, told.limit, told.name) == (1100, 1024, "max_rows")


def test_grpc_refusing_a_message_is_a_limit() -> None:
    error = error_from_status("RESOURCE_EXHAUSTED", "CLIENT: Sent message larger than max (11 vs. 10)")
    assert isinstance(error, LimitExceeded)
    assert (error.actual, error.limit) == (11, 10)


def test_shifting_leaves_errors_without_an_item_alone() -> None:
    assert str(shifted(ServerUnavailable("gone"), 5)) == "gone"
    assert str(shifted(EncoderMismatch("item 2 ('a'): made"), 5)) == "item 7 ('a'): made"
    error = InvalidItem("odd")
    assert shifted(error, 5) is error
