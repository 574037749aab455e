"""Plain text and Markdown: paragraphs gathered into passages, headings as titles."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from canopy_backend.fragments.layout import blocks
from canopy_backend.fragments.text import text_spans
from canopy_backend.items import TextItem
from canopy_backend.sources.files import item_id, read_utf8, title_of

#: A passage is closed once it has this many code points, and does not grow beyond the second number.
ENOUGH: Final = 1200
LONGEST: Final = 2000

_PARAGRAPH: Final = re.compile(r"\n(?:[ \t\r]*\n)+")
_HEADING: Final = re.compile(r"[ \t]*(#{1,6})[ \t]+(.*?)[ \t]*#*\s*", re.DOTALL)


class Section(NamedTuple):
    """The text ``[start, end)`` below one heading; ``title`` is the path of headings to it."""

    title: str
    depth: int
    start: int
    end: int


def read_text(path: Path) -> Iterator[TextItem]:
    """The passages of a ``.txt`` file; their title is the file's name."""
    text = read_utf8(path)
    yield from _items(path, text, [Section(title_of(path), 0, 0, len(text))])


def read_markdown(path: Path) -> Iterator[TextItem]:
    """The passages of a ``.md`` file. No passage crosses a heading; its title is the path of headings to it."""
    text = read_utf8(path)
    yield from _items(path, text, _sections(text, title_of(path)))


def _items(path: Path, text: str, sections: list[Section]) -> Iterator[TextItem]:
    ordinal = 0
    for section in sections:
        for passage in passages(text[section.start : section.end]):
            yield TextItem(id=item_id(path, ordinal), title=section.title, source=path.as_posix(), text=passage)
            ordinal += 1


def passages(text: str) -> Iterator[str]:
    """Gather paragraphs into passages of :data:`ENOUGH` to :data:`LONGEST` code points.

    A paragraph is cut only where it is longer than a passage, and then between sentences. White space around a
    passage is left out, nothing else is.
    """
    start = end = 0
    for piece_start, piece_end in _pieces(text):
        if end > start and (piece_end - start > LONGEST or end - start >= ENOUGH):
            yield from _stripped(text[start:end])
            start = piece_start
        end = piece_end
    yield from _stripped(text[start:end])


def _stripped(passage: str) -> Iterator[str]:
    if passage.strip():
        yield passage.strip("\r\n").rstrip()


def _pieces(text: str) -> Iterator[tuple[int, int]]:
    """Paragraphs, and the sentences of those that are too long, as spans without gaps."""
    fences = [(block.start, block.end) for block in blocks(text) if not block.prose]
    place = 0
    start = 0
    for edge in [*(match.end() for match in _PARAGRAPH.finditer(text)), len(text)]:
        while place < len(fences) and fences[place][1] <= edge:
            place += 1
        if edge == start or (edge < len(text) and place < len(fences) and fences[place][0] < edge):
            continue
        if edge - start > LONGEST:
            yield from ((start + first, start + last) for first, last in text_spans(text[start:edge]).tolist())
        else:
            yield start, edge
        start = edge


def _sections(text: str, name: str) -> list[Section]:
    """Sections in order; a heading without text below it stays as a section of its own words if nothing is under it."""
    path: list[tuple[int, str]] = []
    found = [Section(name, 0, 0, len(text))]
    headings: list[tuple[int, int]] = [(0, 0)]
    for block in blocks(text):
        heading = None if block.prose else _HEADING.fullmatch(text, block.start, block.end)
        if heading is None:
            continue
        depth = len(heading[1])
        path = [*((level, words) for level, words in path if level < depth), (depth, heading[2])]
        found[-1] = found[-1]._replace(end=block.start)
        title = " > ".join(words for _, words in path if words) or name
        found.append(Section(title, depth, block.end, len(text)))
        headings.append((block.start, block.end))
    sections: list[Section] = []
    for place, section in enumerate(found):
        if text[section.start : section.end].strip():
            sections.append(section)
        elif place and (place + 1 == len(found) or found[place + 1].depth <= section.depth):
            sections.append(section._replace(start=headings[place][0], end=headings[place][1]))
    return sections
