r"""Reads a topic with confluent-kafka and compares it with the source that was written to it.

    spark-submit jobs/verify.py --bootstrap host:9092 --topic flights \
        --source data/flights.parquet --key carrier,flight --headers origin,dest

Pass the same arguments as to produce.py or stream.py in the groups "source", "rows to records" and
"Kafka" of --help. The job compares the number of records, and a digest of their keys, values and
headers. Spark computes both for the source, and Python computes both for the topic. Exit code 0:
source and topic agree; 1: they differ; 2: they could not be compared.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

from job import arguments, digest, rows, running

DIFFER = 1
_NAME = "verify.py"
_BATCH = 10_000
_POLL_S = 0.05
_LINE_EVERY_S = 2.0
_JOIN_S = 1.0
_SAMPLE = 2
_SHOWN_CHARACTERS = 160


@dataclass(slots=True)
class Topic:
    """The digest of a topic, the number of records in each partition, and a few records to show."""

    digest: digest.Digest = field(default_factory=digest.Digest)
    per_partition: Counter[int] = field(default_factory=Counter)
    sample: list[Message] = field(default_factory=list)


def main(argv: Sequence[str] | None = None) -> int:
    """Compare source and topic of the command line; return the exit code."""
    parser = arguments.parser(_NAME, str(__doc__))
    parser.add_argument(
        "--report",
        metavar="FILE",
        help="the report of the sink (option reportPath of the write): its count of records "
        "in every partition is compared as well",
    )
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=float,
        default=30.0,
        help="how long to wait for a response of the brokers (%(default)s)",
    )
    given = parser.parse_args(argv)
    source, columns = arguments.source(given), arguments.columns(given)
    arguments.check_target(given)
    reported = None if given.report is None else read_report(Path(given.report))
    consumer_class = import_consumer()
    with rows.opened(source) as opened, running.session(_NAME) as spark:
        target = arguments.target(given, spark)
        # Spark needs some seconds for the source, in which a thread can read the topic.
        with reading(consumer_class, target, given.timeout) as read:
            expected = digest.of_rows(rows.to_records(rows.read(spark, opened), columns, opened))
            print(f"source: {expected}", flush=True)
            topic = read()
    print(f"topic:  {topic.digest}")
    counts = ", ".join(f"{number}: {n:,}" for number, n in sorted(topic.per_partition.items()))
    print(f"records by partition: {counts or 'none'}")
    for message in topic.sample:
        print_record(message)
    difference = compare(expected, topic, reported)
    if difference is not None:
        print(f"{_NAME}: topic {target.topic} {difference}", file=sys.stderr, flush=True)
        return DIFFER
    print(f"topic {target.topic} holds exactly the records of the source")
    return 0


def compare(expected: digest.Digest, topic: Topic, reported: Counter[int] | None) -> str | None:
    """Return the first difference as text, None if source and topic agree.

    reported: the number of records in each partition, from the sink's report; None if the user did
    not pass a report.
    """
    found = topic.digest
    if found.records != expected.records:
        more = found.records - expected.records
        return (
            f"has {found.records:,} records, the source {expected.records:,}: "
            f"{abs(more):,} {'too many' if more > 0 else 'are missing'}"
        )
    if found.total != expected.total:
        return (
            f"has as many records as the source, {found.records:,}, but not the same: "
            "the key, value or headers of at least one differ"
        )
    if reported is not None and reported != topic.per_partition:
        number = min(
            n
            for n in reported.keys() | topic.per_partition.keys()
            if reported[n] != topic.per_partition[n]
        )
        return (
            f"has {topic.per_partition[number]:,} records in partition {number}, "
            f"where the sink's report says {reported[number]:,}"
        )
    return None


def print_record(message: Message) -> None:
    """Print a record as a consumer sees it."""
    _, timestamp_ms = message.timestamp()
    timestamp = datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
    print(f"a record of partition {message.partition()} at offset {message.offset()}:")
    print(f"  key        {_shown(message.key())}")
    print(f"  value      {_shown(message.value())}")
    for name, content in cast("list[tuple[str, bytes | None]]", message.headers() or []):
        print(f"  header     {name} = {_shown(content)}")
    print(f"  timestamp  {timestamp}")


def _shown(content: bytes | None) -> str:
    """Return text for a line of a terminal."""
    if content is None:
        return "null"
    text = content.decode(errors="backslashreplace")
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]} …"


def read_report(path: Path) -> Counter[int]:
    """Return the number of records in each partition, from a report of the sink.

    Raise JobError if the report cannot be read.
    """
    try:
        report = json.loads(path.read_text())
        return Counter({each["partition"]: each["records"] for each in report["partitions"]})
    except (OSError, ValueError, KeyError, TypeError) as error:
        message = f"--report {path} is not a report of the sink that can be read: {error!r}"
        raise running.JobError(message) from None


def import_consumer() -> type[Consumer]:
    """Return confluent-kafka's class Consumer. Raise JobError if the package is not installed."""
    try:
        from confluent_kafka import Consumer  # noqa: PLC0415 - an extra
    except ImportError:
        message = (
            "the job reads the topic with confluent-kafka, which is not installed: "
            "run pip install '.[demo]' in your clone"
        )
        raise running.JobError(message) from None
    return Consumer


@contextlib.contextmanager
def reading(
    consumer_class: type[Consumer], target: arguments.Target, timeout_s: float
) -> Iterator[Callable[[], Topic]]:
    """Read a topic in a thread, for a `with` block, which may end before the topic's end is read.

    Yield a function that waits for the topic and returns it, or raises JobError if the topic
    cannot be read.
    """
    found: Future[Topic] = Future()
    is_over = threading.Event()

    def read() -> None:
        try:
            found.set_result(read_topic(consumer_class, target, timeout_s, is_over))
        except BaseException as error:  # noqa: BLE001 - raised in the main thread
            found.set_exception(error)

    # A daemon: after an error of Spark, or Ctrl-C, the job does not wait long for the brokers.
    thread = threading.Thread(target=read, name="read the topic", daemon=True)
    thread.start()
    try:
        yield found.result
    finally:
        is_over.set()
        thread.join(_JOIN_S)


def read_topic(
    consumer_class: type[Consumer],
    target: arguments.Target,
    timeout_s: float,
    is_over: threading.Event | None = None,
) -> Topic:
    """Read a topic from its beginning to its end. Raise JobError if it cannot be read.

    is_over: ends the reading early, if it is set.
    """
    from confluent_kafka import KafkaException  # noqa: PLC0415 - an extra

    consumer = consumer_class(
        {
            "bootstrap.servers": target.bootstrap,
            "group.id": _NAME,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            # Only an empty response signals the end of a partition, so brokers must not delay it.
            "fetch.wait.max.ms": 50,
            "check.crcs": True,
            "log_level": 0,
        }
    )
    try:
        return _read_to_end(consumer, target, timeout_s, is_over or threading.Event())
    except KafkaException as error:
        message = (
            f"topic {target.topic} at {target.bootstrap} cannot be read: {error.args[0].str()}"
        )
        raise running.JobError(message) from None
    finally:
        consumer.close()


def _read_to_end(
    consumer: Consumer, target: arguments.Target, timeout_s: float, is_over: threading.Event
) -> Topic:
    from confluent_kafka import OFFSET_BEGINNING, TopicPartition  # noqa: PLC0415 - an extra

    found = consumer.list_topics(target.topic, timeout=timeout_s).topics[target.topic]
    if found.error is not None:
        message = f"topic {target.topic} at {target.bootstrap} cannot be read: {found.error.str()}"
        raise running.JobError(message)
    unread = set(found.partitions)
    for number in unread:
        first, _ = consumer.get_watermark_offsets(TopicPartition(target.topic, number), timeout_s)
        if first > 0:
            message = (
                f"topic {target.topic} begins at offset {first} of partition {number}: its broker "
                "has deleted records, so that they cannot be compared; raise retention.bytes or "
                "retention.ms of the topic and write it again"
            )
            raise running.JobError(message)
    consumer.assign([TopicPartition(target.topic, number, OFFSET_BEGINNING) for number in unread])
    topic = Topic()
    next_line = time.monotonic() + _LINE_EVERY_S
    deadline = time.monotonic() + timeout_s
    while unread and not is_over.is_set():
        # consume() returns after this number of messages, or else after the entire timeout.
        messages = consumer.consume(_BATCH, timeout=_POLL_S)
        if messages:
            deadline = time.monotonic() + timeout_s
        elif time.monotonic() > deadline:
            message = (
                f"no record of partitions {sorted(unread)} of topic {target.topic} came for "
                f"{timeout_s:g} s, and their end was not reached: are their brokers up?"
            )
            raise running.JobError(message)
        _take(messages, topic, unread)
        if time.monotonic() > next_line:
            print(f"reading: {topic.digest.records:,} records", flush=True)
            next_line += _LINE_EVERY_S
    return topic


def _take(messages: Sequence[Message], topic: Topic, unread: set[int]) -> None:
    from confluent_kafka import KafkaError, KafkaException  # noqa: PLC0415 - an extra

    for message in messages:
        error = message.error()
        if error is None:
            key, value = message.key(), message.value()
            headers = cast("list[tuple[str, bytes | None]]", message.headers() or [])
            topic.digest.add(key, value, headers)
            if len(topic.sample) < _SAMPLE:
                topic.sample.append(message)
            topic.per_partition[cast("int", message.partition())] += 1
        elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its name
            unread.discard(message.partition())
        else:
            raise KafkaException(error)


if __name__ == "__main__":
    sys.exit(running.run(main, _NAME))
