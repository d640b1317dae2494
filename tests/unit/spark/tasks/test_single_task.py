"""What a task of mode `single` looks at before it sends, and how it checks the responses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa
import pytest

from spark_kafka_sink.auth.acls import Acls
from spark_kafka_sink.commit.attempts import Plan, Run
from spark_kafka_sink.commit.names import checked_owner
from spark_kafka_sink.commit.questions import (
    COMPLETE_ABORT,
    EMPTY,
    ONGOING,
    ActiveProducer,
    Answer,
    Ask,
    Described,
    DescribeProducers,
    DescribeTransaction,
    ProducersDescribed,
    Reply,
    Unanswered,
)
from spark_kafka_sink.errors import KafkaException, TransactionAbortedException, api_exception
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.producer.transactions.joined import DuplicateBatch, JoinedPartition
from spark_kafka_sink.records.batch import batch_header
from spark_kafka_sink.records.default_record import one_record
from spark_kafka_sink.records.record_limits import RecordLimits
from spark_kafka_sink.spark.exactly_once import ExactlyOnce, Mode
from spark_kafka_sink.spark.options import sink_options
from spark_kafka_sink.spark.tasks import single_task, task_transaction
from spark_kafka_sink.spark.tasks.single_task import SingleTask
from spark_kafka_sink.spark.tasks.task_rows import TaskRows

PRODUCER = ProducerIdAndEpoch(9, 4)
OWNER = checked_owner("p", "app", "t")
RUN = Run(OWNER, "run", TopicPartition("log", 0), level=2, timeout_ms=1000)
PLAN = Plan(RUN, PRODUCER)
OPTIONS = sink_options({"kafka.bootstrap.servers": "b:1", "topic": "t"})
FIRST = TopicPartition("t", 0)


class Client:
    """The commit client of the process: the test is the brokers."""

    def __init__(self) -> None:
        self.asked: list[TopicPartition] = []
        self.writers: tuple[ActiveProducer, ...] = ()
        self.described: list[Reply] = [Described(ONGOING, PRODUCER)]
        self._now = 0.0
        self.batch: bytes | None = None
        self.acls = Acls()
        self.trouble = ""
        self.look: Callable[[], object] = lambda: None

    def now(self) -> float:
        """Return the time."""
        return self._now

    def run(self, begun, step):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201 - as CommitClient
        """Answer every question of a machine, one second after the other."""
        self.look()
        machine, questions = begun
        asked = list(questions)
        while machine.outcome is None:
            ask = asked.pop(0).ask
            self._now += 1.0
            machine, more = step(machine, Answer(ask, self._reply(ask)), self._now)
            asked += more
        return machine

    def _reply(self, ask: Ask) -> Reply:
        if isinstance(ask, DescribeTransaction):
            return self.described.pop(0) if len(self.described) > 1 else self.described[0]
        assert isinstance(ask, DescribeProducers)
        self.asked.append(ask.partition)
        return ProducersDescribed(self.writers)

    def log_ends(
        self, partitions: tuple[TopicPartition, ...], _: float
    ) -> dict[TopicPartition, int]:
        """Return the same end for all."""
        self.look()
        return dict.fromkeys(partitions, 40)

    def batch_at(self, *_: object) -> bytes | None:
        """Return what the log has."""
        self.look()
        return self.batch


class Producer:
    """The producer of the task."""

    def __init__(self) -> None:
        self.joined: list[object] = []
        self.written: dict[TopicPartition, JoinedPartition] = {}

    @property
    def record_limits(self) -> RecordLimits:
        """Return limits that no row exceeds."""
        return RecordLimits.of(max_request_size=1_000_000, buffer_memory=1_000_000)

    def limit_messages(self, *_: object) -> None:
        """Do nothing."""

    def partition_counts(self, topics: Mapping[str, int]) -> dict[str, int]:
        """Return four partitions for each topic."""
        return dict.fromkeys(topics, 4)

    def join_transaction(self, *arguments: object, **more: object) -> None:
        """Note what was joined."""
        self.joined = [*arguments, more]

    def detach_transaction(self) -> dict[TopicPartition, JoinedPartition]:
        """Return what was written."""
        return self.written


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    """The client that every task of the test gets."""
    made = Client()

    @contextmanager
    def lent(*_: object) -> Iterator[Client]:
        yield made

    for module in (single_task, task_transaction):
        monkeypatch.setattr(module, "commit_client", lent)
    return made


@pytest.fixture
def producer() -> Producer:
    """The producer of the task."""
    return Producer()


@pytest.fixture
def task(client: Client, producer: Producer) -> SingleTask:
    """A task that has joined."""
    return SingleTask(PLAN, OPTIONS, producer)  # type: ignore[arg-type]


def rows(*partitions: int | None) -> pa.RecordBatch:
    """Return rows for partitions."""
    return pa.record_batch({"partition": pa.array(partitions, pa.int32())})


def test_it_joins_the_transaction_of_the_driver_and_withholds_its_rows(
    task: SingleTask, producer: Producer
) -> None:
    more = {"adds_partitions": False, "withholds": True, "checks_duplicates": True}
    assert producer.joined == ["p/app/t", PRODUCER, 2, more]


def test_a_task_says_that_it_waits_for_the_check_of_its_partitions(
    task: SingleTask, client: Client
) -> None:
    seen: list[object] = []
    client.look = lambda: seen.append(task.waits.awaited)
    task.prepare_good(rows(0))
    assert seen == [{"the check of its partitions": ""}] * 2
    assert task.waits.awaited == {}


def test_each_partition_is_looked_at_once_before_its_first_row(
    task: SingleTask, client: Client
) -> None:
    task.prepare_good(rows(0, 0, None))
    task.prepare_good(rows(0))
    assert client.asked == [FIRST]
    task.prepare_good(rows(2, 0))
    assert client.asked == [FIRST, TopicPartition("t", 2)]
    client.writers = (ActiveProducer(PRODUCER, 5, 40),)
    with pytest.raises(KafkaException, match="another attempt of this task has written to t-3"):
        task.prepare_good(rows(3))


def test_partitions_that_a_topic_does_not_have_are_left_to_the_append(
    client: Client, producer: Producer
) -> None:
    options = replace(OPTIONS, laid_out={"t": 4})
    task = SingleTask(PLAN, options, producer)  # type: ignore[arg-type]
    task.prepare_good(rows(-1, 4, 0, 99))
    assert client.asked == [FIRST]


def test_only_good_rows_are_looked_at(
    client: Client, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"kafka.bootstrap.servers": "b:1", "onError": "skip"}
    options = replace(sink_options(given), laid_out={"t": 4})
    task = SingleTask(PLAN, options, producer)  # type: ignore[arg-type]
    sent: list[pa.RecordBatch] = []
    monkeypatch.setattr(TaskRows, "_append_good", lambda _, batch, *__: sent.append(batch))
    with TaskRows(options, producer, 0, 0, task.prepare_good) as task_rows:  # type: ignore[arg-type]
        task_rows.append(
            pa.record_batch(
                {
                    "topic": pa.array(["t", "t", "no topic", None]),
                    "partition": pa.array([0, 99, 1, 0], pa.int32()),
                    "value": pa.array([b"good", b"bad", b"bad", b"bad"]),
                }
            )
        )
        assert task_rows.finish().rows == 3
    assert [batch["value"].to_pylist() for batch in sent] == [[b"good"]]
    assert client.asked == [FIRST]


def test_the_topics_of_a_column_count(client: Client, producer: Producer) -> None:
    options = sink_options({"kafka.bootstrap.servers": "b:1"})
    task = SingleTask(PLAN, options, producer)  # type: ignore[arg-type]
    columns = {
        "topic": pa.array(["a", "b", "a", None]),
        "partition": pa.array([1, 0, 1, 0], pa.int32()),
    }
    task.prepare_good(pa.record_batch(columns))
    assert client.asked == [TopicPartition("a", 1), TopicPartition("b", 0)]


def written(**more: object) -> JoinedPartition:
    """Return what was written to a partition whose log had 40 records."""
    found = JoinedPartition(first_offset=40, last_offset=42, records=3, last_sequence=2)
    for name, value in more.items():
        setattr(found, name, value)
    return found


def test_what_was_written_is_returned(task: SingleTask, producer: Producer) -> None:
    task.prepare_good(rows(0))
    producer.written = {FIRST: written()}
    attempt = task.end()
    assert (attempt.slot, attempt.producer) == (None, PRODUCER)
    assert attempt.written == ((FIRST, 3, 40, 42, 2),)


def sent(value: bytes) -> bytes:
    """Return a batch of one record of the task."""
    section, info = one_record(b"k", value, 0)
    return batch_header(info, [section], PRODUCER, 0, transactional=True) + section


DUPLICATE = DuplicateBatch(base_offset=40, attempts=1, sent=sent(b"ours"))


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (written(first_offset=39), "offset 39, though the next offset was at least 40"),
        (written(went_back=(41, 42)), "offset 41, though the next offset was at least 43"),
        (
            written(duplicates=[replace(DUPLICATE, attempts=0)]),
            "was sent once: either another attempt writes.*or the topic has .*=LogAppendTime",
        ),
        (written(duplicates=[DUPLICATE]), "the log has a different batch at offset 40"),
    ],
    ids=["below the end", "backwards", "false duplicate", "another batch"],
)
def test_a_response_that_tells_of_another_writer_fails_the_task(
    task: SingleTask, producer: Producer, found: JoinedPartition, sentence: str
) -> None:
    task.prepare_good(rows(0))
    producer.written = {FIRST: found}
    with pytest.raises(TransactionAbortedException, match=sentence):
        task.end()


def test_a_batch_that_was_sent_again_is_compared_with_the_log(
    task: SingleTask, producer: Producer, client: Client
) -> None:
    task.prepare_good(rows(0))
    producer.written = {FIRST: written(duplicates=[DUPLICATE])}
    client.batch = sent(b"ours")
    seen: list[object] = []
    client.look = lambda: seen.append(task.waits.awaited)
    assert task.end().written[0].records == 3
    assert seen == [{"the check of repeated batches": ""}]
    client.batch = sent(b"another's")
    with pytest.raises(
        TransactionAbortedException, match="the log has a different batch at offset 40"
    ):
        task.end()


@pytest.mark.parametrize(
    ("described", "sentence"),
    [
        (Described(COMPLETE_ABORT, ProducerIdAndEpoch(9, 5)), "took longer than kafka.transaction"),
        # Two aborts of the job's own driver at transaction.version 2 raise the epoch twice.
        (
            Described(COMPLETE_ABORT, ProducerIdAndEpoch(9, 6)),
            "took longer than .*, or the job failed or was cancelled",
        ),
        (Described(EMPTY, ProducerIdAndEpoch(9, 5)), "superseded by a newer run of txnAppId"),
        (Described(ONGOING, ProducerIdAndEpoch(9, 6)), "superseded by a newer run of txnAppId"),
        (Described(ONGOING, PRODUCER), "the broker's own words"),
        (Described(error=15), "the broker's own words"),
    ],
)
def test_an_error_says_why_the_transaction_is_no_longer_open(
    client: Client, producer: Producer, described: Described, sentence: str
) -> None:
    options = replace(OPTIONS, exactly_once=ExactlyOnce(Mode.SINGLE))
    given = (PLAN, options, producer, 0, 0)
    # The broker has closed the connection of a client that was idle.
    for before in ([], [Unanswered(13, "connection lost")]):
        client.described = [*before, described]
        joined = task_transaction.task_transaction(*given)  # type: ignore[arg-type]
        with pytest.raises(KafkaException, match=sentence), joined:
            raise api_exception(47, "the broker's own words")
