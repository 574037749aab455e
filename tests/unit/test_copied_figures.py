"""Figures that stand in a document a second time are those of the page that a command wrote."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PERFORMANCE = (ROOT / "docs" / "results" / "performance.md").read_text(encoding="utf-8")

#: Calls as the README names them, and as the page does.
CALLS = {
    "`compress`, items with trees": "compress, with trees",
    "`compress`, cold items": "compress, cold",
    "`embed_query`, seen before": "embed_query, seen",
    "`embed_query`, new": "embed_query, new",
}
SIDES = {
    "CANOPY, items with trees": "CANOPY, items with trees",
    "CANOPY, cold, `contextual`": "CANOPY, cold items, contextual",
    "CANOPY, cold, `separate`": "CANOPY, cold items, separate",
    "LlamaIndex `SentenceEmbeddingOptimizer`": "LlamaIndex SentenceEmbeddingOptimizer, half (its guide)",
    "LangChain `EmbeddingsFilter`": "LangChain EmbeddingsFilter, best 20 sentences (its default)",
}
#: Rows of "Which critic" and the arm that each was measured as.
CRITICS = {
    "single round": "single-10",
    "single round, k = 30": "single-30",
    "`titles`, then 3 items (`auto`, locally)": "titles-10-follow-3",
    "`titles`, then 10 items": "titles-10",
    "`llm` with its adapter, then 3 items": "critic-10-follow-3",
    "`llm` with its adapter, then 10 items": "critic-10",
    "a critic that knows the gold, then 3 items": "oracle-10-follow-3",
}


def table_after(text: str, header: str) -> Iterator[list[str]]:
    """The rows of the Markdown table whose first line begins with ``header``."""
    lines = text[text.index(f"\n{header}") + 1 :].splitlines()
    for line in lines[2:]:
        if not line.startswith("|"):
            return
        yield [cell.strip() for cell in line.strip("|").split("|")]


def number(cell: str) -> tuple[float, int]:
    """A cell's first number and its decimals."""
    found = re.search(r"-?\d+(\.(\d+))?", cell)
    assert found, cell
    return float(found[0]), len(found[2] or "")


def agree(copied: str, original: float, slack: float = 0.0) -> bool:
    value, decimals = number(copied)
    return abs(value - original) <= 0.5 * 10**-decimals * 1.001 + slack


def test_the_readme_s_calls() -> None:
    measured = {(row[0], row[1]): row for row in table_after(PERFORMANCE, "| call | in flight |")}
    call = ""
    for name, in_flight, *figures in table_after(README, "| call | requests in flight |"):
        call = CALLS[name] if name else call
        row = measured[call, in_flight]
        for copied, original in zip(figures, row[2:5], strict=True):
            value, decimals = number(original)
            assert agree(copied, value, 0.5 * 10**-decimals), (call, in_flight, copied, original)


def test_the_readme_s_peers() -> None:
    measured = {row[0]: row[1] for row in table_after(PERFORMANCE, "| ten items of eight sentences |")}
    rows = list(table_after(README, "| the same ten items |"))
    assert {name for name, _ in rows} == SIDES.keys()
    for name, copied in rows:
        value, decimals = number(measured[SIDES[name]])
        assert agree(copied, value, 0.5 * 10**-decimals), (name, copied)


def test_the_critics_beside_each_other() -> None:
    report = json.loads((ROOT / "docs" / "results" / "loop.json").read_text(encoding="utf-8"))
    measured = dict(report["scopes"][0]["metrics"])
    rows = list(table_after((ROOT / "docs" / "loop.md").read_text(encoding="utf-8"), "| | questions with all gold"))
    assert {name for name, *_ in rows} == CRITICS.keys()
    for name, *copied in rows:
        own = measured[CRITICS[name]]
        final = max(int(key.removeprefix("items_")) for key in own if key.startswith("items_"))
        values = (
            100 * own[f"items_{final}"]["value"],
            own[f"tokens_{final}"]["value"],
            *(own[key]["value"] for key in ("rounds", "calls_critic", "seconds_critic")),
        )
        for cell, value in zip(copied, values, strict=True):
            assert agree(cell, value), (name, cell, value)
