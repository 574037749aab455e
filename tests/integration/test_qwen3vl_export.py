"""Qwen3-VL from pixels to vectors: transformers' own model, the graphs in torch and the files give the same ones.

The model is tiny and random; its classes, its processor's arithmetic and its files are the real ones.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from canopy_backend.errors import ExportError
from canopy_backend.items import Cue, ImageItem, Item, TableItem, TextItem, VideoItem
from canopy_backend.manifest import EncoderManifest, VisionManifest
from canopy_backend.qwen3vl.chat import ChatSequence, ImagePart, Part, VideoPart, encode_content
from canopy_backend.qwen3vl.grids import frame_calls, grid_inputs
from canopy_backend.qwen3vl.nodes import Clip
from canopy_backend.qwen3vl.patches import Grid, image_patches, scaled, video_patches
from canopy_backend.qwen3vl.rows import cut_dimension, pack_rows, pad_rows, vectors_of
from canopy_backend.qwen3vl.settings import VisionSettings
from canopy_backend.qwen3vl.tower import Tower
from canopy_backend.tokenization import EncoderTokenizer
from canopy_client.cli.app import build as canopy_app
from canopy_export.export import export_encoders
from canopy_export.graphs import NodeGraph, QueryGraph, load_backbone
from canopy_export.parity import OnnxEncoders, TorchEncoders, compare, run_encoders
from canopy_export.qwen3vl.__main__ import app
from canopy_export.qwen3vl.adapter import merge_language_adapter, vision_hash
from canopy_export.qwen3vl.build import NODE_TOKENIZER, export_graphs, load_model
from canopy_export.qwen3vl.folder import chat_tokenizer, vision_settings
from canopy_export.qwen3vl.gates import compare as compare_rows
from canopy_export.qwen3vl.graphs import VISION_INPUTS, LanguageGraph, VisionGraph
from canopy_export.qwen3vl.onnx_files import load_file, run_torch
from canopy_export.qwen3vl.served import PixelNodeGraph, PixelQueryGraph, export_pixel_graph
from canopy_export.qwen3vl.tiny import tiny_qwen3vl
from canopy_export.qwen3vl.tiny_adapter import write_adapter
from canopy_export.source import adapter_revision, read_source

TIMES = (0.0, 10.0, 20.0, 30.0, 40.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_qwen3vl(tmp_path_factory.mktemp("qwen3vl"))


@dataclass(frozen=True)
class Content:
    """One content: its sequence, and patches and grids of its videos and images."""

    sequence: ChatSequence
    videos: list[tuple[np.ndarray, Grid]]
    images: list[tuple[np.ndarray, Grid]]


@pytest.fixture(scope="module")
def contents(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Content]:
    """Text, one image, two images, a video, all of it mixed."""
    settings = vision_settings(model)
    file = tmp_path_factory.mktemp("chat") / "tokenizer.json"
    chat_tokenizer(model / "tokenizer.json", "Represent the user's input.").save(str(file))
    tokenizer = EncoderTokenizer(file, 4096)
    random = np.random.default_rng(5)

    def make(text: str, images: list[tuple[int, int]], videos: list[tuple[int, int, int]]) -> Content:
        image = [image_patches(random.integers(0, 256, (*size, 3), dtype=np.uint8), settings) for size in images]
        video = [video_patches(random.integers(0, 256, (*size, 3), dtype=np.uint8), settings) for size in videos]
        parts: list[Part] = [VideoPart(grid, TIMES[: size[0]]) for (_, grid), size in zip(video, videos, strict=True)]
        parts += [*(ImagePart(grid) for _, grid in image), text]
        return Content(encode_content(parts, tokenizer, settings), video, image)

    return [
        make("The harbour was built in 1872.", [], []),
        make("one image", [(70, 100)], []),
        make("two images", [(64, 64), (40, 150)], []),
        make("a clip", [], [(5, 64, 96)]),
        make("all of it, and more text behind it than before", [(96, 64)], [(2, 64, 64), (3, 90, 50)]),
    ]


def expected_vectors(model: Any, settings: VisionSettings, contents: list[Content]) -> np.ndarray:
    """What the whole model of transformers makes of each content by itself."""
    vectors = []
    for content in contents:
        ids = torch.tensor([content.sequence.ids])
        kinds = (ids == settings.image_token).long() + 2 * (ids == settings.video_token).long()
        pixels: dict[str, torch.Tensor] = {}
        for name, grid, found in (
            ("pixel_values", "image_grid_thw", content.images),
            ("pixel_values_videos", "video_grid_thw", content.videos),
        ):
            if found:
                pixels[name] = torch.from_numpy(scaled(np.concatenate([patches for patches, _ in found]), settings))
                pixels[grid] = torch.tensor([one for _, one in found])
        with torch.inference_mode():
            states = model(
                input_ids=ids, attention_mask=torch.ones_like(ids), mm_token_type_ids=kinds, use_cache=False, **pixels
            ).last_hidden_state
        vectors.append(torch.nn.functional.normalize(states[0, -1].float(), dim=0).numpy())
    return np.stack(vectors)


def vision_inputs(contents: list[Content], settings: VisionSettings) -> tuple[dict[str, np.ndarray], list[Grid]]:
    found = [one for content in contents for one in (*content.videos, *content.images)]
    grids = [grid for _, grid in found]
    inputs = grid_inputs(grids, settings)
    return {
        "patches": np.concatenate([patches for patches, _ in found]),
        "pos_idx": inputs.pos_idx,
        "pos_w": inputs.pos_w,
        "pos_ids": inputs.pos_ids,
        "seg": inputs.seg,
    }, grids


def graph_vectors(vision: Any, language: Any, contents: list[Content], settings: VisionSettings) -> list[np.ndarray]:
    """Vectors through both graphs, ``vision`` and ``language`` from inputs to outputs: padded rows, then packed."""
    visual, deepstack = vision(vision_inputs(contents, settings)[0])
    sequences = [content.sequence for content in contents]
    found = []
    for rows in (pad_rows(sequences, 128), pack_rows(sequences, 256)):
        answer = language({**rows.inputs(), "visual": visual, "deepstack": deepstack})[0]
        found.append(vectors_of(rows, answer))
    return found


def torch_pair(loaded: Any, settings: VisionSettings) -> tuple[Any, Any]:
    vision, language = VisionGraph(loaded.visual, settings).eval(), LanguageGraph(loaded.language_model).eval()
    return (lambda inputs: run_torch(vision, inputs)), (lambda inputs: run_torch(language, inputs))


@pytest.fixture(scope="module")
def adapter(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_adapter(model, tmp_path_factory.mktemp("adapter"))


def test_a_seed_gives_one_model(model: Path, tmp_path: Path) -> None:
    again, other = tiny_qwen3vl(tmp_path / "again"), tiny_qwen3vl(tmp_path / "other", seed=1)
    weights = [(folder / "model.safetensors").read_bytes() for folder in (model, again, other)]
    assert weights[0] == weights[1] != weights[2]
    assert (model / "tokenizer.json").read_bytes() == (other / "tokenizer.json").read_bytes()


def test_the_graphs_give_the_vectors_of_the_whole_model(model: Path, contents: list[Content]) -> None:
    loaded, settings = load_model(model), vision_settings(model)
    expected = expected_vectors(loaded, settings, contents)
    for found in graph_vectors(*torch_pair(loaded, settings), contents, settings):
        np.testing.assert_allclose(found, expected, atol=1e-5)
    # Each alone, so that company changes nothing.
    for place, content in enumerate(contents[1:], start=1):
        np.testing.assert_allclose(
            graph_vectors(*torch_pair(loaded, settings), [content], settings)[0][0], expected[place], atol=1e-5
        )


def test_the_feature_maps_count(model: Path, contents: list[Content]) -> None:
    """A model without them looks plausible, so the gate must be narrow enough to see it."""
    loaded, settings = load_model(model), vision_settings(model)
    vision, language = torch_pair(loaded, settings)
    whole = graph_vectors(vision, language, contents, settings)[0]
    blind = graph_vectors(lambda inputs: (vision(inputs)[0], 0 * vision(inputs)[1]), language, contents, settings)[0]
    cosines = (whole * blind).sum(1)
    assert cosines[0] == pytest.approx(1, abs=1e-6)
    assert (cosines[1:] < 0.999).all()


def test_the_tower_by_frames_gives_the_same_as_at_once(model: Path, contents: list[Content]) -> None:
    settings = vision_settings(model)
    vision = torch_pair(load_model(model), settings)[0]
    inputs, grids = vision_inputs(contents, settings)
    visual, deepstack = vision(inputs)
    calls = [vision({name: one[first:last] for name, one in inputs.items()}) for first, last in frame_calls(grids, 40)]
    assert len(calls) > 3
    np.testing.assert_allclose(np.concatenate([one for one, _ in calls]), visual, atol=1e-4)
    np.testing.assert_allclose(np.concatenate([maps for _, maps in calls], axis=1), deepstack, atol=1e-4)


def test_frames_that_nodes_show_alike_have_the_same_features_looked_at_once(model: Path) -> None:
    settings = vision_settings(model)
    vision = torch_pair(load_model(model), settings)[0]
    frames = np.random.default_rng(9).integers(0, 256, (12, 64, 64, 3), dtype=np.uint8)
    clip = Clip(frames, np.arange(12.0), settings)
    looks = [clip.look(first, last) for first, last in ((0, 12), (0, 6), (6, 12), (0, 3), (3, 6), (6, 9), (9, 12))]
    looked_at: list[int] = []

    def counted(inputs: Any) -> Any:
        looked_at.append(len(inputs["patches"]))
        return vision(inputs)

    tower = Tower(counted, settings, looks)
    for look in looks:
        inputs = grid_inputs([look.grid], settings)
        alone = vision({"patches": look.take(), **{name: getattr(inputs, name) for name in VISION_INPUTS[1:]}})
        (found,) = tower.features([look])
        np.testing.assert_allclose(found, np.concatenate([alone[0][None], alone[1]]), atol=1e-4)
    assert 0 < sum(looked_at) < sum(grid[0] * grid[1] * grid[2] for grid in (look.grid for look in looks))


@pytest.mark.parametrize(("precision", "limit"), [("fp32", 0.9999), ("fp16", 0.999), ("bf16", 0.999)])
def test_chain_from_the_adapter_to_the_files(
    precision: Any, limit: float, model: Path, adapter: Path, contents: list[Content], tmp_path: Path
) -> None:
    from peft import PeftModel

    from canopy_export.adapter import quiet_peft

    settings = vision_settings(model)
    with quiet_peft():
        adapted = PeftModel.from_pretrained(load_model(model), str(adapter)).eval()
    expected = expected_vectors(adapted.get_base_model(), settings, contents)
    base = expected_vectors(load_model(model), settings, contents)
    assert compare_rows(base, expected)[0] < 0.99
    merged = load_model(model)
    merge_language_adapter(merged, adapter, settings)
    assert compare_rows(expected, expected_vectors(merged, settings, contents))[0] > 0.9999

    manifest = export_graphs(model, tmp_path, adapter=adapter, precision=precision)
    assert (manifest.precision, manifest.adapter) == (precision, adapter_revision(adapter))
    assert EncoderManifest.load(tmp_path) == manifest
    manifest.verify(tmp_path)
    assert VisionSettings.load(tmp_path) == settings
    assert EncoderTokenizer(tmp_path / NODE_TOKENIZER, 4096).encode(["a"])[0][-1] == contents[0].sequence.ids[-1]
    files = [load_file(tmp_path / name, precision) for name in ("vision.onnx", "language.onnx")]
    for found in graph_vectors(*files, contents, settings):
        cosine, distance = compare_rows(expected, found)
        assert cosine >= limit
        if precision == "fp32":
            assert distance <= 1e-5


def test_large_weights_stand_beside_the_graph(model: Path, contents: list[Content], tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    manifest = export_graphs(model, parts, precision="fp32", language_only=True, external_over=0)
    export_graphs(model, whole, precision="fp32", language_only=True)
    assert set(manifest.files) == {
        "language.onnx", "language.onnx.data", "qwen3vl.json", "query_tokenizer.json", "node_tokenizer.json"
    }  # fmt: skip
    assert (parts / "language.onnx").stat().st_size < (whole / "language.onnx").stat().st_size
    assert os.stat(parts / "language.onnx.data").st_mode & 0o044 == 0o044
    assert sorted(path.name for path in parts.iterdir()) == sorted({*manifest.files, "manifest.json"})
    moved = parts.rename(tmp_path / "moved")
    rows = pad_rows([contents[0].sequence], 64)
    nothing = {"visual": np.zeros((1, 32), np.float32), "deepstack": np.zeros((3, 1, 32), np.float32)}
    inputs = {**rows.inputs(), **nothing}
    left, right = (load_file(folder / "language.onnx", "fp32")(inputs)[0] for folder in (whole, moved))
    np.testing.assert_array_equal(left, right)
    (moved / "language.onnx.data").write_bytes(b"")
    with pytest.raises(ExportError, match=r"language\.onnx\.data.*SHA-256"):
        manifest.verify(moved)


def test_a_cut_dimension_is_that_of_the_whole_vector(model: Path, contents: list[Content], tmp_path: Path) -> None:
    loaded, settings = load_model(model), vision_settings(model)
    expected = cut_dimension(expected_vectors(loaded, settings, contents), 12)
    manifest = export_graphs(model, tmp_path, precision="fp32", dimension=12)
    assert manifest.dimension == 12
    files = [load_file(tmp_path / name, "fp32") for name in ("vision.onnx", "language.onnx")]
    np.testing.assert_allclose(graph_vectors(*files, contents, settings)[0], expected, atol=1e-5)
    with pytest.raises(ExportError, match="dimension 33"):
        export_graphs(model, tmp_path, precision="fp32", dimension=33)


def test_adapters_that_do_not_fit_are_refused(model: Path, adapter: Path, tmp_path: Path) -> None:
    settings = vision_settings(model)
    loaded = load_model(model)
    before = vision_hash(loaded)
    wrong = write_adapter(model, tmp_path / "wrong", r".*(visual.*\.proj|q_proj)$")
    with pytest.raises(ExportError, match=r"the adapter changes visual\.blocks\.0\.attn\.proj"):
        merge_language_adapter(load_model(model), wrong, settings)
    (tmp_path / "cut").mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (tmp_path / "cut" / name).write_bytes((adapter / name).read_bytes()[:900])
    with pytest.raises(ExportError, match="cut"):
        merge_language_adapter(load_model(model), tmp_path / "cut", settings)
    merge_language_adapter(loaded, write_adapter(model, tmp_path / "language", language=True), settings)
    assert vision_hash(loaded) == before


def test_the_text_side_and_the_pixel_graph_are_one_encoder(model: Path, contents: list[Content]) -> None:
    """What ``canopy export`` serves for a text is what the language graph makes of it."""
    backbone, settings = load_backbone(str(model)), vision_settings(model)
    vector = graph_vectors(*torch_pair(load_model(model), settings), contents[:2], settings)[0][0]
    ids = torch.tensor([contents[0].sequence.ids])
    with torch.inference_mode():
        query = QueryGraph(backbone, "last").eval()(ids, torch.ones_like(ids))[0].numpy()
        width = 64
        row = torch.nn.functional.pad(ids, (0, width - ids.shape[1]))
        segments = (torch.arange(width)[None] < ids.shape[1]).long()
        node = NodeGraph(backbone, "last").eval()(row, segments, torch.arange(width)[None] * segments, segments)
    np.testing.assert_allclose(query, vector, atol=1e-5)
    np.testing.assert_allclose(torch.nn.functional.normalize(node[0, 0], dim=0).numpy(), vector, atol=1e-5)


def items() -> list[Item]:
    words = ("the", "old", "harbour", "ships", "grain", "timber", "light", "keeper", "north", "quay", "winter", "storm")
    random = np.random.default_rng(11)

    def sentence() -> str:
        return " ".join(random.choice(words, 7)).capitalize() + "."

    made: list[Item] = []
    for place in range(6):
        made.append(TextItem(id=f"text{place}", title=words[place], text=" ".join(sentence() for _ in range(7))))
        rows = [[str(1900 + row), str(random.choice(words)), str(random.integers(99))] for row in range(5)]
        made.append(TableItem(id=f"table{place}", columns=["year", "cargo", "ships"], rows=rows, caption=words[-place]))
        cues = [Cue(start, start + 20, sentence()) for start in range(0, 120, 25)]
        made.append(VideoItem(id=f"video{place}", duration_s=130, segments=cues))
        made.append(ImageItem(id=f"image{place}", title="A view", caption=sentence()))
    return made


def test_canopy_export_takes_the_text_side_of_the_folder(model: Path, tmp_path: Path) -> None:
    adapter = write_adapter(model, tmp_path / "adapter", language=True)
    repository = tmp_path / "repository"
    tokenizer = model / "tokenizer.json"
    exported = export_encoders(
        model, repository, adapter=adapter, profile="onnx", name="tiny", reader_tokenizer=tokenizer, pixels=False
    )
    assert (exported.node.pooling, exported.node.window, exported.node.dimension) == ("last", 2048, 32)
    assert exported.node.model_revision == read_source(model).revision
    files = [
        json.loads((repository / one / "tokenizer.json").read_bytes()) for one in ("query_encoder", "node_encoder")
    ]
    assert files[0]["post_processor"] != files[1]["post_processor"]
    assert "dims: [32]" in (repository / "query_encoder" / "config.pbtxt").read_text()
    queries = ["Which ships carried grain?", "Who kept the light?", "storm of winter"]
    expected = run_encoders(TorchEncoders(model, adapter), repository, queries, items())
    parity = compare(expected, run_encoders(OnnxEncoders(repository), repository, queries, items()))
    parity.require("onnx")
    assert parity.equal >= 0.995 * parity.decisions
    again = export_encoders(model, repository, adapter=adapter, profile="onnx", name="tiny", pixels=False)
    assert again.built == ()
    with pytest.raises(ExportError, match="contextual"):
        export_encoders(model, repository, node_encoding="contextual", profile="onnx")


def test_canopy_export_takes_the_folder_with_its_pixels(model: Path, tmp_path: Path) -> None:
    adapter = write_adapter(model, tmp_path / "adapter", language=True)
    repository = tmp_path / "repository"
    tokenizer = model / "tokenizer.json"
    done = CliRunner().invoke(
        canopy_app(),
        ["export", "--model", str(model), "--adapter", str(adapter), "--profile", "onnx", "--json", "--repository",
         str(repository), "--reader-tokenizer", str(tokenizer)],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["pixels"], told["built"]) == (True, ["query_encoder", "node_encoder", "vision_encoder"])
    query, node = (EncoderManifest.load(repository / name) for name in ("query_encoder", "node_encoder"))
    vision = VisionManifest.load(repository / "vision_encoder")
    assert query.pixels
    assert node.pixels
    assert vision.model_revision == node.model_revision == query.model_revision
    assert (vision.hidden, set(vision.files)) == (32, {"1/model.onnx", "qwen3vl.json"})
    vision.verify(repository / "vision_encoder")
    assert VisionSettings.load(repository / "vision_encoder") == vision_settings(model)
    again = export_encoders(model, repository, adapter=adapter, profile="embedded")
    assert again.built == ()
    (repository / "vision_encoder" / "1" / "model.onnx").write_bytes(b"cut")
    assert export_encoders(model, repository, adapter=adapter).built == ("vision_encoder",)
    text = export_encoders(model, repository, adapter=adapter, pixels=False)
    assert (text.built, text.node.pixels, text.vision) == (("query_encoder", "node_encoder"), False, None)
    assert text.node.revision != node.revision
    assert '"pixels"\n  value {\n    string_value: "false"' in (repository / "hierarchy" / "config.pbtxt").read_text()


def test_the_gate_of_the_served_graphs_sees_a_missing_map(model: Path, tmp_path: Path) -> None:
    """A gate that lets a graph without its feature maps pass would be none."""
    settings, loaded = vision_settings(model), load_model(model)
    export_pixel_graph(PixelNodeGraph(loaded.language_model).eval(), tmp_path / "node.onnx", settings)
    graph = PixelQueryGraph(loaded.language_model).eval()
    export_pixel_graph(graph, tmp_path / "query.onnx", settings)
    blind = graph.states
    graph.states = lambda *inputs: blind(*inputs[:4], [inputs[4][0], *[0 * one for one in inputs[4][1:]]])
    with pytest.raises(ExportError, match=r"cosine .* to torch, limit 0.9999"):
        export_pixel_graph(graph, tmp_path / "blind.onnx", settings)


def test_large_weights_of_a_served_encoder(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for the 2B model: ``model.onnx.data`` is part of the manifest, and goes when a small model comes."""
    monkeypatch.setattr("canopy_export.onnx_graph.EXTERNAL_OVER", 0)
    tokenizer = model / "tokenizer.json"
    large = export_encoders(model, tmp_path, profile="onnx", reader_tokenizer=tokenizer, pixels=False).node
    assert set(large.files) == {"1/model.onnx", "1/model.onnx.data", "tokenizer.json"}
    assert sorted(path.name for path in (tmp_path / "node_encoder/1").iterdir()) == ["model.onnx", "model.onnx.data"]
    assert export_encoders(model, tmp_path, profile="onnx", pixels=False).built == ()
    rows = np.ones((1, 64), np.int64)
    inputs = dict.fromkeys(("input_ids", "segment_ids", "slot_ids"), rows) | {"position_ids": np.arange(64)[None]}
    left = load_file(tmp_path / "node_encoder/1/model.onnx", "fp32")(inputs)[0]
    monkeypatch.undo()
    (tmp_path / "node_encoder/manifest.json").unlink()
    small = export_encoders(model, tmp_path, profile="onnx", pixels=False)
    assert small.built == ("node_encoder",)
    assert set(small.node.files) == {"1/model.onnx", "tokenizer.json"}
    assert small.node.revision == large.revision
    assert not (tmp_path / "node_encoder/1/model.onnx.data").exists()
    np.testing.assert_array_equal(load_file(tmp_path / "node_encoder/1/model.onnx", "fp32")(inputs)[0], left)


def test_the_command(model: Path, tmp_path: Path) -> None:
    made = CliRunner().invoke(app, ["random", str(tmp_path / "model")])
    assert made.exit_code == 0, made.output
    assert (tmp_path / "model/model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
    done = CliRunner().invoke(app, ["graphs", str(model), str(tmp_path / "out"), "--language-only"])
    assert done.exit_code == 0, done.output
    manifest = EncoderManifest.load(tmp_path / "out")
    assert f"{manifest.revision} (bf16, 32 numbers)" in done.output
    assert manifest.window == 4096
    wrong = CliRunner().invoke(app, ["graphs", str(tmp_path), str(tmp_path / "out")])
    assert (wrong.exit_code, "config.json: not found" in wrong.output.replace("\n", " ")) == (1, True)
    assert CliRunner().invoke(app, ["random", str(tmp_path / "model"), "--size", "9b"]).exit_code == 2


def test_a_folder_that_lacks_a_part_is_told(model: Path, tmp_path: Path) -> None:
    for name in ("config.json", "preprocessor_config.json", "tokenizer.json", "model.safetensors"):
        (tmp_path / name).write_bytes((model / name).read_bytes())
    with pytest.raises(ExportError, match=r"video_preprocessor_config\.json: not found"):
        export_graphs(tmp_path, tmp_path / "out")
    with pytest.raises(ExportError, match="expected one of fp32, fp16, bf16"):
        export_graphs(model, tmp_path / "out", precision="int8")
    config = json.loads((tmp_path / "config.json").read_bytes())
    del config["text_config"]["hidden_size"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ExportError, match="no usable text_config"):
        read_source(tmp_path)
