"""Parts of the adapters that need no server: options, errors, queries, strings, the numpy check, tallies."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from canopy_backend import errors
from canopy_backend.errors import CODES, ExportError, InvalidItem, InvalidRequest, LimitExceeded
from canopy_backend.limits import Limits
from canopy_backend.tokenization import EncoderTokenizer
from canopy_backend.triton.backend import check_numpy
from canopy_backend.triton.errors import TRITON_CODES, describe
from canopy_backend.triton.items import read_items
from canopy_backend.triton.metrics import BUCKETS, Tally, stage_counts
from canopy_backend.triton.options import COMPRESS_OPTIONS, Options, parse_options
from canopy_backend.triton.queries import query_rows
from canopy_backend.triton.tensors import string_array, string_list, text
from canopy_client.status import error_from_status


def test_options_are_read_and_foreign_parameters_ignored() -> None:
    parameters = json.dumps({"priority": 3, "canopy_trace": True, "traceparent": "00-1"})
    assert parse_options(parameters, COMPRESS_OPTIONS) == Options(trace=True)
    assert parse_options("{}", COMPRESS_OPTIONS) == Options()
    assert parse_options('{"a": "canopy_"}', ()) == Options()


@pytest.mark.parametrize(
    ("parameters", "known", "words"),
    [
        ({"canopy_treshold": 1}, COMPRESS_OPTIONS, ["canopy_treshold", "canopy_trace", "canopy_keep_tables_whole"]),
        ({"canopy_trace": True}, (), ["canopy_trace", "none"]),
        ({"canopy_trace": "true"}, COMPRESS_OPTIONS, ["canopy_trace", "true nor false"]),
        ({"canopy_trace": 1}, COMPRESS_OPTIONS, ["canopy_trace", "1"]),
    ],
)
def test_other_options_are_refused_by_name(parameters: dict, known: tuple, words: list[str]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_options(json.dumps(parameters), known)
    assert all(word in str(caught.value) for word in words)


def test_every_error_has_a_code_of_the_server() -> None:
    known = {
        "UNKNOWN",
        "INTERNAL",
        "NOT_FOUND",
        "INVALID_ARG",
        "UNAVAILABLE",
        "UNSUPPORTED",
        "ALREADY_EXISTS",
        "CANCELLED",
    }
    assert set(CODES.values()) <= set(TRITON_CODES)
    assert set(TRITON_CODES.values()) <= set(known)
    assert TRITON_CODES[errors.code_of(InvalidItem("x"))] == "INVALID_ARG"
    assert TRITON_CODES[errors.code_of(ValueError("x"))] == "INTERNAL"


def test_messages_name_the_stage_and_keep_foreign_text_out() -> None:
    own = InvalidItem("is not there", index=3, item_id="a", field="text")
    assert describe(own, "hierarchy") == "hierarchy: item 3 ('a'), field 'text': is not there"
    secret = "a sentence of an item"
    with pytest.raises(KeyError) as caught:
        {}[secret]
    message = describe(caught.value, "planner")
    assert message.startswith("planner: unexpected KeyError")
    assert secret not in message


def test_strings_keep_every_byte() -> None:
    values = [b"", b"a\x00", "Ω 🎉".encode(), b"\xff"]
    array = string_array(values)
    assert array.dtype == np.object_
    assert string_list(array) == values
    assert string_array([]).shape == (0,)
    assert text("é".encode(), "query 0") == "é"
    with pytest.raises(InvalidRequest, match=r"query 1: not valid UTF-8 at byte 1"):
        text(b"a\xff", "query 1")


def test_a_request_without_items_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="ITEMS"):
        read_items(string_array([]), Limits())
    with pytest.raises(LimitExceeded, match="max_items=1"):
        read_items(string_array([b"{}", b"{}"]), Limits(max_items=1))


@pytest.mark.parametrize(
    ("numpy", "release", "fits"),
    [
        ("1.26.4", "", True),
        ("1.26.4", "24.10", True),
        ("2.4.6", "", False),
        ("2.0.0", "24.10", False),
        ("2.0.0", "25.11", False),
        ("2.4.6", "25.12", True),
        ("2.4.6", "26.07", True),
    ],
)
def test_numpy_2_is_refused_where_it_misreads_strings(numpy: str, release: str, fits: bool) -> None:
    if fits:
        check_numpy(numpy, release)
        return
    with pytest.raises(ExportError, match="numpy<2") as caught:
        check_numpy(numpy, release)
    assert numpy in str(caught.value)


def test_a_tally_adds_up_by_label() -> None:
    tally = Tally()
    for outcome in ("pruned", "whole", "pruned"):
        tally.add("canopy_items_total", modality="text", outcome=outcome)
    tally.add("canopy_nodes_total", 15)
    with tally.timed():
        pass
    assert tally.counts["canopy_items_total", (("modality", "text"), ("outcome", "pruned"))] == 2
    assert tally.counts["canopy_nodes_total", ()] == 15
    assert len(tally.seconds) == 1
    assert tally.seconds[0] >= 0


def test_times_become_cumulative_buckets() -> None:
    grown = stage_counts("planner", [0.0001, 0.0005, 0.3, 99.0])
    stage = ("stage", "planner")
    assert grown["canopy_stage_seconds_count", (stage,)] == 4
    assert grown["canopy_stage_seconds_sum", (stage,)] == pytest.approx(99.3006)
    buckets = {dict(labels)["le"]: amount for (name, labels), amount in grown.items() if name.endswith("_bucket")}
    assert list(buckets) == [*(f"{bound:g}" for bound in BUCKETS), "+Inf"]
    assert (buckets["0.00025"], buckets["0.0005"], buckets["0.25"], buckets["0.5"], buckets["+Inf"]) == (1, 2, 2, 3, 4)
    assert list(buckets.values()) == sorted(buckets.values())
    slow = stage_counts("planner", [3.0])
    assert ("canopy_stage_seconds_bucket", (stage, ("le", "2.5"))) not in slow, "what does not grow is not sent"
    assert stage_counts("planner", []) == {}


def test_adapters_import_without_the_server() -> None:

    assert "triton_python_backend_utils" not in sys.modules


def test_a_query_over_the_window_is_a_limit_that_clients_read_back(tmp_path: Path) -> None:
    model = WordLevel({"why": 0}, unk_token="why")
    words = Tokenizer(model)
    words.pre_tokenizer = Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(LimitExceeded) as caught:
        query_rows([b"why", b"why " * 9], EncoderTokenizer(tmp_path / "tokenizer.json", 8), Limits())
    seen = error_from_status("INVALID_ARGUMENT", describe(caught.value, "tokenizer"))
    assert isinstance(seen, LimitExceeded)
    assert (seen.actual, seen.limit, seen.name) == (9, 8, "window")
    assert "query 1: tokens" in str(seen)
