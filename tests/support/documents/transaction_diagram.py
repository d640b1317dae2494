"""Draws the states of a transactional producer from their table, for docs/transactions.md.

Run as a program, it puts the diagram into the document:
`PYTHONPATH=tests:jobs python -m support.documents.transaction_diagram`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from spark_kafka_sink.producer.transactions.state import TRANSITIONS, TransactionState

DOCUMENT: Final = Path(__file__).parents[3] / "docs" / "transactions.md"
_BLOCK: Final = re.compile(r"```mermaid\n.*?```", re.DOTALL)


def diagram() -> str:
    """Give the Mermaid block, states and transitions in the order of the table.

    Every state may become FATAL_ERROR, which a note says in place of eight arrows.
    """
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> UNINITIALIZED"]
    for source, targets in TRANSITIONS.items():
        lines.extend(
            f"    {source.name} --> {target.name}"
            for target in TransactionState
            if target in targets and target is not TransactionState.FATAL_ERROR
        )
    fatal = [
        source.name for source, to in TRANSITIONS.items() if TransactionState.FATAL_ERROR in to
    ]
    assert fatal == [state.name for state in TransactionState]
    for state in TransactionState:
        lines += [f"    {state.name} : {state.name}", f"    {state.name} : {state.value}"]
    lines.append("    note right of FATAL_ERROR : from every state")
    return "\n".join([*lines, "```"])


def diagram_of_document() -> str:
    """Give the diagram that the document has."""
    found = _BLOCK.search(DOCUMENT.read_text())
    assert found is not None, f"{DOCUMENT} has no Mermaid block"
    return found.group()


if __name__ == "__main__":
    DOCUMENT.write_text(_BLOCK.sub(lambda _: diagram(), DOCUMENT.read_text(), count=1))
