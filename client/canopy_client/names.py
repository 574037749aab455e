"""Names in a text, by how they are written: capitalised words in a row, and quoted strings. No model, no dictionary."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain, dropwhile, pairwise
from typing import Final

#: Characters of one text that are read, so that a long item costs a bounded time.
READ_CHARS: Final = 20_000
#: Characters of a name, and its words; longer ones are sentences.
SHORTEST, LONGEST = 2, 80
MOST_WORDS: Final = 10

_WORD: Final = re.compile(r"\w+(?:['’.\-&/]\w+)*")
#: Pairs of quotation marks, in the scripts that have them.
_QUOTED: Final = re.compile(
    r'"([^"\n]{2,80})"|“([^”\n]{2,80})”|«([^»\n]{2,80})»|「([^」\n]{2,80})」|『([^』\n]{2,80})』'
)
#: Small words that stand inside of names.
# fmt: off
_LINKS: Final = frozenset((
    "of", "the", "and", "for", "in", "on", "at", "to", "de", "del", "della", "di", "da", "do", "dos", "du", "des",
    "la", "le", "van", "von", "der", "den", "af", "av", "al", "el", "y", "e",
))
# fmt: on
#: Words that begin questions, for texts in which nothing else tells that they are no names.
# fmt: off
ASKING: Final = frozenset((
    "what", "which", "who", "whom", "whose", "when", "where", "why", "how", "is", "are", "was", "were",
    "do", "does", "did", "has", "have", "had", "in", "on", "at", "of", "the", "a", "an",
))
# fmt: on
#: What a dot may follow inside of a name, beside initials.
_TITLES: Final = frozenset(("Dr", "Jr", "Mr", "Mrs", "Ms", "Sr", "St", "Mt", "Ft"))
#: Marks behind which a sentence begins, quotes and brackets aside.
_ENDS: Final = frozenset(".!?:;\n")
_SENTENCE_END: Final = re.compile(r"(?<!\b\w)[.!?]['\"”»)]*\s+|[。！？]|\n+")
_POSSESSIVE: Final = re.compile(r"['’]s?$")


def small_words(texts: Iterable[str]) -> frozenset[str]:
    """Words that are written small somewhere in the texts: a capital on one of them only begins a sentence."""
    found = set(chain.from_iterable(_WORD.findall(text[:READ_CHARS]) for text in texts))
    return frozenset(word for word in found if word.islower())


def names(text: str, small: frozenset[str]) -> Iterator[tuple[str, int]]:
    """The names in a text with where they start: quoted ones, then the others in order; one may come again.

    A name is a quoted string, or capitalised words in a row, which words such as "of" may join and numbers may follow.
    Where "and" joins two, each of them is a name too. A first word that only begins a sentence is left out.

    Args:
        text: The text; what is behind :data:`READ_CHARS` is not read.
        small: What :func:`small_words` found, in all texts that belong together.
    """
    text = text[:READ_CHARS]
    for match in _QUOTED.finditer(text):
        yield from _fitting(match[match.lastindex or 0], match.start())
    for run in _runs(text):
        words = run
        if _begins_sentence(text, run[0].start()):
            # A number that only its sentence's first word brought along goes with it.
            words = list(dropwhile(lambda word: word[0].lower() in small or word[0].isdigit(), run))
        parts = [words]
        joined = [place for place, word in enumerate(words) if word[0] == "and"]
        if joined:
            edges = [-1, *joined, len(words)]
            parts += [words[first + 1 : last] for first, last in pairwise(edges)]
        for part in parts:
            if part:
                yield from _fitting(text[part[0].start() : part[-1].end()], part[0].start())


def sentence_ends(text: str) -> list[int]:
    """Where the sentences of a text end, roughly: at a mark before white space, an initial's dot aside."""
    return [match.end() for match in _SENTENCE_END.finditer(text[:READ_CHARS])]


def words(text: str) -> frozenset[str]:
    """The words of a text, in lower case."""
    return frozenset(_WORD.findall(text[:READ_CHARS].casefold()))


def _runs(text: str) -> Iterator[list[re.Match[str]]]:
    """Words in a row that begin with a capital, with the small words that join them."""
    run: list[re.Match[str]] = []
    links: list[re.Match[str]] = []
    for word in _WORD.finditer(text):
        before = (links or run)[-1] if run else None
        if before is not None and not _near(before, text[before.end() : word.start()]):
            yield run
            run, links = [], []
        first = word[0][0]
        if first.isupper() or (run and not links and first.isdigit()):
            run += [*links, word]
            links = []
        elif run and len(links) < 2 and word[0] in _LINKS:
            links.append(word)
        elif run:
            yield run
            run, links = [], []
    if run:
        yield run


def _near(before: re.Match[str], between: str) -> bool:
    """Whether what stands between two words keeps them in one name: a space, and a dot behind an initial."""
    return between in (" ", "\u00a0") or (between == ". " and (len(before[0]) == 1 or before[0] in _TITLES))


def _begins_sentence(text: str, start: int) -> bool:
    """Whether a place is the first of a text or of a sentence."""
    before = text[max(0, start - 4) : start].rstrip(" \"'“‘«([")
    return start == 0 or not before or before[-1] in _ENDS


def _fitting(name: str, start: int) -> Iterator[tuple[str, int]]:
    """The name without marks around it, if it is neither too short nor a sentence."""
    name = _POSSESSIVE.sub("", name.strip(" .,;:!?"))
    if SHORTEST <= len(name) <= LONGEST and len(name.split()) <= MOST_WORDS and any(map(str.isalnum, name)):
        yield name, start
