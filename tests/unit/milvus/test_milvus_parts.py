"""Filters, profiles, ranking, failures and schema, without a server."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pymilvus.client.prepare import Prepare
from pymilvus.exceptions import MilvusException

from canopy_backend.errors import (
    CanopyError,
    DeadlineExceeded,
    EncoderMismatch,
    InvalidRequest,
    Overloaded,
    RetrievalError,
    ServerUnavailable,
)
from canopy_milvus import connection, sizing
from canopy_milvus.failures import translate
from canopy_milvus.filters import build, quote
from canopy_milvus.profile import detect
from canopy_milvus.ranking import Candidate, fuse, merge
from canopy_milvus.schema import check_collection, check_name, definition, search_parameters


@given(st.text())
def test_a_literal_never_ends_early(value: str) -> None:
    literal = quote(value)
    inner = literal[1:-1]
    assert (literal[0], literal[-1]) == ('"', '"')
    assert not set(inner) & set("\n\r\t")
    back = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\"}
    out, place = [], 0
    while place < len(inner):
        if inner[place] == "\\":
            out.append(back[inner[place + 1]])
            place += 2
        else:
            assert inner[place] != '"'
            out.append(inner[place])
            place += 1
    assert "".join(out) == value


def test_filters_as_literals_and_as_templates() -> None:
    conditions = (("item_id", "not in", ['a"', "b"]), ("source", "==", "x\\y"))
    plain = build(*conditions, templates=False)
    assert plain.expression == r'item_id not in ["a\"", "b"] and source == "x\\y"'
    assert plain.arguments() == {"filter": plain.expression}
    template = build(*conditions, templates=True)
    assert template.expression == "item_id not in {p0} and source == {p1}"
    assert template.arguments()["filter_params"] == {"p0": ['a"', "b"], "p1": "x\\y"}
    assert build(templates=True).arguments() == {"filter": ""}


def test_the_driver_takes_the_template_values() -> None:
    arguments = build(("item_id", "in", ["a", "b"]), templates=True).arguments()
    request = Prepare.query_request("c", arguments["filter"], ["item_id"], [], expr_params=arguments["filter_params"])
    assert list(request.expr_template_values["p0"].array_val.string_data.data) == ["a", "b"]


@pytest.mark.parametrize(
    ("version", "kind", "bm25", "templates"),
    [
        ("milvus_lite-3.2.2", "lite", True, False),
        ("v2.3.5-lite", "server", False, False),
        ("2.4.1", "server", False, False),
        ("v2.5.0", "server", True, False),
        ("2.6.15", "server", True, True),
        ("3.0.1", "server", True, True),
    ],
)
def test_profiles(version: str, kind: str, bm25: bool, templates: bool) -> None:
    profile = detect(version)
    assert (profile.kind, profile.bm25, profile.templates) == (kind, bm25, templates)


@pytest.mark.parametrize("version", ["milvus_lite-3.1.0", "2.2.9", "", "unknown"])
def test_versions_that_are_not_supported(version: str) -> None:
    with pytest.raises(RetrievalError):
        detect(version)


def candidates(**scores: float) -> list[Candidate]:
    return [Candidate(name, "text", score) for name, score in scores.items()]


def test_merge_is_by_score_then_id_and_counts_an_id_once() -> None:
    lists = [candidates(b=0.5, a=0.5), [Candidate("a", "table", 0.9), Candidate("c", "table", 0.1)]]
    assert [(one.id, one.modality, one.score) for one in merge(lists, 3)] == [
        ("a", "table", 0.9),
        ("b", "text", 0.5),
        ("c", "table", 0.1),
    ]
    assert merge(lists, 1)[0].id == "a"


def test_fusion_rewards_agreement_and_survives_an_empty_list() -> None:
    dense, words = candidates(a=0.9, b=0.8, c=0.7), candidates(b=12.0, d=3.0)
    assert [one.id for one in fuse([dense, words], 4)] == ["b", "a", "d", "c"]
    assert [one.id for one in fuse([dense, []], 4)] == ["a", "b", "c"]
    assert fuse([[], []], 3) == []


class Failed(grpc.RpcError):
    def __init__(self, status: grpc.StatusCode) -> None:
        self._status = status

    def code(self) -> grpc.StatusCode:
        return self._status

    def details(self) -> str:
        return "told by the server"


EXPECTED = {
    grpc.StatusCode.UNAVAILABLE: ServerUnavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Overloaded,
}


@pytest.mark.parametrize("status", list(grpc.StatusCode))
@pytest.mark.parametrize("form", ["bare", "code", "cause"])
def test_every_grpc_status_has_an_error(status: grpc.StatusCode, form: str) -> None:
    error: Exception = Failed(status)
    if form == "code":
        error = MilvusException(status, "told by the server")
    elif form == "cause":
        error = MilvusException(2, "told by the server")
        error.__cause__ = Failed(status)
    found = translate(error, action="search", address="here")
    assert type(found) is EXPECTED.get(status, RetrievalError)
    assert "search at here" in str(found)


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        (2, "Fail connecting", ServerUnavailable),
        (1, "service not ready[proxy]", ServerUnavailable),
        (4, "too many", Overloaded),
        (8, "rate", Overloaded),
        (100, "no", RetrievalError),
        (101, "not loaded", ServerUnavailable),
        (103, "not fully loaded", ServerUnavailable),
        (1100, "length exceeds", RetrievalError),
        (1, "[search] Retry timeout: 3s", DeadlineExceeded),
        (1, "[load_collection] Retry timeout: 3s, message=[wait_for_loading_collection] Retry", ServerUnavailable),
    ],
)
def test_milvus_codes(code: int, message: str, kind: type[CanopyError]) -> None:
    assert type(translate(MilvusException(code, message), action="a", address="b")) is kind


def test_what_is_not_implemented_is_named_so() -> None:
    error = translate(Failed(grpc.StatusCode.UNIMPLEMENTED), action="a", address="b")
    assert "not supported by this profile" in str(error)


DESCRIPTION = {
    "collection_name": "c_text_v1",
    "fields": [{"name": "dense"}, {"name": "bm25"}],
    "properties": {
        "canopy.revision": "aa",
        "canopy.dimension": "4",
        "canopy.profile": "lite",
        "canopy.index": "FLAT",
    },
}
LITE = detect("milvus_lite-3.2.2")


def test_a_collection_is_compared_before_it_is_used() -> None:
    assert check_collection(DESCRIPTION, LITE, dimension=4, revision="aa") == ("FLAT", True)
    with pytest.raises(EncoderMismatch, match=r"aa with 4 dimensions.*bb with 4"):
        check_collection(DESCRIPTION, LITE, dimension=4, revision="bb")
    with pytest.raises(EncoderMismatch, match=r"aa with 4 dimensions.*aa with 8"):
        check_collection(DESCRIPTION, LITE, dimension=8, revision="aa")
    with pytest.raises(RetrievalError, match=r"'lite'.*'server'"):
        check_collection(DESCRIPTION, detect("2.6.1"), dimension=4, revision="aa")
    with pytest.raises(RetrievalError, match="not made by this project"):
        check_collection(DESCRIPTION | {"properties": {}}, LITE, dimension=4, revision="aa")


@pytest.mark.parametrize(("version", "words"), [("2.3.5", False), ("2.6.15", True)])
def test_words_are_indexed_where_the_server_can(version: str, words: bool) -> None:
    made = definition(detect(version), dimension=4, revision="aa", index="HNSW")
    names = [field.name for field in made["schema"].fields]
    assert ("bm25" in names, "text" in names) == (words, words)
    assert made["properties"]["canopy.dimension"] == "4"


def test_an_approximate_index_looks_at_more_than_it_returns() -> None:
    assert search_parameters("HNSW", 100)["ef"] == 200
    assert search_parameters("DISKANN", 5)["search_list"] == 100
    assert search_parameters("FLAT", 5) == {}


@pytest.mark.parametrize("name", ["", "1a", "a-b", "a b", "日", "x" * 101, "a;drop"])
def test_names_that_milvus_would_not_take(name: str) -> None:
    with pytest.raises(InvalidRequest):
        check_name(name)


def test_the_driver_is_imported_although_the_variable_names_a_folder(tmp_path: object) -> None:
    code = "import canopy_milvus.driver, os; print(os.environ['MILVUS_URI'])"
    environment = os.environ | {"MILVUS_URI": f"{tmp_path}/corpus"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{tmp_path}/corpus"


def test_handling_indexed_items_does_not_load_the_driver() -> None:
    code = "import sys; from canopy_milvus import IndexedItem; assert 'pymilvus' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_sizes_agree_with_the_arithmetic(capsys: pytest.CaptureFixture[str]) -> None:
    needs = {need.name: need.memory_bytes / 1e9 for need in sizing.index_needs(33e6, 2048)}
    assert needs["FLAT"] == pytest.approx(270.3, abs=0.1)
    assert needs["HNSW"] - needs["FLAT"] == pytest.approx(7.9, abs=0.1)
    assert needs["DISKANN"] == pytest.approx(33.8 + 27.0, abs=0.1)
    assert needs["IVF_RABITQ + SQ8"] == pytest.approx(76.0, abs=0.2)
    sizing.main(["--rows", "33e6", "--dimension", "2048"])
    assert "33,000,000 items, 2048 dimensions" in capsys.readouterr().out


def test_a_folder_in_this_process_is_not_pinged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    channel: dict[str, int] = {}

    def refuse(uri: str, *, grpc_options: dict[str, int], **options: object) -> None:
        channel.update(grpc_options)
        raise MilvusException(message="seen")

    monkeypatch.setattr(connection, "MilvusClient", refuse)
    monkeypatch.setattr(connection, "_open_folder", lambda folder: "http://127.0.0.1:1")
    monkeypatch.setattr(connection, "_close_folder", lambda folder: None)
    with pytest.raises(RetrievalError, match="seen"):
        connection.Connection(str(tmp_path), "", time.monotonic() + 5)
    assert channel["grpc.keepalive_time_ms"] == 2**31 - 1  # gRPC's word for never
    assert channel["grpc.keepalive_permit_without_calls"] == 0
    assert channel["grpc.enable_http_proxy"] == 0
