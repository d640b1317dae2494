"""Every public argument: values that are never valid are rejected at once, in a sentence.

The arguments are those of the classes and functions by `inspect`, so a new one cannot be forgotten.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from support.pure.unreachable import NOBODY, TOPIC, answer

import spark_kafka_sink
from spark_kafka_sink import (
    KafkaProducer,
    ProducerRecord,
    atomic_layout,
    last_reports,
    register,
    to_kafka,
    write_batch,
)
from spark_kafka_sink.admin import KafkaAdmin, NewTopic
from spark_kafka_sink.client.future import RowFuture
from spark_kafka_sink.config import producer_config
from spark_kafka_sink.consumer.topic_reader import TopicReader
from spark_kafka_sink.errors import (
    ApiException,
    IllegalStateException,
    KafkaException,
)
from spark_kafka_sink.model import ConsumerGroupMetadata, ProducerIdAndEpoch
from spark_kafka_sink.task_producer import TaskProducer

CLASSES: Final = (KafkaProducer, TaskProducer, TopicReader, KafkaAdmin, NewTopic, ProducerRecord)
FUNCTIONS: Final = (atomic_layout, to_kafka, write_batch, register, last_reports)
# Objects that a call returns, and that no user makes.
RESULTS: Final = (RowFuture,)
# Another test covers their inherited methods, or those are for code that makes futures.
WITH_THEIR_OWN_ONLY: Final = (RowFuture, TaskProducer)
# Why the others have no cases of their own.
NOT_CALLED: Final = {
    "FailedQueryRecord": "the listener makes it",
    "KafkaDataSource": "Spark makes it, and the driver checks its options",
    "KafkaStreamListener": "Spark calls its methods, and its own test checks its arguments",
    "MicroBatchRecord": "the listener makes it",
    "ProducerInterceptor": "users write its methods, and the producer calls them",
    "RecordMetadata": "the producer makes it",
}
A_LONG_TIME_MS: Final = 60_000
BATCH: Final = pa.record_batch({"value": ["v"]})
CONFIGS: Final = {"bootstrap.servers": NOBODY}
# Neither needs a Spark: all arguments are checked before anything else.
FRAME: Final = object.__new__(DataFrame)
SESSION: Final = object.__new__(SparkSession)
# The valid arguments of the calls.
RIGHT: Final[dict[str, dict[str, Any]]] = {
    "KafkaProducer": {"configs": CONFIGS},
    "KafkaProducer.append": {"topic": TOPIC, "record_batch": BATCH},
    "KafkaProducer.send": {"topic": TOPIC},
    "KafkaProducer.partitions_for": {"topic": TOPIC},
    "TaskProducer.limit_messages": {"max_message_bytes": {}},
    "KafkaProducer.send_offsets_to_transaction": {
        "offsets": {},
        "group_metadata": ConsumerGroupMetadata("g"),
    },
    "TaskProducer": {"config": producer_config(CONFIGS)},
    "TaskProducer.join_transaction": {
        "transactional_id": "tid",
        "producer": ProducerIdAndEpoch(1, 0),
        "transaction_version": 2,
        "adds_partitions": True,
        "withholds": False,
        "checks_duplicates": False,
    },
    "TopicReader.read": {"topic": TOPIC},
    "KafkaAdmin": {"config": producer_config(CONFIGS)},
    "KafkaAdmin.existing_topics": {"names": [TOPIC]},
    "KafkaAdmin.topics": {"names": [TOPIC]},
    "KafkaAdmin.configs_of_topics": {"topics": [TOPIC], "names": ["max.message.bytes"]},
    "KafkaAdmin.topic_configs": {"topic": TOPIC, "names": ["max.message.bytes"]},
    "ProducerRecord": {"topic": TOPIC},
    "atomic_layout": {"df": FRAME, "options": {}},
    "to_kafka": {"df": FRAME},
    "write_batch": {"df": FRAME, "batch_id": 0, "options": {}},
    "last_reports": {"spark": SESSION},
}
NO_NAMES: Final = [None, 5, b"t", ["t"], "\ud800", "x" * 250]
NO_NUMBERS: Final = ["1", 1.5, True, [1], -1, 2**31, np.array([1, 2])]
NO_TIMESTAMPS: Final = ["1", 1.5, True, [1], -1, 2**63, np.array([1, 2])]
NO_TIMES: Final = ["1", True, [1], -1, -0.5, float("nan"), 10**400]
# As of `concurrent.futures`: the rest of a caller's time limit may be negative.
NO_TIMES_OF_FUTURES: Final = ["1", True, [1], float("nan"), 10**400]
NO_FUNCTIONS: Final = [5, "print", [print]]
NO_BYTES: Final = [5, object(), "\ud800", ["v"]]
NO_HEADERS: Final = [5, 0, True, [("k",)], [("k", 5)], [(b"k", b"v")], ["kv"]]
NO_OPTIONS: Final = [
    *(None, 5, "bootstrap.servers", [("bootstrap.servers", NOBODY)]),
    *({5: 5}, {"\ud800": "x"}, {"retry.backoff.ms": "\ud800"}),
]
NO_BROKERS: Final = [None, 5, ["localhost:9092"], "localhost:9092"]
NO_OFFSETS: Final = [
    *(None, 5, "Earliest", [0], {0: -1}, {0: "0"}, {0: 2**63}),
    *({"0": 0}, {True: 0}, {-1: 0}, {2**31: 0}),
]
NO_FRAMES: Final = [None, 5, "df", [("k", "v")], SESSION]
NO_SESSIONS: Final = [None, 5, "spark", [SESSION], SparkSession]
NO_COLUMNS: Final = [5, True, b"key", ["key"]]
# Secrets alone: what else is given may be one, and its text is not printed.
NO_HMACS: Final = [None, 5, b"hmac", "aG1hYw=="]
NO_SINK_OPTIONS: Final[list[Any]] = [*NO_OPTIONS, {"topic": ["t"]}, {"topic": b"t"}, {"topic": {}}]
WRONG: Final[dict[str, list[Any]]] = {
    "KafkaProducer(configs)": NO_OPTIONS,
    "KafkaProducer(key_serializer)": [5, "no.such.Serializer"],
    "KafkaProducer(value_serializer)": [5, "no.such.Serializer"],
    "KafkaProducer(brokers)": NO_BROKERS,
    "KafkaProducer(allow_auto_create_topics)": [None, 1, "yes"],
    "TaskProducer(config)": [None, 5, CONFIGS],
    "TaskProducer(brokers)": NO_BROKERS,
    "TaskProducer(allow_auto_create_topics)": [None, 1, "yes"],
    "TaskProducer(identity)": [None, 5, b"alice"],
    "TaskProducer.join_transaction(transactional_id)": [None, 5, b"tid", "\ud800"],
    "TaskProducer.join_transaction(producer)": [None, 5, (1, 0)],
    "TaskProducer.join_transaction(transaction_version)": [None, 2**15, *NO_NUMBERS],
    "TaskProducer.join_transaction(adds_partitions)": [None, 1, "yes"],
    "TaskProducer.join_transaction(withholds)": [None, 1, "yes"],
    "TaskProducer.join_transaction(checks_duplicates)": [None, 1, "yes"],
    "KafkaProducer.append(topic)": [5, b"t", ["t"], "\ud800", "x" * 250],
    "KafkaProducer.append(record_batch)": [None, 5, {"value": ["v"]}, pa.array(["v"])],
    "KafkaProducer.append(on_failure)": NO_FUNCTIONS,
    "KafkaProducer.append(built_in_partitioner)": [None, 1, "yes"],
    "KafkaProducer.append(lingers_since)": [
        *("1", True, b"1", float("nan"), float("inf"), [1.0], 10**400),
        time.time(),  # of another clock
    ],
    "KafkaProducer.spread_evenly(start)": [None, *NO_NUMBERS],
    "TaskProducer.slice_bytes(partitions)": [None, *NO_NUMBERS],
    "TaskProducer.limit_messages(max_message_bytes)": [
        None,
        5,
        [TOPIC],
        *({TOPIC: number} for number in [None, *NO_NUMBERS]),
    ],
    "TaskProducer.limit_messages(refresh)": NO_FUNCTIONS,
    "KafkaProducer.send(topic)": NO_NAMES,
    "KafkaProducer.send(value)": NO_BYTES,
    "KafkaProducer.send(key)": NO_BYTES,
    "KafkaProducer.send(partition)": NO_NUMBERS,
    "KafkaProducer.send(timestamp_ms)": NO_TIMESTAMPS,
    "KafkaProducer.send(headers)": NO_HEADERS,
    "KafkaProducer.send(on_delivery)": NO_FUNCTIONS,
    "KafkaProducer.partitions_for(topic)": NO_NAMES,
    "KafkaProducer.partitions_for(expected)": [None, *NO_NUMBERS],
    "TaskProducer.partition_counts(expected)": [
        None,
        5,
        [TOPIC],
        {5: 1},
        *({TOPIC: number} for number in [None, *NO_NUMBERS]),
    ],
    "KafkaProducer.send_offsets_to_transaction(offsets)": [None, 5, {TOPIC: 5}, {(TOPIC, 0): 5}],
    "KafkaProducer.send_offsets_to_transaction(group_metadata)": [
        None,
        "g",
        ConsumerGroupMetadata(""),
        ConsumerGroupMetadata("\ud800"),
    ],
    "KafkaProducer.flush(timeout)": NO_TIMES,
    "KafkaProducer.close(timeout)": NO_TIMES,
    "RowFuture.result(timeout)": NO_TIMES_OF_FUTURES,
    "RowFuture.exception(timeout)": NO_TIMES_OF_FUTURES,
    "RowFuture.add_done_callback(fn)": [None, *NO_FUNCTIONS],
    "TopicReader(configs)": NO_OPTIONS,
    "TopicReader.read(topic)": NO_NAMES,
    "TopicReader.read(partitions)": [
        *(0, "0", b"0", [0, 0], [0, 1, 0], ["0"], [True], [1.0], [None], [-1], [2**31], [2**40]),
    ],
    "TopicReader.read(start)": NO_OFFSETS,
    "TopicReader.read(end)": NO_OFFSETS,
    "TopicReader.read(isolation_level)": [None, 0, "committed", ["read_committed"]],
    "KafkaAdmin(config)": [None, CONFIGS],
    "KafkaAdmin(has_headers)": [0, "no"],
    "KafkaAdmin(brokers)": NO_BROKERS,
    "KafkaAdmin(identity)": [None, 5, b"alice"],
    "KafkaAdmin.existing_topics(names)": [None, 5, TOPIC, [5], ["\ud800"], ["x" * 250]],
    "KafkaAdmin.topics(names)": [None, 5, TOPIC, [5], ["\ud800"], ["x" * 250]],
    "KafkaAdmin.topics(new)": [5, {"partitions": 1}],
    "KafkaAdmin.topic_configs(topic)": NO_NAMES,
    "KafkaAdmin.topic_configs(names)": [None, 5, "max.message.bytes", [5], ["\ud800"]],
    "KafkaAdmin.configs_of_topics(topics)": [None, 5, TOPIC, [5], ["\ud800"], ["x" * 250]],
    "KafkaAdmin.configs_of_topics(names)": [None, 5, "max.message.bytes", [5], ["\ud800"]],
    "KafkaAdmin.check_creation(new)": [None, 5],
    "KafkaAdmin.create_delegation_token(max_lifetime_ms)": ["1", 1.5, True, [1], 0, -1, 2**63],
    "KafkaAdmin.renew_delegation_token(hmac)": NO_HMACS,
    "KafkaAdmin.expire_delegation_token(hmac)": NO_HMACS,
    "KafkaAdmin.describe_delegation_token(owners)": [
        *(5, "User:alice", [5], ["alice"], ["User:"], [":alice"], ["User:\ud800"]),
    ],
    "NewTopic(partitions)": [0, *NO_NUMBERS],
    "NewTopic(replication)": [0, 2**15, *NO_NUMBERS],
    "NewTopic(configs)": [None, {"a": "b"}, ("a",), (("a",),), (("a", 5),), (("a", "\ud800"),)],
    "NewTopic.named(name)": NO_NAMES,
    "ProducerRecord(topic)": NO_NAMES,
    "ProducerRecord(partition)": NO_NUMBERS,
    "ProducerRecord(timestamp_ms)": NO_TIMESTAMPS,
    "ProducerRecord(headers)": NO_HEADERS,
    "atomic_layout(df)": NO_FRAMES,
    "atomic_layout(options)": NO_SINK_OPTIONS,
    "to_kafka(df)": NO_FRAMES,
    "to_kafka(key)": NO_COLUMNS,
    "to_kafka(value)": [None, *NO_COLUMNS],
    "to_kafka(headers)": NO_COLUMNS,
    "to_kafka(timestamp)": NO_COLUMNS,
    "to_kafka(topic)": NO_COLUMNS,
    "to_kafka(partition)": NO_COLUMNS,
    "to_kafka(key_format)": [*NO_COLUMNS, "json", "Avro"],
    "write_batch(df)": NO_FRAMES,
    "write_batch(batch_id)": [None, "0", 1.5, True, [1], -1, 2**63],
    "write_batch(options)": NO_SINK_OPTIONS,
    "register(spark)": NO_SESSIONS,
    "last_reports(spark)": NO_SESSIONS,
    "last_reports(n)": [None, *NO_NUMBERS],
}
SAYS_WHY: Final = ("xpected", "should", "Can't convert", "UTF-8", "cannot run here")
# Serializers take whatever they like.
ANYTHING: Final = {"ProducerRecord(value)", "ProducerRecord(key)"}


def public_arguments() -> set[str]:
    """Return all arguments of the constructors, the public methods and the functions."""
    found = {
        f"{function.__name__}({argument})"
        for function in FUNCTIONS
        for argument in inspect.signature(function).parameters
    }
    for kind in (*CLASSES, *RESULTS):
        calls = {} if kind in RESULTS else {kind.__name__: inspect.signature(kind)}
        for name, function in inspect.getmembers(kind, inspect.isfunction):
            if not name.startswith("_") and (kind not in WITH_THEIR_OWN_ONLY or name in vars(kind)):
                calls[f"{kind.__name__}.{name}"] = inspect.signature(function)
        found |= {
            f"{call}({argument})"
            for call, signature in calls.items()
            for argument in signature.parameters
            if argument != "self"
        }
    return found


def test_every_function_and_class_of_the_package_is_looked_at() -> None:
    public = {name: getattr(spark_kafka_sink, name) for name in spark_kafka_sink.__all__}
    functions = {name for name, thing in public.items() if inspect.isfunction(thing)}
    assert functions == {function.__name__ for function in FUNCTIONS}
    classes = {
        name
        for name, thing in public.items()
        if inspect.isclass(thing) and not issubclass(thing, BaseException)
    }
    assert classes <= {kind.__name__ for kind in CLASSES} | NOT_CALLED.keys()


def test_what_every_public_argument_does_not_take_stands_in_the_table() -> None:
    assert public_arguments() == WRONG.keys() | ANYTHING


@pytest.fixture(scope="module")
def things() -> Iterator[dict[str, Any]]:
    """The objects whose methods are called; no broker can be reached, and the topic is known."""
    options = CONFIGS | {"max.block.ms": A_LONG_TIME_MS, "linger.ms": A_LONG_TIME_MS}
    transactional = KafkaProducer(options | {"transactional.id": "tid"})
    producer, sending = KafkaProducer(options), KafkaProducer(options)
    with (
        TopicReader(CONFIGS) as reader,
        TaskProducer(producer_config(CONFIGS)) as of_task,
        KafkaAdmin(producer_config(CONFIGS | {"max.block.ms": A_LONG_TIME_MS})) as admin,
    ):
        for each in (producer, sending):
            with each._state.lock:
                each._state.metadata.track(TOPIC, time.monotonic())
                each._state.metadata.update(answer([1]), time.monotonic())
        yield {
            "KafkaProducer": producer,
            "KafkaProducer.send_offsets_to_transaction": transactional,
            "TaskProducer": of_task,
            "TopicReader": reader,
            "KafkaAdmin": admin,
            "NewTopic": NewTopic(),
            "RowFuture": sending.send(TOPIC, b"v"),
        }
        for each in (producer, sending, transactional):
            each.close(0)


def refusal(things: dict[str, Any], call: str, arguments: dict[str, Any]) -> KafkaException:
    """Make a call and return its exception."""
    kind, _, method = call.partition(".")
    if method:
        call_it = getattr(things.get(call, things.get(kind)), method)
    else:
        call_it = next(each for each in (*CLASSES, *FUNCTIONS) if each.__name__ == kind)
    with pytest.raises(KafkaException) as refused:
        call_it(**arguments)
    return refused.value


@pytest.mark.parametrize("argument", WRONG)
def test_what_an_argument_does_not_take_is_refused_at_once(
    things: dict[str, Any], argument: str
) -> None:
    call, _, name = argument.rstrip(")").partition("(")
    for value in WRONG[argument]:
        error = refusal(things, call, RIGHT.get(call, {}) | {name: value})
        found = f"{argument}={value!r:.40}: {type(error).__name__}: {error}"
        # Neither a broker's error, nor a timeout.
        assert not isinstance(error, ApiException | IllegalStateException), found
        assert any(word in str(error) for word in SAYS_WHY), found
    producer = things["KafkaProducer"]
    assert not producer._state.accumulator.incomplete


def test_rows_are_looked_at_alike_before_and_after_the_first_one_of_a_topic(
    things: dict[str, Any],
) -> None:
    """`send` has a faster path for topics that it has rows of."""
    sends = [argument for argument in WRONG if argument.startswith("KafkaProducer.send(")]

    def refusals() -> list[str]:
        return [
            str(refusal(things, "KafkaProducer.send", {"topic": TOPIC, name: value}))
            for name in (argument[len("KafkaProducer.send(") : -1] for argument in sends)
            for value in WRONG[f"KafkaProducer.send({name})"]
            if value is not None
        ]

    before = refusals()
    things["KafkaProducer"].send(TOPIC, b"v")
    assert refusals() == before


NO_ROWS: Final = pa.schema({"value": pa.string()}).empty_table()
NO_VALUES: Final = pa.schema({"val": pa.int32()}).empty_table()


@pytest.mark.parametrize(
    "wrong",
    [
        *({"topic": topic} for topic in WRONG["KafkaProducer.append(topic)"]),
        {"topic": None},
        {"record_batch": NO_VALUES},
    ],
    ids=str,
)
def test_rows_that_are_not_there_are_looked_at_like_others(
    things: dict[str, Any], wrong: dict[str, Any]
) -> None:
    given = {"topic": TOPIC, "record_batch": NO_ROWS, **wrong}
    table = given["record_batch"]
    as_batch = pa.RecordBatch.from_pylist([], schema=table.schema)
    without_chunks = pa.Table.from_batches([], table.schema)
    refusals = {
        str(refusal(things, "KafkaProducer.append", given | {"record_batch": rows}))
        for rows in (as_batch, table, without_chunks)
    }
    # The same as for rows.
    rows = pa.table({field.name: pa.nulls(1, field.type) for field in table.schema})
    assert refusals == {
        str(refusal(things, "KafkaProducer.append", given | {"record_batch": rows}))
    }


def test_numbers_of_numpy_are_numbers_of_a_record() -> None:
    partition: Any = np.int32(1)
    timestamp_ms: Any = np.int64(2)
    record = ProducerRecord(TOPIC, partition=partition, timestamp_ms=timestamp_ms)
    assert record == ProducerRecord(TOPIC, partition=1, timestamp_ms=2)
    assert type(record.partition) is type(record.timestamp_ms) is int


def test_nothing_is_read_after_close() -> None:
    with TopicReader(CONFIGS) as reader:
        begun = reader.read(TOPIC)
    for read in (lambda: next(begun), lambda: reader.read(TOPIC)):
        with pytest.raises(IllegalStateException, match="this TopicReader has been closed"):
            read()
    with KafkaAdmin(producer_config(CONFIGS)) as admin:
        pass
    with pytest.raises(IllegalStateException, match="this KafkaAdmin has been closed"):
        admin.topics([TOPIC])
