"""The end of a log file, for messages."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_MOST_BYTES: Final = 16_384


def tail(path: Path, lines: int = 15) -> str:
    """The last lines of a file; empty where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _MOST_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])
