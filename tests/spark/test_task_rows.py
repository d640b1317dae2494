"""A task's handling of bad rows, on real brokers: `write_task` by itself, without a session."""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient
from conftest import NewTopic, topic_maker
from pyarrow import parquet
from support.brokers.fault_proxy import Fault, FaultProxy, Kind
from support.brokers.kafka_cluster import KafkaCluster
from support.brokers.mock_cluster import MockCluster
from support.oracles.readers import create_topics, read_at_least, read_with_confluent

from spark_kafka_sink.config import producer_config
from spark_kafka_sink.errors import ConfigException, DataException, KafkaException
from spark_kafka_sink.kafka_producer import KafkaProducer
from spark_kafka_sink.spark.options import SinkOptions, sink_options
from spark_kafka_sink.spark.planning.preflight import check_dead_letter_topic
from spark_kafka_sink.spark.report import SinkCommitMessage, merged
from spark_kafka_sink.spark.tasks.task import write_task
from spark_kafka_sink.task_producer import TaskProducer

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


def by_country(_topic: str, batch: pa.RecordBatch, partitions: int) -> list[int]:
    """Choose partitions by a column that is not the sink's."""
    return [len(country) % partitions for country in batch.column("country").to_pylist()]


def too_high(_topic: str, batch: pa.RecordBatch, _partitions: int) -> list[int]:
    """Choose a partition that no topic has."""
    return [99] * batch.num_rows


def options(kafka: KafkaCluster, given: dict[str, str]) -> SinkOptions:
    """Make the options of a write."""
    return sink_options({"kafka.bootstrap.servers": kafka.bootstrap, **given})


def write(
    kafka: KafkaCluster, columns: dict[str, list[object] | pa.Array], given: dict[str, str]
) -> SinkCommitMessage:
    """Write one Arrow batch as a task does."""
    return write_task(options(kafka, given), iter([pa.record_batch(columns)]))


def values(kafka: KafkaCluster, topic: str) -> list[bytes | None]:
    """Read the values of a topic, sorted."""
    return sorted(
        (record.value for record in read_with_confluent(kafka.bootstrap, topic)),
        key=lambda value: value or b"",
    )


def new_name() -> str:
    """Return the name of a topic that does not exist."""
    return f"topic-{uuid.uuid4().hex[:12]}"


def topics_of(kafka: KafkaCluster) -> set[str]:
    """Return the names of all topics."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    return set(admin.list_topics(timeout=30).topics)


def test_a_slow_task_s_rows_are_there_while_it_waits_for_more(
    kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic = new_topic(1)

    def slow_input() -> Iterator[pa.RecordBatch]:
        for number in range(3):
            yield pa.record_batch({"value": [str(number).encode()] * 2})
            rows = 2 * (number + 1)
            assert len(read_at_least(kafka.bootstrap, topic, rows)) == rows

    write_task(options(kafka, {"topic": topic, "kafka.linger.ms": "50"}), slow_input())
    assert values(kafka, topic) == [b"0", b"0", b"1", b"1", b"2", b"2"]


def test_rows_that_have_waited_for_others_do_not_linger_as_long_again(
    kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic, linger_ms = new_topic(1), 600_000
    given = {"bootstrap.servers": kafka.bootstrap, "linger.ms": linger_ms}
    with KafkaProducer(given) as producer:
        rows = pa.record_batch({"value": [b"x"]})
        producer.append(topic, rows, lingers_since=time.monotonic() - linger_ms / 1000)
        assert len(read_at_least(kafka.bootstrap, topic, 1)) == 1


@pytest.mark.parametrize("rows", [2, 100_000], ids=["small", "large"])
def test_rows_beside_a_refused_one_are_sent_again_while_a_slow_task_waits(
    kafka: KafkaCluster, new_topic: NewTopic, rows: int
) -> None:
    topic = new_topic(1, {"cleanup.policy": "compact"})
    keys = pa.array([*[b"k"] * (rows - 1), None], pa.binary())
    given = {"topic": topic, "onError": "skip", "kafka.linger.ms": "50"}

    def slow_input() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"key": keys, "value": [b"v" * 40] * rows})
        assert len(read_at_least(kafka.bootstrap, topic, rows - 1)) == rows - 1

    message = write_task(options(kafka, given), slow_input())
    assert (message.report.rows, message.bad_rows.rows) == (rows - 1, 1)


@pytest.mark.parametrize("on_error", ["fail", "skip"])
def test_a_task_counts_the_time_that_rows_have_waited_for_others_towards_linger_ms(
    kafka: KafkaCluster, new_topic: NewTopic, on_error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, linger_s = new_topic(1), 600
    # To the task, each batch came so long ago; and no batch is small enough to wait for another.
    long_ago = SimpleNamespace(monotonic=lambda: time.monotonic() - linger_s, time=time.time)
    monkeypatch.setattr("spark_kafka_sink.spark.tasks.task.time", long_ago)
    monkeypatch.setattr(TaskProducer, "slice_bytes", lambda *_: 1)

    def slow_input() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"value": [b"x"]})
        assert len(read_at_least(kafka.bootstrap, topic, 1)) == 1

    given = {
        "topic": topic,
        "onError": on_error,
        "kafka.linger.ms": str(linger_s * 1000),
        "kafka.delivery.timeout.ms": str(2 * linger_s * 1000),
    }
    assert write_task(options(kafka, given), slow_input()).report.rows == 1


def test_tasks_of_one_row_each_fill_a_partition_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one is another in each stage, as in each micro-batch of a stream."""
    partitions, first = 8, set[int]()

    def write_row(stage: int, task: int) -> int:
        context = SimpleNamespace(
            stageId=lambda: stage,
            partitionId=lambda: task,
            attemptNumber=lambda: 0,
            getLocalProperty=lambda _name: None,
        )
        of_task = SimpleNamespace(get=lambda: context)
        monkeypatch.setattr("spark_kafka_sink.spark.tasks.task.TaskContext", of_task)
        message = write_task(given, iter([pa.record_batch({"value": ["v"]})]))
        (written,) = merged([message.partitions])
        return written.partition

    with MockCluster() as cluster:
        cluster.create_topic("t", partitions)
        given = sink_options({"kafka.bootstrap.servers": cluster.bootstrap, "topic": "t"})
        for stage in range(4):
            filled = [write_row(stage, task) for task in range(partitions)]
            assert sorted(filled) == list(range(partitions))
            first.add(filled[0])
    assert len(first) > 1


def test_dead_letters_do_not_ask_a_partitioner_of_the_users_own(
    kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic, letters = new_topic(3), new_topic(1)
    columns = {
        "value": ["a", "b"],
        "country": ["xx", "y"],
        "partition": pa.array([None, -3], pa.int32()),
    }
    given = {
        "topic": topic,
        "onError": "deadLetter",
        "deadLetterTopic": letters,
        "kafka.partitioner.class": f"{__name__}.by_country",
    }
    message = write(kafka, columns, given)
    assert (message.report.rows, message.bad_rows.rows) == (1, 1)
    assert [(r.partition, r.value) for r in read_with_confluent(kafka.bootstrap, topic)] == [
        (2, b"a")
    ]
    assert values(kafka, letters) == [b"b"]


def test_a_dead_letter_topic_is_created_without_the_settings_of_the_others(
    kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic, letters = new_topic(1), new_name()
    given = {
        "topic": topic,
        "createTopics": "true",
        "topic.partitions": "2",
        "topic.replication": "1",
        "topic.config.cleanup.policy": "compact",
        "onError": "deadLetter",
        "deadLetterTopic": letters,
    }
    check_dead_letter_topic(options(kafka, given))
    columns = {"value": ["without key"], "partition": pa.array([-1], pa.int32())}
    assert write(kafka, columns, given).bad_rows.rows == 1
    records = read_with_confluent(kafka.bootstrap, letters)
    assert [(record.key, record.value) for record in records] == [(None, b"without key")]


HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def strings_of(*values: bytes) -> pa.Array:
    """Make a column of strings as Spark hands them over, text or not."""
    return pa.array(values, pa.binary()).cast(pa.string(), safe=False)


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (
            {"topic": pa.array([None], pa.string())},
            "{}: [KAFKA_NULL_TOPIC_IN_DATA] The Kafka message data sent to",
        ),
        (
            {"topic": strings_of(b"t\xff")},
            "{}: topic has a name that is not text: b't\\xff' is not UTF-8",
        ),
        ({"topic": ["t" * 300]}, "{}: Topic cannot be 'tttttttttttttttttttt'...: found a name"),
        ({"topic": ["{letters}"]}, "{}: the topic column has {letters}"),
        ({"partition": pa.array([-7], pa.int32())}, "{}: Invalid partition: -7. "),
        ({"partition": pa.array([7], pa.int32())}, "{}: the partition column has 7, but topic"),
        ({"timestamp": [-7]}, "{}: Invalid timestamp: -7 ms. "),
        (
            {"headers": pa.array([[(None, b"")]], HEADERS)},
            "{}: headers has a header whose key is null",
        ),
        ({"value": ["x" * 20_000]}, "{}: the record is up to 20076 bytes when serialized"),
    ],
    ids=lambda case: next(iter(case)) if isinstance(case, dict) else None,
)
def test_a_row_that_fails_a_task_is_told_by_its_number_in_the_task(
    kafka: KafkaCluster, new_topic: NewTopic, column: dict[str, Any], said: str
) -> None:
    """Its number in the Arrow batch that the task has joined would be useless."""
    topic, letters = new_topic(3), new_topic(1)
    good = {
        "topic": [topic],
        "partition": pa.array([None], pa.int32()),
        "timestamp": pa.array([None], pa.int64()),
        "headers": pa.array([None], HEADERS),
        "value": ["v"],
    }
    if column.get("topic") == ["{letters}"]:
        column, said = {"topic": [letters]}, said.replace("{letters}", letters)
        more = {"onError": "deadLetter", "deadLetterTopic": letters}
    else:
        more = {"onError": "fail"}
    row = pa.record_batch(good)
    large = pa.record_batch(good | {"value": ["x" * 9000]})
    batches = [large] * 500 + [row] * 7 + [pa.record_batch(good | column), row]
    given = {"kafka.max.request.size": "10000"} | more
    with pytest.raises(KafkaException) as failed:
        write_task(options(kafka, given), iter(batches))
    assert said.format("row 507 of task 0") in str(failed.value)


def test_a_task_does_not_end_well_before_every_row_is_acknowledged(
    proxied_kafka: tuple[KafkaCluster, FaultProxy],
) -> None:
    """The broker has the rows, but its response is lost, so the task fails."""
    kafka, proxy = proxied_kafka
    topic = topic_maker(kafka)(1)
    given = {
        "kafka.bootstrap.servers": f"127.0.0.1:{proxy.port}",
        "kafka.request.timeout.ms": "300",
        "kafka.delivery.timeout.ms": "1000",
        "topic": topic,
    }
    proxy.inject(Fault(kind=Kind.DROP_ANSWER, times=10**9))
    try:
        # Which error comes last, the broken connection's or the time's, is a matter of chance.
        with pytest.raises(KafkaException, match=r"kafka\.delivery\.timeout\.ms=1000"):
            write_task(sink_options(given), iter([pa.record_batch({"value": ["a", "b"]})]))
    finally:
        proxy.clear()
    assert values(kafka, topic) == [b"a", b"b"]


def test_no_topic_is_created_for_bad_rows_alone(kafka: KafkaCluster) -> None:
    good, in_doubt, bad = new_name(), new_name(), new_name()
    columns = {
        "value": ["a", "b", "c"],
        "topic": [good, in_doubt, bad],
        "partition": pa.array([None, 1, None], pa.int32()),
        "timestamp": [None, None, -5],
    }
    new = {"createTopics": "true", "topic.partitions": "2", "topic.replication": "1"}
    message = write(kafka, columns, {**new, "onError": "skip"})
    assert (message.report.rows, message.bad_rows.rows) == (2, 1)
    assert (values(kafka, good), values(kafka, in_doubt)) == ([b"a"], [b"b"])
    assert bad not in topics_of(kafka)


def test_a_dead_letter_file_can_be_read_whatever_bytes_are_in_its_strings(
    kafka: KafkaCluster, tmp_path: Path
) -> None:
    columns = {
        "key": strings_of(b"k\xff"),
        "value": strings_of(b"v\xfe"),
        "topic": strings_of(b"t\xff"),
        "note": strings_of(b"n\xff"),
    }
    message = write(kafka, columns, {"onError": "deadLetter", "deadLetterPath": str(tmp_path)})
    (letter,) = parquet.read_table(message.bad_rows.files[0]).to_pylist()
    assert (letter["key"], letter["value"]) == (b"k\xff", b"v\xfe")
    assert (letter["note"], letter["pykafka_error_topic"]) == ("n\ufffd", "t\ufffd")


def test_a_task_makes_no_folder_for_dead_letters(
    kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    """Without the mounted filesystem, they would stay on the disk of an executor."""
    folder = tmp_path / "not mounted" / "letters"
    given = {"topic": new_topic(1), "onError": "deadLetter", "deadLetterPath": str(folder)}
    assert write(kafka, {"value": ["good"]}, given).report.rows == 1
    with pytest.raises(ConfigException) as refused:
        write(kafka, {"value": ["bad"], "partition": pa.array([-1], pa.int32())}, given)
    assert f"deadLetterPath is {folder}, which is not a folder on {os.uname().nodename}: " in str(
        refused.value
    )
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_a_task_may_not_write_into_is_named_with_the_option(
    kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    """Nobody makes files in /proc, root included."""
    given = {"topic": new_topic(1), "onError": "deadLetter", "deadLetterPath": "/proc"}
    words = "deadLetterPath is /proc, which cannot be written into (No such file or directory) on"
    with pytest.raises(ConfigException, match=re.escape(words)):
        write(kafka, {"value": ["bad"], "partition": pa.array([-1], pa.int32())}, given)


def test_what_parquet_has_no_place_for_is_told_and_leaves_no_file(
    kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    columns = {
        "value": ["a"],
        "partition": pa.array([-1], pa.int32()),
        "nothing": pa.array([{}], pa.struct([])),
    }
    given = {"topic": new_topic(1), "onError": "deadLetter", "deadLetterPath": str(tmp_path)}
    with pytest.raises(DataException, match="type 'nothing' with no child"):
        write(kafka, columns, given)
    assert list(tmp_path.iterdir()) == []


def test_a_row_may_not_go_to_the_dead_letter_topic_by_itself(
    kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic, letters = new_topic(1), new_topic(1)
    columns = {"value": ["a", "b", "c"], "topic": [topic, letters, None]}
    given = {"onError": "deadLetter", "deadLetterTopic": letters}
    said = f"^row 1 of task 0: the topic column has {letters}, which is deadLetterTopic"
    with pytest.raises(DataException, match=said):
        write(kafka, columns, given)
    assert values(kafka, letters) == []


def test_what_a_partitioner_of_the_users_own_gives_wrong_fails_the_task(
    kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    given = {
        "topic": new_topic(3),
        "onError": "skip",
        "kafka.partitioner.class": f"{__name__}.too_high",
    }
    said = r"kafka\.partitioner\.class returned partition 99 for a row .* expected null or 0 to 2"
    with pytest.raises(DataException, match=said):
        write(kafka, {"value": ["a", "b"]}, given)


def test_partitions_of_many_topics_are_asked_for_together(kafka: KafkaCluster) -> None:
    names = [new_name() for _ in range(40)]
    create_topics(kafka.bootstrap, names, 2)
    config = {"bootstrap.servers": kafka.bootstrap, "enable.idempotence": "false"}
    with TaskProducer(producer_config(config)) as producer:
        assert producer.partition_counts(dict.fromkeys(names, 5)) == dict.fromkeys(names, 2)
        requests = [v for k, v in producer.metrics().items() if k.name == "request-total"]
    assert 0 < sum(requests) < 20, "one for what is new, one for what seems to be too few"
