"""A blend is the weighted sum of what its parts change, whatever their ranks, and remembers where it came from."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch
from question_toys import write_model
from torch import nn

from canopy_backend.errors import ExportError, TrainingError
from canopy_backend.manifest import AdapterCard
from canopy_export.adapter import merge_adapter
from canopy_export.graphs import load_backbone
from canopy_export.source import Source, adapter_revision, read_source
from canopy_training.blend import Blend, blend_adapters
from canopy_training.manifest import adapter_card
from canopy_training.model import NodeModel
from canopy_training.settings import TrainSettings


def adapter(source: Source, folder: Path, seed: int, **settings: object) -> Path:
    chosen = msgspec.structs.replace(TrainSettings(rank=4, alpha=8), **settings)
    torch.manual_seed(seed)
    model = NodeModel(source, chosen)
    model.restore({name: torch.randn_like(weight) * 0.05 for name, weight in model.state().items()})
    model.save(folder, source.name)
    adapter_card(source, chosen).save(folder)
    return folder


def difference(source: Source, folder: Path) -> dict[str, torch.Tensor]:
    base = dict(load_backbone(str(source.path)).named_parameters())
    merged: nn.Module = merge_adapter(load_backbone(str(source.path)), folder, source.pooling, 30)
    return {name: weight - base[name] for name, weight in merged.named_parameters()}


def test_the_difference_is_the_weighted_sum(source: Source, tmp_path: Path) -> None:
    one, two = adapter(source, tmp_path / "1", 1), adapter(source, tmp_path / "2", 2, rank=2, alpha=6)
    made = blend_adapters(source, [(one, 0.25), (two, 0.5)], tmp_path / "out")
    first, second, sum_of_both = (difference(source, folder) for folder in (one, two, tmp_path / "out"))
    changed = 0
    for name, weight in sum_of_both.items():
        torch.testing.assert_close(weight, 0.25 * first[name] + 0.5 * second[name], rtol=0, atol=1e-4)
        changed += bool(weight.abs().max() > 1e-3)
    assert changed
    assert made == Blend.load(tmp_path / "out")
    assert [(part.revision, part.weight, part.run) for part in made.parts] == [
        (adapter_revision(one), 0.25, None),
        (adapter_revision(two), 0.5, None),
    ]
    assert AdapterCard.load(tmp_path / "out") == AdapterCard.load(one)
    page = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "Part 1: 0.25 of the difference" in page
    assert "Part 2: 0.5 of the difference" in page


@pytest.mark.parametrize("weights", [[0.0, 0.5], [-0.5, 1.0], [0.7, 0.4]])
def test_weights_off_the_line_are_refused(source: Source, tmp_path: Path, weights: list[float]) -> None:
    parts = [(adapter(source, tmp_path / str(n), n), weight) for n, weight in enumerate(weights)]
    with pytest.raises(TrainingError, match="each must be over 0, and their sum at most 1"):
        blend_adapters(source, parts, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_parts_of_another_use_or_base_are_refused(source: Source, tmp_path: Path) -> None:
    one = adapter(source, tmp_path / "1", 1)
    two = adapter(source, tmp_path / "2", 2, node_encoding="contextual")
    with pytest.raises(TrainingError, match="contextual"):
        blend_adapters(source, [(one, 0.5), (two, 0.5)], tmp_path / "out")
    (tmp_path / "base").mkdir()
    other = read_source(write_model(tmp_path / "base", window=32), name="tiny")
    with pytest.raises(ExportError, match="window"):
        blend_adapters(other, [(one, 0.5)], tmp_path / "out")
    (one / "adapter_model.safetensors").write_bytes(b"x" * 64)
    with pytest.raises(TrainingError, match="cannot be blended"):
        blend_adapters(source, [(one, 0.5)], tmp_path / "out")
