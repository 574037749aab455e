"""The trace file: everything about one run of questions, as JSON, for replay and for bug reports."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from canopy_backend.errors import InvalidItem, InvalidRequest
from canopy_backend.evidence import Evidence
from canopy_backend.fragments import fragment
from canopy_backend.items import Item, without_pictures
from canopy_backend.reading import UNREADABLE, told
from canopy_client.answer import Answer, Original
from canopy_client.prompts import PROMPTS_VERSION

#: Version of the form. 2 added the items, without which what was dropped could not be shown; 3 the switches of each
#: question, what failed, and the stops that tell of failures; 4 the pictures that a model was shown.
FORMAT: Final = 4
#: Versions that are read: what 3 and 4 added has defaults.
READ: Final = frozenset({2, 3, FORMAT})

#: Largest trace that is read, in bytes: some thousand items of a page each.
MAX_BYTES: Final = 32 * 1024 * 1024

_T = TypeVar("_T")


class TraceFile(msgspec.Struct, kw_only=True):
    """Questions with all that was seen on the way to their answers.

    Attributes:
        format: Version of this form.
        created: When, UTC, ISO 8601.
        model: The language model.
        prompts: Version of the prompts.
        settings: Settings by name, secrets masked.
        answers: One a question; evidence carries its visited nodes and its item where a trace was asked for.
    """

    format: int = FORMAT
    created: str
    model: str
    prompts: str = PROMPTS_VERSION
    settings: dict[str, str]
    answers: list[Answer]


class _Head(msgspec.Struct):
    """What has to be right before anything else of a file means something."""

    format: int


def original(item: Item, evidence: Evidence) -> Original | msgspec.UnsetType:
    """What an evidence was made of, for its trace.

    Args:
        item: The item as it was sent.
        evidence: What came back for it.

    Returns:
        The item and where its fragments meet; unset where fragments cut here are not those that the server used, as
        after an update of one side only.
    """
    try:
        spans = fragment(item).spans
    except InvalidItem:
        return msgspec.UNSET
    edges = [int(spans[0, 0]), *spans[:, 1].tolist()]
    regions = evidence.regions
    same = len(spans) == evidence.fragments and all(
        0 <= one.first < one.last <= len(spans) and (one.start, one.end) == (edges[one.first], edges[one.last])
        for one in regions
    )
    if not same:
        return msgspec.UNSET
    # Pictures would make a trace of some items larger than what is read; what was decided does not need them.
    return Original(item=without_pictures(msgspec.structs.replace(item, tree=None)), edges=edges)


def write(folder: Path, answers: list[Answer], *, model: str, settings: dict[str, str]) -> Path:
    """Write a trace into a folder, made when absent; returns the file, named by time and first question."""
    now = datetime.now(UTC)
    content = TraceFile(created=now.isoformat(timespec="seconds"), model=model, settings=settings, answers=answers)
    words = re.sub(r"[^a-z0-9]+", "-", answers[0].question.lower())[:40].strip("-") if answers else "empty"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{now:%Y%m%dT%H%M%S%f}-{words or 'question'}.json"
    partial = path.with_suffix(".part")
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=1))
    partial.rename(path)
    return path


def read(path: Path) -> TraceFile:
    """Read a trace file.

    Raises:
        InvalidRequest: It cannot be read, is not whole, is larger than :data:`MAX_BYTES`, or is of another form; names
            the field.
    """
    name = f"trace {str(path)!r}"
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise InvalidRequest(f"{name}: {size} bytes, and at most {MAX_BYTES} are read")
        payload = path.read_bytes()
    except OSError as error:
        raise InvalidRequest(f"{name}: {error.strerror or error}") from None
    form = _decoded(payload, _Head, name).format
    if form not in READ:
        advice = "ask again with --trace" if form < FORMAT else "use a newer canopy"
        raise InvalidRequest(f"{name}, field 'format': {form}, this version reads {min(READ)} to {FORMAT}: {advice}")
    return _decoded(payload, TraceFile, name)


def trace_schema() -> dict[str, Any]:
    """JSON schema (2020-12) of a trace file."""
    (schema,), components = msgspec.json.schema_components([TraceFile], ref_template="#/$defs/{name}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "CANOPY trace",
        **schema,
        "$defs": components,
    }


def _decoded(payload: bytes, form: type[_T], name: str) -> _T:
    """Parse, or say which field is wrong."""
    try:
        return msgspec.json.decode(payload, type=form)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `$")
        missing = re.search(r"required field `(\w+)`", reason)
        field = ".".join(part for part in (place.rstrip("`").lstrip("."), missing[1] if missing else "") if part)
        raise InvalidRequest(f"{name}{f', field {field!r}' if field else ''}: {reason}") from None
    except RecursionError as error:
        raise InvalidRequest(f"{name}: {told(error)}") from None
    except UNREADABLE as error:
        raise InvalidRequest(f"{name}: not a whole JSON file: {told(error)}") from None
