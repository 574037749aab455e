"""A trace as one HTML file: style, script and data inside, and a policy that lets nothing else in.

The script's sources are ES modules. A page from a file may not import modules by address, so they are put in one
script, each behind those it imports; top-level names are therefore unique over all of them, which a test holds.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from importlib import resources
from typing import Final

import msgspec

from canopy_client.trace import TraceFile
from canopy_client.view.check import check

ENTRY: Final = "main.js"
STYLES: Final = ("base.css", "loop.css", "replay.css", "source.css")

_IMPORT: Final = re.compile(r'^import \{[^}]*\} from "\./([a-z]+\.js)";\n', re.MULTILINE)
_EXPORT: Final = re.compile(r"^export (?=(?:function|const|class) )", re.MULTILINE)
_PLACE: Final = re.compile(r"\{\{(\w+)\}\}")
#: Characters that could end the data's element or open another, and two that old parsers take for line ends.
_ESCAPES: Final = {ord(mark): f"\\u{ord(mark):04x}" for mark in "<>&\u2028\u2029"}


def page(content: TraceFile, shown: Mapping[str, str] | None = None) -> str:
    """The page of a trace.

    Args:
        content: The trace, as read.
        shown: Pictures of image items as ``data:`` addresses, by the items' ``uri``.

    Returns:
        HTML that needs no other file and makes no request.

    Raises:
        InvalidRequest: The trace contradicts itself; names the field.
    """
    check(content)
    style = "\n".join(asset(name) for name in STYLES)
    script = bundle(ENTRY)
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src '{_hash(script)}'",
            f"style-src '{_hash(style)}'",
            *(["img-src data:"] if shown else []),
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    values = {"policy": policy, "style": style, "data": data(content), "pictures": data(shown or {}), "script": script}
    # In one pass, so that braces in a trace stay what they are.
    return _PLACE.sub(lambda found: values[found[1]], asset("page.html"))


def data(content: TraceFile | Mapping[str, str]) -> str:
    """JSON that stands inside an element whatever text it holds."""
    return msgspec.json.encode(content).decode().translate(_ESCAPES)


def bundle(entry: str) -> str:
    """A module and all that it imports, each once, as one script."""
    done: dict[str, str] = {}

    def add(name: str) -> None:
        if name in done:
            return
        source = asset(name)
        done[name] = ""
        for imported in _IMPORT.findall(source):
            add(imported)
        # Put last again: behind what it imports.
        del done[name]
        done[name] = _EXPORT.sub("", _IMPORT.sub("", source)).strip()

    add(entry)
    return "\n\n".join(done.values())


def asset(name: str) -> str:
    """The text of a file of the page."""
    return (resources.files("canopy_client.view") / "assets" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
