"""The same item gets the same regions whatever else is in the request, and whether its tree was made now or before."""

from __future__ import annotations

import random
from pathlib import Path

import grpc
import msgspec
import pytest
from tritonclient.grpc import service_pb2_grpc

from canopy_backend.evidence import Evidence
from canopy_backend.items import Item, encode_item
from canopy_backend.sources import read_items
from canopy_client import CanopyClient, codec
from canopy_client.codec import RequestOptions

pytestmark = pytest.mark.server

CORPUS = Path(__file__).resolve().parents[2] / "examples" / "corpus"
QUERY = "In which year was it opened, and who designed it?"


@pytest.fixture(scope="module")
def canopy(evidence_url: str):
    with CanopyClient(evidence_url, deadline_s=120) as client:
        yield client


@pytest.fixture(scope="module")
def items() -> list[Item]:
    found = list(read_items([CORPUS / "passages.jsonl", CORPUS / "tables.jsonl", CORPUS / "videos"]))
    random.Random(7).shuffle(found)
    assert len(found) >= 48
    return found


def kept(evidences: list[Evidence]) -> dict[str, list[tuple[int, int]]]:
    return {one.item_id: [(region.first, region.last) for region in one.regions] for one in evidences}


@pytest.fixture(scope="module")
def alone(canopy: CanopyClient, items: list[Item]) -> dict[str, list[tuple[int, int]]]:
    """The reference: eight items, each in a request of its own."""
    regions: dict[str, list[tuple[int, int]]] = {}
    for item in items[:8]:
        regions |= kept(canopy.compress(QUERY, [item]))
    return regions


def test_in_one_request(canopy: CanopyClient, items: list[Item], alone: dict) -> None:
    assert kept(canopy.compress(QUERY, items[:8])) == alone


def test_permuted(canopy: CanopyClient, items: list[Item], alone: dict) -> None:
    for seed in range(3):
        order = items[:8]
        random.Random(seed).shuffle(order)
        evidences = canopy.compress(QUERY, order)
        assert [one.item_id for one in evidences] == [item.id for item in order]
        assert kept(evidences) == alone


def test_among_forty_others(canopy: CanopyClient, items: list[Item], alone: dict) -> None:
    mixed = items[:48]
    random.Random(3).shuffle(mixed)
    together = kept(canopy.compress(QUERY, mixed))
    assert {item_id: together[item_id] for item_id in alone} == alone


def test_with_trees_and_half_with_trees(canopy: CanopyClient, items: list[Item], alone: dict) -> None:
    indexed = canopy.index(items[:8])
    trees = [msgspec.structs.replace(one.item, tree=one.tree) for one in indexed]
    assert kept(canopy.compress(QUERY, trees)) == alone
    half = [tree if place % 2 else item for place, (item, tree) in enumerate(zip(items[:8], trees, strict=True))]
    assert kept(canopy.compress(QUERY, half)) == alone


def test_repeated_and_with_a_cached_query(canopy: CanopyClient, items: list[Item], alone: dict) -> None:
    for _ in range(3):
        assert kept(canopy.compress(QUERY, items[:8])) == alone


def test_regions_are_the_items_own_words(canopy: CanopyClient, items: list[Item]) -> None:
    for item, evidence in zip(items[:48], canopy.compress(QUERY, items[:48]), strict=True):
        assert evidence.regions
        ends = [0]
        for region in evidence.regions:
            assert region.first >= ends[-1], "regions stand in source order and never overlap"
            ends.append(region.last)
            if item.modality == "text":
                assert region.text == item.text[region.start : region.end]
        assert evidence.tokens_kept <= evidence.tokens_in


def test_the_short_way_for_indexed_items_says_the_same_bytes(
    canopy: CanopyClient, evidence_url: str, items: list[Item]
) -> None:
    trees = [msgspec.structs.replace(one.item, tree=one.tree) for one in canopy.index(items[:24])]
    for trace in (False, True):
        request = codec.compress_request(
            QUERY, [encode_item(one) for one in trees], RequestOptions({"canopy_trace": trace})
        )
        with grpc.insecure_channel(evidence_url) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            answers = {}
            for model in ("compress", "compress_indexed"):
                request.model_name = model
                request.ClearField("outputs")
                reply = stub.ModelInfer(request, timeout=120)
                names = [output.name for output in reply.outputs]
                answers[model] = dict(zip(names, reply.raw_output_contents, strict=True))
        assert answers["compress"].keys() == {"EVIDENCE", "REGIONS", "SCORES", "TRACE"}
        assert answers["compress_indexed"] == answers["compress"]
        assert bool(answers["compress"]["TRACE"]) is trace
