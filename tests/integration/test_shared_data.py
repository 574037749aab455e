"""Laws on real items, where a folder of data sets lies beside the checkout; its data is read in place."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from canopy_backend.fragments import fragment, render
from canopy_backend.hierarchy import balanced
from canopy_backend.items import decode_item

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "data"
SETS = sorted(path.name.removesuffix(".items.jsonl.gz") for path in FOLDER.glob("*.items.jsonl.gz"))

pytestmark = pytest.mark.skipif(not SETS, reason="no folder of data sets beside the checkout (shared/data)")


def lines(name: str) -> list[dict]:
    with gzip.open(FOLDER / f"{name}.jsonl.gz", "rt", encoding="utf-8", newline="\n") as file:
        return [json.loads(line) for line in file]


@pytest.mark.parametrize("name", SETS)
def test_items_decode_and_their_fragments_cover_them(name: str) -> None:
    gold: dict[str, list[dict]] = {}
    for question in lines(f"{name}.questions"):
        for one in question["gold"]:
            gold.setdefault(one["item_id"], []).append(one)
    for raw in lines(f"{name}.items"):
        item = decode_item(json.dumps(raw).encode())
        spans = fragment(item).spans
        assert spans[0, 0] == 0
        assert np.array_equal(spans[1:, 0], spans[:-1, 1])
        assert balanced(len(spans)).size == 2 * len(spans) - 1
        if item.modality == "text":
            assert "".join(item.text[start:end] for start, end in spans.tolist()) == item.text
            assert render(item, fragment(item), 0, len(spans)) == item.text
        for one in gold.get(item.id, []):
            place = one.get("span") or [min(one["rows"]), max(one["rows"]) + 1]
            hit = (spans[:, 0] < place[1]) & (place[0] < spans[:, 1])
            assert hit.any(), f"{item.id}: gold {place} meets no fragment"
