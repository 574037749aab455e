"""The report of the loop as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from canopy_training.evaluation.bootstrap import Estimate
from canopy_training.evaluation.tables import bare, number, percent, points, table
from canopy_training.loop.aims import TWO_HOP, Aim
from canopy_training.loop.arms import BASELINE, ROUNDS, Arm
from canopy_training.loop.report import Report
from canopy_training.loop.summary import ROLES, STAGES, Scope

#: Failures that are listed of one arm.
_SHOWN: Final = 10
FIGURE_FILE: Final = "loop.png"

Cells = Callable[[Scope, Arm], list[str]]


def markdown(report: Report) -> str:
    """The whole report as a page."""
    parts = [
        "# The loop on annotated questions",
        _about(report),
        "Figures in brackets are 95 % intervals: bootstrap over questions, paired for differences, "
        f"{report.resamples:,} resamples. Every table here is of the command above; `loop.json` has all figures.",
        *_aims(report),
        "## What is found",
        _table(report, *_FOUND),
        "Per cent of questions, after each round, whose gold items, and whose gold fragments, are all in the evidence "
        f"as a prompt holds it; a question that ended before a round stays as it was. Difference: gold items after "
        f"the last round, less those of {BASELINE}. " + _legend(report),
        f"![What is found against reader tokens]({FIGURE_FILE})",
        "## Fragments and tokens",
        _table(report, *_TOKENS),
        "Recall: a question's gold fragments in the evidence, retrieved or not, mean over questions. Kept: the same "
        "of the retrieved gold items that can lose some, which is what compression alone does to them. Tokens: of the "
        "evidence in the reader's prompt, by its own tokenizer, a question.",
        *_answers(report),
        "## Rounds, calls, stops",
        _table(report, *_CALLS, narrow=True),
        "Loops and readers, on all questions together.",
        "## Seconds",
        _table(report, *_SECONDS, narrow=True),
        "A question, mean, with "
        f"{report.setting.in_flight} in flight on the machine that also ran the servers, so that waiting for each "
        "other is in them. Overhead is what a question took beside calls of the language model (or of the "
        "critic in its place), retrieval (query vectors included) and compression; its processor time is that "
        "without waiting for other programs.",
        "## What failed",
        _failed(report),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def describe(arm: Arm) -> str:
    """An arm in words."""
    follow = f", then {arm.follow_up_k}" if arm.follow_up_k is not None else ""
    how = {
        "none": "one round",
        "model": "the language model as critic",
        "titles": "the titles critic, without a language model",
        "oracle": "an oracle that searches the title of a missing gold item: an upper bound",
    }[arm.critic]
    by = "BM25 and vectors" if arm.words else "vectors"
    return f"{how}, k = {arm.k}{follow}, by {by}, {'compressed' if arm.compress else 'items whole'}"


def _about(report: Report) -> str:
    setting = report.setting
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    lines = [
        f"- command: `{report.command}`",
        f"- data: {', '.join(setting.files)}; split {setting.split or 'all'}"
        f"{f', the first {setting.limit} of each set' if setting.limit else ''}: {setting.questions} questions, "
        f"{report.compared} of them worked on by every arm; a corpus of {setting.items} items",
        f"- encoder {setting.encoder}; language model: {setting.model or 'none'}"
        f"{f' (weights {setting.weights[:16]})' if setting.weights else ''}"
        f"{f', prompts {setting.prompts}' if setting.model else ''}; at most {setting.budget} evidence tokens in a "
        f"prompt; {setting.deadline_s:.0f} s for a question",
        f"- seed {report.seed}; {versions}",
    ]
    if report.lost:
        lines.append(f"- {len(report.lost)} gold items have no place and count as a whole")
    return "\n".join(lines)


def _aims(report: Report) -> list[str]:
    """Aims as rows, loops as columns."""
    if not report.aims:
        return []
    arms = list(dict.fromkeys(aim.arm for aim in report.aims))
    by_place = {(aim.what, aim.arm): aim for aim in report.aims}
    rows = []
    for what in dict.fromkeys(aim.what for aim in report.aims):
        own = [by_place.get((what, arm)) for arm in arms]
        known = next(aim for aim in own if aim is not None)
        rows.append(
            [what, f"{known.wanted} {known.unit}".rstrip(), *("" if aim is None else _verdict(aim) for aim in own)]
        )
    size = next(scope.questions for scope in report.scopes if scope.name == TWO_HOP)
    return [
        f"## Aims, on the {size} two-hop questions ({TWO_HOP})",
        table(["what", "wanted", *arms], rows),
        "Hit or missed goes by the figure itself, whatever its interval.",
    ]


def _verdict(aim: Aim) -> str:
    value, low, high = aim.value.value, aim.value.low, aim.value.high
    if value is None or low is None or high is None:
        return "–"
    digits = 1 if aim.unit in ("points", "%") else 2
    signed = "+" if aim.unit == "points" and "over" in aim.what else ""
    shown = f"{value:{signed}.{digits}f} [{low:{signed}.{digits}f}, {high:{signed}.{digits}f}]"
    return f"**hit** {shown}" if aim.hit else f"missed {shown}"


def _table(report: Report, header: Sequence[str], cells: Cells, *, narrow: bool = False) -> str:
    """A row a scope and arm; a narrow one has the first scope, and no single round that asks no model."""
    scopes = report.scopes[:1] if narrow else report.scopes
    arms = [one.arm for one in report.arms if not narrow or one.arm.critic != "none" or one.arm.asks_model]
    rows = [
        [f"**{scope.name}**" if scope is report.scopes[0] else scope.name, arm.name, *cells(scope, arm)]
        for scope in scopes
        for arm in arms
    ]
    return table(["questions", "arm", *header], rows)


def _by_round(scope: Scope, arm: Arm, metric: str, show: Callable[[Estimate], str] = bare) -> str:
    """A figure after each round that the arm has; the last with its interval."""
    metrics = scope.metrics[arm.name]
    if arm.critic == "none":
        return show(metrics[f"{metric}_{ROUNDS}"])
    before = " → ".join(_short(metrics[f"{metric}_{n}"], metric) for n in range(1, ROUNDS))
    return f"{before} → {show(metrics[f'{metric}_{ROUNDS}'])}"


def _short(estimate: Estimate, metric: str) -> str:
    if metric != "tokens":
        return bare(estimate)
    return "–" if estimate.value is None else f"{estimate.value:.0f}"


def _found_cells(scope: Scope, arm: Arm) -> list[str]:
    difference = scope.differences.get(arm.name)
    return [
        _by_round(scope, arm, "items", percent),
        _by_round(scope, arm, "fragments", percent),
        "" if difference is None else points(difference[f"items_{ROUNDS}"]),
    ]


def _token_cells(scope: Scope, arm: Arm) -> list[str]:
    difference = scope.differences.get(arm.name)
    return [
        _by_round(scope, arm, "recall", percent),
        percent(scope.metrics[arm.name]["kept"]),
        _by_round(scope, arm, "tokens", number),
        "" if difference is None else number(difference[f"tokens_{ROUNDS}"]),
    ]


def _call_cells(scope: Scope, arm: Arm) -> list[str]:
    metrics = scope.metrics[arm.name]
    stops = ", ".join(f"{name} {n}" for name, n in sorted(scope.stops[arm.name].items(), key=lambda pair: -pair[1]))
    return [
        _decimal(metrics["rounds"]),
        _decimal(metrics["calls"]) if arm.asks_model else "0",
        *(_plain(metrics[f"calls_{role}"]) for role in ROLES),
        stops,
    ]


def _second_cells(scope: Scope, arm: Arm) -> list[str]:
    metrics = scope.metrics[arm.name]
    own = [metrics[f"seconds_{name}"].value for name in _OWN]
    return [
        *(_plain(metrics[f"seconds_{stage}"]) for stage in STAGES if stage not in _OWN),
        *("–" if value is None else f"{1000 * value:.1f}" for value in own),
    ]


#: Stages that are told in milliseconds.
_OWN: Final = ("overhead", "processor")
_FOUND: Final = (["gold items %", "gold fragments %", "difference"], _found_cells)
_TOKENS: Final = (["recall %", "kept %", "tokens", "difference"], _token_cells)
_CALLS: Final = (["rounds", "calls", *ROLES, "stops"], _call_cells)
_SECONDS: Final = (
    [*(stage for stage in STAGES if stage not in _OWN), "overhead, ms", "its processor time, ms"],
    _second_cells,
)


def _answers(report: Report) -> list[str]:
    """Exact match and F1 of the arms that read."""
    readers = [one.arm for one in report.arms if one.arm.reads]
    if not readers:
        return []
    rows = []
    for scope in report.scopes:
        for arm in readers:
            metrics, difference = scope.metrics[arm.name], scope.differences.get(arm.name)
            shown = [percent(metrics[name]) for name in ("exact", "f1", "holds")]
            rows.append([scope.name, arm.name, *shown, "" if difference is None else points(difference["f1"])])
    return [
        "## The reader's answers",
        table(["questions", "arm", "exact match %", "F1 %", "holds the answer %", "difference of F1"], rows),
        "Normalised as in SQuAD, citations such as [1] taken off, the best over the accepted answers. The reader is "
        "asked for a sentence, so few match exactly; *holds* counts answers that contain the accepted words in a row.",
    ]


def _legend(report: Report) -> str:
    return "The arms:\n\n" + "\n".join(f"- {one.arm.name}: {describe(one.arm)}" for one in report.arms)


def _failed(report: Report) -> str:
    lines = []
    for one in report.arms:
        if one.failed:
            lines.append(f"- {one.arm.name}: {len(one.failed)} questions")
            lines += [f"  - {name}: {error:.160}" for name, error in list(one.failed.items())[:_SHOWN]]
            if len(one.failed) > _SHOWN:
                lines.append(f"  - and {len(one.failed) - _SHOWN} more")
    return "\n".join(lines) or "Nothing."


def _decimal(estimate: Estimate) -> str:
    if estimate.value is None or estimate.low is None or estimate.high is None:
        return "–"
    return f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"


def _plain(estimate: Estimate) -> str:
    return "–" if estimate.value is None else f"{estimate.value:.2f}"
