"""The parity gate: passes what agrees, names what does not."""

from __future__ import annotations

import numpy as np
import pytest

from canopy_backend.errors import ExportError
from canopy_export.parity import Outcome, compare


def test_a_gate_names_what_differs() -> None:
    one = Outcome(np.eye(2, dtype=np.float32), [np.eye(2, dtype=np.float16)], {(0, 0): ((0, 1),), (1, 0): ((0, 2),)})
    other = Outcome(one.queries, one.nodes, {(0, 0): ((0, 1),), (1, 0): ((1, 2),)})
    with pytest.raises(ExportError, match=r"1 of 2 decisions .* query 1 on item 0"):
        compare(one, other).require("server")
    broken = Outcome(one.queries * np.float32(np.nan), one.nodes, one.kept)
    with pytest.raises(ExportError, match="cosine nan"):
        compare(one, broken).require("server")


def test_a_gate_lets_equal_outcomes_pass() -> None:
    one = Outcome(np.eye(2, dtype=np.float32), [np.eye(2, dtype=np.float16)], {(0, 0): ((0, 1),)})
    parity = compare(one, one)
    parity.require("itself")
    assert (parity.cosine, parity.decisions, parity.equal, parity.first_difference) == (1.0, 1, 1, None)
