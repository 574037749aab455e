"""Encoder manifests and the revision they stand for."""

import msgspec
import pytest

from canopy_backend.errors import ExportError
from canopy_backend.manifest import CARD_FILE, AdapterCard, EncoderManifest, file_sha256

FIELDS = {
    "model": "small-encoder",
    "model_revision": "1",
    "template": "t" * 16,
    "window": 256,
    "dimension": 384,
    "precision": "fp32",
    "pooling": "mean",
}


@pytest.fixture
def manifest():
    return EncoderManifest(**FIELDS)


@pytest.mark.parametrize(
    "change",
    [
        {"model": "other"},
        {"model_revision": "2"},
        {"adapter": "a"},
        {"template": "u"},
        {"window": 128},
        {"dimension": 256},
        {"precision": "fp16"},
        {"pooling": "cls"},
        {"node_encoding": "contextual"},
        {"pixels": True},
    ],
    ids=lambda change: next(iter(change)),
)
def test_whatever_changes_vectors_changes_the_revision(manifest, change):
    other = msgspec.structs.replace(manifest, **change)
    assert other.revision != manifest.revision


def test_encoders_of_text_keep_the_revision_that_they_had_before_any_saw_pixels(manifest):
    assert manifest.revision == "90166ad0ac0e05fd"


def test_the_revision_is_16_hex_digits_and_stays(manifest):
    other = msgspec.structs.replace(manifest, versions={"onnx": "1"}, files={"model.onnx": "0" * 64})
    assert manifest.revision == other.revision
    assert len(bytes.fromhex(manifest.revision)) == 8


@pytest.mark.parametrize("whole_path", [True, False])
def test_saves_and_loads(tmp_path, manifest, whole_path):
    place = tmp_path / "manifest.json" if whole_path else tmp_path
    manifest.save(place)
    assert EncoderManifest.load(place) == manifest
    assert [file.name for file in tmp_path.iterdir()] == ["manifest.json"]


def test_says_what_is_wrong_with_a_file(tmp_path, manifest):
    with pytest.raises(ExportError, match=r"manifest\.json'.*No such file.*run the export"):
        EncoderManifest.load(tmp_path)
    file = tmp_path / "manifest.json"
    for content, words in [
        (b"{", "truncated"),
        (b"\xff", "manifest"),
        (b'{"model": "x"}', "model_revision"),
        (msgspec.json.encode({**FIELDS, "pooling": "sum"}), "pooling"),
        (msgspec.json.encode({**FIELDS, "window": "wide"}), "window"),
        (msgspec.json.encode({**FIELDS, "files": {"model.onnx": "abc"}}), "files"),
    ]:
        file.write_bytes(content)
        with pytest.raises(ExportError, match=words):
            EncoderManifest.load(file)


def test_verifies_the_files(tmp_path, manifest):
    graph = tmp_path / "1" / "model.onnx"
    graph.parent.mkdir()
    graph.write_bytes(b"weights")
    manifest = msgspec.structs.replace(manifest, files={"1/model.onnx": file_sha256(graph)})
    manifest.verify(tmp_path)
    graph.write_bytes(b"weightz")
    with pytest.raises(ExportError, match=r"model\.onnx.*SHA-256"):
        manifest.verify(tmp_path)
    graph.unlink()
    with pytest.raises(ExportError, match=r"model\.onnx.*no such file"):
        manifest.verify(tmp_path)


def test_asks_for_its_own_templates(manifest):
    manifest.require_template("t" * 16)
    with pytest.raises(ExportError, match="export again"):
        manifest.require_template("other")


CARD = {
    "base": "small-encoder",
    "base_revision": "1",
    "template": "t" * 16,
    "node_encoding": "contextual",
    "pooling": "mean",
    "dimension": 384,
    "window": 256,
}


def test_a_card_lies_in_its_adapter_s_folder(tmp_path):
    card = AdapterCard(**CARD)
    assert card.branching == 2
    card.save(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == [CARD_FILE]
    assert AdapterCard.load(tmp_path) == card


def test_says_what_is_wrong_with_a_card(tmp_path):
    with pytest.raises(ExportError, match=r"canopy_adapter\.json'.*No such file"):
        AdapterCard.load(tmp_path)
    for change, words in [({"node_encoding": "both"}, "node_encoding"), ({"branching": 1}, "branching")]:
        (tmp_path / CARD_FILE).write_bytes(msgspec.json.encode({**CARD, **change}))
        with pytest.raises(ExportError, match=words):
            AdapterCard.load(tmp_path)
