"""Write the published JSON schema of traces: ``python -m canopy_client.schema docs/schema``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from canopy_client.trace import trace_schema


def published() -> dict[str, str]:
    """The text of each schema file by its name."""
    return {"trace.json": json.dumps(trace_schema(), indent=2, ensure_ascii=False) + "\n"}


def main(folder: Path) -> None:
    """Write every schema into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in published().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
