"""What is said of a save mode that a topic cannot have, and of a trigger that loses rows."""

from __future__ import annotations

from typing import Final

CONTINUOUS_REFUSAL: Final = (
    "the continuous trigger loses every row of a Python data source: Spark hands it no rows then. "
    'Use .trigger(processingTime="1 second") or .trigger(availableNow=True)'
)


def mode_refusal(mode: str) -> str:
    """Give the sentence about a save mode that is not append, by the name that it was given."""
    afresh = "; to start afresh, delete or truncate the topic first"
    return (
        f"Save mode {mode} not allowed for Kafka, expected append: records of a topic can be added "
        f'and not replaced. Use .mode("append"){afresh if mode.lower() == "overwrite" else ""}'
    )
