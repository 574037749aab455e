"""The comparison as a file for programs, a page and a figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.peers.arms import ARMS, EVERYTHING, PEERS, Arm
from benchmarks.peers.collect import ALL, MODES
from benchmarks.peers.compare import POOL, WHOLE, ArmResult, OwnResult
from benchmarks.peers.measures import COVER
from canopy_training.evaluation.figures import canvas
from canopy_training.evaluation.report import write
from canopy_training.evaluation.tables import number, percent, table
from canopy_training.evaluation.vectors import SourceCard

JSON_FILE: Final = "peers.json"
PAGE_FILE: Final = "peers.md"
FIGURE_FILE: Final = "peers.png"
VERSION: Final = 1

_COLOURS: Final = {
    "langchain_threshold": ("#3c8c5a", "-"),
    "langchain_titled": ("#3c8c5a", "--"),
    "langchain_chunks": ("#3c8c5a", ":"),
    "llamaindex_percentile": ("#1f5a91", ":"),
    "llamaindex_percentile_bare": ("#1f5a91", "--"),
    "llamaindex_threshold_bare": ("#1f5a91", "-"),
    "recomp": ("#8a5a9e", "-"),
    "recomp_titled": ("#8a5a9e", "--"),
}
#: Questions of which a data set needs this many before a difference on it is called sure.
_ENOUGH: Final = 20
_MARKERS: Final = ("s", "o", "^", "D")


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Time of one system on the shown items.

    Attributes:
        name: The peer, or the encoder.
        items: Items that it was timed on.
        seconds: Wall clock, nothing encoded before.
        pieces: Pieces that they were cut into; of the method its nodes are not counted.
        cut: Pieces longer than the encoder's window, the rest of which was never read.
        lost: Pieces without a place in their item.
    """

    name: str
    items: int
    seconds: float
    pieces: int = 0
    cut: int = 0
    lost: int = 0


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """All of it.

    Attributes:
        version: Of this layout.
        command: The command line.
        seed: Of the bootstrap.
        resamples: Of the bootstrap.
        threads: Threads of every encoder.
        versions: Of the packages of the peers' environment.
        files: Data files by name, with their SHA-256.
        split: The split.
        questions: Questions that were compared.
        cards: The method's encoders.
        own: What the method keeps.
        arms: What the peers keep.
        timings: How long each took.
    """

    version: int = VERSION
    command: str
    seed: int
    resamples: int
    threads: int
    versions: dict[str, str]
    files: dict[str, str]
    split: str
    questions: int
    cards: list[SourceCard]
    own: list[OwnResult]
    arms: list[ArmResult]
    timings: list[Timing]

    def save(self, folder: Path) -> None:
        """Write file, page and figure into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        write(folder / JSON_FILE, msgspec.json.encode(self) + b"\n")
        write(folder / PAGE_FILE, page(self).encode())
        draw(self, folder / FIGURE_FILE)


def page(comparison: Comparison) -> str:
    """The comparison as Markdown."""
    parts = [
        "# Peers at equal recall",
        _about(comparison),
        "All read with one encoder, cut items in their own way and have their knob swept. *Tokens*: of the reader, a "
        "question, as often as a peer repeats a sentence, with title and table header once for each item that is not "
        f"dropped. *Recall*: gold fragments left, mean over questions; one counts as left when {100 * COVER:.0f} % of "
        "its characters are. *Saved*: tokens that the peer needs for the rule's recall less the rule's own, so above 0 "
        "the rule needs fewer; linear between settings, a peer's best settings alone, – where it never gets there. "
        "Brackets: 95 % intervals, paired bootstrap over questions.",
    ]
    for mode, title in MODES.items():
        if not any(one.mode == mode for one in comparison.own):
            continue
        parts += [f"## {title[0].upper()}{title[1:]}", _own_table(comparison, mode)]
        for card in comparison.cards:
            parts += [f"Against the rule with the {card.name} encoder:", _arm_table(comparison, mode, card.name)]
        parts += [_wins(comparison, mode), *_by_dataset(comparison, mode)]
    parts += ["## Time", _time_table(comparison), "## Peers", _peers(comparison)]
    return "\n\n".join(part for part in parts if part) + "\n"


def draw(comparison: Comparison, file: Path) -> None:
    """Recall against kept tokens: a line a peer, a mark an encoder of the method; a panel a mode."""
    modes = [mode for mode in MODES if any(one.mode == mode and one.scope == POOL for one in comparison.own)]
    labels = {arm.name: arm.label for arm in ARMS}
    with canvas(file, 4.6 * len(modes) + 0.4, 4.6, len(modes)) as (figure, axes):
        handles: dict[str, Any] = {}
        for axis, mode in zip(axes, modes, strict=True):
            marks = [one for one in comparison.own if one.mode == mode and one.scope == POOL]
            whole = next(one.tokens.value for one in marks if one.system == WHOLE) or 1.0
            for arm in (one for one in comparison.arms if one.mode == mode and one.scope == POOL):
                if arm.arm in _COLOURS and arm.system == comparison.cards[-1].name:
                    colour, style = _COLOURS[arm.arm]
                    x, y = ([100 * one / scale for one in of] for of, scale in ((arm.tokens, whole), (arm.recalls, 1)))
                    (handles[labels[arm.arm]],) = axis.plot(x, y, style, color=colour, linewidth=1.3)
            for mark, marker in zip((one for one in marks if one.system != WHOLE), _MARKERS, strict=False):
                point = 100 * (mark.tokens.value or 0) / whole, 100 * (mark.recall.value or 0)
                (handles[f"the rule, {mark.system}"],) = axis.plot(
                    *([value] for value in point), marker, color="#c22f2f", markersize=7, linestyle="none", zorder=5
                )
            axis.set(xlim=(0, 101), ylim=(0, 102), xlabel="kept tokens, % of the whole items")
            axis.set_title("all items shown" if mode == ALL else "gold items alone", fontsize=9)
        axes[0].set_ylabel("gold fragments left, %")
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=2, fontsize=8)


def _about(comparison: Comparison) -> str:
    lines = [f"- command: `{comparison.command}`"]
    for card in comparison.cards:
        adapter = f", adapter {card.adapter[:16]}" if card.adapter else ""
        lines.append(f"- {card.name}: {card.model} {card.revision[:16]}{adapter}, {card.node_encoding} nodes")
    lines += [
        f"- peers: {', '.join(f'{name} {version}' for name, version in comparison.versions.items())}",
        f"- reader's tokens by {comparison.cards[0].reader}",
        f"- seed {comparison.seed}, {comparison.resamples:,} resamples",
        f"- data, split {comparison.split or 'all'}: {', '.join(comparison.files)}; {comparison.questions} questions",
    ]
    return "\n".join(lines)


def _own_table(comparison: Comparison, mode: str) -> str:
    rows = [
        [one.system, str(one.questions), number(one.tokens), percent(one.recall), percent(one.recall_any)]
        for one in comparison.own
        if one.mode == mode and one.scope == POOL
    ]
    return table(["the rule with", "questions", "tokens", "recall %", "recall %, items of one fragment too"], rows)


def _arm_table(comparison: Comparison, mode: str, system: str) -> str:
    header = [
        "peer",
        "knob at equal recall",
        "its tokens there",
        "saved",
        "saved, items of one fragment too",
        "recall % at equal tokens",
        "its own setting",
    ]
    by_name = {arm.name: arm for arm in ARMS}
    rows = []
    for one in comparison.arms:
        if (one.mode, one.scope, one.system) == (mode, POOL, system):
            arm = by_name[one.arm]
            figures = [
                number(one.tokens_at_equal_recall),
                number(one.saved),
                number(one.saved_any),
                percent(one.recall_at_equal_tokens),
            ]
            rows.append([arm.label, _knob(arm, one), *figures, _own_setting(arm, one)])
    return table(header, rows)


def _knob(arm: Arm, one: ArmResult) -> str:
    return "–" if one.knob is None or len(arm.knobs) == 1 else f"{arm.knob} {_setting(one.knob)}"


def _setting(value: float) -> str:
    return "all" if value >= EVERYTHING else f"{value:.3g}"


def _own_setting(arm: Arm, one: ArmResult) -> str:
    if arm.own is None or one.own_tokens is None or one.own_recall is None:
        return ""
    where = f"{arm.knob} {_setting(arm.own)}, {arm.own_label}"
    return f"{one.own_tokens:.0f} tokens, {100 * one.own_recall:.1f} % ({where})"


def _wins(comparison: Comparison, mode: str) -> str:
    """Where a peer needs fewer tokens than the rule, surely or by the figure alone; whole pool and data sets."""
    lines = []
    for card in comparison.cards:
        mine = [one for one in comparison.arms if (one.mode, one.system) == (mode, card.name)]
        fewer = [one for one in mine if one.saved.value is not None and one.saved.value < 0]
        sure = [one for one in fewer if one.saved.high is not None and one.saved.high < 0 and one.questions >= _ENOUGH]
        unsure = len(fewer) - len(sure)
        more = f", and by less than the interval in {unsure} more of {len(mine)} comparisons" if unsure else ""
        end = "nowhere" if not sure else "here (tokens less, of its own)"
        lines.append(
            f"Where a peer surely needs fewer tokens than the rule with the {card.name} encoder: {end}{more}.\n"
        )
        for arm in ARMS:
            places = [f"{one.scope} {_less(one)}" for one in sure if one.arm == arm.name]
            lines += [f"- {arm.label}: {', '.join(places)}"] if places else []
        lines.append("")
    return "\n".join(lines).strip()


def _less(one: ArmResult) -> str:
    return f"({-(one.saved.value or 0):.0f} of {one.tokens_at_equal_recall.value or 0:.0f})"


def _by_dataset(comparison: Comparison, mode: str) -> list[str]:
    """A row a data set: the last encoder, and the peer that needs the fewest tokens."""
    system = comparison.cards[-1].name
    labels = {arm.name: arm.label for arm in ARMS}
    rows = []
    for one in comparison.own:
        if (one.mode, one.system) != (mode, system) or one.scope == POOL:
            continue
        arms = [arm for arm in comparison.arms if (arm.mode, arm.scope, arm.system) == (mode, one.scope, system)]
        rows.append([one.scope, str(one.questions), number(one.tokens), percent(one.recall), *_best(arms, labels)])
    header = ["data set", "questions", f"tokens, {system}", "recall %", "best peer", "its tokens", "saved"]
    return [table(header, rows)] if rows else []


def _best(arms: Sequence[ArmResult], labels: dict[str, str]) -> list[str]:
    able = [arm for arm in arms if arm.tokens_at_equal_recall.value is not None]
    if not able:
        return ["–", "–", "–"]
    best = min(able, key=lambda arm: arm.tokens_at_equal_recall.value or 0.0)
    return [labels[best.arm], number(best.tokens_at_equal_recall), number(best.saved)]


def _time_table(comparison: Comparison) -> str:
    rows = [
        [
            one.name,
            str(one.items),
            f"{1000 * one.seconds / max(1, one.items):.1f}",
            str(one.pieces) if one.pieces else "",
            str(one.cut) if one.pieces else "0, long ones are read in windows",
            str(one.lost) if one.pieces else "",
        ]
        for one in comparison.timings
    ]
    header = ["", "items", "ms an item", "pieces", "of them over the encoder's window", "of them without a place"]
    note = (
        f"Threads: {comparison.threads}. Nothing encoded before: cutting, encoding and one setting; peers on the first "
        "questions of each data set, the items of a question together. Pieces are those of all questions. The rule's "
        "vectors of an item can be kept and serve every later question; peers keep none."
    )
    return f"{table(header, rows)}\n\n{note}"


def _peers(comparison: Comparison) -> str:
    lines = [f"- `{name}`: {what}." for name, what in PEERS.items()]
    refused = {
        one.arm: one
        for one in comparison.arms
        if (one.mode, one.scope, one.system) == (ALL, POOL, comparison.cards[-1].name) and any(one.refused)
    }
    for name, one in refused.items():
        worst = max(one.refused)
        lines.append(
            f"- `{name}` raised an error for {worst} items at {_setting(one.knobs[one.refused.index(worst)])}, the "
            "most of its settings: no sentence was left. Such an item counts as dropped."
        )
    lines += [
        "- A row of a table is one sentence to every peer. Without a title a peer reads the row alone.",
        "- LlamaIndex takes a sentence of context on both sides where not told otherwise, repeats sentences that "
        "lie in two contexts, and keeps everything where its percentile rounds down to no sentence.",
    ]
    return "\n".join(lines)
