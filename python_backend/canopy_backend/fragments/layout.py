"""The blocks of a text: paragraphs, headings, list items, table rows and code fences, found in one pass."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import accumulate
from typing import Final, NamedTuple

#: Lines that begin a block, and blank lines, which end one. Every alternative reads a line at most once.
_MARKS: Final = re.compile(
    r"^[ \t]*(?:(?P<fence>`{3,}|~{3,})|(?P<heading>\#{1,6}(?=[ \t]))|(?P<row>\|)"
    r"|(?P<list>(?:[-*+•]|[0-9]{1,9}[.)])[ \t]+))"
    r"|^(?P<rule>[-:][ \t:|\r-]*)$"
    r"|(?P<blank>\n(?:[ \t\r]*\n)+)",
    re.MULTILINE,
)


class Block(NamedTuple):
    """A run of whole lines, code points ``[start, end)``.

    Attributes:
        start: First code point.
        end: One past the last.
        prose: Whether it holds sentences; otherwise it is one piece.
        guard: No cut at or before this place: the end of a list marker.
    """

    start: int
    end: int
    prose: bool
    guard: int = 0


def blocks(text: str) -> Iterator[Block]:
    """The blocks of a text, in order, without gaps. A fence is closed, or it is prose."""
    return _Layout(text).run()


class _Fences:
    """The lines that may close a fence of one mark, asked for in order."""

    def __init__(self, text: str, mark: str) -> None:
        found = list(re.finditer(rf"^[ \t]*({mark}{{3,}})[ \t\r]*$", text, re.MULTILINE))
        self.starts = [match.start(1) for match in found]
        self.lengths = [len(match[1]) for match in found]
        #: Longest mark from each line to the end of the text: tells without a search that nothing closes a fence.
        self.longest = list(accumulate(reversed(self.lengths), max))[::-1]
        self.place = 0

    def after(self, position: int, length: int) -> int | None:
        """Start of the first closing line behind ``position`` whose mark is long enough."""
        while self.place < len(self.starts) and self.starts[self.place] < position:
            self.place += 1
        if self.place == len(self.starts) or self.longest[self.place] < length:
            return None
        while self.lengths[self.place] < length:
            self.place += 1
        return self.starts[self.place]


class _Layout:
    def __init__(self, text: str) -> None:
        self.text = text
        self.start = 0
        self.guard = 0
        self.fences: dict[str, _Fences] | None = None

    def run(self) -> Iterator[Block]:
        position = 0
        while found := _MARKS.search(self.text, position):
            kind, at = found.lastgroup, found.start()
            if kind == "blank":
                yield from self._prose(found.end())
                position = self.start
            elif kind == "list":
                yield from self._prose(at)
                position = self.guard = found.end()
            elif kind == "rule":
                yield from self._table(at)
                position = max(self.start, self._line_end(at))
            else:
                end = self._fence_end(found) if kind == "fence" else self._line_end(at)
                if end:
                    yield from self._prose(at)
                    yield Block(at, end, prose=False)
                    self.start = end
                position = end or self._line_end(at)
        yield from self._prose(len(self.text))

    def _prose(self, end: int) -> Iterator[Block]:
        """The prose since the last block, where there is some."""
        if end > self.start:
            yield Block(self.start, end, prose=True, guard=self.guard)
        self.start = end
        self.guard = 0

    def _line_end(self, position: int) -> int:
        """One past the line break of the line at ``position``."""
        return self.text.find("\n", position) + 1 or len(self.text)

    def _fence_end(self, found: re.Match[str]) -> int:
        """One past the fence that a line opens; 0 where nothing closes it."""
        mark = found["fence"]
        if self.fences is None:
            self.fences = {kind: _Fences(self.text, kind) for kind in "`~"}
        closed = self.fences[mark[0]].after(found.end(), len(mark))
        return 0 if closed is None else self._line_end(closed)

    def _table(self, at: int) -> Iterator[Block]:
        """The rows of a table without outer bars: the line above its rule, the rule, the lines with bars below it."""
        head = self.text.rfind("\n", self.start, max(self.start, at - 1)) + 1 or self.start
        end = self._line_end(at)
        if "|" not in self.text[at:end] or "|" not in self.text[head:at]:
            return
        yield from self._prose(head)
        yield Block(head, at, prose=False)
        while True:
            yield Block(at, end, prose=False)
            self.start = at = end
            end = self._line_end(at)
            if "|" not in self.text[at:end]:
                return
