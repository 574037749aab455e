"""The report as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from canopy_training.evaluation.bootstrap import Estimate
from canopy_training.evaluation.report import Report
from canopy_training.evaluation.summary import Scope
from canopy_training.evaluation.sweeps import GIVEN, SweepReport

#: Names that are listed of a long list.
_SHOWN: Final = 20
Show = Callable[[Estimate], str]


def markdown(report: Report) -> str:
    """The whole report as a page."""
    parts = [
        "# Evaluation of the node encoder",
        _about(report),
        "Figures in brackets are 95 % intervals: bootstrap over questions, paired for differences, "
        f"{report.resamples:,} resamples.",
        "## Decisions, pruning, recall",
        _main_table(report),
        "Right decisions: every preference pair of a decision on a gold item holds. Pruned: items with two fragments "
        "or more that lost some. Recall: gold fragments left, mean over questions. Tokens: of the reader, per "
        "question, titles and headers included.",
        "## What is kept",
        _kept_table(report),
        "Whole: items whose root was kept. Kept, split, dropped: inner nodes with all, some, none of their fragments "
        "left.",
        "## Flat selectors at equal recall",
        *_sweep_tables(report),
        "Each selector reads the scores of the encoder named, its knob swept: the tokens that it needs for the recall "
        f"that the rule reaches with the {report.systems[-1].card.name} encoder, what the rule saves against that, and "
        "the recall that it reaches with the rule's tokens; linear between settings, – where no setting gets there. "
        "`leaf_threshold` and `top_of_question` can drop whole items, which no other one does; with `_each` they keep "
        "the best leaf of every item.",
        "## Where the rule is on edge",
        _edge_table(report),
        _depth_table(report),
        "A gold fragment is lost where a sibling qualified and its own side did not, at the depth of that node.",
        "## What was left out",
        _omissions(report),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table whose first column is text."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def percent(estimate: Estimate) -> str:
    """A share with its interval, in per cent."""
    if estimate.value is None or estimate.low is None or estimate.high is None:
        return "–"
    return f"{estimate.value * 100:.1f} [{estimate.low * 100:.1f}, {estimate.high * 100:.1f}]"


def points(estimate: Estimate) -> str:
    """A difference of shares with its interval, in points."""
    if estimate.value is None or estimate.low is None or estimate.high is None:
        return "–"
    return f"{estimate.value * 100:+.1f} [{estimate.low * 100:+.1f}, {estimate.high * 100:+.1f}]"


def number(estimate: Estimate) -> str:
    """A count with its interval."""
    if estimate.value is None or estimate.low is None or estimate.high is None:
        return "–"
    return f"{estimate.value:.0f} [{estimate.low:.0f}, {estimate.high:.0f}]"


def bare(estimate: Estimate) -> str:
    """A share in per cent, without its interval."""
    return "–" if estimate.value is None else f"{estimate.value * 100:.1f}"


def _about(report: Report) -> str:
    lines = [f"- command: `{report.command}`"]
    for system in report.systems:
        card = system.card
        adapter = f", adapter {card.adapter[:16]}" if card.adapter else ""
        lines.append(
            f"- {card.name}: {card.model} {card.revision[:16]}{adapter}, {card.node_encoding} nodes, branching "
            f"{card.branching or 'of the server'}, {card.precision}; {system.encoded} items in {system.seconds:.0f} s; "
            f"reader's tokens by {card.reader}"
        )
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    lines += [
        f"- seed {report.seed}; {versions}",
        f"- data, split {report.split or 'all'}: {', '.join(report.files)}; {report.questions} questions, "
        f"{report.items} shown items",
    ]
    return "\n".join(lines)


def _rows(report: Report, cells: Callable[[Scope, str], list[str]]) -> list[list[str]]:
    """A row a scope and system; the difference stands in cells of its own table."""
    names = [system.card.name for system in report.systems]
    return [[_label(scope), name, *cells(scope, name)] for scope in report.scopes for name in names]


def _label(scope: Scope) -> str:
    return f"**{scope.name}**" if scope.kind == "all" else scope.name


def _main_table(report: Report) -> str:
    columns: tuple[tuple[str, str, Show], ...] = (
        ("right decisions %", "decision_accuracy", percent),
        ("pruned %", "pruned", percent),
        ("recall %", "recall", percent),
        ("kept tokens", "kept_tokens", number),
        ("kept tokens %", "kept_share", percent),
    )
    names = [system.card.name for system in report.systems]
    header = ["scope", "encoder", "questions", "items", "decisions", *(title for title, _, _ in columns)]
    rows = []
    for scope in report.scopes:
        for name in names:
            sizes = [str(scope.questions), str(scope.items), str(scope.counts[name]["instances"])]
            shown = [show(scope.metrics[name][metric]) for _, metric, show in columns]
            rows.append([_label(scope), name, *sizes, *shown])
        if scope.differences:
            shown = [(number if show is number else points)(scope.differences[metric]) for _, metric, show in columns]
            rows.append([_label(scope), "difference", "", "", "", *shown])
    return table(header, rows)


def _kept_table(report: Report) -> str:
    def cells(scope: Scope, name: str) -> list[str]:
        metrics = scope.metrics[name]
        whole = [percent(metrics["whole_gold"]), percent(metrics["whole_other"])]
        outcomes = " / ".join(bare(metrics[one]) for one in ("kept", "split", "dropped"))
        return [*whole, outcomes, number(metrics["whole_tokens"])]

    header = [
        "scope",
        "encoder",
        "whole, gold %",
        "whole, other %",
        "kept / split / dropped %",
        "tokens of whole items",
    ]
    return table(header, _rows(report, cells))


def _sweep_tables(report: Report) -> list[str]:
    """One table for all shown items of the pool, one for its gold items."""
    pool = report.scopes[0].name
    tables = []
    for scope in (pool, pool + GIVEN):
        rows = [_sweep_row(sweep) for sweep in report.sweeps if sweep.scope == scope]
        header = [scope, "encoder", "its one point", "tokens at equal recall", "rule saves", "recall % at equal tokens"]
        tables += [table(header, rows)] if rows else []
    return tables


def _sweep_row(sweep: SweepReport) -> list[str]:
    point = f"{sweep.tokens[0]:.0f} tokens, {sweep.recalls[0] * 100:.1f} %" if len(sweep.knobs) == 1 else ""
    equal = [number(sweep.tokens_at_equal_recall), number(sweep.saved), percent(sweep.recall_at_equal_tokens)]
    return [sweep.selector, sweep.system, point, *equal]


def _edge_table(report: Report) -> str:
    shares = ("whole_by_a_hair", "tied", "gold_lost", "gold_lost_beside_gold", "gold_lost_by_a_hair")
    of = {"whole_by_a_hair": "splittable", "tied": "decisions"}

    def cells(scope: Scope, name: str) -> list[str]:
        counts = scope.counts[name]
        return [_of(counts[one], counts[of.get(one, "gold")]) for one in shares]

    header = [
        "scope",
        "encoder",
        "items whose children all lose to the root by less than 0.005",
        "inner nodes with exactly tied children",
        "gold fragments lost to a sibling",
        "of them beside other gold",
        "of them by less than 0.005",
    ]
    return table(header, _rows(report, cells))


def _depth_table(report: Report) -> str:
    names = [f"gold_lost_{depth}" for depth in range(1, 9)]
    scope = report.scopes[0]
    rows = [
        [system.card.name, *(str(scope.counts[system.card.name][one]) for one in names)] for system in report.systems
    ]
    return table(["gold fragments lost at depth", *map(str, range(1, 8)), "8 and more"], rows)


def _of(part: int, whole: int) -> str:
    return f"{part} of {whole} ({part / whole:.1%})" if whole else "–"


def _omissions(report: Report) -> str:
    lines = []
    if report.lost:
        lines += [
            f"- {len(report.lost)} gold items have no place (tokens and pruning count them):",
            *_some(report.lost),
        ]
    for system in report.systems:
        name = system.card.name
        for what, reasons in (("items", system.left_out_items), ("questions", system.left_out_queries)):
            if reasons:
                lines.append(f"- {name}: {len(reasons)} {what} could not be encoded and are left out:")
                lines += _some([f"{one:.80}: {reason}" for one, reason in reasons.items()])
        if system.cut:
            leaves = sum(system.cut.values())
            lines.append(
                f"- {name}: {leaves} fragments of {len(system.cut)} items are longer than the window of "
                f"{system.card.window} tokens and were encoded in several windows; nothing was cut off:"
            )
            lines += _some([f"{one:.80}: {n}" for one, n in system.cut.items()])
    return "\n".join(lines) or "Nothing."


def _some(names: Sequence[str]) -> list[str]:
    rest = [f"  - and {len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
    return [*(f"  - {name}" for name in names[:_SHOWN]), *rest]
