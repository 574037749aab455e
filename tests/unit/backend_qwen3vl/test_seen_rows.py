"""Rows that bring their own features: each visual token finds its own, wherever its sequence was put."""

from __future__ import annotations

import numpy as np
import pytest

from canopy_backend.packing import pack
from canopy_backend.qwen3vl.chat import ChatSequence, positions_of
from canopy_backend.qwen3vl.serving import no_features, seen_rows, text_places


def sequence(tokens: int, frames: list[tuple[int, int]]) -> ChatSequence:
    """Text with frames behind its second token, each between two of its own."""
    spans, at = [], 2
    for height, width in frames:
        count = height * width // 4
        spans.append((at, at + count, (1, height, width)))
        at += count + 1
    length = max(tokens + at, at + 1)
    return ChatSequence(list(range(1, length + 1)), *positions_of(length, spans, 2))


SEQUENCES = [sequence(3, [(4, 4)]), sequence(9, []), sequence(1, [(2, 4), (6, 4)]), sequence(40, [(2, 2)])]


def features() -> list[np.ndarray]:
    """The feature of token k of sequence s is 100 s + k, in all numbers, plus a thousand a map."""
    tables = []
    for place, one in enumerate(SEQUENCES):
        numbers = 100 * place + np.arange(1, int(one.visual.max(initial=0)) + 1, dtype=np.float32)
        tables.append(np.tile((1000 * np.arange(4)[:, None] + numbers)[:, :, None], (1, 1, 3)).astype(np.float32))
    return tables


@pytest.mark.parametrize("packed", [True, False])
def test_each_visual_token_has_its_own_feature(packed: bool) -> None:
    rows = seen_rows(SEQUENCES, features(), packed=packed)
    assert len(rows.input_ids) == (2 if packed else 4)
    assert rows.features.shape[1:] == (4, 64, 3)
    for place, one in enumerate(SEQUENCES):
        row, slot = rows.slots[place].tolist()
        mine = rows.segment_ids[row] == slot + 1
        assert rows.input_ids[row, mine].tolist() == one.ids
        np.testing.assert_array_equal(rows.places[row, :3, mine].T, one.positions)
        index = rows.places[row, 3, mine]
        assert ((index > 0) == (one.visual > 0)).all()
        found = rows.features[row][:, index[index > 0] - 1, 0]
        np.testing.assert_array_equal(found, features()[place][:, :, 0])
    assert not rows.places[:, :, (rows.segment_ids == 0).all(axis=0)].any()


def test_the_query_graph_gets_a_mask_and_the_node_graph_slots() -> None:
    rows = seen_rows(SEQUENCES, features(), packed=False)
    mask = rows.query_inputs()["attention_mask"]
    assert mask.sum(axis=1).tolist() == [len(one.ids) for one in SEQUENCES]
    assert rows.node_inputs()["slot_ids"].max() == 1


def test_rows_of_text_have_one_line_of_features_that_no_token_names() -> None:
    packed = pack([[5] * 9, [6] * 4], 64)
    places = text_places(packed.position_ids)
    assert places.shape == (1, 4, 64)
    assert not places[:, 3].any()
    assert (places[:, :3] == packed.position_ids[:, None]).all()
    plain = [ChatSequence([5] * 9, *positions_of(9, [], 2)), ChatSequence([6] * 4, *positions_of(4, [], 2))]
    rows = seen_rows(plain, [np.zeros((4, 0, 3), np.float32)] * 2, packed=True)
    np.testing.assert_array_equal(rows.places, places)
    np.testing.assert_array_equal(rows.features, no_features(1, 3))
