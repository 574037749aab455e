"""How things look in a terminal. Text of items is data: never read as markup, and never sent as control characters."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, Group
from rich.padding import Padding
from rich.panel import Panel
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from canopy_backend.evidence import Decision, Evidence
from canopy_client.answer import Answer, HitRecord
from canopy_client.events import Answered, Compressed, Event, Judged, Retrieved, RoundStarted
from canopy_client.ingestion import IngestionReport
from canopy_client.settings import Settings
from canopy_client.verdict import Verdict

_MARKS = {"kept": ("✔ kept", "green"), "dropped": ("✘ dropped", "red"), "split": ("┬ split", "cyan")}
_UNITS = {"text": "sentence", "table": "row", "video": "segment", "image": "image"}
#: Characters of a region shown beside its node.
_SNIPPET = 72
#: Control characters as visible pictures: an item or an answer must not move the cursor or set the terminal's title.
_VISIBLE = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"}
_VISIBLE |= {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
#: The line between a table's header and its rows.
_RULE = re.compile(r"^\|(?: --- \|)+\n?", re.MULTILINE)


def question(console: Console, text: str) -> None:
    """The head of one question."""
    console.print()
    console.rule(Text(visible(text), "bold"))


def visible(text: str) -> str:
    """The same text with its control characters shown, line ends and tabs aside."""
    return text.translate(_VISIBLE)


def event(console: Console, one: Event) -> None:
    """One step of the loop."""
    match one:
        case RoundStarted(number, query):
            console.print(Text.assemble((f"round {number}", "bold"), "  ", (visible(query), "italic")))
        case Retrieved(_, hits):
            console.print(hit_table(hits))
        case Compressed(_, found):
            evidence_list(console, found)
        case Judged(_, verdict):
            console.print(verdict_panel(verdict))
        case Answered(answer):
            console.print(answer_panel(answer))


def hit_table(hits: Sequence[HitRecord]) -> Table:
    """Retrieved items with their scores; those of earlier rounds dimmed."""
    table = Table("", "score", "kind", "title", "id", box=None, pad_edge=False, header_style="dim")
    for place, hit in enumerate(hits, start=1):
        style = "" if hit.new else "dim"
        note = hit.item_id if hit.new else f"{hit.item_id} (seen)"
        cells = (f"{place}", f"{hit.score:.3f}", hit.modality, hit.title, note)
        table.add_row(*(Text(visible(cell)) for cell in cells), style=style)
    return table


def evidence_list(console: Console, found: Sequence[Evidence]) -> None:
    """Each evidence as its tree where it was traced, else as its text; then tokens before and after."""
    for one in found:
        console.print(evidence_tree(one) if one.trace else evidence_text(one))
    before, after = sum(one.tokens_in for one in found), sum(one.tokens_kept for one in found)
    console.print(Text(f"reader tokens: {before} → {after}{_share(before, after)}", "bold"))


def evidence_head(one: Evidence) -> Text:
    """Title, kind and what was kept."""
    unit = _UNITS[one.modality]
    kept = f"{one.kept_fragments}/{one.fragments} {unit}s" if one.fragments > 1 else f"one {unit}"
    tokens = f"{one.tokens_in} → {one.tokens_kept} tokens"
    note = ", truncated" if one.truncated else ""
    return Text.assemble((visible(one.title or one.item_id), "bold"), f"  {one.modality}, {kept}, {tokens}{note}")


def evidence_text(one: Evidence) -> Group:
    """What was kept, in the item's own words."""
    return Group(evidence_head(one), Padding(Text(visible(one.text)), (0, 0, 1, 2)))


def evidence_tree(one: Evidence) -> Tree:
    """The item's hierarchy as far as it was walked: scores, and what was kept and dropped."""
    root = Tree(evidence_head(one), guide_style="dim")
    texts = {(region.first, region.last): region.text for region in one.regions}
    branches: dict[int, Tree] = {-1: root}
    kept: set[int] = set()
    for node in one.trace.nodes if one.trace else ():
        line = _node_line(node, texts.get((node.first, node.last), ""), lower=node.parent in kept)
        branches[node.node] = branches.get(node.parent, root).add(line)
        if node.outcome == "kept":
            kept.add(node.node)
    return root


def _node_line(node: Decision, text: str, *, lower: bool) -> Text:
    """One node; ``lower`` for a part of a kept node, which was compared and stays with it."""
    mark, style = ("· lower", "dim") if lower else _MARKS[node.outcome]
    line = Text.assemble((f"{mark} ", style), (f"{node.score:+.3f} ", "bold" if node.outcome == "kept" else "dim"))
    line.append(f"[{node.first}, {node.last})", "dim")
    if text:
        line.append(f"  {_snippet(text)}")
    return line


def _snippet(text: str) -> str:
    """The beginning of a region on one line; of a table its first row, not the header that all regions share."""
    body = _RULE.split(text, maxsplit=1)[-1]
    flat = " ".join(visible(body or text).split())
    return flat if len(flat) <= _SNIPPET else f"{flat[: _SNIPPET - 1]}…"


def verdict_panel(verdict: Verdict) -> Panel:
    """What the critic said."""
    lines = [("rationale", verdict.rationale), ("answer", verdict.answer)]
    if not verdict.sufficient:
        lines += [("missing", verdict.missing), ("query", verdict.query)]
    body = Text("\n").join(Text.assemble((f"{name}: ", "dim"), visible(text) or "–") for name, text in lines)
    title = "critic: sufficient" if verdict.sufficient else "critic: not sufficient"
    return Panel(body, title=title, title_align="left", border_style="green" if verdict.sufficient else "yellow")


def answer_panel(answer: Answer) -> Panel:
    """The answer with what it cost."""
    calls = ", ".join(f"{role} {count}" for role, count in sorted(answer.llm_calls.items()))
    before, after = answer.tokens_before, answer.tokens_after
    cited = ", ".join(
        f"[{one.number}] {one.evidence.title or one.evidence.item_id}" for one in answer.evidence if one.cited
    )
    # The marks around items make the prompt a little longer than the evidence; only a cut is worth a word.
    dropped = sum(one.regions_shown < len(one.evidence.regions) for one in answer.evidence)
    read = f", read {answer.tokens_read} ({dropped} item(s) over the budget)" if dropped else ""
    facts = [
        f"stopped: {answer.stop.replace('_', ' ')} after {len(answer.rounds)} round(s), {answer.seconds:.1f} s",
        f"reader tokens: {before} → {after}{_share(before, after)}{read}; model calls: {calls}",
    ]
    if answer.tables_whole is not None:
        facts.append("tables: kept whole (aggregate question)" if answer.tables_whole else "tables: rows (lookup)")
    facts += _pictures(answer)
    if answer.error:
        facts.append(f"failed: {answer.error}")
    if cited:
        facts.append(f"cites {cited}")
    body = Text.assemble((visible(answer.text) or "(no answer)", "bold"), "\n", (visible("\n".join(facts)), "dim"))
    return Panel(body, title="answer", title_align="left", border_style="blue")


def _pictures(answer: Answer) -> list[str]:
    """How many pictures the reader saw, and each that cannot be shown by the number of its item."""
    found = [(one.number, picture) for one in answer.evidence for picture in one.pictures]
    if not found:
        return []
    shown = sum(picture.shown for _, picture in found)
    reasons: dict[str, None] = {f"[{number}] {picture.reason}": None for number, picture in found if picture.reason}
    return [f"pictures: {shown} of {len(found)} shown", *(f"left out: {reason}" for reason in reasons)]


def ingestion(console: Console, report: IngestionReport) -> None:
    """What indexing did."""
    console.print(
        f"{report.items} items: {report.indexed} indexed, {report.unchanged} unchanged, {report.seconds:.1f} s",
        highlight=False,
    )


def settings(console: Console, values: Settings) -> None:
    """All settings with their values."""
    shown = values.shown()
    table = Table("flag", "variable", "value", "meaning", box=None, pad_edge=False, header_style="bold")
    for one in Settings.describe():
        table.add_row(*map(Text, (one.flag, one.env, shown[one.name], one.help)))
    console.print(table)


@contextmanager
def progress(console: Console) -> Iterator[Callable[[int, int], None]]:
    """A progress line for indexing, whose length nobody knows before the files are read."""
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("indexing", total=None)

        def advance(indexed: int, unchanged: int) -> None:
            bar.update(task, description=f"indexing: {indexed} indexed, {unchanged} unchanged")

        yield advance


def _share(before: int, after: int) -> str:
    return f" ({after / before:.0%})" if before else ""
