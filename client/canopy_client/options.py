"""How one question is worked on: the switches of a request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from canopy_backend.errors import InvalidRequest
from canopy_client import reader, verdict

#: How tables are treated: ask the classifier, keep all rows, or refine them as other items.
Tables: TypeAlias = Literal["classify", "whole", "lookup"]

TABLES: Final[tuple[Tables, ...]] = get_args(Tables)

#: Most items of one search. A prompt holds a few dozen; a store answers many more ever slower.
MOST_ITEMS: Final = 256
MOST_ROUNDS: Final = 10
#: Most tokens that a role may be allowed to answer, and that a prompt may hold.
MOST_ANSWER_TOKENS: Final = 8192
MOST_BUDGET_TOKENS: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopOptions:
    """The switches of one question. The defaults are the method's.

    Attributes:
        k: Items retrieved a round, or a round and corpus where the router runs; 1 to 256.
        follow_up_k: The same for rounds after the first, which look for one fact; ``None`` for ``k``.
        max_rounds: Most rounds; 1 to 10.
        compress: Keep of each item what answers the query of its round. Without, items stay whole, and neither the
            evidence server nor the classifier is asked.
        tables: ``"classify"`` asks once whether the question needs whole tables; ``"whole"`` keeps all rows,
            ``"lookup"`` refines tables as other items, both without that call.
        routed: Ask a router which modalities to search.
        budget_tokens: Most reader tokens of evidence in a prompt; ``None`` for the assembler's own.
        trace: Keep every visited node in the evidence, and the items beside it.
        critic_tokens: Most tokens of a verdict by the language model.
        reader_tokens: Most tokens of the answer.

    Raises:
        InvalidRequest: A value is out of its range; names it.
    """

    k: int = 10
    follow_up_k: int | None = None
    max_rounds: int = 3
    compress: bool = True
    tables: Tables = "classify"
    routed: bool = False
    budget_tokens: int | None = None
    trace: bool = False
    critic_tokens: int = verdict.MAX_TOKENS
    reader_tokens: int = reader.MAX_TOKENS

    def __post_init__(self) -> None:
        _check("k", self.k, MOST_ITEMS)
        _check("max_rounds", self.max_rounds, MOST_ROUNDS)
        _check("critic_tokens", self.critic_tokens, MOST_ANSWER_TOKENS)
        _check("reader_tokens", self.reader_tokens, MOST_ANSWER_TOKENS)
        if self.follow_up_k is not None:
            _check("follow_up_k", self.follow_up_k, MOST_ITEMS)
        if self.budget_tokens is not None:
            _check("budget_tokens", self.budget_tokens, MOST_BUDGET_TOKENS)
        if self.tables not in TABLES:
            raise InvalidRequest(f"tables: {self.tables!r:.40} is none of {', '.join(TABLES)}")
        for name in ("compress", "routed", "trace"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidRequest(f"{name}: {getattr(self, name)!r:.40} is neither true nor false")

    def items_of(self, number: int) -> int:
        """Items to retrieve in a round, from 1."""
        return self.k if number == 1 or self.follow_up_k is None else self.follow_up_k


def _check(name: str, value: object, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise InvalidRequest(f"{name}: {value!r:.40} is not a whole number from 1 to {most}")
