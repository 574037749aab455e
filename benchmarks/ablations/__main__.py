"""``python -m benchmarks.ablations``: measure every row and write the table."""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.ablations.rows import SHOWN, Lab, Row, makers, measure
from canopy_backend.manifest import AdapterCard, NodeEncoding
from canopy_client.settings import Settings
from canopy_export.example import EXAMPLE_ENCODING, EXAMPLE_NAME, example_model
from canopy_export.source import adapter_revision
from canopy_training.data import Question, first_of_each, read_questions
from canopy_training.evaluation.scoring import ScoredQuestion
from canopy_training.manifest import hashes

JSON_FILE: Final = "ablations.json"
PAGE_FILE: Final = "ablations.md"
_TITLES: Final = {
    "encoder": "Encoder: frozen or tuned, separate or contextual",
    "serving": "Serving: one thing changed around the shipped adapter",
    "training": "Training: short runs, one setting changed",
}
_HEADS: Final = {"decision_accuracy": "decisions right", "pruned": "items pruned", "recall": "gold recall"}


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """All rows, and what they were measured with; rows of other inputs are not reused.

    Attributes:
        inputs: Hash over adapters, data, limits and the default encoding.
        command: The command line.
        default: Node encoding of the serving rows.
        short: Node encoding of the short runs.
        questions: Questions that rows are measured on.
        training: Questions that short runs learn from.
        rows: The rows.
    """

    inputs: str
    command: str
    default: NodeEncoding
    short: NodeEncoding
    questions: int
    training: int
    rows: list[Row]


def main() -> None:
    """Measure what is not measured yet, a row at a time, and write the table after each."""
    options = _options()
    lab, inputs = _lab(options)
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / JSON_FILE
    rows: list[Row] = []
    if file.is_file() and not options.fresh:
        known = msgspec.json.decode(file.read_bytes(), type=Table)
        rows = known.rows if known.inputs == inputs else []
    for group, members in makers().items():
        if options.group and group not in options.group:
            continue
        first: Sequence[ScoredQuestion] = ()
        names = {row.name for row in rows if row.group == group}
        for place, (name, make) in enumerate(members.items()):
            if name in names and not (place == 0 and len(names) < len(members)):
                continue
            row, scored = measure(lab, group, name, make, first)
            first = first or scored
            rows = [old for old in rows if (old.group, old.name) != (group, name)] + [row]
            table = Table(
                inputs=inputs,
                command=shlex.join(["python", "-m", "benchmarks.ablations", *sys.argv[1:]]),
                default=lab.default,
                short=lab.short,
                questions=len(lab.questions),
                training=len(lab.training),
                rows=_ordered(rows),
            )
            file.write_bytes(msgspec.json.format(msgspec.json.encode(table), indent=1) + b"\n")
            (options.out / PAGE_FILE).write_text(page(table), encoding="utf-8")
            print(f"{group}: {name}: {row.figures} agreement {row.agreement} in {row.encode_s} s", flush=True)


def page(table: Table) -> str:
    """The table as Markdown."""
    lines = [
        "# Ablations",
        "",
        f"Each row changes one thing and is measured on the gold items of the same {table.questions} questions of dev; "
        f"serving rows use the {table.default} encoding, short runs learn from {table.training} questions in one epoch "
        f"with the {table.short} encoding, which is the cheaper one to train. "
        "*Agreement* is the share of fragments that are kept or dropped as by the first row of the part. Tokens kept "
        "and agreement are shares of sums over all questions, in which long transcripts weigh most; recall is a mean "
        "over questions. Decisions of trees of another branching are other decisions. Made by",
        "",
        f"    {table.command}",
    ]
    for group in dict.fromkeys(row.group for row in table.rows):
        mine = [row for row in table.rows if row.group == group]
        heads = [*(_HEADS.get(metric, "tokens kept") for metric in SHOWN), "agreement", "encoding"]
        heads += ["training"] if group == "training" else []
        lines += ["", f"## {_TITLES[group]}", "", "| |" + "|".join(f" {head} " for head in heads) + "|"]
        lines.append("| --- |" + " --- |" * len(heads))
        for row in mine:
            cells = [f"{100 * row.figures[metric]:.1f} %" for metric in SHOWN]
            cells += ["" if row.agreement is None else f"{100 * row.agreement:.2f} %", f"{row.encode_s:.0f} s"]
            cells += [f"{row.train_s:.0f} s"] if group == "training" else []
            lines.append(f"| {row.name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _ordered(rows: Sequence[Row]) -> list[Row]:
    order = {(group, name): place for place, (group, name) in enumerate(_names())}
    return sorted(rows, key=lambda row: order[row.group, row.name])


def _names() -> list[tuple[str, str]]:
    return [(group, name) for group, members in makers().items() for name in members]


def _lab(options: argparse.Namespace) -> tuple[Lab, str]:
    base = options.base or example_model()
    adapters: dict[NodeEncoding, Path] = {"separate": options.separate, "contextual": options.contextual}
    for encoding, folder in adapters.items():
        if AdapterCard.load(folder).node_encoding != encoding:
            raise SystemExit(f"{folder} was trained for {AdapterCard.load(folder).node_encoding}, not {encoding}")
    every = read_questions(options.data)
    # Decisions are made on gold items; what the rule does to other items is in the evaluation's report.
    questions = [_gold_items(question) for question in _split(every, "dev", options.limit)]
    training = _split(every, "train", options.train_limit)
    model = Settings.load().model_files()
    reader = options.reader_tokenizer or (model / "tokenizer.json" if model else base / "tokenizer.json")
    values = [
        {encoding: adapter_revision(folder) for encoding, folder in adapters.items()},
        sorted(hashes(options.data).items()),
        options.limit,
        options.train_limit,
        options.default,
        options.short_runs,
        str(reader.name),
    ]
    inputs = blake2b(msgspec.json.encode(values), digest_size=8).hexdigest()
    work = Path(tempfile.mkdtemp(prefix="canopy-ablations-"))
    lab = Lab(
        base, reader, adapters, options.default, options.short_runs, questions, training, work, EXAMPLE_NAME
    )  # fmt: skip
    return lab, inputs


def _gold_items(question: Question) -> Question:
    named = {gold.item_id for gold in question.gold}
    return msgspec.structs.replace(question, items=tuple(item for item in question.items if item.id in named))


def _split(questions: Sequence[Question], split: str, limit: int | None) -> list[Question]:
    return first_of_each([question for question in questions if question.split == split], limit)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ablations", description=__doc__)
    parser.add_argument("--data", type=Path, action="append", required=True, help="data file; may be repeated")
    parser.add_argument("--separate", type=Path, required=True, help="adapter trained for separate")
    parser.add_argument("--contextual", type=Path, required=True, help="adapter trained for contextual")
    encodings = ["separate", "contextual"]
    parser.add_argument("--default", choices=encodings, default=EXAMPLE_ENCODING, help="encoding of the serving rows")
    parser.add_argument("--short-runs", choices=encodings, default="contextual", help="encoding of the short runs")
    parser.add_argument("--base", type=Path, help="base model; by default the example's")
    parser.add_argument("--reader-tokenizer", type=Path)
    parser.add_argument("--limit", type=int, help="questions of dev a data set")
    parser.add_argument("--train-limit", type=int, default=80, help="training questions a data set in short runs")
    parser.add_argument("--group", action="append", choices=list(_TITLES), help="only these parts")
    parser.add_argument("--fresh", action="store_true", help="measure everything again")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
