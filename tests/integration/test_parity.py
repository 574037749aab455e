"""The gate of an export on the example corpus: torch, ONNX Runtime and the server keep the same regions."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from canopy_backend.items import Item
from canopy_backend.sources import read_items
from canopy_client import CanopyClient
from canopy_export.command import example_model
from canopy_export.parity import OnnxEncoders, Outcome, TorchEncoders, compare, run_encoders, run_endpoint

pytestmark = pytest.mark.server

ROOT = Path(__file__).resolve().parents[2]
CORPUS = ROOT / "examples" / "corpus"


@pytest.fixture(scope="module")
def repository(stack) -> Path:
    stack.need("evidence")
    return stack.settings.model_repository


@pytest.fixture(scope="module")
def items() -> list[Item]:
    return [msgspec.structs.replace(item, tree=None) for item in read_items([CORPUS])]


@pytest.fixture(scope="module")
def queries() -> list[str]:
    lines = (ROOT / "examples" / "questions.jsonl").read_bytes().splitlines()
    return [msgspec.json.decode(line)["question"] for line in lines if line.strip()]


@pytest.fixture(scope="module")
def reference(repository: Path, items: list[Item], queries: list[str]) -> Outcome:
    return run_encoders(TorchEncoders(example_model()), repository, queries, items)


def test_the_exported_graphs_decide_as_torch_does(
    reference: Outcome, repository: Path, items: list[Item], queries: list[str]
) -> None:
    parity = compare(reference, run_encoders(OnnxEncoders(repository), repository, queries, items))
    parity.require("ONNX Runtime")
    assert parity.decisions == len(items) * len(queries)


def test_the_server_decides_as_torch_does(
    reference: Outcome, repository: Path, items: list[Item], queries: list[str], evidence_url: str
) -> None:
    with CanopyClient(evidence_url, deadline_s=600) as client:
        compare(reference, run_endpoint(client, repository, queries, items)).require("the server")
        # Without trees the server encodes the items for this request; a few are enough, as vectors were compared above.
        for index, evidence in enumerate(client.compress(queries[0], items[:8])):
            assert tuple((region.first, region.last) for region in evidence.regions) == reference.kept[0, index]
