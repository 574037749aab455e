"""The end of a log file, for messages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_MOST_BYTES: Final = 65_536
#: Table rows, and lines that Triton marks as information.
_ROUTINE: Final = re.compile(r"[|+]|I\d{4} ")


def tail(path: Path, lines: int = 15) -> str:
    """The last lines of a file that tell something: the server's tables and its news of routine are left out."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _MOST_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    telling = [line for line in text.splitlines() if line.strip() and not _ROUTINE.match(line)]
    return "\n".join(telling[-lines:])
