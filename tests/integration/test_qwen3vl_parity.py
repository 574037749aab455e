"""The parity chain on 200 trees: torch with its adapter, merged, the served files, and the endpoint that runs them.

``python -m benchmarks.parity`` prints the same links as a table. Where the CPU lacks a reduced precision, OpenVINO
computes in float32 on the same files with their reduced weights, and the limits are the same.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import onnx
import pytest

from benchmarks.parity.chain import MIN_COSINE, Torch, Work, link, run_apart, run_files, run_together
from benchmarks.parity.model import parity_model
from benchmarks.parity.page import measured, page
from benchmarks.parity.serve import serving
from benchmarks.parity.trees import QUERIES, trees
from canopy_backend.errors import ExportError
from canopy_backend.items import has_pictures
from canopy_backend.manifest import Precision, VisionManifest
from canopy_backend.triton.artefacts import load_pair, load_vision
from canopy_client import CanopyClient
from canopy_export.export import export_encoders
from canopy_export.parity import Outcome, compare

pytestmark = pytest.mark.server

WORK = Work(QUERIES, trees())


@dataclass(frozen=True)
class Served:
    """A running server, and what torch makes of the same model.

    Attributes:
        precision: Of its graphs.
        repository: What it serves.
        url: Its gRPC address.
        reference: Torch in float32, the adapter switched on.
        torch: The model in torch.
    """

    precision: Precision
    repository: Path
    url: str
    reference: Outcome
    torch: Torch


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return parity_model(tmp_path_factory.mktemp("parity"))


@pytest.fixture(scope="module")
def references() -> dict[Path, Outcome]:
    """Torch's outcome of each model, so that both servers are compared with one."""
    return {}


@pytest.fixture(scope="module", params=["fp32", "fp16", "bf16"])
def served(
    request: pytest.FixtureRequest,
    stack,
    model: tuple[Path, Path],
    references: dict[Path, Outcome],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Served]:
    folder: Path = tmp_path_factory.mktemp(request.param)
    with serving(stack.settings, folder, *model, request.param) as settings:
        torch = Torch(*model, settings.model_repository)
        if model[0] not in references:
            references[model[0]] = torch.run(WORK, merged=False)
        url = f"127.0.0.1:{settings.grpc_port}"
        yield Served(request.param, settings.model_repository, url, references[model[0]], torch)


def require(name: str, served: Served, actual: Outcome) -> None:
    found = link(name, served.precision, served.reference, actual, WORK)
    print(f"\n{found}")
    assert found.decisions == 2 * 200
    if served.precision == "fp32":
        assert found.verdict == "kept", found
        return
    # Reduced arithmetic decides ties, of which random weights make many, and processors round differently; what is no
    # tie must agree all the same.
    assert found.cosine >= MIN_COSINE[served.precision], found
    assert found.equal + found.tied >= 0.99 * found.decisions, found


def test_the_trees_are_of_four_modalities_and_most_decisions_divide_them(served: Served) -> None:
    kinds = Counter(type(item).__name__ for item in WORK.items)
    assert kinds == {"TextItem": 50, "TableItem": 50, "ImageItem": 50, "VideoItem": 50}
    assert sum(has_pictures(item) for item in WORK.items) == 80
    assert sum(len(runs) > 1 for runs in served.reference.kept.values()) > 40


def test_merging_the_adapter_changes_nothing(served: Served) -> None:
    require("merged", served, served.torch.run(WORK, merged=True, precision=served.precision))


def test_the_served_files_decide_as_torch_does(served: Served) -> None:
    require("files", served, run_files(served.repository, WORK))


def test_company_and_padding_change_nothing(served: Served) -> None:
    few = Work(QUERIES, WORK.items[:40])
    packed, alone = run_files(served.repository, few), run_files(served.repository, few, alone=True)
    assert compare(packed, alone, served.precision).cosine >= MIN_COSINE[served.precision]
    if served.precision == "fp32":
        assert alone.kept == packed.kept


def test_the_endpoint_decides_as_torch_does(served: Served) -> None:
    with CanopyClient(served.url, deadline_s=600) as client:
        together = run_together(client, served.repository, WORK)
        require("together", served, together)
        # Cold items of all modalities in one request.
        evidence = client.compress(QUERIES[0], list(WORK.items))
        kept = {(0, place): tuple((one.first, one.last) for one in got.regions) for place, got in enumerate(evidence)}
        mixed = Outcome(together.queries, together.nodes, kept | {p: r for p, r in together.kept.items() if p[0]})
        require("mixed", served, mixed)
        if served.precision == "fp32":  # as it is in the others, which the table shows
            apart = run_apart(client, served.repository, WORK)
            require("apart", served, apart)
            assert together.kept == apart.kept == mixed.kept


def test_what_is_reduced_is_so_in_the_files(served: Served) -> None:
    """Plans for TensorRT are built from these very files, whose types decide."""
    query, node = load_pair(served.repository)
    tower = VisionManifest.load(served.repository / "vision_encoder")
    assert {one.precision for one in (query.manifest, node.manifest, tower)} == {served.precision}
    types = {"fp32": onnx.TensorProto.FLOAT, "fp16": onnx.TensorProto.FLOAT16, "bf16": onnx.TensorProto.BFLOAT16}
    for name in ("query_encoder", "node_encoder", "vision_encoder"):
        graph = onnx.load(served.repository / name / "1" / "model.onnx").graph
        weights = [one for one in graph.initializer if len(one.dims) == 2 and min(one.dims) > 8]
        assert weights
        assert {one.data_type for one in weights} == {types[served.precision]}
        ends = {one.name: one.type.tensor_type.elem_type for one in (*graph.input, *graph.output)}
        assert ends.pop("patches", None) == (onnx.TensorProto.UINT8 if name == "vision_encoder" else None)
        assert set(ends.values()) <= {onnx.TensorProto.FLOAT, onnx.TensorProto.INT64}


def test_profiles_of_one_precision_share_their_files(served: Served, model: tuple[Path, Path], tmp_path: Path) -> None:
    repository = shutil.copytree(served.repository, tmp_path / "repository")
    folder, adapter = model
    if served.precision == "bf16":
        with pytest.raises(ExportError, match="profile 'onnx' serves fp16 and fp32 only"):
            export_encoders(folder, repository, adapter=adapter, precision="bf16", profile="onnx")
    again = export_encoders(
        folder, repository, adapter=adapter, precision=served.precision, profile="tensorrt", plans=False
    )
    assert again.built == ()


def test_a_tower_of_another_precision_is_refused(served: Served, tmp_path: Path) -> None:
    """It is left of an export that did not finish."""
    repository = shutil.copytree(served.repository, tmp_path / "repository")
    folder = repository / "vision_encoder"
    other: Precision = "bf16" if served.precision == "fp32" else "fp32"
    msgspec.structs.replace(VisionManifest.load(folder), precision=other).save(folder)
    with pytest.raises(ExportError, match=f"the vision tower is {other}, the encoders are {served.precision}"):
        load_vision(repository, load_pair(repository)[1].manifest)


def test_the_page_says_what_was_compared(served: Served) -> None:
    found = link("torch", "fp32", served.reference, served.reference, WORK)
    assert (found.verdict, found.agreement) == ("kept", 1.0)
    told = page(measured("a model", WORK, [found]), "a command")
    assert "50 text, 50 table, 50 image, 50 video; 2 queries" in told
    assert "| fp32 | torch | 1.000000 | 400 of 400 |" in told
