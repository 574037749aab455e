"""Exports of a model with two random layers: what is written and refused, and that nothing is built twice."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest

from canopy_backend.errors import ExportError
from canopy_backend.items import TextItem
from canopy_backend.manifest import AdapterCard, EncoderManifest
from canopy_backend.templates import TEMPLATE_HASH
from canopy_backend.triton.encoder import Encoder, OpenVinoSession
from canopy_export.export import Exported, export_encoders
from canopy_export.onnx_graph import packed_rows
from canopy_export.onnx_session import OnnxSession
from canopy_export.parity import OnnxEncoders, TorchEncoders, compare, run_encoders
from canopy_export.source import node_encoding_of, read_source
from canopy_export.tensorrt.build import sizes_of
from canopy_export.tensorrt.profiles import plan_rows


def write_model(folder: Path, *, pooling: str = "pooling_mode_mean_tokens", seed: int = 0) -> Path:
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel

    torch.manual_seed(seed)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{n}" for n in range(60))]
    config = BertConfig(
        vocab_size=len(words), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=256,
    )  # fmt: skip
    BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    modules = [
        {"idx": place, "name": str(place), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for place, (path, kind) in enumerate([("", "Transformer"), ("1_Pooling", "Pooling"), ("2_N", "Normalize")])
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    flags = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": False, pooling: True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(flags))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 128}))
    return folder


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> tuple[Path, Exported]:
    folder = tmp_path_factory.mktemp("repository")
    exported = export_encoders(tiny_model, folder, name="tiny", reader_tokenizer=tiny_model / "tokenizer.json")
    return folder, exported


def test_a_folder_is_read_without_its_weights_loaded(tiny_model: Path) -> None:
    source = read_source(tiny_model)
    assert (source.pooling, source.window, source.dimension) == ("mean", 128, 32)
    assert len(source.revision) == 64


def test_manifests_tell_what_was_exported(repository: tuple[Path, Exported], tiny_model: Path) -> None:
    folder, exported = repository
    assert exported.built == ("query_encoder", "node_encoder")
    for encoder in exported.built:
        manifest = EncoderManifest.load(folder / encoder)
        manifest.verify(folder / encoder)
        assert set(manifest.files) == {"1/model.onnx", "tokenizer.json"}
        assert (manifest.model, manifest.model_revision) == ("tiny", read_source(tiny_model).revision)
        assert manifest.revision == exported.node.revision, "without an adapter both encoders are one model"
    assert "dims: [32]" in (folder / "query_encoder" / "config.pbtxt").read_text()


def test_an_unchanged_export_builds_nothing_and_a_damaged_one_is_built_again(
    repository: tuple[Path, Exported], tiny_model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(repository[0], folder)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    assert export_encoders(tiny_model, folder, name="tiny").built == ()
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    with (folder / "query_encoder/1/model.onnx").open("ab") as file:
        file.write(b"!")
    assert export_encoders(tiny_model, folder, name="tiny").built == ("query_encoder",)


@pytest.fixture(scope="module")
def contextual(tmp_path_factory: pytest.TempPathFactory, repository: tuple[Path, Exported], tiny_model: Path):
    folder = tmp_path_factory.mktemp("contextual") / "repository"
    shutil.copytree(repository[0], folder)
    return folder, export_encoders(tiny_model, folder, name="tiny", node_encoding="contextual")


@pytest.mark.parametrize("encoding", ["repository", "contextual"])
def test_the_graphs_decide_as_torch_does(encoding: str, tiny_model: Path, request: pytest.FixtureRequest) -> None:
    folder, _ = request.getfixturevalue(encoding)
    random = np.random.default_rng(3)
    texts = [" ".join(f"w{n}" for n in random.integers(0, 60, 9)) for _ in range(40)]
    items = [
        TextItem(id=str(place), title="w1", text=". ".join(one.capitalize() for one in texts[place : place + 20]) + ".")
        for place in range(3)
    ]
    outcomes = [
        run_encoders(encoders, folder, texts[:4], items)
        for encoders in (TorchEncoders(tiny_model), OnnxEncoders(folder))
    ]
    parity = compare(*outcomes)
    parity.require("tiny")
    assert (parity.decisions, parity.equal) == (12, 12)
    assert parity.cosine > 0.99999


def test_the_node_encoding_is_the_node_encoder_s_alone(
    repository: tuple[Path, Exported], contextual: tuple[Path, Exported]
) -> None:
    folder, exported = contextual
    assert exported.built == ("node_encoder",)
    assert exported.query == repository[1].query
    assert exported.node.node_encoding == "contextual"
    assert exported.node.revision != repository[1].node.revision
    assert exported.node.files == repository[1].node.files, "one graph serves both"
    queries, items = ["w1 w2"], [TextItem(id="a", text="W1 w2 w3. W4 w5 w6. W7 w8 w9.")]
    one, other = (run_encoders(OnnxEncoders(folder), place, queries, items) for place in (repository[0], folder))
    assert compare(one, other).cosine < 0.999


def test_the_precision_is_the_node_encoder_s_and_part_of_its_revision(
    repository: tuple[Path, Exported], contextual: tuple[Path, Exported], tiny_model: Path, tmp_path: Path
) -> None:
    assert (repository[1].node.precision, contextual[1].node.precision) == ("fp32", "bf16")
    assert contextual[1].query.precision == "fp32"
    folder = tmp_path / "copy"
    shutil.copytree(contextual[0], folder)
    again = export_encoders(tiny_model, folder, name="tiny", node_encoding="contextual", precision="fp32")
    assert again.built == ("node_encoder",)
    assert again.node.revision != contextual[1].node.revision
    assert again.node.files == contextual[1].node.files
    served = export_encoders(tiny_model, folder, name="tiny", node_encoding="contextual", profile="onnx")
    assert (served.built, served.node) == ((), again.node)
    with pytest.raises(ExportError, match="profile 'onnx' serves fp32 only"):
        export_encoders(tiny_model, folder, name="tiny", precision="bf16", profile="onnx")
    with pytest.raises(ExportError, match="profile 'embedded' serves bf16 and fp32 only"):
        export_encoders(tiny_model, folder, name="tiny", precision="int8")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_embedded_runtime_gives_the_graph_s_vectors(
    precision: str, repository: tuple[Path, Exported], tmp_path: Path
) -> None:
    graph = repository[0] / "node_encoder" / "1" / "model.onnx"
    inputs = {
        name: tensor.numpy() for name, tensor in packed_rows(60, [[30, 8, 5], [], [70, 50], [9] * 12], 128).items()
    }
    inputs["slot_ids"] = inputs["segment_ids"]
    expected = OnnxSession(graph, threads=1)(inputs)
    embedded = Encoder(OpenVinoSession(graph, threads=1, precision=precision), chunk_tokens=160)
    np.testing.assert_allclose(embedded(inputs), expected, atol={"fp32": 2e-6, "bf16": 5e-2}[precision])
    assert not embedded(inputs)[1].any()
    with pytest.raises(ExportError, match="no such file"):
        OpenVinoSession(tmp_path / "model.onnx")
    with pytest.raises(ExportError, match="precision 'int8' is not one of fp32, bf16, fp16"):
        OpenVinoSession(graph, precision="int8")
    (tmp_path / "model.onnx").write_bytes(b"no graph")
    with pytest.raises(ExportError, match=r"model\.onnx"):
        OpenVinoSession(tmp_path / "model.onnx")


def test_an_adapter_s_card_decides(tiny_model: Path, repository: tuple[Path, Exported], tmp_path: Path) -> None:
    source = read_source(tiny_model)
    card = AdapterCard(
        base=source.name, base_revision=source.revision, template=TEMPLATE_HASH, node_encoding="contextual",
        pooling="mean", dimension=32, window=128,
    )  # fmt: skip
    assert node_encoding_of(source, tmp_path, None) == "separate"
    card.save(tmp_path)
    assert node_encoding_of(source, tmp_path, None) == "contextual"
    assert node_encoding_of(source, None, None) == "separate"
    with pytest.raises(ExportError, match="trained for node_encoding 'contextual', not 'separate'"):
        export_encoders(tiny_model, repository[0], adapter=tmp_path, node_encoding="separate")
    for change in ({"base_revision": "0"}, {"template": "x"}, {"pooling": "cls"}, {"dimension": 8}, {"window": 64}):
        msgspec.structs.replace(card, **change).save(tmp_path)
        with pytest.raises(ExportError, match=f"trained for {next(iter(change))} "):
            node_encoding_of(source, tmp_path, None)


def test_contextual_needs_mean_pooling(tmp_path: Path) -> None:
    model = write_model(tmp_path, pooling="pooling_mode_cls_token")
    with pytest.raises(ExportError, match="cls pooling"):
        export_encoders(model, tmp_path / "repository", node_encoding="contextual")


def test_tensorrt_gets_graphs_and_configurations_and_says_where_plans_are_built(
    tiny_model: Path, tmp_path: Path
) -> None:
    lines: list[str] = []
    reader = tiny_model / "tokenizer.json"
    exported = export_encoders(
        tiny_model, tmp_path, profile="tensorrt", plans=False, reader_tokenizer=reader, report=lines.append
    )
    assert lines[-1].startswith(f"no plans yet: run 'python3 -m canopy_export.tensorrt.build {tmp_path}'")
    for encoder in ("query_encoder", "node_encoder"):
        assert (tmp_path / encoder / "1" / "model.onnx").is_file()
        assert sizes_of(tmp_path / encoder / "1" / "model.onnx") == (
            exported.node.window,
            plan_rows(exported.node.window),
        )
    # Neither the container's TensorRT nor a GPU is here, whichever of the two is told.
    with pytest.raises(ExportError, match="the graphs are written, so go on with 'python3 -m canopy_export"):
        export_encoders(tiny_model, tmp_path, profile="tensorrt")
    assert export_encoders(tiny_model, tmp_path, profile="onnx").built == (), "the same files"


def test_what_cannot_be_exported_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="profile 'tensorrt' serves fp32 only"):
        export_encoders(tiny_model, tmp_path, profile="tensorrt", precision="bf16")
    with pytest.raises(ExportError, match=r"reader_tokenizer\.json.*--reader-tokenizer"):
        export_encoders(tiny_model, tmp_path)
    with pytest.raises(ExportError, match=r"config\.json"):
        export_encoders(tmp_path, tmp_path)
    with pytest.raises(ExportError, match="no adapter here"):
        export_encoders(
            tiny_model, tmp_path, adapter=tmp_path, reader_tokenizer=tiny_model / "tokenizer.json"
        )  # fmt: skip
    folder = tmp_path / "dense"
    shutil.copytree(tiny_model, folder)
    modules = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps([*modules, {**modules[2], "path": "3", "type": "x.Dense"}]))
    with pytest.raises(ExportError, match="Dense"):
        read_source(folder)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # between two libraries
def test_an_adapter_is_merged_into_the_node_encoder_alone(
    repository: tuple[Path, Exported], tiny_model: Path, tmp_path: Path
) -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import BertModel

    adapted = get_peft_model(BertModel.from_pretrained(tiny_model), LoraConfig(r=4, target_modules=["query", "dense"]))
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.05)
    adapted.save_pretrained(tmp_path / "adapter")
    folder = tmp_path / "adapted"
    shutil.copytree(repository[0], folder)
    exported = export_encoders(tiny_model, folder, name="tiny", adapter=tmp_path / "adapter")
    assert exported.built == ("node_encoder",)
    assert exported.query == repository[1].query
    assert exported.node.revision != exported.query.revision
    items = [TextItem(id="a", text="w1 w2 w3. W4 w5 w6. W7 w8 w9.")]
    base = run_encoders(OnnxEncoders(repository[0]), folder, ["w1 w4"], items)
    merged = run_encoders(OnnxEncoders(folder), folder, ["w1 w4"], items)
    compare(run_encoders(TorchEncoders(tiny_model, tmp_path / "adapter"), folder, ["w1 w4"], items), merged).require(
        "x"
    )
    assert compare(base, merged).cosine < 0.9999
