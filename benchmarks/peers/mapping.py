"""From a peer's pieces back to places in the text that they were cut from. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Sequence

Span = tuple[int, int]


def locate_pieces(text: str, pieces: Sequence[str], starts: Sequence[int | None]) -> list[Span | None]:
    """Where pieces that were cut from a text stand in it.

    A start that the peer gives is taken when the piece does stand there. Any other piece is searched for: behind the
    piece before it, as it is; there, with any white space where it has some; then both from the beginning.

    Args:
        text: The text.
        pieces: The pieces, in the order in which they were cut.
        starts: Where each begins as the peer says; ``None`` or less than 0 where it does not know.

    Returns:
        A half-open span for each piece; ``None`` for one that is not found, or that is blank.
    """
    spans: list[Span | None] = []
    reached = 0
    for piece, start in zip(pieces, starts, strict=True):
        if not piece.strip():
            spans.append(None)
            continue
        span: Span | None
        if start is not None and start >= 0 and text.startswith(piece, start):
            span = (start, start + len(piece))
        else:
            span = _search(text, piece, reached) or _search(text, piece, 0)
        spans.append(span)
        if span is not None:
            reached = span[1]
    return spans


def through_space(text: str, end: int) -> int:
    """The end of a piece moved behind the white space that follows it, as a fragment's own end is."""
    while end < len(text) and text[end].isspace():
        end += 1
    return end


def _search(text: str, piece: str, start: int) -> Span | None:
    found = text.find(piece, start)
    if found >= 0:
        return found, found + len(piece)
    loose = re.compile(r"\s+".join(map(re.escape, piece.split()))).search(text, start)
    return loose.span() if loose else None
