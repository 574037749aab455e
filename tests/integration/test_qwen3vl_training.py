"""`canopy train` on a tiny Qwen3-VL: what it leaves merges into both exports, and touches no weight of the pixels."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from safetensors import safe_open
from typer.testing import CliRunner

from canopy_backend.manifest import AdapterCard, EncoderManifest
from canopy_client.cli.app import build
from canopy_export.qwen3vl.build import export_graphs
from canopy_export.qwen3vl.tiny import tiny_qwen3vl
from canopy_export.source import adapter_revision, read_source
from canopy_training.manifest import RunManifest

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
DATA = next(body for kind, body in re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.M | re.S) if kind == "jsonl")


def run(*words: str) -> None:
    done = CliRunner().invoke(build(), list(words))
    assert done.exit_code == 0, f"{words}\n{done.output}\n{done.exception}"


def test_train_and_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evidence.jsonl").write_text(DATA, encoding="utf-8")
    model = tiny_qwen3vl(tmp_path / "model")
    run(
        "train", "--data", "evidence.jsonl", "--base", "model", "--out", "adapter", "--node-encoding", "separate",
        "--epochs", "2", "--dev-split", "", "--learning-rate", "0.01",
    )  # fmt: skip
    manifest = RunManifest.load(tmp_path / "adapter")
    assert manifest.steps > 0
    card = AdapterCard.load(tmp_path / "adapter")
    assert (card.base_revision, card.pooling, card.window) == (read_source(model).revision, "last", 2048)
    with safe_open(str(tmp_path / "adapter/adapter_model.safetensors"), framework="pt") as file:
        names = set(file.keys())
        learnt = max(float(file.get_tensor(name).abs().max()) for name in names if "lora_B" in name)
    assert learnt > 0
    projections = {match[1] for name in names if (match := re.search(r"(\w+_proj)\.lora_[AB]", name))}
    assert projections == {f"{part}_proj" for part in ("q", "k", "v", "o", "gate", "up", "down")}
    assert not any("visual" in name for name in names)

    run(
        "export", "--model", "model", "--adapter", "adapter", "--repository", "repository", "--profile", "onnx",
        "--reader-tokenizer", "model/tokenizer.json",
    )  # fmt: skip
    revision = adapter_revision(tmp_path / "adapter")
    assert EncoderManifest.load(tmp_path / "repository/node_encoder").adapter == revision
    graphs = export_graphs(model, tmp_path / "graphs", adapter=tmp_path / "adapter", language_only=True)
    assert (graphs.adapter, graphs.precision) == (revision, "bf16")
