"""Who takes turns after whom, so that no contender has the same one before it round by round.

A Williams design: each round moves on by one, so that places change, too. How contenders are
numbered in it is drawn anew for every cell of every run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random


def orders(names: Sequence[str], random: Random) -> Iterator[list[str]]:
    """Give the order of one round after another, without end.

    Of an even number of names, in as many rounds, each has every place once, and every other one
    before it once; of an odd number, with a round more, none before it more than twice.
    """
    drawn: list[str | None] = [*names, *([None] if len(names) % 2 else [])]
    random.shuffle(drawn)
    count = len(drawn)
    # 0, 1, -1, 2, -2, …: no two neighbours are as far apart as two others.
    steps = [(place + 1) // 2 if place % 2 else -(place // 2) for place in range(count)]
    number = 0
    while True:
        order = (drawn[(step + number) % count] for step in steps)
        yield [name for name in order if name is not None]
        number += 1
