"""Which adapter an export merges."""

from __future__ import annotations

from pathlib import Path

import pytest

from canopy_backend.manifest import AdapterCard
from canopy_backend.templates import TEMPLATE_HASH
from canopy_export.example import (
    EXAMPLE_ENCODING,
    EXAMPLE_NAME,
    NO_ADAPTER,
    adapter_for,
    example_adapter,
    example_model,
    precision_for,
)
from canopy_export.source import node_encoding_of, read_source


def test_the_example_gets_its_own_adapter_and_another_model_none() -> None:
    assert adapter_for(None, None, None) == example_adapter(EXAMPLE_ENCODING)
    assert adapter_for(None, None, "separate") == example_adapter("separate")
    assert adapter_for(Path("model"), None, None) is None


def test_what_is_asked_for_is_taken() -> None:
    assert adapter_for(None, Path("own"), None) == Path("own")
    assert adapter_for(Path("model"), Path("own"), None) == Path("own")
    assert adapter_for(None, NO_ADAPTER, "contextual") is None


def test_the_precision_is_the_example_s_where_it_was_measured_and_nothing_else_was_asked_for() -> None:
    assert precision_for(None, None, None) == "bf16"
    assert precision_for(None, None, "fp32") == "fp32"
    assert precision_for(None, NO_ADAPTER, None) is None
    assert precision_for(Path("model"), None, None) is None


@pytest.mark.parametrize("encoding", ["separate", "contextual"])
def test_the_shipped_adapters_fit_the_example(encoding: str) -> None:
    folder = example_adapter(encoding)
    card = AdapterCard.load(folder)
    assert (card.base, card.node_encoding, card.template) == (EXAMPLE_NAME, encoding, TEMPLATE_HASH)
    assert node_encoding_of(read_source(example_model(), name=EXAMPLE_NAME), folder, None) == encoding
    assert (folder / "adapter_model.safetensors").stat().st_size < 3_000_000
    page = (folder / "README.md").read_text(encoding="utf-8")
    for needed in ("CC BY-SA", "seed", "HotpotQA", "Intended use"):
        assert needed in page
