"""Saves of one micro-batch with exactly once, as the client sees them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.types import StringType, StructField, StructType
from support.pure.planned_run import RECORD

from spark_kafka_sink.errors import ConfigException
from spark_kafka_sink.spark.driver import saves
from spark_kafka_sink.spark.driver.hooks import writers, written_versions
from spark_kafka_sink.spark.driver.hooks.writers import WRITERS, Write, _hooked
from spark_kafka_sink.spark.driver.saves import only_save
from spark_kafka_sink.spark.micro_batch import (
    BATCH_ID,
    BATCH_ID_OPTION,
    DESCRIPTION,
    JOB_GROUP,
    QUERY_ID,
    MicroBatch,
    batch_id_of,
    batch_id_option,
    micro_batch_in,
)
from spark_kafka_sink.spark.planning import written_version
from spark_kafka_sink.spark.planning.datasource import KafkaDataSource

GIVEN = {
    "kafka.bootstrap.servers": "b:1", "topic": "t", "exactlyonce": "true", "txnappid": "app",
}  # fmt: skip
QUERY = MicroBatch("q", 7, "run")
IS_WRITTEN = written_versions.is_written


@pytest.fixture(autouse=True)
def nothing_was_saved() -> Iterator[None]:
    """A process that has saved nothing."""
    saves._saves.clear()
    yield
    saves._saves.clear()


def save(
    batch_id: int = 7, query: MicroBatch | None = None, without: str | None = None, **more: str
) -> None:
    """Save a micro-batch."""
    given = {name: text for name, text in GIVEN.items() if name != without}
    with only_save(given | more, batch_id, query):
        pass


@pytest.mark.parametrize("query", [None, QUERY], ids=["unknown", "known"])
def test_a_second_save_of_a_micro_batch_is_refused(query: MicroBatch | None) -> None:
    save(7, query)
    with pytest.raises(ConfigException, match="saved micro-batch 7 with txnAppId 'app' to topic t"):
        save(7, query)
    save(7, query, topic="another")
    save(7, query, txnappid="another")
    save(7, query, commitlogtopic="another")
    save(8, query)
    save(9, query, without="topic")
    with pytest.raises(ConfigException, match="to the topics of a topic column: two"):
        save(9, query, without="topic")


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("topic", "t", " t "),
        ("topic", "", " "),
        ("kafka.bootstrap.servers", "k1:9092,k2:9092", "k2:9092, k1:9092,"),
    ],
)
def test_a_second_save_is_known_however_its_options_are_written(
    name: str, first: str, second: str
) -> None:
    with only_save(GIVEN | {name: first}, 7, None):
        pass
    said = "two saves of one micro-batch need different topics"
    with pytest.raises(ConfigException, match=said), only_save(GIVEN | {name: second}, 7, None):
        pass


def test_the_message_says_what_to_do_where_the_query_is_not_known() -> None:
    save()
    with pytest.raises(ConfigException, match=r"or in a pyspark\.InheritableThread"):
        save()
    save(query=QUERY)
    with pytest.raises(ConfigException, match=r"a txnAppId of its own for the second save$"):
        save(query=QUERY)


def test_the_query_is_the_application_if_none_is_named() -> None:
    save(query=QUERY, without="txnappid")
    with pytest.raises(ConfigException, match="micro-batch 7 with txnAppId 'q'"):
        save(query=QUERY, without="txnappid")


def test_another_run_of_the_query_may_save_the_micro_batch_again() -> None:
    save(query=QUERY)
    save(query=QUERY._replace(run_id="the next run"))
    assert list(saves._saves.values()) == [saves._Save("q", "the next run", 7)]


def test_a_save_that_fails_may_be_tried_again() -> None:
    are_retries = []
    for error in (OSError("lost"), KeyboardInterrupt()):
        with suppress(type(error)), only_save(GIVEN, 7, QUERY) as is_retry:
            are_retries.append(is_retry)
            raise error
    with only_save(GIVEN, 7, QUERY) as is_retry:
        are_retries.append(is_retry)
    assert are_retries == [False, True, True]
    with pytest.raises(ConfigException, match="two saves"):
        save(7, QUERY)


def test_only_the_same_micro_batch_of_the_same_run_is_a_retry() -> None:
    for query, batch_id in ((QUERY._replace(run_id="the next run"), 7), (QUERY, 8)):
        with pytest.raises(OSError, match="lost"), only_save(GIVEN, 7, QUERY):
            raise OSError("lost")
        with only_save(GIVEN, batch_id, query) as is_retry:
            assert not is_retry


def test_a_save_while_the_first_one_goes_on_is_refused() -> None:
    with only_save(GIVEN, 7, None), pytest.raises(ConfigException, match="two saves"):
        save()


def test_at_least_once_saves_whatever_it_is_given() -> None:
    for _ in range(2):
        save(without="txnappid", exactlyonce="false")
        save(query=QUERY._replace(run_id=""), without="txnappid", exactlyonce="false")
    assert not saves._saves


def test_a_micro_batch_whose_run_is_unknown_is_refused() -> None:
    with pytest.raises(ConfigException, match="call write_batch before setJobGroup"):
        save(query=QUERY._replace(run_id=""))


def test_only_the_newest_owners_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saves, "_MOST_OWNERS", 2)
    for name in ("a", "b", "c"):
        save(txnappid=name)
    save(txnappid="a")
    with pytest.raises(ConfigException, match="txnAppId 'c'"):
        save(txnappid="c")


RUN_ID = "0b8d9a1e-1d58-4b5b-9d3d-1f9a5a3f7c11"
ROWS = StructType([StructField("value", StringType())])


class Spark:
    """A classic session whose thread has local properties, and what was saved by its writers."""

    def __init__(self, properties: dict[str, str]) -> None:
        self.properties = properties
        self.saved: list[dict[str, str]] = []
        self.error: Exception | None = None
        self.refusal: Exception | None = None
        self.sparkContext = SimpleNamespace(getLocalProperty=self.properties.get)
        self.conf = SimpleNamespace(get=lambda _, default: default)
        self.runs: dict[str, str] = {}
        # The queries of all sessions, in the JVM.
        ids = SimpleNamespace(fromString=str)
        self._jvm = SimpleNamespace(java=SimpleNamespace(util=SimpleNamespace(UUID=ids)))
        shared = SimpleNamespace(activeStreamingQueries=lambda: SimpleNamespace(get=self._query))
        self._jsparkSession = SimpleNamespace(sharedState=lambda: shared)

    def _query(self, query_id: str) -> object:
        run_id = SimpleNamespace(toString=lambda: self.runs[query_id])
        return SimpleNamespace(runId=lambda: run_id) if query_id in self.runs else None

    def in_batch(self, batch_id: int, run_id: str = RUN_ID) -> None:
        """Set the local properties of the function of foreachBatch."""
        self.properties |= {
            QUERY_ID: "q",
            BATCH_ID: str(batch_id),
            DESCRIPTION: f"id = q\nrunId = {run_id}\nbatch = {batch_id}",
        }

    def _look(self, *_: object) -> None:
        if self.refusal is not None:
            raise self.refusal

    def save(self, writer: Any = None, **more: str) -> None:  # noqa: ANN401 - a fake
        """Save rows, as a user does after `register`."""
        kind = WRITERS[0]._replace(
            write=lambda writer: writer.settings, schema=lambda _: ROWS, look=self._look,
            set_mode=lambda *_: None,
        )  # fmt: skip
        hooked = _hooked(FakeWriter, kind, "pykafka")
        hooked(writer or FakeWriter(self, GIVEN | more))


class FakeWriter:
    """A writer that keeps the options of `save`, as Spark's does."""

    def __init__(self, spark: Spark, options: dict[str, str]) -> None:
        self._spark = spark
        self._options = options

    @property
    def settings(self) -> Write:
        """The settings of the writer."""
        return Write("pykafka", "append", None, {}, self._options, True)  # noqa: FBT003 - a tuple

    def save(self, **options: str) -> None:
        """Save the rows, or fail."""
        self._options = self._options | options
        self._spark.saved.append(self._options)
        if self._spark.error is not None:
            raise self._spark.error


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> Spark:
    """A session; nothing was written, according to the commit log."""
    monkeypatch.setattr(writers, "_enter_thread", lambda _: None)
    monkeypatch.setattr(writers, "explained", lambda _: nullcontext())
    monkeypatch.setattr(written_versions, "is_written", lambda _: False)
    return Spark({})


def test_a_save_in_foreachbatch_passes_on_its_micro_batch(spark: Spark) -> None:
    spark.in_batch(7)
    spark.save(txnversion="7")
    (found,) = spark.saved
    assert micro_batch_in(found) == MicroBatch("q", 7, RUN_ID)
    options, batch_id = KafkaDataSource(found).check(ROWS)
    assert batch_id == 7
    assert options.exactly_once is not None
    assert (options.exactly_once.app_id, options.exactly_once.version) == ("app", None)


def test_a_second_save_in_foreachbatch_is_refused_and_never_skipped(
    spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.in_batch(7)
    spark.save(txnversion="7")
    # By this, it would be skipped.
    monkeypatch.setattr(written_versions, "is_written", lambda _: True)
    with pytest.raises(
        ConfigException, match=r"^save\(\): this process has already saved micro-batch 7"
    ):
        spark.save(txnversion="7")
    with pytest.raises(ConfigException, match=r"^write_batch: this process has already saved"):
        save(7, MicroBatch("q", 7, RUN_ID))
    spark.save(txnversion="7", topic="another")
    assert [each["topic"] for each in spark.saved] == ["t", "another"]


def test_a_save_in_foreachbatch_that_failed_may_be_tried_again_also_by_its_writer(
    spark: Spark,
) -> None:
    spark.in_batch(7)
    writer = FakeWriter(spark, GIVEN | {"txnversion": "7"})
    spark.error = OSError("lost")
    with pytest.raises(OSError, match="lost"):
        spark.save(writer)
    spark.error = None
    spark.save(writer)
    found = [micro_batch_in(each) for each in spark.saved]
    assert [each is not None and each.is_retry for each in found] == [False, True]
    with pytest.raises(ConfigException, match="two saves"):
        spark.save(writer)


def test_a_save_in_foreachbatch_needs_the_run_of_its_query(spark: Spark) -> None:
    spark.in_batch(7)
    del spark.properties[DESCRIPTION]
    with pytest.raises(ConfigException, match=r"^save\(\): .* call save\(\) before setJobGroup"):
        spark.save(txnversion="7")
    assert spark.saved == []


def test_a_job_group_of_the_user_is_not_the_run_of_the_query_even_if_it_is_a_uuid(
    spark: Spark,
) -> None:
    spark.in_batch(7)
    del spark.properties[DESCRIPTION]
    spark.runs["q"] = RUN_ID
    spark.properties[JOB_GROUP] = str(uuid.uuid4())
    with pytest.raises(ConfigException, match=r"^save\(\): .* call save\(\) before setJobGroup"):
        spark.save(txnversion="7")
    spark.properties[JOB_GROUP] = RUN_ID
    spark.save(txnversion="7")
    (found,) = spark.saved
    assert micro_batch_in(found) == MicroBatch("q", 7, RUN_ID)


@pytest.mark.parametrize("lacks", ["the query", "the list of queries"])
def test_a_job_group_is_the_run_of_the_query_if_the_query_is_not_found(
    lacks: str, spark: Spark
) -> None:
    spark.in_batch(7)
    del spark.properties[DESCRIPTION]
    spark.properties[JOB_GROUP] = RUN_ID
    if lacks == "the list of queries":
        del spark._jsparkSession
    spark.save(txnversion="7")
    (found,) = spark.saved
    assert micro_batch_in(found) == MicroBatch("q", 7, RUN_ID)


@pytest.mark.parametrize(
    "options",
    [
        {"txnversion": "20260131"},
        {},  # without txnVersion, the plan refuses it
    ],
)
def test_other_saves_in_foreachbatch_with_exactly_once_are_jobs(
    spark: Spark, options: dict[str, str]
) -> None:
    spark.in_batch(7)
    for _ in range(2):
        spark.save(**options)
    assert not any(BATCH_ID_OPTION in each for each in spark.saved)
    assert len(spark.saved) == 2


@pytest.mark.parametrize(
    "later", [{"txnversion": "20260131"}, {"exactlyonce": "false"}], ids=["version", "off"]
)
def test_a_later_save_of_the_same_writer_does_not_keep_its_query(
    spark: Spark, later: dict[str, str]
) -> None:
    spark.in_batch(7)
    writer = FakeWriter(spark, GIVEN | {"txnversion": "7"})
    spark.save(writer)
    for _ in range(2):
        writer._options |= later
        spark.save(writer)
        options = {name: text for name, text in spark.saved[-1].items() if name != "txnappid"}
        assert micro_batch_in(options) is None
        if "exactlyonce" in later:
            options.pop("txnversion")
        else:
            options["txnappid"] = "app"
        checked, batch_id = KafkaDataSource(options).check(ROWS)
        assert batch_id == (7 if "exactlyonce" in later else None)
        assert (checked.exactly_once is None) == ("exactlyonce" in later)


def test_a_writer_that_has_saved_a_micro_batch_may_save_a_version(
    spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(written_versions, "is_written", IS_WRITTEN)
    monkeypatch.setattr(written_version, "_record", lambda *_: RECORD)
    writer = FakeWriter(spark, GIVEN | {"txnversion": "3"})
    spark.in_batch(3)
    spark.save(writer)
    for version in ("7", "8"):  # according to the record, version 7 is written
        writer._options = {**writer._options, "txnversion": version}
        spark.save(writer)
    assert [each["txnversion"] for each in spark.saved] == ["3", "8"]


def test_an_at_least_once_save_in_foreachbatch_is_a_micro_batch(spark: Spark) -> None:
    writer = FakeWriter(spark, GIVEN | {"exactlyonce": "false"})
    for batch_id in (7, 7, 8):  # it may save a micro-batch several times
        spark.in_batch(batch_id)
        spark.save(writer)
    spark.properties.clear()  # outside of foreachBatch
    spark.save(writer)
    assert [batch_id_of(each) for each in spark.saved] == [7, 7, 8, None]


@pytest.mark.parametrize("mode", ["true", "false"])
def test_a_writer_whose_save_was_refused_does_not_keep_the_micro_batch_before(
    spark: Spark, mode: str
) -> None:
    writer = FakeWriter(spark, GIVEN | {"exactlyonce": mode, "txnversion": "7"})
    spark.in_batch(7)
    spark.save(writer)
    spark.in_batch(8)
    writer._options["txnversion"] = "8"
    spark.refusal = ConfigException("no broker")
    with pytest.raises(ConfigException, match="no broker"):
        spark.save(writer)
    spark.refusal = None
    spark.save(writer)
    assert [batch_id_of(each) for each in spark.saved] == [7, 8]


def test_a_save_in_foreachbatch_is_checked_before_spark_begins() -> None:
    options = {"kafka.bootstrap.servers": "localhost:1", "topic": "t", "no.such.option": "1"}
    with pytest.raises(ConfigException, match=r"no\.such\.option"):
        WRITERS[0].look(ROWS, options | batch_id_option(7, is_save=True))


def test_a_version_without_exactly_once_is_refused_in_foreachbatch_as_elsewhere() -> None:
    options = {"kafka.bootstrap.servers": "localhost:1", "topic": "t", "txnVersion": "7"}
    for more in ({}, batch_id_option(7, is_save=True)):
        with pytest.raises(ConfigException, match="option txnVersion has no effect without"):
            KafkaDataSource(options | more).check(ROWS)


@pytest.mark.parametrize("mode", ["true", "false"])
def test_a_save_outside_of_foreachbatch_is_a_job(spark: Spark, mode: str) -> None:
    spark.save(txnversion="7", exactlyonce=mode)
    (found,) = spark.saved
    assert BATCH_ID_OPTION not in found
