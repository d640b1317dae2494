"""CommitClient: runs the state machines of the package `commit` against a cluster.

A machine returns `Question` objects. Each contains a request to brokers (`Ask`), and states how to
send it. The client has its own connections and can process many requests at once. It makes no
decisions, and it never retries a request of a machine. If a request gets no response, the reply is
`Unanswered`. `answers` resumes the generator of each request (see `generators`) in the caller's
thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from random import Random
from types import TracebackType
from typing import Final, NamedTuple, Protocol, Self, TypeAlias, TypeVar

from spark_kafka_sink.auth.acls import Acls
from spark_kafka_sink.commit.log_record import LOG_PARTITION
from spark_kafka_sink.commit.questions import (
    Added,
    AddPartitions,
    AllRecordsRead,
    Answer,
    Ask,
    Described,
    DescribeProducers,
    DescribeTransaction,
    Ended,
    EndTxn,
    Initialized,
    InitProducerId,
    Listed,
    ListTransactions,
    LogRead,
    MarkerRead,
    ProducersDescribed,
    Question,
    ReadAllRecords,
    ReadLog,
    ReadMarker,
    Reply,
    Unanswered,
    WriteRecord,
    Written,
)
from spark_kafka_sink.commit.steps import JITTER
from spark_kafka_sink.commit_client.brokers import Brokers, Subject
from spark_kafka_sink.commit_client.commit_log import CommitLog
from spark_kafka_sink.commit_client.generators import (
    NoReplyError,
    Steps,
    T,
    UnderWay,
    look_up_wait_s,
    pause_until,
)
from spark_kafka_sink.commit_client.leader_requests import Partitions
from spark_kafka_sink.commit_client.question_queue import Line, QuestionQueue
from spark_kafka_sink.commit_client.required_versions import check_versions, transaction_version
from spark_kafka_sink.commit_client.transactions import Transactions
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.errors import (
    NO_BROKER,
    ApiException,
    KafkaException,
    Option,
    TimeoutException,
    api_exception,
    error_code,
)
from spark_kafka_sink.model import Node, TopicPartition
from spark_kafka_sink.network.request_client import ConsumerNetworkClient
from spark_kafka_sink.records.batch import Buffer
from spark_kafka_sink.wire.messages import MetadataRequest, MetadataResponse

# select() does not accept infinity.
_LONGEST_WAIT_S: Final = 3600.0
_JITTER: Final = (2 - JITTER, JITTER)

_Machine = TypeVar("_Machine", bound="_HasOutcome")
_Step: TypeAlias = tuple[_Machine, tuple[Question, ...]]


class _HasOutcome(Protocol):
    """A state machine of the package `commit`."""

    @property
    def outcome(self) -> object:
        """The result of the machine, or None until it has ended."""


class _Sent(NamedTuple):
    """A question that holds a slot of `line`, and the generator that returns its reply.

    If the broker for the question is not known, the generator looks it up. It then returns the
    question, which has to wait for a slot of this broker.
    """

    question: Question
    line: Line
    under_way: UnderWay[Reply | Question]


class CommitClient:
    """Sends the requests of state machines to the brokers of one cluster.

    It is a context manager, and may be used by one thread at a time. log_topic: the topic whose
    partition 0 is the commit log. brokers: brokers of the cluster that another client has found.
    identity: the result of `login_identity` for `config`. The attribute `acls` builds hints about
    permissions (ACLs) that the client lacks.
    """

    def __init__(
        self,
        config: ProducerConfig,
        log_topic: str,
        brokers: Iterable[Node] = (),
        clock: Callable[[], float] = time.monotonic,
        *,
        identity: str = "",
    ) -> None:
        self._config = config
        self._clock = clock
        self._random = Random()  # noqa: S311 - jitter, not secrets
        self._client = ConsumerNetworkClient.of(config, clock, self._random, identity=identity)
        self._client.set_initial_nodes(brokers)
        self.acls = Acls.of(config, lambda: self._client.principal)
        self._log_partition = TopicPartition(log_topic, LOG_PARTITION)
        self._brokers = Brokers(self._client)
        self._partitions = Partitions(self._brokers, clock)
        self._log = CommitLog(
            self._brokers, self._partitions, self._log_partition, config.request_timeout_ms
        )
        transactions = Transactions(self._brokers)
        self._methods: Mapping[type[Ask], Callable[..., Steps[Reply]]] = {
            ListTransactions: transactions.list_open,
            DescribeTransaction: transactions.describe,
            InitProducerId: transactions.init_producer_id,
            AddPartitions: transactions.add_partitions,
            WriteRecord: self._log.write,
            EndTxn: transactions.end,
            ReadLog: self._log.read,
            ReadAllRecords: self._log.read_all,
            DescribeProducers: self._partitions.describe_producers,
            ReadMarker: self._partitions.read_marker,
        }
        self._is_checked = False
        self._queue = QuestionQueue(self._line_of)
        self._under_way: list[_Sent] = []
        self._last_problem = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections. Requests that are in flight get no reply."""
        self._client.close()

    # -- the cluster ------------------------------------------------------------------------------

    def check_brokers(self, deadline: float) -> None:
        """Connect to every broker, and check that it supports the APIs that exactly once needs.

        The check is made only once for each client. A broker is not checked if its request fails,
        or if it has not responded at the deadline. Raise UnsupportedVersionException, which names
        the broker and the API, if an API is missing or too old. Raise TimeoutException if no broker
        has responded at the deadline.
        """
        if self._is_checked:
            return
        self._connect(deadline)
        request = MetadataRequest(topics=[], allow_auto_topic_creation=False)
        for future in self._brokers.send(self._brokers.nodes, request).values():
            with suppress(NoReplyError, TimeoutException):
                self._complete(self._brokers.response_to(future, MetadataResponse), deadline)
        nodes = self._brokers.nodes
        for node_id, versions in self._brokers.versions().items():
            if node_id in nodes:
                check_versions(nodes[node_id], versions)
        self._is_checked = True

    def level(self, deadline: float, limit: Option | None = None) -> int:
        """Return 2 if the cluster has finalized transaction.version 2, else 1.

        limit: the option that sets the deadline, or None for max.block.ms. Raise TimeoutException
        if no broker responds before the deadline.
        """
        if not self._brokers.versions():
            self._connect(deadline, limit)
        return transaction_version(self._brokers.versions().values())

    @property
    def trouble(self) -> str:
        """The reason why the last request failed.

        If there is none, the errors of nodes, or "" if they have no errors. Any thread may read it.
        """
        return self._last_problem or self._client.last_errors()

    def brokers(self) -> tuple[Node, ...]:
        """Return the known brokers of the cluster."""
        return tuple(self._brokers.nodes.values())

    def _connect(self, deadline: float, limit: Option | None = None) -> None:
        """Request the list of brokers again and again until one broker responds."""
        attempts = 0
        while True:
            try:
                self._complete(self._brokers.metadata([]), deadline, limit)
            except NoReplyError as error:
                if not error.is_unanswered:
                    raise api_exception(error.code, error.reason, api="Metadata") from None
                pause = pause_until(self._clock() + look_up_wait_s(attempts))
                self._complete(pause, deadline, limit)
                attempts += 1
            else:
                return

    # -- what tasks ask ---------------------------------------------------------------------------

    def log_ends(
        self, partitions: Iterable[TopicPartition], deadline: float
    ) -> dict[TopicPartition, int]:
        """Return the high watermarks of partitions. Open transactions do not lower them.

        Raise ApiException for a fatal error code, and TimeoutException at the deadline.
        """
        return {each: self._until(self._partitions.end, each, deadline) for each in partitions}

    def batch_at(self, partition: TopicPartition, offset: int, deadline: float) -> Buffer | None:
        """Return the bytes of the batch that begins at `offset`, or None if there is none.

        Raise the exceptions of `log_ends`.
        """
        question = partial(self._partitions.batches_from, offset=offset)
        batches = self._until(question, partition, deadline)
        return next((each.data for each in batches if each.header.base_offset == offset), None)

    def _until(
        self,
        question: Callable[[TopicPartition], Steps[T]],
        partition: TopicPartition,
        deadline: float,
    ) -> T:
        """Ask the leader of a partition again and again until it returns a result."""
        attempts, last_error = 0, None
        topic, number = partition
        while True:
            try:
                if last_error is not None:
                    self._brokers.forget(partition)
                    self._complete(pause_until(self._clock() + look_up_wait_s(attempts)), deadline)
                    attempts += 1
                result = self._complete(question(partition), deadline)
            except NoReplyError as error:
                last_error, self._last_problem = error, error.reason
                if not error_code(error.code).retriable:
                    raise api_exception(
                        error.code, error.reason, topic=topic, partition=number
                    ) from None
            except TimeoutException:
                if last_error is None or last_error.is_unanswered:
                    raise
                limit = Option("max.block.ms", self._config.max_block_ms)
                message = f"{limit} has passed; the last error was: {last_error.reason}"
                raise TimeoutException(message, topic=topic, partition=number) from last_error
            else:
                self._last_problem = ""
                return result

    def _complete(self, steps: Steps[T], deadline: float, limit: Option | None = None) -> T:
        """Resume a generator until it returns. Raise TimeoutException at the deadline.

        limit: the option that sets the deadline, or None for max.block.ms.
        """
        under_way: UnderWay[T] = UnderWay(steps)
        while (found := under_way.resume(self._clock())) is None:
            now = self._clock()
            if now >= deadline:
                raise self._no_broker(limit)
            self._client.poll(max(0.0, min(under_way.resumes_at, deadline) - now))
        return found

    def _no_broker(self, limit: Option | None) -> ApiException:
        trouble = self._client.last_errors()
        return NO_BROKER.error(
            limit=limit or Option("max.block.ms", self._config.max_block_ms),
            servers=Option("bootstrap.servers", self._config.bootstrap_servers),
            trouble=f" ({trouble})" if trouble else "",
        )

    # -- machines and their questions -------------------------------------------------------------

    def run(
        self, begun: _Step[_Machine], step: Callable[[_Machine, Answer, float], _Step[_Machine]]
    ) -> _Machine:
        """Run a state machine of the package `commit` to its end, and return it with its outcome.

        begun: the machine's first state and questions, as `begin` in its module returns them. step:
        the function `step` in the same module. Raise the exceptions of `answers`.
        """
        machine, questions = begun
        self._last_problem = ""
        self.ask(questions)
        try:
            while machine.outcome is None:
                if self._queue.is_empty and not self._under_way:
                    message = f"{type(machine).__name__} waits for no reply; this is a bug"
                    raise KafkaException(message)
                for answer in self.answers():
                    self._last_problem = answer.reply.reason
                    machine, questions = step(machine, answer, self._clock())
                    if machine.outcome is not None:
                        break
                    self.ask(questions)
        finally:
            self._drop_questions()
        return machine

    def _drop_questions(self) -> None:
        self._under_way.clear()
        self._queue.clear()
        self._brokers.drop_look_ups()

    def now(self) -> float:
        """Return the time in seconds, by the clock that the deadlines of state machines use."""
        return self._clock()

    def take_warnings(self) -> list[str]:
        """Return the warnings about the commit log since the last call of this method."""
        return self._log.take_warnings()

    def ask(self, questions: Iterable[Question]) -> None:
        """Add requests to the queue from which `answers` sends them."""
        for each in map(self._without_old_leader, questions):
            if each.pause_s > 0:
                # Without jitter, clients that were refused at the same time would all send their
                # next request at the same time.
                pause_s = each.pause_s * self._random.uniform(*_JITTER)
                self._queue.pause(each, self._clock() + pause_s)
            else:
                self._queue.add(each)

    def answers(self, timeout_s: float = _LONGEST_WAIT_S) -> list[Answer]:
        """Send the queued requests, and wait for the next replies.

        Return [] if there is no reply within `timeout_s` seconds, or if there are no requests.
        Raise AuthenticationException if the client and a broker cannot authenticate each other, by
        SASL or with certificates.
        """
        deadline = self._clock() + timeout_s
        while self._under_way or not self._queue.is_empty:
            for line, question in self._queue.take(self._clock()):
                steps = self._steps(question, line)
                self._under_way.append(_Sent(question, line, UnderWay(steps)))
            answers, looked_up = self._resume_all()
            for question in looked_up:
                self._queue.add(question)
            if answers:
                return answers
            if looked_up:
                continue
            now = self._clock()
            if now >= deadline:
                break
            due = min((each.under_way.resumes_at for each in self._under_way), default=deadline)
            self._client.poll(max(0.0, min(due, self._queue.resumes_at, deadline) - now))
        return []

    def _resume_all(self) -> tuple[list[Answer], list[Question]]:
        """Return the new replies, and the questions whose brokers were looked up."""
        answers, looked_up, still = [], [], []
        for each in self._under_way:
            found = each.under_way.resume(self._clock())
            if found is None:
                still.append(each)
                continue
            self._queue.free(each.line)
            if isinstance(found, Question):
                looked_up.append(found)
            else:
                answers.append(Answer(each.question.ask, found))
        self._under_way = still
        return answers, looked_up

    def _steps(self, question: Question, line: Line) -> Steps[Reply | Question]:
        """Send a request and return the reply, or look up its broker and return the question."""
        ask = question.ask
        subject = self._subject_of(ask)
        try:
            if subject is not None and line.node_id is None:
                if question.looks_up:
                    self._brokers.forget(subject)
                yield from self._brokers.node_of(subject)
                return replace(question, looks_up=False)
            return (yield from self._methods[type(ask)](ask))
        except NoReplyError as error:
            if error.is_unanswered:
                if subject is not None:
                    self._brokers.forget(subject)
                return Unanswered(error.code, error.reason)
            return _FAILED[type(ask)](error=error.code, reason=error.reason)

    def _without_old_leader(self, question: Question) -> Question:
        """Forget the leader for a question that looks it up again. Return the question to add.

        Another question may look up the leaders of the topic during the pause. As this look-up is
        sent after the failure, no second one is needed after the pause. This is not true of a
        coordinator: a machine may pause until no old coordinator responds any more.
        """
        subject = self._subject_of(question.ask)
        if not question.looks_up or not isinstance(subject, TopicPartition):
            return question
        self._brokers.forget(subject)
        return replace(question, looks_up=False)

    def _line_of(self, question: Question) -> Line:
        subject = self._subject_of(question.ask)
        if subject is None or question.looks_up:
            return Line(None)
        node_id = self._brokers.known_node_of(subject)
        if node_id is None:
            return Line(None, finds_leader=isinstance(subject, TopicPartition))
        return Line(node_id, isinstance(question.ask, ReadMarker))

    def _subject_of(self, ask: Ask) -> Subject | None:
        """Return the subject whose broker gets a request, or None if all brokers get it."""
        if isinstance(ask, ListTransactions):
            return None
        if isinstance(ask, DescribeProducers | ReadMarker):
            return ask.partition
        if isinstance(ask, WriteRecord | ReadLog | ReadAllRecords):
            return self._log_partition
        return ask.transactional_id


# The class of the reply to each request. It is used for a reply that contains only an error.
_FAILED: Final[Mapping[type[Ask], Callable[..., Reply]]] = {
    ListTransactions: Listed,
    DescribeTransaction: Described,
    InitProducerId: Initialized,
    AddPartitions: Added,
    WriteRecord: Written,
    EndTxn: Ended,
    ReadLog: LogRead,
    ReadAllRecords: AllRecordsRead,
    DescribeProducers: ProducersDescribed,
    ReadMarker: MarkerRead,
}
