"""The pages of the report and of dead letters name every field, reason, choice and header."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from spark_kafka_sink.serde.row_rules import Fault
from spark_kafka_sink.spark.on_error import OnError
from spark_kafka_sink.spark.report import (
    BadRowSample,
    BadRowsReport,
    CommitReport,
    ExactlyOnceReport,
    ExpiredRowsReport,
    PartitionReport,
    TaskReport,
)
from spark_kafka_sink.spark.tasks.dead_letters import ERROR_COLUMNS, ERROR_HEADERS, UNNAMED_HEADER

_DOCS = Path(__file__).parents[3] / "docs"
REPORT = (_DOCS / "reference" / "report.md").read_text()
BAD_ROWS = (_DOCS / "how-to" / "dead-letters.md").read_text()
_INSIDE = {
    "slowest_task": TaskReport,
    "bad_rows": BadRowsReport,
    "bad_rows.samples": BadRowSample,
    "expired_rows": ExpiredRowsReport,
    "exactly_once": ExactlyOnceReport,
    "partitions": PartitionReport,
}


def named(page: str, heading: str) -> list[str]:
    """Return the first cells of the tables' rows under a heading of a page."""
    section = re.split(r"\n##+ ", page.split(f"# {heading}\n")[1])[0]
    return re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)


def names_of(kind: type, prefix: str = "") -> list[str]:
    """Return the fields of a report, each followed by its inner fields."""
    found = []
    for field in fields(kind):
        name = prefix + field.name
        found.append(name)
        if name in _INSIDE:
            found += names_of(_INSIDE[name], f"{name}.")
    return found


def test_every_field_of_the_report_is_described() -> None:
    assert named(REPORT, "Fields") == names_of(CommitReport)


def test_every_choice_and_every_reason_is_described() -> None:
    title = "Skip bad rows, or keep them as dead letters"
    assert named(BAD_ROWS, title) == [choice.value for choice in OnError]
    assert named(BAD_ROWS, "Reasons") == [fault.value for fault in Fault]


def test_every_header_and_column_of_dead_letters_is_described() -> None:
    assert named(BAD_ROWS, "Dead letters in a topic") == list(ERROR_HEADERS)
    assert f"`{UNNAMED_HEADER}`" in BAD_ROWS
    assert named(BAD_ROWS, "Dead letters in a folder") == list(ERROR_COLUMNS)
