"""Every graph compiles with its profiles, by TensorRT for RTX on the CPU; skipped where that extra is not installed."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner

from canopy_backend.errors import ExportError
from canopy_export.export import export_encoders
from canopy_export.qwen3vl.build import export_graphs
from canopy_export.qwen3vl.tiny import tiny_qwen3vl

pytest.importorskip("tensorrt_rtx_bindings", reason="needs the extra tensorrt-check")

from canopy_export.tensorrt.build import build_plan, sizes_of
from canopy_export.tensorrt.builder import build_engine
from canopy_export.tensorrt.check import CAPABILITIES, check


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The graphs of the tiny model: plain ones in bfloat16, and as served in float32, with pixels and of text alone."""
    folder = tmp_path_factory.mktemp("graphs")
    model = tiny_qwen3vl(folder / "model")
    export_graphs(model, folder / "pixels", precision="bf16")
    reader = model / "tokenizer.json"
    export_encoders(model, folder / "text", profile="tensorrt", plans=False, pixels=False, reader_tokenizer=reader)
    export_encoders(model, folder / "seen", profile="tensorrt", plans=False, reader_tokenizer=reader)
    return {
        "language": folder / "pixels/language.onnx",
        "vision": folder / "pixels/vision.onnx",
        "query": folder / "text/query_encoder/1/model.onnx",
        "node": folder / "text/node_encoder/1/model.onnx",
        "seen query": folder / "seen/query_encoder/1/model.onnx",
        "seen node": folder / "seen/node_encoder/1/model.onnx",
        "seen vision": folder / "seen/vision_encoder/1/model.onnx",
    }


@pytest.mark.parametrize("name", ["language", "vision", "query", "node", "seen query", "seen node", "seen vision"])
def test_a_graph_compiles_for_every_generation(name: str, graphs: dict[str, Path]) -> None:
    window, rows = sizes_of(graphs[name])
    engine = build_engine(graphs[name], capabilities=CAPABILITIES, window=window, rows=rows)
    assert len(engine.plan) > 1_000_000
    assert len(engine.profiles) == (3 if name.endswith(("query", "node")) else 2)
    assert engine.warnings == ()


def test_what_does_not_compile_is_told(graphs: dict[str, Path], tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(graphs["vision"].read_bytes()[:2000])
    app = Typer()
    app.command()(check)
    result = CliRunner().invoke(app, [str(broken), "--capability", "SM89"])
    assert result.exit_code == 1
    assert "FAILED SM89" in result.output
    assert "TensorRT cannot parse it" in result.output
    with pytest.raises(ExportError, match="compute capability 'SM1': expected one of"):
        build_engine(graphs["vision"], capabilities=["SM1"])
    with pytest.raises(ExportError, match="no such file"):
        build_engine(tmp_path / "missing.onnx")


def test_rtx_builds_no_plan_for_the_server(graphs: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="engines Triton cannot load"):
        build_plan(graphs["vision"], tmp_path, tmp_path)
