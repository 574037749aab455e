"""Lines of the log: readable, or one JSON object each, with the id of the question and of its trace."""

from __future__ import annotations

import logging
import time
from typing import Any, Final, Literal, TypeAlias

import msgspec

from canopy_client import identity, telemetry

LogFormat: TypeAlias = Literal["text", "json"]
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]

#: Fields that a line of ours may bring along in ``extra``, besides its message.
FIELDS: Final = ("request_id", "trace_id", "stage", "round", "stop", "code", "error", "attempt", "seconds")
_TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class ContextFilter(logging.Filter):
    """Gives each record the id of the question and of the trace that it was written in."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Add what the record does not bring itself; every record passes."""
        for name, value in (("request_id", identity.current()), ("trace_id", telemetry.trace_id())):
            if not hasattr(record, name):
                setattr(record, name, value)
        return True


class JsonFormatter(logging.Formatter):
    """One line a record: time (UTC), level, logger, message, and those of :data:`FIELDS` that it has."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON; an exception as its type and places, without its text."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name in FIELDS if (value := getattr(record, name, None)) not in (None, "")}
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = record.exc_info[0].__name__
            line["where"] = _places(record.exc_info[2])
        return msgspec.json.encode(line, enc_hook=str).decode()


class TextFormatter(logging.Formatter):
    """The same for people: the id stands in square brackets in front of the message."""

    def __init__(self) -> None:
        super().__init__(_TEXT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the library's name
        """The line of a record."""
        name = getattr(record, "request_id", "")
        if name:
            record.message = f"[{name}] {record.message}"
        return super().formatMessage(record)


def configure(level: LogLevel, form: LogFormat = "text") -> None:
    """Write the records of this process to standard error, unless the program has said already where they go.

    Args:
        level: Lowest level that is written.
        form: ``text``, or ``json`` for one object a line.
    """
    handler = logging.StreamHandler()
    handler.addFilter(ContextFilter())
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    # Milvus Lite serves from inside this process and logs a traceback for each call that it does not know.
    logging.getLogger("grpc").setLevel(logging.CRITICAL)


def _places(trace: Any) -> list[str]:
    found = []
    while trace is not None:
        code = trace.tb_frame.f_code
        found.append(f"{code.co_filename}:{trace.tb_lineno} {code.co_name}")
        trace = trace.tb_next
    return found
