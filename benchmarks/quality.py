"""What is kept, beside what it costs: reader's tokens and gold recall, on the questions of the workload."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.duels import OWN
from benchmarks.peers.contenders import CONTENDERS
from benchmarks.results import Results
from benchmarks.rivals import Rivals
from canopy_backend.evidence import Evidence
from canopy_backend.items import Item
from canopy_backend.tokenization import TokenCounter
from canopy_client import CanopyClient
from canopy_training.data import Question
from canopy_training.evaluation.scoring import locate_all
from canopy_training.gold import Located


def judge(
    results: Results,
    client: CanopyClient,
    rivals: Rivals,
    questions: Sequence[Question],
    trees: dict[str, Item],
    counter: TokenCounter,
) -> None:
    """Fill in tokens and recall of the sides of ``results.warm``.

    Args:
        results: With the sides.
        client: The server's client.
        rivals: The contenders.
        questions: Questions with their items.
        trees: Every item with its tree, by id.
        counter: Counts the reader's tokens.
    """
    located, _ = locate_all(questions)
    names = [one.name for one in CONTENDERS if one.arm is not None and one.name in rivals.names]
    kept: dict[str, list[tuple[float, float, int]]] = {name: [] for name in (OWN, *names)}
    whole = []
    for question, places in zip(questions, located, strict=True):
        answers = client.compress(question.question, [trees[item.id] for item in question.items])
        kept[OWN].append(own(answers, places))
        whole.append(sum(answer.tokens_in for answer in answers))
        for name in names:
            kept[name].append(rivals.kept(name, question.question, list(question.items), places, counter))
    for name, rows in kept.items():
        tokens, left, gold = (np.array(column, np.float64) for column in zip(*rows, strict=True))
        results.warm[name].tokens = float(tokens.mean())
        results.warm[name].recall = float(left.sum() / max(1.0, gold.sum()))
        results.gold = int(gold.sum())
    results.kept_whole = float(np.mean(whole))


def own(answers: Sequence[Evidence], located: dict[str, Located]) -> tuple[float, float, int]:
    """Tokens that evidence keeps, gold fragments left, and gold fragments."""
    tokens = left = gold = 0
    for answer in answers:
        tokens += answer.tokens_kept
        if answer.item_id in located:
            mask = located[answer.item_id].gold
            gold += int(mask.sum())
            left += sum(int(mask[region.first : region.last].sum()) for region in answer.regions)
    return float(tokens), float(left), gold
