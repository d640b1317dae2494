"""The effect of one contender on the next is spread over all contenders."""

from __future__ import annotations

from collections import Counter
from itertools import islice, pairwise
from random import Random

import pytest
from bench.rounds import orders


@pytest.mark.parametrize("count", range(1, 15))
def test_each_contender_has_others_before_it_and_another_place_every_round(count: int) -> None:
    names = [str(number) for number in range(count)]
    is_odd = count % 2
    rounds = list(islice(orders(names, Random(count)), count + is_odd))
    assert all(sorted(order) == sorted(names) for order in rounds)
    following = Counter(pair for order in rounds for pair in pairwise(order))
    if is_odd:
        assert max(following.values(), default=0) <= 2
        return
    assert set(following.values()) == {1}
    assert len(following) == count * (count - 1)
    for name in names:
        assert sorted(order.index(name) for order in rounds) == list(range(count))


def test_the_numbering_is_drawn() -> None:
    names = [str(number) for number in range(10)]
    assert len({tuple(next(orders(names, Random(seed)))) for seed in range(20)}) > 15
