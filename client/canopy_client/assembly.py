"""Evidence as the critic and the reader see it: numbered, in retrieval order, within a token budget.

Where the model sees, pictures of an item stand behind its words, inside its marks, and their tokens count.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from canopy_backend.evidence import Evidence, Region
from canopy_client.answer import Cited, PictureRecord
from canopy_client.llm.base import Picture, Placed
from canopy_client.prompts import neutral, picture_marks
from canopy_client.sight import Seen, spread

#: Tokens of each text by the reader's tokenizer.
Count = Callable[[Sequence[str]], Iterable[int]]

#: Evidence tokens that one prompt may hold, as in the method's experiments.
BUDGET_TOKENS: Final = 16_000

#: Where kept text of one item is not contiguous.
GAP: Final = "[…]"

#: Characters of a token, where nothing counts them: about what tokenizers make of English.
_TOKEN_CHARS: Final = 4

#: Texts whose tokens are remembered: those of some dozen questions at a time.
_REMEMBERED: Final = 4096

_END: Final = "\n</item>"

_CITATION = re.compile(r"\[(\d{1,4})\]")


class _Remembered:
    """Counts tokens, each text once: critic and reader see the same evidence round after round."""

    def __init__(self, count: Count) -> None:
        self._count = count
        self._known: OrderedDict[str, int] = OrderedDict()

    def __call__(self, texts: Sequence[str]) -> list[int]:
        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        if new:
            self._known.update((text, int(cost)) for text, cost in zip(new, self._count(new), strict=True))
        costs = [self._known[text] for text in texts]
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return costs


@dataclass(frozen=True, slots=True)
class Part:
    """One evidence as a prompt shows it.

    Attributes:
        text: Its words between its marks.
        regions: How many of its regions they hold, from the first.
        tokens: In all, pictures included.
        pictures: Its pictures, by their places in the text.
        seen: Which of the item's pictures these are.
    """

    text: str
    regions: int
    tokens: int
    pictures: tuple[Placed, ...] = ()
    seen: tuple[int, ...] = ()


_NONE: Final = Part("", 0, 0)


@dataclass(frozen=True, slots=True)
class Prompt:
    """Evidence ready for a prompt.

    Attributes:
        text: The numbered evidence; empty for none.
        shown: Regions of each evidence that are in it, from the first on; 0 for those that had to go.
        tokens: Its length in reader tokens, pictures included, without the marks around each item where nothing had
            to go.
        pictures: The pictures in it, by their places in the text.
        seen: For each evidence, every picture of what was kept, and whether it is in the prompt.
    """

    text: str
    shown: tuple[int, ...]
    tokens: int
    pictures: tuple[Placed, ...] = ()
    seen: tuple[tuple[PictureRecord, ...], ...] = ()

    def cited(self, evidence: Sequence[Evidence], rounds: Sequence[int], answer: str) -> list[Cited]:
        """All evidence under its numbers, with what the answer names of it."""
        named = {int(number) for number in _CITATION.findall(answer)}
        return [
            Cited(
                number=number,
                round=found,
                regions_shown=shown,
                cited=shown > 0 and number in named,
                evidence=one,
                pictures=list(pictures),
            )
            for number, (one, found, shown, pictures) in enumerate(
                zip(evidence, rounds, self.shown, self.seen, strict=True), start=1
            )
        ]


class Assembler:
    """Numbers evidence and cuts it to the reader's budget.

    Over the budget the latest retrieved goes first, whole regions by place and never by score, as in the method: what
    comes after the first item that does not fit, then pictures of that item, evenly, then its last regions.

    Args:
        budget_tokens: Most reader tokens of evidence.
        count: Counts tokens; an estimate from the server's own counts where not given.
    """

    def __init__(self, budget_tokens: int = BUDGET_TOKENS, count: Count | None = None) -> None:
        self._budget = budget_tokens
        self._count = None if count is None else _Remembered(count)
        self._pictures: Mapping[str, Sequence[Seen]] = {}

    @property
    def budget_tokens(self) -> int:
        """Most reader tokens of evidence."""
        return self._budget

    def within(self, budget_tokens: int | None) -> Assembler:
        """The same with another budget; ``None`` leaves it as it is."""
        other = Assembler(self._budget if budget_tokens is None else budget_tokens)
        other._count, other._pictures = self._count, self._pictures
        return other

    def showing(self, pictures: Mapping[str, Sequence[Seen]]) -> Assembler:
        """The same with pictures, by their items' ids; what is added to the mapping later is seen too."""
        other = self.within(None)
        other._pictures = pictures
        return other

    def count(self, texts: Sequence[str]) -> list[int]:
        """Reader tokens of each text; a token for four characters where there is no tokenizer."""
        if self._count is not None:
            return self._count(texts)
        return [-(-len(text) // _TOKEN_CHARS) for text in texts]

    def assemble(self, evidence: Sequence[Evidence]) -> Prompt:
        """The prompt's evidence.

        Args:
            evidence: In retrieval order, all rounds.
        """
        texts = [render(number, one) for number, one in enumerate(evidence, start=1)]
        costs = self._costs(texts, evidence)
        parts: list[Part] = []
        total = 0
        for number, (one, text, cost) in enumerate(zip(evidence, texts, costs, strict=True), start=1):
            words = Part(text, len(one.regions), cost)
            part = self._illustrated(number, one, words, self._budget - total)
            full = part is not None and len(part.seen) == len(self._showable(one))
            parts.append(part or self._shortened(number, one, self._budget - total))
            total += parts[-1].tokens
            if not full:
                break
        parts += [_NONE] * (len(evidence) - len(parts))
        return self._joined(parts, evidence, total)

    def _showable(self, one: Evidence) -> list[tuple[int, Picture]]:
        """Pictures of an evidence that can be shown, with their places among all of them."""
        seen = self._pictures.get(one.item_id, ())
        return [(place, each.picture) for place, each in enumerate(seen) if each.picture is not None]

    def _illustrated(self, number: int, one: Evidence, words: Part, room: int) -> Part | None:
        """An item's words with as many of its pictures as fit; ``None`` where the words alone do not."""
        if words.tokens > room:
            return None
        pictures = self._showable(one)
        if not pictures:
            return words
        seen = self._pictures[one.item_id]
        marks = [picture_marks(number, seen[place].at_ms) for place, _ in pictures]
        costs = [
            picture.tokens + cost
            for (_, picture), cost in zip(pictures, self.count([f"\n{a}{b}" for a, b in marks]), strict=True)
        ]
        for most in range(len(pictures), 0, -1):
            chosen = spread(len(pictures), most)
            tokens = words.tokens + sum(costs[place] for place in chosen)
            if tokens <= room:
                return _with_pictures(words, tokens, [(*pictures[place], *marks[place]) for place in chosen])
        return words

    def _shortened(self, number: int, one: Evidence, room: int) -> Part:
        """The longest run of an item's first regions that fits, in words alone."""
        best = _NONE
        low, high = 1, len(one.regions) - 1
        # Halved, since a longer run costs more: a table may have thousands of regions.
        while low <= high:
            kept = (low + high) // 2
            text = render(number, one, kept)
            (cost,) = self._costs([text], [one])
            if cost <= room:
                best, low = Part(text, kept, cost), kept + 1
            else:
                high = kept - 1
        return best

    def _joined(self, parts: Sequence[Part], evidence: Sequence[Evidence], tokens: int) -> Prompt:
        placed: list[Placed] = []
        records: list[tuple[PictureRecord, ...]] = []
        before = 0
        for part, one in zip(parts, evidence, strict=True):
            placed += [replace(picture, at=before + picture.at) for picture in part.pictures]
            records.append(_records(self._pictures.get(one.item_id, ()), part.seen))
            before += len(part.text) + 1 if part.text else 0
        text = "\n".join(part.text for part in parts if part.text)
        return Prompt(text, tuple(part.regions for part in parts), tokens, tuple(placed), tuple(records))

    def _costs(self, texts: Sequence[str], evidence: Sequence[Evidence]) -> list[int]:
        if self._count is not None:
            return self.count(texts)
        # The server counted the whole evidence; what stands here, in proportion to its characters.
        return [
            round(one.tokens_kept * max(1, len(text)) / max(1, len(one.text)))
            for text, one in zip(texts, evidence, strict=True)
        ]


def render(number: int, one: Evidence, regions: int | None = None) -> str:
    """One evidence as the prompt shows it.

    Args:
        number: What it is cited by.
        one: The evidence.
        regions: Show only so many of its regions, from the first; ``None`` for all.
    """
    whole = regions is None or regions >= len(one.regions)
    text = one.text if whole else _joined(one.regions[:regions])
    title = f"{neutral(one.title)}\n" if one.title else ""
    return f'<item number="{number}" kind="{one.modality}">\n{title}{neutral(text)}{_END}'


def _with_pictures(words: Part, tokens: int, pictures: Sequence[tuple[int, Picture, str, str]]) -> Part:
    """An item with pictures behind its words, each between its marks on a line of its own."""
    text = words.text.removesuffix(_END)
    placed = []
    for _, picture, begin, end in pictures:
        text = f"{text}\n{begin}"
        placed.append(Placed(len(text), picture))
        text += end
    return Part(f"{text}{_END}", words.regions, tokens, tuple(placed), tuple(place for place, *_ in pictures))


def _records(seen: Sequence[Seen], shown: Sequence[int]) -> tuple[PictureRecord, ...]:
    return tuple(
        PictureRecord(
            at_ms=one.at_ms,
            width=one.picture.width if one.picture else 0,
            height=one.picture.height if one.picture else 0,
            tokens=one.picture.tokens if one.picture else 0,
            shown=place in shown,
            reason=one.reason,
        )
        for place, one in enumerate(seen)
    )


def _joined(regions: Sequence[Region]) -> str:
    """Regions in source order, each gap marked; the last gap stands for what had to go."""
    parts: list[str] = []
    for place, region in enumerate(regions):
        if place and region.first > regions[place - 1].last:
            parts.append(GAP)
        parts.append(region.text)
    return "\n".join([*parts, GAP])
