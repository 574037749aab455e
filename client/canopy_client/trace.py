"""The trace file: everything about one run of questions, as JSON, for replay and for bug reports."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from canopy_backend.errors import InvalidRequest
from canopy_client.answer import Answer
from canopy_client.prompts import PROMPTS_VERSION

FORMAT: Final = 1


class TraceFile(msgspec.Struct, kw_only=True):
    """Questions with all that was seen on the way to their answers.

    Attributes:
        format: Version of this form.
        created: When, UTC, ISO 8601.
        model: The language model.
        prompts: Version of the prompts.
        settings: Settings by name, secrets masked.
        answers: One a question; evidence carries its visited nodes where a trace was asked for.
    """

    format: int = FORMAT
    created: str
    model: str
    prompts: str = PROMPTS_VERSION
    settings: dict[str, str]
    answers: list[Answer]


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
        InvalidRequest: It cannot be read, or is of another form.
    """
    try:
        content = msgspec.json.decode(path.read_bytes(), type=TraceFile)
    except (OSError, msgspec.MsgspecError) as error:
        raise InvalidRequest(f"trace {str(path)!r}: {error}") from None
    if content.format != FORMAT:
        raise InvalidRequest(f"trace {str(path)!r}: has format {content.format}, this version reads {FORMAT}")
    return content
