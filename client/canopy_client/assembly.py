"""Evidence as the critic and the reader see it: numbered, in retrieval order, within a token budget."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from canopy_backend.evidence import Evidence, Region
from canopy_client.answer import Cited
from canopy_client.prompts import neutral

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
class Prompt:
    """Evidence ready for a prompt.

    Attributes:
        text: The numbered evidence; empty for none.
        shown: Regions of each evidence that are in it, from the first on; 0 for those that had to go.
        tokens: Its length in reader tokens, without the marks around each item where nothing had to go.
    """

    text: str
    shown: tuple[int, ...]
    tokens: int

    def cited(self, evidence: Sequence[Evidence], rounds: Sequence[int], answer: str) -> list[Cited]:
        """All evidence under its numbers, with what the answer names of it."""
        named = {int(number) for number in _CITATION.findall(answer)}
        return [
            Cited(number=number, round=found, regions_shown=shown, cited=shown > 0 and number in named, evidence=one)
            for number, (one, found, shown) in enumerate(zip(evidence, rounds, self.shown, strict=True), start=1)
        ]


class Assembler:
    """Numbers evidence and cuts it to the reader's budget.

    Over the budget the latest retrieved goes first, and within an item its last region: whole regions, by place and
    never by score, as in the method.

    Args:
        budget_tokens: Most reader tokens of evidence.
        count: Counts tokens; an estimate from the server's own counts where not given.
    """

    def __init__(self, budget_tokens: int = BUDGET_TOKENS, count: Count | None = None) -> None:
        self._budget = budget_tokens
        self._count = None if count is None else _Remembered(count)

    @property
    def budget_tokens(self) -> int:
        """Most reader tokens of evidence."""
        return self._budget

    def within(self, budget_tokens: int | None) -> Assembler:
        """The same with another budget; ``None`` leaves it as it is."""
        other = Assembler(self._budget if budget_tokens is None else budget_tokens)
        other._count = self._count
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
        parts = [render(number, one) for number, one in enumerate(evidence, start=1)]
        costs = self._costs(parts, evidence)
        shown = [len(one.regions) for one in evidence]
        total = 0
        for place, cost in enumerate(costs):
            if total + cost > self._budget:
                parts[place], shown[place], last = self._shortened(place + 1, evidence[place], self._budget - total)
                shown[place + 1 :] = [0] * (len(shown) - place - 1)
                del parts[place + (shown[place] > 0) :]
                return Prompt("\n".join(parts), tuple(shown), total + last)
            total += cost
        return Prompt("\n".join(parts), tuple(shown), total)

    def _shortened(self, number: int, one: Evidence, room: int) -> tuple[str, int, int]:
        """The longest run of an item's first regions that fits: its text, how many regions, its tokens."""
        best = "", 0, 0
        low, high = 1, len(one.regions) - 1
        # Halved, since a longer run costs more: a table may have thousands of regions.
        while low <= high:
            kept = (low + high) // 2
            text = render(number, one, kept)
            (cost,) = self._costs([text], [one])
            if cost <= room:
                best, low = (text, kept, cost), kept + 1
            else:
                high = kept - 1
        return best

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
    return f'<item number="{number}" kind="{one.modality}">\n{title}{neutral(text)}\n</item>'


def _joined(regions: Sequence[Region]) -> str:
    """Regions in source order, each gap marked; the last gap stands for what had to go."""
    parts: list[str] = []
    for place, region in enumerate(regions):
        if place and region.first > regions[place - 1].last:
            parts.append(GAP)
        parts.append(region.text)
    return "\n".join([*parts, GAP])
