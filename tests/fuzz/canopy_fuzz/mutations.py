"""Inputs without atheris: seeds, and seeds with bytes changed, cut out, repeated and put in."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from canopy_fuzz.kinds import Target


def mutations(target: Target, count: int, more: Sequence[bytes] = ()) -> Iterator[bytes]:
    """Seeds and so many mutations of them, the same each time.

    Args:
        target: The target.
        count: Mutations.
        more: Inputs beside the target's own seeds, such as what fuzzing kept.
    """
    choose = random.Random(target.name)
    seeds = [*target.seeds(), *more, b""]
    yield from seeds
    for _ in range(count):
        data = bytearray(choose.choice(seeds))
        for _ in range(choose.randint(1, 4)):
            place = choose.randint(0, len(data))
            kind = choose.randrange(5)
            if kind == 0 and place < len(data):
                data[place] = choose.randrange(256)
            elif kind == 1:
                del data[place : place + choose.randint(1, 8)]
            elif kind == 2 and target.words:
                data[place:place] = choose.choice(target.words)
            elif kind == 3:
                data[place:place] = data[max(0, place - choose.randint(1, 16)) : place]
            else:
                data[place:place] = choose.randbytes(choose.randint(1, 4))
        yield bytes(data[: target.max_len])
