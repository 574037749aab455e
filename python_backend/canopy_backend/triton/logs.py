"""What a model's process writes into the server's log: which request failed in which stage, by what kind of error.

Never an error's text, which may quote an item, nor any other text of a request. In ``json`` each line is one object on
standard error, beside the server's own lines; in ``text`` it goes through the server's logger.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
import traceback
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from canopy_backend.errors import CanopyError, code_of
from canopy_backend.triton.backend import pb_utils

FORMAT_VARIABLE: Final = "CANOPY_LOG_FORMAT"
LEVEL_VARIABLE: Final = "CANOPY_LOG_LEVEL"
#: Most lines of one process in a second: a flood of bad requests must not become a flood of lines.
LINES_A_SECOND: Final = 20
#: What an id may be made of to be written; it is the caller's text, and nothing else of the caller's is written.
_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,64}")


class RequestLog:
    """The log of one model instance.

    Args:
        stage: Name of the model in its lines.
        as_json: Objects on standard error instead of the server's logger.
        answered: Write a line for each request that was answered too.
    """

    def __init__(self, stage: str, *, as_json: bool = False, answered: bool = False) -> None:
        self._stage = stage
        self._as_json = as_json
        self._answered = answered
        self._lock = threading.Lock()
        self._second, self._lines, self._left_out = 0, 0, 0

    @classmethod
    def of_environment(cls, stage: str) -> RequestLog:
        """As ``CANOPY_LOG_FORMAT`` (``text`` or ``json``) and ``CANOPY_LOG_LEVEL`` (``debug`` for all) say."""
        return cls(
            stage,
            as_json=os.environ.get(FORMAT_VARIABLE, "") == "json",
            answered=os.environ.get(LEVEL_VARIABLE, "") == "debug",
        )

    def failed(self, name: str, error: BaseException) -> None:
        """A request was answered with an error.

        Args:
            name: The request's id.
            error: What was raised; one that is not the project's own is told with the places that it went through.
        """
        ours = isinstance(error, CanopyError)
        fields: dict[str, Any] = {"code": code_of(error), "error": type(error).__name__}
        if not ours:
            fields["where"] = [f"{one.filename}:{one.lineno} {one.name}" for one in _frames(error)]
        self._write("warning" if ours else "error", "request failed", name, fields)

    def answered(self, name: str, seconds: float) -> None:
        """A request was answered; written at the level ``debug`` alone."""
        if self._answered:
            self._write("debug", "request answered", name, {"seconds": round(seconds, 6)})

    def _write(self, level: str, message: str, name: str, fields: dict[str, Any]) -> None:
        admitted, left_out = self._admit()
        if not admitted:
            return
        line = {"level": level, "stage": self._stage, "message": message, "request_id": shown(name), **fields}
        if left_out:
            line["left_out"] = left_out
        if self._as_json:
            moment = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            sys.stderr.write(msgspec.json.encode({"time": moment, **line}).decode() + "\n")
            sys.stderr.flush()
        else:
            logger = pb_utils().Logger
            {"error": logger.log_error, "warning": logger.log_warn, "debug": logger.log_info}[level](text(line))

    def _admit(self) -> tuple[bool, int]:
        """Whether a line may be written now, and how many were not since the last."""
        with self._lock:
            second = int(time.monotonic())
            if second != self._second:
                self._second, self._lines = second, 0
            self._lines += 1
            if self._lines > LINES_A_SECOND:
                self._left_out += 1
                return False, 0
            left_out, self._left_out = self._left_out, 0
            return True, left_out


def shown(name: str) -> str:
    """An id as it is written: itself, ``-`` for none, ``?`` for one of another form."""
    return (name if _ID.fullmatch(name) else "?") if name else "-"


def text(line: dict[str, Any]) -> str:
    """A line for people, places of an error below it."""
    fields = dict(line)
    places = fields.pop("where", [])
    level, stage, message = (fields.pop(key) for key in ("level", "stage", "message"))
    del level  # the server's logger has it
    told = " ".join(f"{key}={value}" for key, value in fields.items())
    return "\n".join([f"{stage}: {message} {told}", *(f"  {place}" for place in places)])


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    return list(traceback.extract_tb(error.__traceback__, limit=-12))
