"""The metrics' names, groups and tags are those of Kafka's Java producer."""

from __future__ import annotations

from support.brokers.jvm import run_java
from support.documents import metrics_table
from support.documents.metrics_table import ABSENT, groups


def ours() -> set[tuple[str, str, str]]:
    """Return group, name and tags of every metric."""
    return {(g.name, t.name, ",".join(g.tags)) for g in groups() for t in g.templates}


def test_every_metric_of_the_java_producer_is_there_or_is_said_to_be_absent() -> None:
    rows = [line.split("|", 3) for line in run_java("DumpMetrics").splitlines()]
    java = {(group, name, tags) for group, name, tags, _ in rows}
    assert len(java) > 90
    assert ours() - java == set()
    absent = {f"{group} {name}" for group, name, _ in java - ours()}
    assert absent == set(ABSENT)


def test_no_metric_is_there_twice_or_both_there_and_absent() -> None:
    names = [f"{g.name} {t.name}" for g in groups() for t in g.templates]
    assert len(names) == len(set(names))
    assert not set(names) & set(ABSENT)


def test_the_page_of_metrics_is_up_to_date() -> None:
    stored = metrics_table.PAGE.read_text()
    assert stored == metrics_table.page(), f"write it again: {metrics_table.COMMAND}"
