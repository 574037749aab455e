"""Data files: questions, the items that go with them, and where in the items the evidence stands.

Two layouts are read, each plain or gzip, one JSON object a line: ``NAME.questions.jsonl`` whose ``item_ids`` point into
``NAME.items.jsonl`` beside it, and any other ``.jsonl`` whose lines carry their ``items``. Everything is checked here,
before a model is loaded, and an error names file, line and field.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from canopy_backend.errors import InvalidData, InvalidItem, TrainingError
from canopy_backend.items import Item, TableItem, TextItem, VideoItem, decode_item
from canopy_backend.reading import UNREADABLE, told

_QUESTIONS: Final = re.compile(r"\.questions(\.jsonl(?:\.gz)?)$")
_SUFFIXES: Final = (".jsonl", ".jsonl.gz")
#: Longest line that is read, in bytes, so that a file that is no JSON Lines file cannot fill the memory.
MAX_LINE: Final = 64 << 20

Span = tuple[int, int]


class Gold(msgspec.Struct, frozen=True, kw_only=True):
    """One place that holds evidence.

    Exactly one of ``span``, ``rows``, ``time`` and ``answer`` says where; with none of them the item as a whole is
    gold, which evaluation knows and training leaves out.

    Attributes:
        item_id: The item.
        kind: What was annotated, in the data set's own words.
        span: ``[start, end)`` in the text, in code points.
        rows: Rows of the table, from 0.
        time: ``[start, end)`` of the video, in seconds.
        answer: An answer string; every fragment that holds it is gold.
        surface: The annotated text itself, as a check on ``span``.
    """

    item_id: str
    kind: str = ""
    span: Span | None = None
    rows: Annotated[tuple[int, ...], Meta(min_length=1)] | None = None
    time: tuple[float, float] | None = None
    answer: Annotated[str, Meta(min_length=1)] | None = None
    surface: str | None = None


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """One question with its items and its gold.

    Attributes:
        id: Unique in its file.
        dataset: Name of the data set.
        split: ``train``, ``dev`` or what the file says.
        question: The question.
        answers: Accepted answers.
        items: Gold items and others, in the source's order.
        gold: Where the evidence is; empty when only the answers are known.
        meta: What else the file says.
    """

    id: str
    dataset: str
    split: str
    question: str
    answers: tuple[str, ...]
    items: tuple[Item, ...]
    gold: tuple[Gold, ...]
    meta: dict[str, Any]


class _Line(msgspec.Struct, kw_only=True):
    id: Annotated[str, Meta(min_length=1)]
    question: Annotated[str, Meta(min_length=1)]
    dataset: str = ""
    split: str = ""
    answers: tuple[str, ...] = ()
    item_ids: tuple[str, ...] = ()
    items: tuple[msgspec.Raw, ...] = ()
    gold: tuple[Gold, ...] = ()
    meta: dict[str, Any] = {}


def read_questions(files: Sequence[Path], split: str | None = None) -> list[Question]:
    """Read data files.

    Args:
        files: Data files in one of the two layouts.
        split: Only the questions of this split; all without one.

    Returns:
        The questions in the order of files and lines. An item that several questions of a file name is one object.

    Raises:
        InvalidData: A line, an item or a gold is malformed, an id is repeated, or a gold lies outside its item.
        TrainingError: A file cannot be read, or no question is left.
    """
    questions = [question for file in files for question in _read_file(Path(file))]
    chosen = [question for question in questions if split in (None, question.split)]
    if not chosen:
        names = ", ".join(str(file) for file in files) or "no file"
        found = sorted({question.split for question in questions})
        wanted = f"no question of split {split!r} (found: {found})" if questions else "no question"
        raise TrainingError(f"{names}: {wanted}")
    return chosen


def first_of_each(questions: Sequence[Question], limit: int | None) -> list[Question]:
    """The first questions of each data set, in order; all of them without a limit."""
    taken: dict[str, int] = {}
    chosen = []
    for question in questions:
        taken[question.dataset] = taken.get(question.dataset, 0) + 1
        if limit is None or taken[question.dataset] <= limit:
            chosen.append(question)
    return chosen


def _read_file(file: Path) -> Iterator[Question]:
    match = _QUESTIONS.search(file.name)
    pool: Mapping[str, Item] = {}
    if match:
        beside = file.with_name(f"{file.name[: match.start()]}.items{match.group(1)}")
        if not beside.is_file():
            raise TrainingError(f"{file}: its items are expected in {beside}, which is not there")
        pool = {item.id: item for item in _items(beside)}
    name = file.name[: match.start()] if match else file.name.split(".")[0]
    seen: dict[str, int] = {}
    for number, payload in _lines(file):
        line = _decode(payload, file, number)
        if line.id in seen:
            raise InvalidData(f"repeats the id of line {seen[line.id]}", file=str(file), line=number, field="id")
        seen[line.id] = number
        yield _question(line, name, pool, file, number)


def _question(line: _Line, name: str, pool: Mapping[str, Item], file: Path, number: int) -> Question:
    items: list[Item] = []
    for place, item_id in enumerate(line.item_ids):
        if item_id not in pool:
            reason = f"no item {item_id!r:.80} in the items file"
            raise InvalidData(reason, file=str(file), line=number, field=f"item_ids[{place}]")
        items.append(pool[item_id])
    items += [_item(bytes(raw), file, number, f"items[{place}].") for place, raw in enumerate(line.items)]
    if not items:
        raise InvalidData("a question needs items", file=str(file), line=number, field="items")
    by_id = {item.id: item for item in items}
    if len(by_id) != len(items):
        raise InvalidData("two items have one id", file=str(file), line=number, field="items")
    for place, gold in enumerate(line.gold):
        problem = _problem(gold, by_id.get(gold.item_id))
        if problem:
            field, reason = problem
            raise InvalidData(reason, file=str(file), line=number, field=f"gold[{place}].{field}")
    if not line.gold and not any(answer.strip() for answer in line.answers):
        raise InvalidData("neither gold nor answers: nothing to learn from", file=str(file), line=number, field="gold")
    return Question(
        id=line.id,
        dataset=line.dataset or name,
        split=line.split,
        question=line.question,
        answers=line.answers,
        items=tuple(items),
        gold=line.gold,
        meta=line.meta,
    )


def _problem(gold: Gold, item: Item | None) -> tuple[str, str] | None:
    """The field of a gold that cannot be, and why."""
    if item is None:
        return "item_id", f"{gold.item_id!r:.80} is none of the question's items"
    given = [name for name in ("span", "rows", "time", "answer") if getattr(gold, name) is not None]
    if len(given) > 1:
        return given[1], f"a gold says where in one way, and this one has {' and '.join(given)}"
    fits = {"span": TextItem, "rows": TableItem, "time": VideoItem}
    if given and given[0] in fits and not isinstance(item, fits[given[0]]):
        return given[0], f"item {item.id!r:.80} is of modality {item.modality!r}"
    if gold.span is not None and isinstance(item, TextItem):
        return _span_problem(gold, gold.span, item)
    if gold.rows is not None and isinstance(item, TableItem):
        outside = [row for row in gold.rows if not 0 <= row < len(item.rows)]
        if outside:
            return "rows", f"{outside[0]} is outside the {len(item.rows)} rows of item {item.id!r:.80}"
    if gold.time is not None and isinstance(item, VideoItem):
        start, end = gold.time
        if not 0 <= start < end or start >= item.duration_s:
            return "time", f"[{start}, {end}) is not inside the {item.duration_s} s of item {item.id!r:.80}"
    return None


def _span_problem(gold: Gold, span: Span, item: TextItem) -> tuple[str, str] | None:
    start, end = span
    if not 0 <= start < end <= len(item.text):
        return "span", f"[{start}, {end}) is outside the {len(item.text)} characters of item {item.id!r:.80}"
    if gold.surface is not None and item.text[start:end] != gold.surface:
        return "surface", f"{gold.surface!r:.60} is not what stands at [{start}, {end}): {item.text[start:end]!r:.60}"
    return None


def _items(file: Path) -> Iterator[Item]:
    seen: dict[str, int] = {}
    for number, payload in _lines(file):
        item = _item(payload, file, number, "")
        if item.id in seen:
            raise InvalidData(f"repeats the id of line {seen[item.id]}", file=str(file), line=number, field="id")
        seen[item.id] = number
        yield item


def _item(payload: bytes, file: Path, number: int, prefix: str) -> Item:
    try:
        return decode_item(payload)
    except InvalidItem as error:
        field = f"{prefix}{error.field or ''}".rstrip(".")
        raise InvalidData(error.reason, file=str(file), line=number, field=field or None) from None


def _decode(payload: bytes, file: Path, number: int) -> _Line:
    try:
        return msgspec.json.decode(payload, type=_Line)
    except UNREADABLE as error:
        reason, _, path = told(error).partition(" - at `$")
        field = path.rstrip("`").lstrip(".") or None
        raise InvalidData(reason, file=str(file), line=number, field=field) from None


def _lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, with their numbers from 1."""
    if not file.name.endswith(_SUFFIXES):
        raise TrainingError(f"{file}: data files end in {' or '.join(_SUFFIXES)}")
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
            number = 0
            while line := stream.readline(MAX_LINE + 1):
                number += 1
                if len(line) > MAX_LINE:
                    raise InvalidData(f"longer than {MAX_LINE} bytes", file=str(file), line=number)
                if line.strip():
                    yield number, line
    except (OSError, EOFError, zlib.error) as error:
        raise TrainingError(f"{file}: cannot be read ({error})") from None
