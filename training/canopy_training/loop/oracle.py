"""A critic that knows the gold items: what the loop could win if every follow-up asked for the right thing."""

from __future__ import annotations

from collections.abc import Sequence

from canopy_backend.evidence import Evidence
from canopy_client.critic import Verdict
from canopy_client.deadline import Deadline
from canopy_training.loop.gold import GoldItem


class OracleCritic:
    """Sufficient when every gold item was retrieved; else the title of the first that was not is searched.

    A gold item without a title, or one that was searched and not found, is given up.

    Args:
        gold: The gold items of the question.
    """

    def __init__(self, gold: Sequence[GoldItem]) -> None:
        self._gold = gold

    async def judge(
        self, question: str, evidence: Sequence[Evidence], searched: Sequence[str], deadline: Deadline
    ) -> Verdict:
        """See :class:`canopy_client.critic.Critic`."""
        held = {one.item_id for one in evidence}
        missing = [one.title for one in self._gold if one.item_id not in held]
        if not missing:
            return Verdict(sufficient=True)
        query = next((title for title in missing if title and title not in searched), "")
        return Verdict(sufficient=False, missing=query, query=query)
