"""Draws the states of batches, connections, transactions and machines from their tables.

Run as a program, it puts the diagrams into the documents:
`PYTHONPATH=tests:jobs python -m support.documents.state_diagrams`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Final, cast

from spark_kafka_sink.commit import states
from spark_kafka_sink.network import connection_state
from spark_kafka_sink.producer import batch_state
from spark_kafka_sink.producer.transactions.state import TRANSITIONS, TransactionState

_DOCS: Final = Path(__file__).parents[3] / "docs"
_BLOCK: Final = re.compile(r"```mermaid\n.*?```", re.DOTALL)


def transactions() -> str:
    """Return the Mermaid block of transactions, in the order of the table.

    Every state may become FATAL_ERROR, which a note says in place of eight arrows.
    """
    fatal = TransactionState.FATAL_ERROR
    arrows = [
        f"{source.name} --> {target.name}"
        for source, targets in TRANSITIONS.items()
        for target in TransactionState
        if target in targets and target is not fatal
    ]
    assert all(fatal in targets for targets in TRANSITIONS.values())
    return _block(list(TransactionState), arrows, "note right of FATAL_ERROR : from every state")


def batches() -> str:
    """Return the Mermaid block of batches."""
    return _block(list(batch_state.BatchState), _arrows(batch_state.EVENTS))


def connections() -> str:
    """Return the Mermaid block of connections.

    Every other state may become CLOSED, which a note says in place of eight arrows.
    """
    close, closed = connection_state.ConnectionEvent.CLOSE, connection_state.ConnectionState.CLOSED
    events = {
        state: {event: transition for event, transition in of_state.items() if event is not close}
        for state, of_state in connection_state.EVENTS.items()
    }
    assert all(close in of for state, of in connection_state.EVENTS.items() if state is not closed)
    note = "note right of CLOSED : from every state, by CLOSE"
    return _block(list(connection_state.ConnectionState), _arrows(events), note)


def _machine(table: Mapping[Any, frozenset[Any]], *notes: str) -> str:
    """Return the Mermaid block of a machine of exactly once, in the order of its states."""
    every: list[Any] = list(cast("Any", type(next(iter(table)))))
    arrows = [
        f"{source.name} --> {target.name}"
        for source, targets in table.items()
        for target in every
        if target in targets
    ]
    return _block(every, arrows, *notes)


def plans() -> str:
    """Return the Mermaid block of plans."""
    return _machine(states.PLAN, "[*] --> LISTING : a stream")


def tasks() -> str:
    """Return the Mermaid block of tasks of mode two-phase."""
    return _machine(states.TASK)


def commits() -> str:
    """Return the Mermaid block of commits of mode two-phase."""
    return _machine(states.COMMIT)


def aborts() -> str:
    """Return the Mermaid block of aborts of mode two-phase."""
    return _machine(states.ABORT)


def singles() -> str:
    """Return the Mermaid block of commits and aborts of mode single."""
    return _machine(states.SINGLE, "[*] --> ABORTING : an abort")


def resolved() -> str:
    """Return the Mermaid block of the commit of one decided transaction."""
    return _machine(states.RESOLVE)


def recovered() -> str:
    """Return the Mermaid block of the recovery of an owner."""
    return _machine(states.RECOVERY)


def _arrows(events: Mapping[Any, Mapping[Any, Any]]) -> list[str]:
    return [
        f"{source.name} --> {transition.state.name} : {event.name}"
        for source, of_source in events.items()
        for event, transition in of_source.items()
    ]


def _block(states: list[Any], arrows: list[str], *notes: str) -> str:
    lines = [f"[*] --> {states[0].name}", *arrows]
    for state in states:
        assert isinstance(state, Enum)
        lines += [f"{state.name} : {state.name}", f"{state.name} : {state.value}"]
    lines += notes
    return "\n".join(["```mermaid", "stateDiagram-v2", *(f"    {line}" for line in lines), "```"])


# The blocks of each document, in their order.
DIAGRAMS: Final = {
    _DOCS / "reference" / "transactions.md": (transactions,),
    _DOCS / "contributing" / "states.md": (
        batches,
        connections,
        plans,
        tasks,
        commits,
        aborts,
        resolved,
        singles,
        recovered,
    ),
}


def written(document: Path) -> str:
    """Return the text of a document with the diagrams of today."""
    made = iter([diagram() for diagram in DIAGRAMS[document]])
    text, count = _BLOCK.subn(lambda _: next(made), document.read_text())
    assert count == len(DIAGRAMS[document]), f"{document} has {count} Mermaid blocks"
    return text


if __name__ == "__main__":
    for each in DIAGRAMS:
        each.write_text(written(each))
