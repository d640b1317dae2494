"""Rows of a task that are refused by brokers, or older than their topic keeps them.

Also rows for topics of the sink itself.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, Final, Self, cast

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.errors import DataException, InvalidRecordException, TimeoutException
from spark_kafka_sink.model import AppendFailure
from spark_kafka_sink.records.record_limits import RecordLimits
from spark_kafka_sink.spark import topics
from spark_kafka_sink.spark.options import SinkOptions, sink_options
from spark_kafka_sink.spark.tasks.task_rows import TaskRows
from spark_kafka_sink.task_producer import TaskProducer

HOUR_MS = 3_600_000


class AllTaken:
    """A producer that takes all rows, for topics of one partition."""

    record_limits: Final = RecordLimits.of(max_request_size=1_000_000, buffer_memory=1_000_000)

    def limit_messages(self, *_: object) -> None:
        """Do nothing."""

    def partition_counts(self, expected: dict[str, int]) -> dict[str, int]:
        """Return one partition for each topic."""
        return dict.fromkeys(expected, 1)

    def append(self, *_: object, **__: object) -> None:
        """Do nothing."""


class OneByOne(AllTaken):
    """A producer whose brokers refuse the first row of each batch that has more than one."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self._waiting: list[tuple[Any, ...]] = []

    def append(self, *given: object, **__: object) -> None:
        """Keep a batch until the next flush."""
        self._waiting.append(given)

    def flush(self) -> None:
        """Write batches of one row, and refuse the others."""
        waiting, self._waiting = self._waiting, []
        error = InvalidRecordException("refused")
        error.code = codes.INVALID_RECORD
        for _, batch, on_failure in waiting:
            rows = np.arange(batch.num_rows)
            if len(rows) > 1:
                on_failure(AppendFailure(rows, rows[:1], error))
            else:
                self.written += batch["value"].to_pylist()


def options_with(on_error: str, retention_ms: int) -> SinkOptions:
    """Return options for a topic with that retention, as the driver completes them."""
    names = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t", "onError": on_error}
    return replace(sink_options(names), retention_ms=retention_ms)


def test_rows_that_were_sent_again_may_be_refused_again() -> None:
    producer = OneByOne()
    options = options_with("skip", HOUR_MS)
    with TaskRows(options, cast(TaskProducer, producer), 0, 0) as rows:
        rows.append(pa.record_batch({"value": ["a", "b", "c"]}))
        assert rows.flush() == 1
        assert rows.finish().reasons == {"refused_by_broker": 2}
    assert producer.written == ["c"]


@pytest.mark.parametrize(("on_error", "partitions"), [("skip", [0, 7, None]), ("fail", [0, None])])
def test_bad_rows_are_not_counted_as_older_than_the_retention_of_their_topic(
    on_error: str, partitions: list[int | None]
) -> None:
    old = int(time.time() * 1000) - 2 * HOUR_MS
    batch = pa.record_batch(
        {
            "value": ["v"] * len(partitions),
            "partition": pa.array(partitions, pa.int32()),
            "timestamp": pa.array([old] * len(partitions), pa.int64()),
        }
    )
    producer = cast(TaskProducer, AllTaken())
    with TaskRows(options_with(on_error, HOUR_MS), producer, 0, 0) as rows:
        rows.append(batch)
        assert [each.rows for each in rows.expired_rows.report()] == [2]
        assert rows.finish().rows == len(partitions) - 2


class RefusingOnce(AllTaken):
    """A producer whose brokers refuse the value "refused", and letters with the value "long"."""

    def __init__(self) -> None:
        self.letters: list[dict[str, Any]] = []
        self._waiting: list[tuple[Any, ...]] = []

    def append(self, *given: object, **__: object) -> None:
        """Keep a batch until the next flush."""
        self._waiting.append(given)

    def flush(self) -> None:
        """Write batches in which no value is refused, and refuse the others."""
        waiting, self._waiting = self._waiting, []
        error = InvalidRecordException("refused")
        error.code = codes.INVALID_RECORD
        for topic, batch, on_failure in waiting:
            refused = {"t": "refused", "dead": "long"}[topic]
            values = np.array(batch["value"].to_pylist(), object)
            if (values == refused).any():
                rows = np.arange(batch.num_rows)
                on_failure(AppendFailure(rows, rows[values == refused], error))
            elif topic == "dead":
                self.letters += batch.to_pylist()


@pytest.mark.parametrize("kind", [pa.int64(), pa.timestamp("us", tz="UTC")])
def test_a_dead_letter_has_the_time_of_writing_however_old_its_row_is(kind: pa.DataType) -> None:
    """Brokers would delete a letter with an old timestamp at their next check."""
    old_ms = [1_000, 2_000, 3_000, 4_000, None]
    values = ["good", "refused", "found", "long", "untimed"]
    times = pa.array(old_ms, pa.timestamp("ms", tz="UTC") if kind != pa.int64() else kind)
    batch = pa.record_batch(
        {
            "value": values,
            "partition": pa.array([None, None, 7, 7, 7], pa.int32()),
            "timestamp": times.cast(kind),
        }
    )
    names = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"}
    letters_to = {"onError": "deadLetter", "deadLetterTopic": "dead"}
    producer = RefusingOnce()
    options = sink_options(names | letters_to)
    with TaskRows(options, cast(TaskProducer, producer), 0, 0) as rows:
        rows.append(batch)
        assert rows.flush() == 1
    assert [each.get("timestamp") for each in producer.letters] == [None] * 4
    found = {}
    for letter in producer.letters:
        headers = {each["key"]: each["value"] for each in letter["headers"]}
        left_out = headers["pykafka.error.left.out"]
        row = values[int(headers["pykafka.error.row"])]
        found[row] = letter["value"], headers["pykafka.error.timestamp"], left_out
    assert found == {
        "refused": ("refused", b"2000", None),
        "found": ("found", b"3000", None),
        "long": (None, b"4000", b"value"),
        "untimed": ("untimed", None, None),
    }


class Slow(AllTaken):
    """A producer whose brokers acknowledge nothing before a flush. Its rows take no memory."""

    def __init__(self) -> None:
        self.flushes = 0
        self._waiting: list[object] = []

    def append(self, *given: object, **__: object) -> None:
        """Keep what is called about a batch until the next flush."""
        _, _, on_failure = given
        self._waiting.append(on_failure)

    def flush(self) -> None:
        """Acknowledge all batches."""
        self.flushes += 1
        self._waiting.clear()


@pytest.mark.parametrize("bad", [0, 50, 100])
@pytest.mark.parametrize("on_error", ["skip", "deadLetter"])
@pytest.mark.parametrize("mode", [None, "two-phase"])
def test_rows_that_may_be_refused_take_as_much_memory_as_buffer_memory_and_no_more(
    mode: str | None, on_error: str, bad: int
) -> None:
    limit_bytes = 1_000_000
    names = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t", "onError": on_error}
    names["kafka.buffer.memory"] = str(limit_bytes)
    if on_error == "deadLetter":
        names["deadLetterTopic"] = "dead"
    if mode is not None:
        names |= {"exactlyOnce": mode, "commitLogTopic": "log"}
    partitions = pa.array([7] * bad + [0] * (100 - bad), pa.int32())
    producer = Slow()
    before, kept = pa.total_allocated_bytes(), []
    with TaskRows(sink_options(names), cast(TaskProducer, producer), 0, 0) as rows:
        for _ in range(40):
            rows.append(pa.record_batch({"value": [b"v" * 1000] * 100, "partition": partitions}))
            kept.append(pa.total_allocated_bytes() - before)
    if mode is not None or (on_error == "skip" and bad == 100):
        assert max(kept) < 10_000, "no row is sent again"
        assert producer.flushes == 0
    else:
        assert limit_bytes // 3 < max(kept) <= limit_bytes
        assert 0 < producer.flushes < 6


@pytest.mark.parametrize("mode", ["single", "two-phase"])
def test_a_topic_column_may_not_name_the_commit_log(mode: str) -> None:
    names = {"kafka.bootstrap.servers": "127.0.0.1:1", "exactlyOnce": mode, "commitLogTopic": "log"}
    batch = pa.record_batch({"value": ["a", "b", "c"], "topic": ["t", "log", None]})
    said = "^row 1 of task 5: the topic column has log, which is the topic of the commit log"
    rows = TaskRows(sink_options(names), cast(TaskProducer, AllTaken()), 5, 0)
    with rows, pytest.raises(DataException, match=said):
        rows.append(batch)


def test_a_task_says_that_it_waits_for_the_settings_or_the_creation_of_topics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[object] = []

    class Admin:
        def __init__(self, *_: object, **__: object) -> None: ...

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None: ...

        def topics(self, names: list[str], _: object) -> list[str]:
            seen.append(task.waits.awaited)
            return names

        def topic_configs(self, *_: object) -> dict[str, str]:
            seen.append(task.waits.awaited)
            return {"max.message.bytes": "2000"}

        def configs_of_topics(self, *_: object) -> dict[str, dict[str, str]]:
            seen.append(task.waits.awaited)
            return {}

    monkeypatch.setattr(topics, "KafkaAdmin", Admin)
    names = {"kafka.bootstrap.servers": "127.0.0.1:1", "createTopics": "true"}
    task = TaskRows(sink_options(names), cast(TaskProducer, AllTaken()), 0, 0)
    columns = {"value": ["a"], "topic": ["t"], "timestamp": pa.array([1000], pa.int64())}
    task.append(pa.record_batch(columns))
    assert seen == [{"the creation of topics": ""}, {"the settings of topics": ""}]
    assert task.waits.awaited == {}
    seen.clear()

    class TooLarge(AllTaken):
        def limit_messages(self, *given: Any) -> None:  # noqa: ANN401 - two arguments
            _, self.refresh = given

    producer = TooLarge()
    options = replace(options_with("fail", HOUR_MS), max_message_bytes={"t": 1000})
    task = TaskRows(options, cast(TaskProducer, producer), 0, 0)
    assert producer.refresh() == {"t": 2000}
    assert seen == [{"the settings of topics": ""}]
    assert task.waits.awaited == {}


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("is_raised", [False, True], ids=["the same limit", "a higher limit"])
def test_in_a_transaction_a_dead_letter_over_the_limit_of_its_topic_has_no_value(
    monkeypatch: pytest.MonkeyPatch, codec: str, *, is_raised: bool
) -> None:
    """Brokers must not refuse it, because the transaction could then only be aborted."""

    class Taken(AllTaken):
        def __init__(self) -> None:
            self.letters: list[str | None] = []

        def limit_messages(self, *given: Any) -> None:  # noqa: ANN401 - two arguments
            if codec == "none":
                self.record_limits = self.record_limits.with_topics(given[0])  # type: ignore[misc]

        def append(self, *given: Any, **_: object) -> None:  # noqa: ANN401 - a topic and a batch
            if given[0] == "dead":
                self.letters += given[1]["value"].to_pylist()

    def refreshed(limits: topics.TopicLimits) -> dict[str, int]:
        limits.by_topic = {"dead": 10_000 if is_raised else 1000}
        return limits.by_topic

    monkeypatch.setattr(topics.TopicLimits, "refreshed", refreshed)
    names = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t", "exactlyOnce": "two-phase"}
    names |= {"txnAppId": "a", "txnVersion": "1", "kafka.compression.type": codec}
    given = sink_options(names | {"onError": "deadLetter", "deadLetterTopic": "dead"})
    producer = Taken()
    batch = pa.record_batch(
        {"value": ["small", "x" * 2000], "partition": pa.array([7, 7], pa.int32())}
    )
    options = replace(given, max_message_bytes={"dead": 1000})
    with TaskRows(options, cast(TaskProducer, producer), 0, 0) as rows:
        rows.append(batch)
    assert sorted(producer.letters, key=str) == sorted(
        ["small", "x" * 2000 if is_raised else None], key=str
    )


def test_limits_of_topics_are_not_read_again_for_a_dead_letter_that_no_topic_could_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With compression, only brokers compare sizes with the limit of the topic."""
    reads: list[topics.TopicLimits] = []
    monkeypatch.setattr(topics.TopicLimits, "refreshed", reads.append)
    names = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t", "onError": "deadLetter"}
    given = sink_options(names | {"deadLetterTopic": "dead", "kafka.compression.type": "zstd"})
    options = replace(given, max_message_bytes={"dead": 1000})
    batch = pa.record_batch({"value": ["x" * 2_000_000], "partition": pa.array([7], pa.int32())})
    with TaskRows(options, cast(TaskProducer, AllTaken()), 0, 0) as rows:
        rows.append(batch)
        assert rows.finish().rows == 1
    assert reads == []


def test_a_topic_keeps_its_limit_while_brokers_do_not_tell_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers: list[dict[str, str] | Exception] = [
        TimeoutException("the brokers restart"),
        {},
        {"max.message.bytes": "500"},
    ]

    class Admin:
        def __init__(self, *_: object, **__: object) -> None: ...

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None: ...

        def topic_configs(self, *_: object) -> dict[str, str]:
            found = answers.pop(0)
            if isinstance(found, Exception):
                raise found
            return found

    class Taken(AllTaken):
        def __init__(self) -> None:
            self.limits: list[dict[str, int]] = []

        def limit_messages(self, *given: Any) -> None:  # noqa: ANN401 - two arguments
            self.limits.append(given[0])
            self.record_limits = self.record_limits.with_topics(given[0])  # type: ignore[misc]

    monkeypatch.setattr(topics, "KafkaAdmin", Admin)
    monkeypatch.setattr(topics, "GOOD_FOR_S", 0.0)
    names = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t", "onError": "skip"}
    names |= {"exactlyOnce": "two-phase", "txnAppId": "a", "txnVersion": "1"}
    producer = Taken()
    options = replace(sink_options(names), max_message_bytes={"t": 1000})
    with TaskRows(options, cast(TaskProducer, producer), 0, 0) as rows:
        for _ in range(3):
            rows.append(pa.record_batch({"value": ["x" * 2000]}))
        assert rows.finish().reasons == {"too_large": 3}
    assert producer.limits == [{"t": 1000}, {"t": 1000}, {"t": 1000}, {"t": 500}]
