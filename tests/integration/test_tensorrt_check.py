"""Every graph compiles with its profiles, by TensorRT for RTX on the CPU; skipped where that extra is not installed."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from typer import Typer
from typer.testing import CliRunner

from canopy_backend.errors import ExportError
from canopy_backend.manifest import Precision
from canopy_export.export import export_encoders
from canopy_export.qwen3vl.build import export_graphs
from canopy_export.qwen3vl.tiny import tiny_qwen3vl

pytest.importorskip("tensorrt_rtx_bindings", reason="needs the extra tensorrt-check")

from canopy_export.tensorrt.build import build_plan, sizes_of
from canopy_export.tensorrt.builder import build_engine
from canopy_export.tensorrt.check import CAPABILITIES, check

#: What a plan can be built in, with pixels.
PRECISIONS: Final[tuple[Precision, ...]] = ("fp32", "bf16", "fp16")


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The graphs of the tiny model: plain ones in bfloat16; as served, of text and, in each precision, with pixels."""
    folder = tmp_path_factory.mktemp("graphs")
    model = tiny_qwen3vl(folder / "model")
    export_graphs(model, folder / "pixels", precision="bf16")
    reader = model / "tokenizer.json"
    export_encoders(model, folder / "text", profile="tensorrt", plans=False, pixels=False, reader_tokenizer=reader)
    served = {}
    for precision in PRECISIONS:
        seen = folder / precision
        export_encoders(model, seen, profile="tensorrt", precision=precision, plans=False, reader_tokenizer=reader)
        served |= {f"{precision} {name}": seen / f"{name}_encoder/1/model.onnx" for name in ("query", "node", "vision")}
    return {
        "language": folder / "pixels/language.onnx",
        "vision": folder / "pixels/vision.onnx",
        "query": folder / "text/query_encoder/1/model.onnx",
        "node": folder / "text/node_encoder/1/model.onnx",
        **served,
    }


@pytest.mark.parametrize(
    "name",
    [
        *("language", "vision", "query", "node"),
        *(f"{precision} {name}" for precision in PRECISIONS for name in ("query", "node", "vision")),
    ],
)
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
