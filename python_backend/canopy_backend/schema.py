"""Write the published JSON schemas: ``python -m canopy_backend.schema docs/schema``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from canopy_backend.evidence import evidence_schema
from canopy_backend.items import json_schema


def published() -> dict[str, str]:
    """The text of each schema file by its name."""
    schemas = {"item.json": json_schema(), "evidence.json": evidence_schema()}
    return {name: json.dumps(schema, indent=2, ensure_ascii=False) + "\n" for name, schema in schemas.items()}


def main(folder: Path) -> None:
    """Write every schema into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in published().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
