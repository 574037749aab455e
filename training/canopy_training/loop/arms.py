"""The ways of getting evidence that are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Final, Literal

from canopy_backend.errors import TrainingError

Critic = Literal["none", "model", "titles", "oracle"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way.

    Attributes:
        name: What tables call it.
        k: Items of the first round.
        critic: Who says what to search next: nobody (a single round), the language model, the titles critic, or an
            oracle that knows the gold items and searches the title of a missing one, which is an upper bound.
        words: Retrieve by words (BM25) and vectors, fused by rank, instead of vectors alone.
        compress: Refine the items; else they are shown whole.
        follow_up_k: Items of later rounds; ``None`` for ``k``.
        reads: Ask the reader for the answer; else retrieval alone is measured.
    """

    name: str
    k: int = 10
    critic: Critic = "none"
    words: bool = False
    compress: bool = True
    follow_up_k: int | None = None
    reads: bool = False

    @property
    def asks_model(self) -> bool:
        """Whether a language model is asked in every question."""
        return self.critic == "model" or self.reads

    @property
    def family(self) -> str:
        """The arms that differ from this one by ``k`` alone are a curve of this name."""
        return self.name.replace(f"-{self.k}", "", 1)


#: Rounds of a loop, as in the method; what was found is told after each.
ROUNDS: Final = 3

#: The first is what the others are compared with.
BASELINE: Final = "single-10"
WHOLE: Final = "-whole"

ARMS: Final[tuple[Arm, ...]] = (
    Arm(name=BASELINE, reads=True),
    Arm(name="single-5", k=5),
    Arm(name="single-20", k=20),
    Arm(name="single-30", k=30),
    Arm(name="single-5-whole", k=5, compress=False),
    Arm(name="single-10-whole", compress=False, reads=True),
    Arm(name="single-20-whole", k=20, compress=False),
    Arm(name="single-30-whole", k=30, compress=False),
    Arm(name="hybrid-5", k=5, words=True),
    Arm(name="hybrid-10", words=True),
    Arm(name="hybrid-20", k=20, words=True),
    Arm(name="hybrid-30", k=30, words=True),
    Arm(name="titles-5", k=5, critic="titles"),
    Arm(name="titles-10", critic="titles", reads=True),
    Arm(name="titles-20", k=20, critic="titles"),
    Arm(name="titles-10-whole", critic="titles", compress=False),
    Arm(name="titles-10-follow-5", critic="titles", follow_up_k=5),
    Arm(name="titles-10-follow-3", critic="titles", follow_up_k=3),
    Arm(name="critic-5", k=5, critic="model"),
    Arm(name="critic-10", critic="model", reads=True),
    Arm(name="critic-20", k=20, critic="model"),
    Arm(name="critic-10-whole", critic="model", compress=False),
    Arm(name="critic-10-follow-5", critic="model", follow_up_k=5),
    Arm(name="critic-10-follow-3", critic="model", follow_up_k=3),
    Arm(name="oracle-5", k=5, critic="oracle"),
    Arm(name="oracle-10", critic="oracle"),
    Arm(name="oracle-20", k=20, critic="oracle"),
    Arm(name="oracle-10-whole", critic="oracle", compress=False),
    Arm(name="oracle-10-follow-3", critic="oracle", follow_up_k=3),
)


def choose(patterns: Sequence[str], *, model: bool) -> list[Arm]:
    """The arms whose names fit one of the patterns, in the order of :data:`ARMS`, the baseline always among them.

    Args:
        patterns: As in file names, ``critic-*`` for instance; none for all.
        model: Whether there is a language model; without one its arms are left out, and nobody reads.

    Raises:
        TrainingError: A pattern fits no arm.
    """
    names = [arm.name for arm in ARMS]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise TrainingError(f"--arm {pattern!r} fits none of {', '.join(names)}")
    chosen = [
        arm
        for arm in ARMS
        if not patterns or arm.name == BASELINE or any(fnmatchcase(arm.name, pattern) for pattern in patterns)
    ]
    if model:
        return chosen
    return [replace(arm, reads=False) for arm in chosen if arm.critic != "model"]
