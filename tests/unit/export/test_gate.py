"""The parity gate: passes what agrees, names what does not."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from canopy_backend.errors import ExportError
from canopy_backend.hierarchy import balanced
from canopy_backend.refinement import refine
from canopy_export.parity import Outcome, compare, margin


def test_a_gate_names_what_differs() -> None:
    one = Outcome(np.eye(2, dtype=np.float32), [np.eye(2, dtype=np.float16)], {(0, 0): ((0, 1),), (1, 0): ((0, 2),)})
    other = Outcome(one.queries, one.nodes, {(0, 0): ((0, 1),), (1, 0): ((1, 2),)})
    with pytest.raises(ExportError, match=r"1 of 2 decisions .* query 1 on item 0"):
        compare(one, other).require("server")
    clear = dataclasses.replace(one, margins={(0, 0): 0.0, (1, 0): 1e-3})
    with pytest.raises(ExportError, match=r"1 of 2 decisions .* query 1 on item 0"):
        compare(clear, other).require("server")
    broken = Outcome(one.queries * np.float32(np.nan), one.nodes, one.kept)
    with pytest.raises(ExportError, match="cosine nan"):
        compare(one, broken).require("server")


def test_a_gate_lets_equal_outcomes_pass() -> None:
    one = Outcome(np.eye(2, dtype=np.float32), [np.eye(2, dtype=np.float16)], {(0, 0): ((0, 1),)})
    parity = compare(one, one)
    parity.require("itself")
    assert (parity.cosine, parity.decisions, parity.equal, parity.first_difference) == (1.0, 1, 1, None)


def test_a_gate_lets_scores_decide_otherwise_that_only_rounding_tells_apart() -> None:
    margins = {(0, 0): 1e-2, (1, 0): 2e-6}
    one = Outcome(
        np.eye(2, dtype=np.float32), [np.eye(2, dtype=np.float16)], {(0, 0): ((0, 1),), (1, 0): ((0, 2),)}, margins
    )
    other = dataclasses.replace(one, kept={(0, 0): ((0, 1),), (1, 0): ((1, 2),)})
    parity = compare(one, other)
    parity.require("server")
    assert (parity.decisions, parity.equal, parity.tied) == (2, 1, 1)


def test_a_gate_knows_the_rounding_of_bfloat16() -> None:
    one = Outcome(
        np.eye(2, dtype=np.float32), [np.eye(2, dtype=np.float16)], {(0, 0): ((0, 1),), (1, 0): ((0, 2),)},
        {(0, 0): 1e-2, (1, 0): 1e-3},
    )  # fmt: skip
    other = dataclasses.replace(one, kept={(0, 0): ((0, 1),), (1, 0): ((1, 2),)})
    compare(one, other, "bf16").require("server")
    with pytest.raises(ExportError, match="query 1 on item 0"):
        compare(one, other).require("server")
    with pytest.raises(ExportError, match="query 0 on item 0"):
        compare(one, dataclasses.replace(other, kept={(0, 0): (), (1, 0): ((1, 2),)}), "bf16").require("server")
    turned = dataclasses.replace(one, nodes=[np.array([[1, 0.03], [0, 1]], np.float16)])
    with pytest.raises(ExportError, match=r"cosine 0\.9995\d+, limit 0\.9998"):
        compare(one, turned, "bf16").require("server")


def test_themargin_is_that_of_the_comparisons_made() -> None:
    hierarchy = balanced(4)
    scores = np.array([0.5, 0.6, 0.4, 0.55, 0.75, 0.400001, 0.3], np.float32)
    kept = refine(hierarchy, scores)
    assert kept.tolist() == [4]
    # Node 2 was dropped, so what is under it was never looked at.
    assert margin(hierarchy, scores, kept) == pytest.approx(0.05, abs=1e-6)
    alone = balanced(1)
    assert margin(alone, scores[:1], refine(alone, scores[:1])) == np.inf
