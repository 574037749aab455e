"""Reads what a language model answered, however it spelled it: fences, other cases, extra words, JSON cut short."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from canopy_backend.reading import UNREADABLE

#: Most characters of an answer that are looked at: no model of ours needs more, and patterns stay fast.
MAX_CHARS: Final = 16_384

#: Lists in lists that are still read. A value as deep as the decoder takes would exhaust Python's own stack.
_DEEPEST: Final = 8

_SPACE = re.compile(r"\s+")
_WORD = re.compile(r"[A-Za-z]+")


def json_object(text: str) -> dict[str, Any] | None:
    """The first JSON object in a text, or what can be saved of one that was cut; ``None`` for none."""
    text = text[:MAX_CHARS]
    start = text.find("{")
    if start < 0:
        return None
    body, open_string, depth = _object_end(text[start:])
    for candidate in (body, *_completions(body, open_string, depth)):
        try:
            value = msgspec.json.decode(candidate.encode("utf-8", "replace"), strict=False)
        except UNREADABLE:
            continue
        if isinstance(value, dict):
            return value
    return None


def fields(text: str, names: Sequence[str]) -> dict[str, str]:
    """Named single-line values out of an answer, as JSON or as ``name: value`` lines.

    Args:
        text: The answer.
        names: Lower-case names. In the answer a name may have any case, spaces or marks around it, and words after it
            (``"Sufficient?"``, ``"gap items"``); the first word decides.

    Returns:
        What was found; values are trimmed, white space inside is one space.
    """
    found: Mapping[str, Any] = json_object(text) or _lines(text[:MAX_CHARS], names)
    result: dict[str, str] = {}
    for key, value in found.items():
        word = _WORD.search(str(key))
        name = word[0].lower() if word else ""
        if name in names and name not in result:
            result[name] = one_line(value)
    return result


def one_line(value: Any, depth: int = 0) -> str:
    """A JSON value as one line of text; booleans as yes and no, null as nothing, and so what is nested very deeply."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or depth > _DEEPEST:
        return ""
    if isinstance(value, list):
        return ", ".join([one_line(one, depth + 1) for one in value])
    if isinstance(value, dict):
        return ", ".join([f"{one_line(key)}: {one_line(one, depth + 1)}".strip() for key, one in value.items()])
    return _SPACE.sub(" ", value if isinstance(value, str) else str(value)).strip()


def first_word_of(text: str, words: Sequence[str]) -> str | None:
    """The one of ``words`` that a text names first, in any case; ``None`` for none."""
    for match in _WORD.finditer(text[:MAX_CHARS]):
        if match[0].lower() in words:
            return match[0].lower()
    return None


def _lines(text: str, names: Sequence[str]) -> dict[str, str]:
    """``name: value`` lines; a line without a known name continues nothing and is passed over."""
    name = "|".join(names)
    # Marks in front are bounded, and so is the time for a text of nothing but marks and line ends.
    pattern = rf"^(?:[^\w\n]|_){{0,16}}({name})\b[^:=\n]{{0,40}}[:=][ \t]*(.*)$"
    result: dict[str, str] = {}
    for match in re.finditer(pattern, text, re.IGNORECASE | re.MULTILINE):
        result.setdefault(match[1], match[2].strip().strip("*`"))
    return result


def _object_end(text: str) -> tuple[str, bool, int]:
    """The object that begins a text; whether it ends inside a string; how many braces are open at its end."""
    depth, inside, escaped = 0, False, False
    for place, letter in enumerate(text):
        if inside:
            if escaped:
                escaped = False
            elif letter == "\\":
                escaped = True
            elif letter == '"':
                inside = False
        elif letter == '"':
            inside = True
        elif letter in "{[":
            depth += 1
        elif letter in "}]":
            depth -= 1
            if depth == 0:
                return text[: place + 1], False, 0
    return text, inside, depth


def _completions(body: str, open_string: bool, depth: int) -> list[str]:
    """Ways to close an object that was cut: as it stands, or without its last, unfinished member."""
    if depth <= 0:
        return []
    closed = body.rstrip("\\") + '"' if open_string else body.rstrip().rstrip(",")
    shorter = body.rpartition(",")[0]
    return [closed + "}" * depth, closed + "]" + "}" * (depth - 1), shorter + "}"]
