"""Sentence spans of a text: sentencex proposes, a few rules that keep the spans safe decide.

The text is first laid out in blocks (paragraphs, headings, list items, table rows, code fences). Only prose goes to
the splitter, in windows of bounded size, so the time is linear in the length whatever the text is. The splitter's cuts
are then checked: no cut inside a character, a quotation of full-width marks, a word, a list marker, or after an
abbreviation. White space belongs to the fragment before it, and what has no letter or digit joins a neighbour.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from itertools import accumulate
from typing import Final

import numpy as np
import sentencex

from canopy_backend.fragments.layout import Block, blocks
from canopy_backend.fragments.types import Spans

#: Code points at the end of a window that are left to the next one: a cut is judged by what follows it.
_MARGIN: Final = 32
#: Code points that one call of the splitter sees. Some of its steps take time that grows with the square of this.
WINDOW: Final = 1024
#: Longest quotation of full-width marks that is held together.
_QUOTE_LIMIT: Final = 1000

_LETTER: Final = re.compile(r"[^\W_]")
_NOT_SPACE: Final = re.compile(r"\S")
# White space and control characters of other widths than one byte make the splitter slice inside a character.
_ODD_SPACE: Final = re.compile(r"[^\S \n]|[\x00-\x09\x0b-\x1f\x7f-\x9f]")
_WIDE_QUOTE: Final = re.compile(rf"「[^「」]{{0,{_QUOTE_LIMIT}}}」|『[^『』]{{0,{_QUOTE_LIMIT}}}』")
_LAST_WORD: Final = re.compile(r"(?<![^\W_])((?:[^\W\d_]\.)*[^\W\d_]+)\.\s*\Z")
_CLOSERS: Final = frozenset("」』】》〉）］｝”’»›)]}")
_ZERO_WIDTH_JOINER: Final = "\u200d"
#: Abbreviations in front of a number, which the splitter's own list lacks, and in front of a word in lower case.
_BEFORE_NUMBER: Final = re.compile(
    r"approx|arts?|ca?|ch|chaps?|cols?|eqs?|ex|figs?|fl|lit|max|n[or]|nos|pp?|para|pt|refs?|secs?|sects?|ser|st|tabs?"
    r"|temp|v|ver|vols?"
)
_BEFORE_LOWER: Final = re.compile(r"al|approx|ca|cf|deg|dept|est|etc|fig|incl|max|min|misc|resp|temp|viz|vol|vs")


def text_spans(text: str) -> Spans:
    """Sentences of a text as half-open spans.

    Args:
        text: Any text; it is never normalised.

    Returns:
        int32 ``[F, 2]``, F at least 1, in code points. Together the spans are the text; no span but the first begins
        with white space; each holds a letter or digit unless the whole text has none.
    """
    ends = _joined(text, _cuts(text))
    edges = np.array([0, *ends], np.int32)
    return np.stack([edges[:-1], edges[1:]], axis=1)


def _cuts(text: str) -> Iterator[int]:
    """Places where a fragment may end, in order, the end of the text last."""
    quotes = [match.span() for match in _WIDE_QUOTE.finditer(text)] if "「" in text or "『" in text else []
    place = 0
    reached = 0
    for block in blocks(text):
        for cut in _block_cuts(text, block):
            if cut <= reached:
                continue
            reached = _settled(text, cut)
            while place < len(quotes) and quotes[place][1] <= reached:
                place += 1
            inside = place < len(quotes) and quotes[place][0] < reached
            if reached < len(text) and not inside and _may_end(text, reached):
                yield reached
    yield len(text)


def _block_cuts(text: str, block: Block) -> Iterator[int]:
    """Raw cuts of one block, its own end included."""
    if block.prose and _LETTER.search(text, block.start, block.end):
        position = block.start
        while position < block.end:
            stop = min(position + WINDOW, block.end)
            ends = accumulate(_sentence_lengths(text[position:stop]), initial=position)
            sure = stop if stop == block.end else stop - _MARGIN
            cuts = [end for end in ends if position < end < sure]
            yield from (end for end in cuts if end > block.guard)
            if stop == block.end:
                break
            # The last sentence of a window may go on behind it, so the next window starts with it again.
            position = cuts[-1] if cuts else text.rfind(" ", position, sure) + 1 or sure
    yield block.end


def _sentence_lengths(window: str) -> list[int]:
    """Lengths of the sentences of a window; they add up to its own."""
    try:
        lengths = [len(part) for part in sentencex.segment("en", _ODD_SPACE.sub(" ", window))]
    except BaseException as error:
        # A panic of the native code is not an Exception, and its class cannot be imported.
        if type(error).__name__ != "PanicException":
            raise
        return [len(window)]
    return lengths if sum(lengths) == len(window) else [len(window)]


def _settled(text: str, cut: int) -> int:
    """The cut, moved behind closing marks and white space; no character is looked at twice in a text."""
    while found := _NOT_SPACE.search(text, cut):
        cut = found.start()
        if text[cut] not in _CLOSERS or _LETTER.match(text, cut + 1):
            return cut
        cut += 1
    return len(text)


def _may_end(text: str, cut: int) -> bool:
    """Whether a fragment may end here: not inside a word, a character or behind an abbreviation that goes on."""
    before, after = text[cut - 1], text[cut]
    if not before.isspace() and (before.isascii() or not unicodedata.category(before).startswith("P")):
        return False
    if not after.isascii() and (after == _ZERO_WIDTH_JOINER or unicodedata.category(after)[0] in "MC"):
        return False
    return not _abbreviated(text, cut)


def _abbreviated(text: str, cut: int) -> bool:
    """Whether the words before a cut end in an abbreviation that goes on behind it."""
    after = text[cut]
    if not (after.isdigit() or after.islower()):
        return False
    before = text[max(0, cut - 24) : cut]
    found = _LAST_WORD.search(before)
    if found is None or before.endswith(("\n\n", "\n\r\n")):
        return False
    word = found[1].lower()
    if after.isdigit():
        return _BEFORE_NUMBER.fullmatch(word) is not None
    return "." in word or _BEFORE_LOWER.fullmatch(word) is not None


def _joined(text: str, cuts: Iterator[int]) -> list[int]:
    """Ends of the fragments, after those without a letter or digit have joined a neighbour."""
    ends: list[int] = []
    start = 0
    for end in cuts:
        if _LETTER.search(text, start, end):
            ends.append(end)
        elif ends and not _opens(text[start:end]):
            ends[-1] = end
        start = end
    if not ends:
        return [len(text)]
    ends[-1] = len(text)
    return ends


def _opens(part: str) -> bool:
    """Whether a part without letters belongs to what follows it: an opening mark, a dash, a list marker."""
    marks = part.strip()
    if not marks:
        return False
    alone = len(marks) == 1 and (unicodedata.category(marks) == "Pd" or marks in "#*+>•")
    return alone or unicodedata.category(marks[-1]) in ("Ps", "Pi")
