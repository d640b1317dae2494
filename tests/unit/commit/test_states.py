"""The tables of states: each state can be reached, and leads to an end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias, cast

import pytest

from spark_kafka_sink.commit import states
from spark_kafka_sink.commit.states import moved
from spark_kafka_sink.errors import IllegalStateException

Table: TypeAlias = Mapping[Any, frozenset[Any]]

TABLES: dict[str, Any] = {
    "plan": states.PLAN,
    "task": states.TASK,
    "commit": states.COMMIT,
    "abort": states.ABORT,
    "single": states.SINGLE,
    "resolve": states.RESOLVE,
    "recovery": states.RECOVERY,
}
# Where machines begin, besides the first state: a stream has no version to look for, and an abort
# of mode single is a machine of its own.
BEGINS: dict[str, set[Any]] = {
    "plan": {states.PlanState.PEEKING, states.PlanState.LISTING},
    "single": {states.SingleState.CHECKING, states.SingleState.ABORTING},
}
EVERY_TABLE = pytest.mark.parametrize("name", TABLES)


def reached(table: Table, first: set[Any]) -> set[Any]:
    """Return all states that can be reached."""
    found, left = set(first), list(first)
    while left:
        for each in table.get(left.pop(), frozenset()) - found:
            found.add(each)
            left.append(each)
    return found


@EVERY_TABLE
def test_every_state_can_be_reached_and_leads_to_an_end(name: str) -> None:
    table: Table = TABLES[name]
    every: list[Any] = list(cast("Any", type(next(iter(table)))))
    assert reached(table, BEGINS.get(name, {every[0]})) == set(every)
    ends = {state for state in every if state not in table}
    assert ends
    assert all(reached(table, {state}) & ends for state in every)


@EVERY_TABLE
def test_a_machine_moves_only_as_its_table_allows(name: str) -> None:
    table: Table = TABLES[name]
    every: list[Any] = list(cast("Any", type(next(iter(table)))))
    for source in every:
        for target in every:
            if target in table.get(source, frozenset()):
                assert moved(table, source, target) is target
            else:
                with pytest.raises(IllegalStateException, match=f"{source.name} to {target.name}"):
                    moved(table, source, target)
