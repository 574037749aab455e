"""Profiles hold what the server sends, and a plan is served only where it was built for."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path

import pytest

from canopy_backend.errors import ExportError
from canopy_backend.packing import row_width
from canopy_backend.tokenization import BUCKETS
from canopy_export.tensorrt.build import PLAN_FILE, is_current
from canopy_export.tensorrt.plans import PlanCard, compute_capability, graph_hashes
from canopy_export.tensorrt.profiles import Profile, profiles_for

GRAPHS = {
    "query": {"input_ids": (-1, -1), "attention_mask": (-1, -1)},
    "node": dict.fromkeys(("input_ids", "segment_ids", "position_ids", "slot_ids"), (-1, -1)),
    "language": {
        **dict.fromkeys(("input_ids", "segment_ids", "last_index", "visual_index"), (-1, -1)),
        "position_ids": (-1, 3, -1), "visual": (-1, 2048), "deepstack": (3, -1, 2048),
    },
    "vision": {"patches": (-1, 1536), "pos_idx": (-1, 4), "pos_w": (-1, 4), "pos_ids": (-1, 2), "seg": (-1,)},
}  # fmt: skip


def fits(profile: Profile, shapes: dict[str, tuple[int, ...]]) -> bool:
    return all(
        all(low <= size <= high for low, size, high in zip(smallest, shapes[name], largest, strict=True))
        for name, (smallest, _, largest) in profile.shapes.items()
    )


@pytest.mark.parametrize("graph", GRAPHS)
def test_ranges_are_ranges_and_keep_fixed_axes(graph: str) -> None:
    for profile in profiles_for(GRAPHS[graph]):
        assert set(profile.shapes) == set(GRAPHS[graph])
        for name, shapes in profile.shapes.items():
            for size, *values in zip(GRAPHS[graph][name], *shapes, strict=True):
                assert values == sorted(values)
                assert min(values) >= 1
                assert size in (-1, *set(values))
                assert size == -1 or len(set(values)) == 1


@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize("tokens", [*BUCKETS, *(row_width(longest) for longest in (1, 100, 300, 2000))])
def test_every_width_that_is_sent_has_a_profile(rows: int, tokens: int) -> None:
    for graph in ("query", "node"):
        shapes = dict.fromkeys(GRAPHS[graph], (rows, tokens))
        assert any(fits(profile, shapes) for profile in profiles_for(GRAPHS[graph]))


@pytest.mark.parametrize("patches", [4, 1024, 7200])
def test_every_image_has_a_profile(patches: int) -> None:
    shapes = {name: (patches, *shape[1:]) for name, shape in GRAPHS["vision"].items()}
    assert any(fits(profile, shapes) for profile in profiles_for(GRAPHS["vision"]))


def test_a_graph_of_another_kind_is_refused() -> None:
    with pytest.raises(ExportError, match="not those of a query, node, language or vision graph"):
        profiles_for({"x": (-1,)})
    with pytest.raises(ExportError, match="expected 2 free axes"):
        profiles_for({"input_ids": (-1, 64), "attention_mask": (-1, 64)})


def card(folder: Path) -> tuple[Path, PlanCard]:
    graph = folder / "model.onnx"
    graph.write_bytes(b"graph")
    graph.with_name("model.onnx.data").write_bytes(b"weights")
    (folder / PLAN_FILE).write_bytes(b"plan")
    made = PlanCard(
        onnx=graph_hashes(graph),
        plan=hashlib.sha256(b"plan").hexdigest(),
        tensorrt="11.1.0.5",
        capability="9.0",
        profiles={profile.name: profile.shapes for profile in profiles_for(GRAPHS["query"])},
    )
    made.save(folder)
    return graph, made


def test_a_plan_is_served_only_where_it_was_built_for(tmp_path: Path) -> None:
    graph, made = card(tmp_path)
    assert PlanCard.load(tmp_path) == made
    made.require(tmp_path / PLAN_FILE, tensorrt="11.1.0.5", capability="9.0")
    with pytest.raises(ExportError, match=r"built with compute capability 9\.0, this machine has 8\.9"):
        made.require(tmp_path / PLAN_FILE, tensorrt="11.1.0.5", capability="8.9")
    with pytest.raises(ExportError, match=r"built with TensorRT 11\.1\.0\.5, this machine has 10\.8"):
        made.require(tmp_path / PLAN_FILE, tensorrt="10.8", capability="9.0")
    assert set(made.onnx) == {"model.onnx", "model.onnx.data"}
    assert is_current(graph, tmp_path, tensorrt="11.1.0.5", capability="9.0")
    graph.with_name("model.onnx.data").write_bytes(b"other weights")
    assert not is_current(graph, tmp_path, tensorrt="11.1.0.5", capability="9.0")
    (tmp_path / PLAN_FILE).write_bytes(b"half a plan")
    with pytest.raises(ExportError, match="not the file that its description names"):
        made.require(tmp_path / PLAN_FILE, tensorrt="11.1.0.5", capability="9.0")


def test_a_missing_or_broken_description_is_told(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="build the plan"):
        PlanCard.load(tmp_path)
    (tmp_path / "plan.json").write_text('{"tensorrt": 11}')
    with pytest.raises(ExportError, match="build the plan again"):
        PlanCard.load(tmp_path)


@pytest.mark.parametrize(
    ("answer", "message"),
    [("echo 9.0", None), ("echo No devices were found", "tells no compute capability"), ("exit 9", "does not tell")],
)
def test_the_gpu_is_asked(answer: str, message: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{answer}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    if message is None:
        assert compute_capability() == "9.0"
        return
    with pytest.raises(ExportError, match=message):
        compute_capability()


def test_no_gpu_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ExportError, match="built on the machine whose GPU will serve"):
        compute_capability()


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) for name in ("tensorrt", "tensorrt_rtx_bindings")),
    reason="TensorRT is installed",
)
def test_without_tensorrt_the_extra_is_named() -> None:
    with pytest.raises(ExportError, match="tensorrt-check"):
        import canopy_export.tensorrt.builder  # noqa: F401
