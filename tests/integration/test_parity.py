"""The gate of an export on the example corpus: torch, ONNX Runtime and the server keep the same regions.

It is run for both node encodings, each with its own adapter; the one that is not the default gets its own server.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from canopy_backend.items import Item
from canopy_backend.manifest import EncoderManifest
from canopy_backend.sources import read_items
from canopy_client import CanopyClient
from canopy_export.example import EXAMPLE_ENCODING, example_adapter, example_model
from canopy_export.parity import OnnxEncoders, Outcome, TorchEncoders, compare, run_encoders, run_endpoint
from canopy_local.isolation import isolated
from canopy_local.settings import StackSettings
from canopy_local.stack import running

pytestmark = pytest.mark.server

ROOT = Path(__file__).resolve().parents[2]
CORPUS = ROOT / "examples" / "corpus"


@pytest.fixture(scope="module", params=["separate", "contextual"])
def served(request: pytest.FixtureRequest, stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StackSettings]:
    """Settings of a running evidence server with this node encoding."""
    if request.param == EXAMPLE_ENCODING:
        stack.need("evidence")
        yield stack.settings
        return
    folder = tmp_path_factory.mktemp(request.param)
    shutil.copytree(stack.settings.model_repository, folder / "repository")
    settings = msgspec.structs.replace(
        isolated(stack.settings, folder / "home"), model_repository=folder / "repository", node_encoding=request.param
    )
    with running(settings, servers=["evidence"]):
        yield settings


@pytest.fixture(scope="module")
def repository(served: StackSettings) -> Path:
    return served.model_repository


@pytest.fixture(scope="module")
def items() -> list[Item]:
    return [msgspec.structs.replace(item, tree=None) for item in read_items([CORPUS])]


@pytest.fixture(scope="module")
def queries() -> list[str]:
    lines = (ROOT / "examples" / "questions.jsonl").read_bytes().splitlines()
    return [msgspec.json.decode(line)["question"] for line in lines if line.strip()]


@pytest.fixture(scope="module")
def reference(repository: Path, items: list[Item], queries: list[str]) -> Outcome:
    adapter = example_adapter(EncoderManifest.load(repository / "node_encoder").node_encoding)
    return run_encoders(TorchEncoders(example_model(), adapter), repository, queries, items)


def test_the_exported_graphs_decide_as_torch_does(
    reference: Outcome, repository: Path, items: list[Item], queries: list[str]
) -> None:
    parity = compare(reference, run_encoders(OnnxEncoders(repository), repository, queries, items))
    parity.require("ONNX Runtime")
    assert parity.decisions == len(items) * len(queries)


def test_the_server_decides_as_torch_does(
    reference: Outcome, served: StackSettings, items: list[Item], queries: list[str]
) -> None:
    with CanopyClient(f"127.0.0.1:{served.grpc_port}", deadline_s=600) as client:
        indexed = run_endpoint(client, served.model_repository, queries, items)
        precision = EncoderManifest.load(served.model_repository / "node_encoder").precision
        compare(reference, indexed, precision).require("the server")
        # Without trees the server encodes the items for this request; a few are enough, as vectors were compared above.
        chosen = range(0, len(items), 6)
        for index, evidence in zip(
            chosen, client.compress(queries[0], [items[index] for index in chosen]), strict=True
        ):
            assert tuple((region.first, region.last) for region in evidence.regions) == indexed.kept[0, index]
