"""Profiles hold what the server sends, and a plan is served only where it was built for."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path

import pytest

from canopy_backend.errors import ExportError
from canopy_backend.manifest import EncoderManifest
from canopy_backend.packing import row_width
from canopy_backend.plan_card import (
    PLAN_FILE,
    PlanCard,
    check_plan,
    compute_capability,
    graph_hashes,
    tensorrt_version,
)
from canopy_backend.tokenization import BUCKETS
from canopy_export.configs import repository_configs, write_configs
from canopy_export.tensorrt.build import build_repository, is_current, sizes_of
from canopy_export.tensorrt.profiles import CALL_TOKENS, Profile, plan_rows, profiles_for, text_profiles
from canopy_export.vision_config import Sight

GRAPHS = {
    "query": {"input_ids": (-1, -1), "attention_mask": (-1, -1)},
    "node": dict.fromkeys(("input_ids", "segment_ids", "position_ids", "slot_ids"), (-1, -1)),
    "language": {
        **dict.fromkeys(("input_ids", "segment_ids", "last_index", "visual_index"), (-1, -1)),
        "position_ids": (-1, 3, -1), "visual": (-1, 2048), "deepstack": (3, -1, 2048),
    },
    "seen_query": {
        **dict.fromkeys(("input_ids", "attention_mask"), (-1, -1)), "places": (-1, 4, -1), "features": (-1, 4, -1, 64),
    },
    "seen_node": {
        **dict.fromkeys(("input_ids", "segment_ids", "slot_ids"), (-1, -1)), "places": (-1, 4, -1),
        "features": (-1, 4, -1, 64),
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


@pytest.mark.parametrize("window", [8, 64, 128, 256, 384, 512, 2048])
def test_every_shape_that_is_sent_has_a_profile(window: int) -> None:
    """Any width up to a whole window, with any number of rows that the server merges."""
    widths = {min(row_width(window), bucket) for bucket in BUCKETS} | {
        row_width(longest) for longest in (1, 100, 300, 2000) if longest <= window
    }
    for graph in ("query", "node"):
        profiles = profiles_for(GRAPHS[graph], window)
        assert len(profiles) == text_profiles(window)
        for tokens in widths:
            for rows in {1, 3, plan_rows(window)}:
                if rows <= plan_rows(window):
                    assert any(fits(profile, dict.fromkeys(GRAPHS[graph], (rows, tokens))) for profile in profiles)


def test_rows_and_widths_of_a_call_are_bounded_together() -> None:
    assert (plan_rows(256), plan_rows(2048), plan_rows(40_000)) == (64, 8, 1)
    for window in (16, 256, 512, 2048):
        for profile in profiles_for(GRAPHS["node"], window):
            rows, tokens = profile.shapes["input_ids"][2]
            assert rows == plan_rows(window)
            assert rows * tokens <= CALL_TOKENS
    for profile in profiles_for(GRAPHS["query"], 2048, rows=32):
        assert profile.shapes["input_ids"][2][0] == 32


@pytest.mark.parametrize(("window", "sight"), [(256, None), (512, None), (2048, None), (2048, Sight(64))])
def test_configurations_agree_with_the_plans(window: int, sight: Sight | None) -> None:
    configs = repository_configs(dimension=64, window=window, sight=sight)
    kind = "seen_" if sight else ""
    assert configs["vision_encoder/config.pbtxt"].instance_group[0].profile == ("0", "1")
    for encoder, graph in (("query_encoder", f"{kind}query"), ("node_encoder", f"{kind}node")):
        config = configs[f"{encoder}/config.pbtxt"]
        profiles = profiles_for(GRAPHS[graph], window)
        assert config.instance_group[0].profile == tuple(map(str, range(len(profiles))))
        assert all(profile.shapes["input_ids"][2][0] == config.max_batch_size for profile in profiles)
        for warmup in config.model_warmup:
            shapes = {name: (warmup.batch_size, *one.dims) for name, one in warmup.inputs.items()}
            assert any(fits(profile, shapes) for profile in profiles)
        for model in ("hierarchy", "planner", "tokenizer", "refinement", "tree_writer"):
            limits = {name: one.string_value for name, one in configs[f"{model}/config.pbtxt"].parameters.items()}
            assert limits["max_rows"] == limits["max_queries"] == str(config.max_batch_size)
            others = configs[f"{model}/configs/onnx.pbtxt"]
            assert others.parameters["max_rows"].string_value == "1024"


def manifest(window: int) -> EncoderManifest:
    return EncoderManifest(
        model="m", model_revision="r", template="t", window=window, dimension=8, precision="fp32", pooling="mean"
    )


@pytest.mark.parametrize("sees", [False, True])
def test_a_repository_gets_the_plan_of_every_graph_it_has(
    sees: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_configs(tmp_path, window=2048, sight=Sight(2048) if sees else None)
    models = ["node_encoder", "query_encoder", *(["vision_encoder"] if sees else [])]
    for model in models:
        graph = tmp_path / model / "1" / "model.onnx"
        graph.parent.mkdir(parents=True)
        graph.write_bytes(b"graph")
    built: list[tuple[Path, Path]] = []

    def build_plan(graph: Path, folder: Path, cache: Path) -> str:
        built.append((graph, folder))
        return ""

    monkeypatch.setattr("canopy_export.tensorrt.build.build_plan", build_plan)
    assert build_repository(tmp_path) == models
    assert built == [(tmp_path / model / "1" / "model.onnx", tmp_path / model / "1") for model in models]


def test_a_repository_says_how_large_its_plans_are(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="no model for TensorRT here"):
        build_repository(tmp_path)
    write_configs(tmp_path, window=512)
    with pytest.raises(ExportError, match=r"node_encoder has no 1/model\.onnx"):
        build_repository(tmp_path)
    encoder = tmp_path / "node_encoder"
    manifest(512).save(encoder / "manifest.json")
    assert sizes_of(encoder / "1" / "model.onnx") == (512, 32)
    assert sizes_of(tmp_path / "graphs" / "language.onnx") == (2048, None)
    assert sizes_of(tmp_path / "vision_encoder" / "1" / "model.onnx") == (2048, None)
    (encoder / "config.pbtxt").write_text("max_batch_size: 0\n")
    with pytest.raises(ExportError, match="no max_batch_size"):
        sizes_of(encoder / "1" / "model.onnx")


@pytest.mark.parametrize("graph", ["seen_query", "seen_node"])
def test_rows_with_pixels_and_rows_of_text_fit_one_plan(graph: str) -> None:
    """A row brings one line of features where it is text, and as many as it has tokens where all of it is seen."""
    profiles = profiles_for(GRAPHS[graph], 2048)
    assert len(profiles) == text_profiles(2048)
    for rows in (1, 8):
        for tokens in (64, 256, 1024, 2048):
            for lines in (1, 7, tokens):
                shapes = dict.fromkeys(GRAPHS[graph], (rows, tokens))
                shapes |= {"places": (rows, 4, tokens), "features": (rows, 4, lines, 64)}
                assert any(fits(profile, shapes) for profile in profiles)


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
    graph.with_name("model.onnx.data").write_bytes(b"weights")
    rows = plan_rows(2048)
    assert made.rows() == rows
    assert is_current(graph, tmp_path, tensorrt="11.1.0.5", capability="9.0", rows=rows)
    assert not is_current(graph, tmp_path, tensorrt="11.1.0.5", capability="9.0", rows=rows + 1)
    (tmp_path / PLAN_FILE).write_bytes(b"half a plan")
    with pytest.raises(ExportError, match="not the file that its description names"):
        made.require(tmp_path / PLAN_FILE, tensorrt="11.1.0.5", capability="9.0")


def put_nvidia_smi(folder: Path, answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(exist_ok=True)
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{answer}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/bin:/usr/bin")


def test_a_server_says_which_plan_does_not_fit_and_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = tmp_path / "repository" / "node_encoder"
    (encoder / "1").mkdir(parents=True)
    check_plan(encoder, {})  # no plan, nothing to check
    graph, made = card(encoder / "1")
    files = {f"1/{name}": digest for name, digest in graph_hashes(graph).items()}
    monkeypatch.setenv("PATH", str(tmp_path))
    check_plan(encoder, files)  # a machine of which nothing is known
    put_nvidia_smi(tmp_path / "bin", "echo 9.0", monkeypatch)
    check_plan(encoder, files)
    with pytest.raises(ExportError, match=r"was built from another model\.onnx than the export's: build it again"):
        check_plan(encoder, {**files, "1/model.onnx": "0" * 64})
    put_nvidia_smi(tmp_path / "bin", "echo 8.9", monkeypatch)
    repository = encoder.parent
    told = rf"this machine has 8\.9.*python3 -m canopy_export\.tensorrt\.build {repository}; to serve without plans"
    with pytest.raises(ExportError, match=told):
        check_plan(encoder, files)
    with pytest.raises(ExportError, match=r"TensorRT 11\.1\.0\.5, this machine has 10\.8\.0"):
        made.require_machine(encoder / "1" / PLAN_FILE, tensorrt="10.8.0", capability="9.0")
    made.require_machine(encoder / "1" / PLAN_FILE, tensorrt="11.1.0", capability="")


@pytest.mark.parametrize(("number", "version"), [(101_303, "10.13.3"), (110_100, "11.1.0"), (8601, "8.6.1")])
def test_the_version_of_the_runtime_library_is_read(number: int, version: str) -> None:
    class Library:
        @staticmethod
        def getInferLibVersion() -> int:  # noqa: N802
            return number

    assert tensorrt_version(Library()) == version
    assert tensorrt_version(object()) == ""


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
    put_nvidia_smi(tmp_path, answer, monkeypatch)
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
