"""Processes of one driver keep schemas in one file, and each process finds the newest ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_kafka_sink.spark.planning import kept_schemas
from spark_kafka_sink.spark.planning.check_cache import CheckCache
from spark_kafka_sink.spark.planning.kept_schemas import (
    KeptSchema,
    keep_schema,
    newest_schema,
    schema_of_write,
)
from spark_kafka_sink.spark.planning.registered_schemas import ChosenSchema

ASKED = kept_schemas.question("the settings")
# As many as one file has.
MANY = kept_schemas._MOST_WRITES


class Process:
    """A process of the driver, with a memory of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch, self._memory = monkeypatch, CheckCache[str, object]()

    def keep(self, at: int, write_id: str = "") -> None:
        """Keep a schema whose id is its time."""
        self._enter()
        keep_schema(ASKED, KeptSchema(ChosenSchema('"string"', at), float(at), write_id))

    def newest(self) -> int | None:
        """Return the id of the newest schema."""
        self._enter()
        return _id_of(newest_schema(ASKED))

    def of_write(self, write_id: str) -> int | None:
        """Return the id of a write's schema."""
        self._enter()
        return _id_of(schema_of_write(ASKED, write_id))

    def _enter(self) -> None:
        self._monkeypatch.setattr(kept_schemas, "_kept", self._memory)


def _id_of(kept: KeptSchema | None) -> int | None:
    return None if kept is None else kept.chosen.schema_id


@pytest.fixture(autouse=True)
def _folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kept_schemas, "driver_folder", lambda: tmp_path)


def test_the_newest_schemas_of_all_processes_stay_in_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = Process(monkeypatch), Process(monkeypatch)
    for at in range(MANY):
        first.keep(at, f"first {at}")
    for at in range(MANY, 2 * MANY):
        second.keep(at, f"second {at}")
    first.keep(2 * MANY, "one more")
    third = Process(monkeypatch)
    newer = range(MANY + 1, 2 * MANY)
    assert [third.of_write(f"second {at}") for at in newer] == list(newer)
    assert third.of_write("one more") == third.newest() == 2 * MANY
    assert third.of_write(f"second {MANY}") is None
    assert third.of_write(f"first {MANY - 1}") is None


@pytest.mark.parametrize("write_id", ["", "w"])
def test_an_older_schema_of_one_process_does_not_replace_a_newer_one_of_another(
    monkeypatch: pytest.MonkeyPatch, write_id: str
) -> None:
    first, second, third = (Process(monkeypatch) for _ in range(3))
    first.keep(1, write_id)
    second.keep(5, write_id)
    assert first.newest() == 5
    assert first.of_write(write_id) == (5 if write_id else None)
    first.keep(4, "other")
    assert third.of_write(write_id) == (5 if write_id else None)
    third.keep(6, "other")
    assert {each.write_id: each.at for each in kept_schemas._stored(ASKED).values()} == {
        write_id: 5,
        "other": 6,
    }


def test_the_schema_that_was_kept_last_is_found_after_the_clock_was_set_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process = Process(monkeypatch)
    for at in range(100, 100 + MANY):
        process.keep(at, f"{at}")
    process.keep(50, "100")
    assert process.newest() == 50
    for each in (process, Process(monkeypatch)):
        assert each.of_write("100") == 50
