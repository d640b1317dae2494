"""docs/features.md, docs/differences.md and the guide to migrating: what they say is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support import fetch_kafka
from support.jvm import run_java
from support.matrix import TESTS
from support.migration_table import DEFAULTS_OF_3_9, DOCUMENT, with_table
from support.named_tests import ROOT, cells, exists, named_tests

from spark_kafka_sink.config import option_fields

FEATURES = ROOT / "docs" / "features.md"
DIFFERENCES = ROOT / "docs" / "differences.md"
GUARANTEES = ROOT / "docs" / "guarantees.md"
DEPLOYMENT = ROOT / "docs" / "deployment.md"
_NOWHERE = "—"


def rows(document: Path) -> list[list[str]]:
    """Give the cells of all rows of a document's tables."""
    lines = [line for line in document.read_text().splitlines() if line.startswith("|")]
    heads = {i for i, line in enumerate(lines[1:]) if line.startswith("|---")}
    return [cells(line) for i, line in enumerate(lines) if not heads & {i, i - 1}]


def test_features_are_numbered_from_1_to_77() -> None:
    assert [row[0] for row in rows(FEATURES)] == [str(number) for number in range(1, 78)]


def test_a_feature_is_proved_or_says_why_it_is_not_there() -> None:
    unclear = []
    for number, _, here, how, tests in rows(FEATURES):
        if here == "yes":
            is_clear = bool(named_tests(tests))
        elif here == "(open)":
            is_clear = how == tests == _NOWHERE
        else:
            is_clear = here in ("no", "later") and how not in ("", _NOWHERE)
        if not is_clear:
            unclear.append(number)
    assert unclear == []


def test_open_features_are_those_listed_at_the_end() -> None:
    opened = [row[0] for row in rows(FEATURES) if row[2] == "(open)"]
    last = FEATURES.read_text().splitlines()[-1]
    assert last == f"Open: {', '.join(opened)}." if opened else not last.startswith("Open")


@pytest.mark.parametrize(
    "document", [FEATURES, DIFFERENCES, GUARANTEES], ids=lambda path: path.stem
)
def test_the_tests_that_a_document_names_exist(document: Path) -> None:
    names = named_tests(document.read_text())
    assert names
    assert [name for name in names if not exists(name)] == []


def test_the_files_of_tests_that_a_document_names_exist() -> None:
    names = re.findall(r"`(tests/[^`:]+\.py)`", DEPLOYMENT.read_text())
    assert names
    assert [name for name in names if not (ROOT / name).is_file()] == []


def test_what_is_said_of_every_spark_is_shown_by_tests_that_run_on_each() -> None:
    (names,) = (named_tests(row[-1]) for row in rows(FEATURES) if row[1].endswith("every Spark 4"))
    assert [name for name in names if not f"tests/{name}".startswith(TESTS)] == []


def test_every_difference_names_the_test_that_shows_it() -> None:
    assert [row[0] for row in rows(DIFFERENCES) if not named_tests(row[-1])] == []


def test_the_guide_to_migrating_has_the_options_of_today() -> None:
    text = DOCUMENT.read_text()
    assert with_table(text) == text, (
        f"docs/{DOCUMENT.name} is stale: PYTHONPATH=tests python -m support.migration_table"
    )


def test_the_defaults_that_the_guide_gives_for_the_older_client_are_its_own() -> None:
    old, new = (
        dict(line.split("\t") for line in run_java("ProducerConfigs", version=each).splitlines())
        for each in (fetch_kafka.OLD, fetch_kafka.NEWEST)
    )
    required = {"bootstrap.servers"}
    names = {each.encode_name for each in option_fields()} - required
    others = {name for name in names if old.get(name) != new[name]}
    assert {name: str(old.get(name)) for name in others} == {
        name: str(default) for name, default in DEFAULTS_OF_3_9.items()
    }
