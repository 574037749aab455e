"""From states to what the model is shown and what it should say, all of it through the loop's own prompts.

A story is one question with evidence that grows: a verdict is due after some items, after more, and after a follow-up
search. Its chats begin alike, so that :mod:`canopy_training.critic.packing` reads the shared part once.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from canopy_backend.evidence import Evidence
from canopy_client.assembly import Assembler
from canopy_client.llm.base import Message
from canopy_client.prompts import NO_ANSWER, classifier_messages, critic_messages, reader_messages
from canopy_training.critic.states import NEW, GoldItem, K, Search, Searched, bare
from canopy_training.data import Question

Role = Literal["critic", "reader", "classifier"]


_FOLLOW_ITEMS: Final = NEW
#: Fewest and most items of a story's first search, in those that show fewer than a whole round.
_FEW: Final = (3, 7)
#: Share of the stories that show fewer, which costs less and is learned from as well.
_SHORT_SHARE: Final = 0.75
#: Share of the complete first rounds in which a gold item is held back.
_HELD_BACK: Final = 0.25
#: Share of the complete stories in which the reader's answer is learned too.
_READ: Final = 0.3
#: Classifier chats that begin alike, in one story.
_CLASSIFIED: Final = 4
#: Words of questions that compare rows; beside gold in several rows they tell a scan from a broad look.
_SCANNING: Final = re.compile(
    r"\b(?:how (?:many|often)|averages?|total|sum|most|least|more|fewer|less|highest|lowest|larg\w+|small\w+|longest|"
    r"shortest|best|worst|top|first|last|earliest|latest|rank\w*|compar\w+|differen\w+|change|which years?|all)\b",
    re.IGNORECASE,
)
_ANSWER_CHARS: Final = 200

_ASSEMBLER: Final = Assembler()


@dataclass(frozen=True, slots=True)
class Sample:
    """A chat and its right answer.

    Attributes:
        role: Whose chat it is.
        messages: The chat.
        answer: What the model should say.
    """

    role: Role
    messages: list[Message]
    answer: str


def verdict(searched: Searched, evidence: Sequence[Evidence], gaps: Sequence[str]) -> dict[str, str] | None:
    """The right verdict on evidence; ``None`` where a search for everything that is missing was made already.

    The rationale names the hops in their order and where each stands, so that the model looks each up before it says
    whether they are all there.
    """
    places = {one.title.casefold(): number for number, one in reversed(list(enumerate(evidence, start=1)))}
    missing = [gold for gold in searched.gold if gold.title.casefold() not in places]
    rationale = "; ".join(_hop(gold, places.get(gold.title.casefold())) for gold in searched.gold)
    if not missing:
        return _verdict(rationale, searched.answer[:_ANSWER_CHARS], "yes")
    open_gaps = [gold for gold in missing if gap(plain(gold.title)) not in gaps]
    if not open_gaps:
        return None
    wanted = max(open_gaps, key=lambda gold: _mentioned(gold, searched, evidence))
    return _verdict(rationale, NO_ANSWER, "no", gap(plain(wanted.title)), plain(wanted.title))


def plain(title: str) -> str:
    """A title without what stands in brackets to tell it from others, which no evidence mentions."""
    return title.partition(" (")[0].strip() or title


def gap(title: str) -> str:
    """The missing fact, in words, for the item of a title."""
    return f"facts about {title}"


def critic_sample(searched: Searched, evidence: Sequence[Evidence], gaps: Sequence[str]) -> Sample | None:
    """The critic's chat on evidence with the right verdict, if there is one."""
    right = verdict(searched, evidence, gaps)
    if right is None:
        return None
    text = _ASSEMBLER.assemble(evidence).text
    return Sample("critic", critic_messages(searched.question, text, gaps), _json(right))


def reader_sample(searched: Searched, evidence: Sequence[Evidence]) -> Sample:
    """The reader's chat on evidence that holds every gold item: the answer with their numbers."""
    titles = {gold.title.casefold() for gold in searched.gold}
    numbers = [number for number, one in enumerate(evidence, start=1) if one.title.casefold() in titles]
    cited = "".join(f"[{number}]" for number in numbers)
    text = _ASSEMBLER.assemble(evidence).text
    return Sample("reader", reader_messages(searched.question, text), f"{searched.answer[:_ANSWER_CHARS]} {cited}.")


def table_label(question: Question) -> str | None:
    """How the data says that a question's table is read, ``"aggregate"`` or ``"lookup"``; ``None`` where it does not.

    A question in the words of a comparison whose answer rests on several rows needs the table scanned, one without them
    whose answer stands in one row is a look-up. What lies between is left out.
    """
    rows = {(gold.item_id, row) for gold in question.gold for row in gold.rows or ()}
    computed = question.meta.get("answer_type") in ("arithmetic", "count")
    scans = computed or _SCANNING.search(question.question) is not None
    if len(rows) == 1 and not scans:
        return "lookup"
    return "aggregate" if len(rows) > 1 and scans else None


def classifier_stories(questions: Sequence[Question], n: int, *, seed: int) -> list[list[Sample]]:
    """Up to ``n`` of the classifier's chats, half of each label, a few to a story."""
    draw = random.Random(seed)  # noqa: S311 - no secret
    by_label: dict[str, list[Question]] = {"aggregate": [], "lookup": []}
    for question in questions:
        label = table_label(question)
        if label is not None:
            by_label[label].append(question)
    each = min(n // 2, *map(len, by_label.values()))
    chosen = [
        Sample("classifier", classifier_messages(question.question), _json({"label": label}))
        for label, found in by_label.items()
        for question in draw.sample(found, each)
    ]
    draw.shuffle(chosen)
    return [chosen[at : at + _CLASSIFIED] for at in range(0, len(chosen), _CLASSIFIED)]


def stories(
    searched: Sequence[Searched], tables: Sequence[Question] = (), *, seed: int, passes: int = 1, n_tables: int = 0
) -> list[list[Sample]]:
    """All that a run learns from, in an order that the seed decides.

    Args:
        searched: Questions with what their states are made of.
        tables: Questions about tables, of which the classifier's chats are chosen.
        seed: Of everything that is drawn.
        passes: Stories of each question, each another.
        n_tables: Most of the classifier's chats.
    """
    made = []
    for number in range(passes):
        for one in searched:
            draw = random.Random(f"{seed} {number} {one.id}")  # noqa: S311 - no secret
            made.append(_story(one, draw))
    random.Random(seed).shuffle(made)  # noqa: S311 - no secret
    made += classifier_stories(tables, n_tables, seed=seed)
    random.Random(seed).shuffle(made)  # noqa: S311 - no secret
    return [story for story in made if story]


def first_round(searched: Searched) -> Sample:
    """The critic's chat after the loop's first round; its answer is the right verdict."""
    sample = critic_sample(searched, searched.first.found[:K], [])
    assert sample is not None, "nothing was searched yet"
    return sample


def _story(searched: Searched, draw: random.Random) -> list[Sample]:
    shown = _first_items(searched, draw)
    samples: list[Sample | None] = []
    if _complete(searched, shown):
        if draw.random() < 0.5:
            samples.append(critic_sample(searched, shown[: draw.randint(1, len(shown) - 1)], []))
        samples.append(critic_sample(searched, shown, []))
    else:
        shown = _searching(searched, shown, samples, draw)
    if _complete(searched, shown) and draw.random() < _READ:
        samples.append(reader_sample(searched, shown))
    return [sample for sample in samples if sample is not None]


def _searching(
    searched: Searched, shown: list[Evidence], samples: list[Sample | None], draw: random.Random
) -> list[Evidence]:
    """Verdicts while something is missing, with a search astray in some, and after the right search."""
    first = critic_sample(searched, shown, [])
    samples.append(first)
    gaps: list[str] = []
    if draw.random() < 1 / 4:
        gaps.append(gap(plain(searched.astray.query)))
        shown = _with(shown, searched.astray, draw.randint(2, _FOLLOW_ITEMS))
        samples.append(critic_sample(searched, shown, gaps))
    assert first is not None, "nothing was searched yet"
    wanted = json.loads(first.answer)["query"]
    right = next(search for search in searched.follow if plain(search.query) == wanted)
    shown = _with(shown, right, draw.randint(2, _FOLLOW_ITEMS))
    samples.append(critic_sample(searched, shown, [*gaps, gap(wanted)]))
    return shown


def _first_items(searched: Searched, draw: random.Random) -> list[Evidence]:
    """What the first round shows: as found, or fewer, or with a gold item held back."""
    titles = {gold.title.casefold() for gold in searched.gold}
    found = list(searched.first.found)
    if _complete(searched, found[:K]) and draw.random() < _HELD_BACK:
        held = draw.choice([one for one in found[:K] if one.title.casefold() in titles])
        found = [one for one in found if one is not held]
    if draw.random() >= _SHORT_SHARE:
        return found[:K]
    # Fewer: the best ones, but no gold item of the round is lost by that; sometimes in another order.
    keep = [one for one in found[:K] if one.title.casefold() in titles]
    room = max(0, draw.randint(*_FEW) - len(keep))
    others = [one for one in found[:K] if one.title.casefold() not in titles][:room]
    chosen = [one for one in found[:K] if any(one is kept for kept in (*keep, *others))]
    if draw.random() < 0.5:
        draw.shuffle(chosen)
    return chosen


def _with(shown: Sequence[Evidence], search: Search, most: int) -> list[Evidence]:
    """Evidence with the new items of a follow-up search behind it, as the loop appends them."""
    seen = {one.item_id for one in shown}
    return [*shown, *[one for one in search.found if one.item_id not in seen][:most]]


def _complete(searched: Searched, evidence: Sequence[Evidence]) -> bool:
    titles = {one.title.casefold() for one in evidence}
    return all(gold.title.casefold() in titles for gold in searched.gold)


def _mentioned(gold: GoldItem, searched: Searched, evidence: Sequence[Evidence]) -> int:
    """How well a title can be told from what is shown: 2 in the question, 1 in the evidence, 0 nowhere."""
    name = bare(gold.title)
    if name in searched.question.casefold():
        return 2
    return int(any(name in one.text.casefold() for one in evidence))


def _hop(gold: GoldItem, number: int | None) -> str:
    return f"{plain(gold.title)} {'not found' if number is None else f'[{number}]'}"


def _json(value: dict[str, str]) -> str:
    """JSON without white space, as a server that holds the schema writes it: with other tokens the model is lost."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _verdict(rationale: str, answer: str, sufficient: str, missing: str = "", query: str = "") -> dict[str, str]:
    return {
        "rationale": rationale,
        "answer": answer or NO_ANSWER,
        "sufficient": sufficient,
        "missing": missing,
        "query": query,
    }
