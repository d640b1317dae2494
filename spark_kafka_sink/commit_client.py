"""CommitClient: puts the questions of exactly once to brokers, and returns their replies.

The machines of `commit` decide what to ask, when, and what a reply means. This module knows whom to
ask: the coordinator of a transactional id, the leader of a partition, or every broker. It looks
these up, keeps connections of its own, and may have many questions under way. It decides nothing,
and sends nothing again by itself: a question whose request got no response has the reply
`Unanswered`.

Each question is a generator that yields what it waits for, a `RequestFuture` or a time, and returns
the reply. `answers` resumes each generator when its wait is over, in the caller's thread. Neither
numpy nor Arrow is imported, because the processes in which Spark plans and commits have no use for
them.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from types import TracebackType
from typing import Final, Generic, Protocol, Self, TypeAlias, TypeVar

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.commit.log_record import (
    LOG_PARTITION,
    LogEntry,
    LogReader,
    encode,
)
from spark_kafka_sink.commit.questions import (
    ONGOING,
    ActiveProducer,
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
    OpenTransaction,
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
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.errors import (
    ApiException,
    AuthenticationException,
    TimeoutException,
    api_exception,
    error_code,
)
from spark_kafka_sink.model import Node, ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.network.request_client import ConsumerNetworkClient, RequestFuture
from spark_kafka_sink.network.security import login_identity
from spark_kafka_sink.records.batch import Buffer, batch_header
from spark_kafka_sink.records.default_record import DefaultBatch, one_record, read_batches
from spark_kafka_sink.wire.describe_messages import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicRequest,
)
from spark_kafka_sink.wire.fetch_messages import (
    LATEST_TIMESTAMP,
    READ_UNCOMMITTED,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    PartitionData,
)
from spark_kafka_sink.wire.messages import (
    ADD_PARTITIONS_TO_TXN,
    DESCRIBE_PRODUCERS,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    LIST_TRANSACTIONS,
    Api,
    InitProducerIdRequest,
    InitProducerIdResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    Request,
    Response,
    TopicProduceData,
)
from spark_kafka_sink.wire.primitives import Records
from spark_kafka_sink.wire.transaction_messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    EndTxnResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from spark_kafka_sink.wire.versions import NodeApiVersions

__all__ = ["CommitClient", "login_identity"]

_ALL_REPLICAS: Final = -1
_TRANSACTION: Final = 1
# Produce 12 adds the partition to the transaction, 13 names topics by their ids. So does Fetch 13.
_LAST_PRODUCE_V1: Final = 11
_PRODUCE_V2: Final = 12
_LAST_FETCH_BY_NAME: Final = 12
# Before, a new leader may tell an end that is below records that are committed (KIP-207).
_LISTS_RELIABLE_ENDS_SINCE: Final = 5
_FETCH_BYTES: Final = 8 * 1024 * 1024
_FETCH_WAIT_MS: Final = 500
# The first wait after a look-up that a broker could not answer; each one after it is twice as long.
_LEVEL: Final = "transaction.version"
# The versions that every broker must have. Brokers before AddPartitionsToTxn 4 do not verify that
# a partition is part of the transaction, so that late rows could stay in it for ever.
_NEEDED: Final[Mapping[Api, int]] = {
    INIT_PRODUCER_ID: 0,
    ADD_PARTITIONS_TO_TXN: 4,
    END_TXN: 0,
    DESCRIBE_PRODUCERS: 0,
    DESCRIBE_TRANSACTIONS: 0,
    LIST_TRANSACTIONS: 0,
    LIST_OFFSETS: _LISTS_RELIABLE_ENDS_SINCE,
}
_LOOK_UP_WAIT_S: Final = 0.05
_LONGEST_LOOK_UP_WAIT_S: Final = 1.0
# select() takes no infinity.
_LONGEST_WAIT_S: Final = 3600.0
_JITTER: Final = (0.8, 1.2)
_MOST_UNDER_WAY: Final = 64

_T = TypeVar("_T")
_Machine = TypeVar("_Machine", bound="_HasOutcome")
_Step: TypeAlias = tuple[_Machine, tuple[Question, ...]]
# What a generator yields: the response that it waits for, or the time until which it pauses.
_Wait: TypeAlias = RequestFuture | float
_Steps: TypeAlias = Generator[_Wait, None, _T]


class _HasOutcome(Protocol):
    """A machine of `commit`."""

    @property
    def outcome(self) -> object:
        """What came of it, None for as long as it asks."""


class _NoReplyError(Exception):
    """A question cannot be put: an error code of a look-up, or no response at all."""

    def __init__(self, code: int, reason: str, *, is_unanswered: bool) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.is_unanswered = is_unanswered


class CommitClient:
    """Questions to the brokers of one cluster; a context manager, for one thread at a time.

    log_topic: the topic whose partition 0 is the commit log. brokers: that another client learned
    from the cluster. identity: `login_identity` of the configuration.
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
        self._log = TopicPartition(log_topic, LOG_PARTITION)
        self._request_timeout_ms = config.request_timeout_ms
        self._clock = clock
        self._random = Random()  # noqa: S311 - jitter, not secrets
        self._client = ConsumerNetworkClient.of(config, clock, self._random, identity=identity)
        self._client.set_initial_nodes(brokers)
        self._nodes: dict[int, Node] = {}
        self._answered: set[int] = set()
        self._is_checked = False
        self._coordinators: dict[str, int] = {}
        self._leaders: dict[TopicPartition, int] = {}
        self._logs: dict[str | None, tuple[LogReader, int]] = {}
        self._under_way: list[tuple[Ask, _UnderWay[Reply]]] = []
        self._waiting: deque[Question] = deque()
        self._methods: Mapping[type[Ask], Callable[..., _Steps[Reply]]] = {
            ListTransactions: self._list_transactions,
            DescribeTransaction: self._describe_transaction,
            InitProducerId: self._init_producer_id,
            AddPartitions: self._add_partitions,
            WriteRecord: self._write_record,
            EndTxn: self._end_txn,
            ReadLog: self._read_log,
            ReadAllRecords: self._read_all_records,
            DescribeProducers: self._describe_producers,
            ReadMarker: self._read_marker,
        }
        self._warnings: list[str] = []

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
        """Close every connection; what was asked has no answer then."""
        self._client.close()

    # -- what tasks ask ---------------------------------------------------------------------------

    def log_ends(
        self, partitions: Iterable[TopicPartition], deadline: float
    ) -> dict[TopicPartition, int]:
        """Return the ends of partitions, with records of open transactions.

        Raise ApiException, and TimeoutException at the deadline.
        """
        return {each: self._until(self._end, each, deadline) for each in partitions}

    def batch_at(self, partition: TopicPartition, offset: int, deadline: float) -> Buffer | None:
        """Return the batch that begins at an offset, as it is in the log; None if none does.

        Raise as `log_ends` does.
        """
        found = self._until(partial(self._fetch, offset=offset), partition, deadline)
        batches = read_batches(found.records or b"")
        return next((each.data for each in batches if each.header.base_offset == offset), None)

    def _until(
        self,
        question: Callable[[TopicPartition], _Steps[_T]],
        partition: TopicPartition,
        deadline: float,
    ) -> _T:
        """Put a question to the leader of a partition until it answers."""
        attempts = 0
        while True:
            try:
                return self._complete(question(partition), deadline)
            except _NoReplyError as error:
                is_over = not error_code(error.code).retriable or self._clock() >= deadline
                if is_over:
                    topic, number = partition
                    raise api_exception(
                        error.code, error.reason, topic=topic, partition=number
                    ) from None
                self._leaders.pop(partition, None)
                wait = self._clock() + min(_LOOK_UP_WAIT_S * 2**attempts, _LONGEST_LOOK_UP_WAIT_S)
                self._complete(_pause(wait), deadline)
                attempts += 1

    # -- the cluster ------------------------------------------------------------------------------

    def check_brokers(self, deadline: float) -> None:
        """Connect to every broker, and check that it can do what exactly once needs.

        A client does this once. A broker that does not answer is not checked. Raise
        UnsupportedVersionException that names the broker and the API, and TimeoutException if no
        broker answers before the deadline.
        """
        if self._is_checked:
            return
        self._connect(deadline, every=True)
        for node_id in sorted(self._nodes.keys() & self._answered):
            versions = self._client.versions(node_id)
            for api, version in _NEEDED.items():
                if versions.latest_version(api) < version:
                    raise _too_old(self._nodes[node_id], api, version, versions)
        self._is_checked = True

    def level(self, deadline: float) -> int:
        """Return 2 if the cluster has finalized transaction.version 2, else 1.

        Brokers may lag behind: the features with the highest epoch count. Raise TimeoutException if
        no broker answers before the deadline.
        """
        if not self._answered:
            self._connect(deadline, every=False)
        known = [self._client.versions(node_id) for node_id in self._answered]
        newest = max(known, key=lambda each: each.finalized_features_epoch)
        return 2 if newest.finalized_features.get(_LEVEL, 0) >= 2 else 1

    def brokers(self) -> tuple[Node, ...]:
        """Return the brokers of the cluster, as far as they are known."""
        return tuple(self._nodes.values())

    def _connect(self, deadline: float, *, every: bool) -> None:
        """Wait for the response of one broker, or of every broker that has one."""
        attempts = 0
        while True:
            try:
                self._complete(self._metadata([]), deadline)
                break
            except _NoReplyError as error:
                if not error.is_unanswered:
                    raise api_exception(error.code, error.reason, api="Metadata") from None
                wait = self._clock() + min(_LOOK_UP_WAIT_S * 2**attempts, _LONGEST_LOOK_UP_WAIT_S)
                self._complete(_pause(wait), deadline)
                attempts += 1
        if not every:
            return
        request = MetadataRequest(topics=[], allow_auto_topic_creation=False)
        for each in [self._send(node_id, request) for node_id in self._nodes]:
            with suppress(_NoReplyError):
                self._complete(each, deadline)

    def _complete(self, steps: _Steps[_T], deadline: float) -> _T:
        """Resume one generator until it returns. Raise TimeoutException."""
        under_way: _UnderWay[_T] = _UnderWay(steps)
        while (found := under_way.resume(self._clock())) is None:
            now = self._clock()
            if now >= deadline:
                trouble = self._client.last_errors()
                message = f"no broker has answered in time{f' ({trouble})' if trouble else ''}"
                raise TimeoutException(message)
            self._client.poll(max(0.0, min(under_way.resumes_at, deadline) - now))
        return found

    # -- questions --------------------------------------------------------------------------------

    def run(
        self, begun: _Step[_Machine], step: Callable[[_Machine, Answer, float], _Step[_Machine]]
    ) -> _Machine:
        """Run a machine of `commit` to its end, and return it with its outcome.

        begun: of its `begin`; step: its `step`. Raise as `answers` does.
        """
        machine, questions = begun
        self.ask(questions)
        try:
            while machine.outcome is None:
                for answer in self.answers():
                    machine, questions = step(machine, answer, self._clock())
                    if machine.outcome is not None:
                        break
                    self.ask(questions)
        finally:
            self._under_way.clear()
            self._waiting.clear()
        return machine

    def now(self) -> float:
        """Return the time by the clock of machines, for their deadlines."""
        return self._clock()

    def take_warnings(self) -> list[str]:
        """Return what was ignored in the log, and why, since the last call."""
        taken, self._warnings = self._warnings, []
        return taken

    def ask(self, questions: Iterable[Question]) -> None:
        """Begin to ask questions; `answers` returns the replies."""
        self._waiting += questions

    def answers(self, timeout_s: float = _LONGEST_WAIT_S) -> list[Answer]:
        """Wait for the next replies, at most so long; return an empty list if there is no question.

        Raise the error of a login or a certificate that brokers reject, or this client.
        """
        deadline = self._clock() + timeout_s
        while self._waiting or self._under_way:
            while self._waiting and len(self._under_way) < _MOST_UNDER_WAY:
                question = self._waiting.popleft()
                self._under_way.append((question.ask, _UnderWay(self._steps(question))))
            found = self._resume_all()
            if found:
                return found
            now = self._clock()
            if now >= deadline:
                break
            due = min(each.resumes_at for _, each in self._under_way)
            self._client.poll(max(0.0, min(due, deadline) - now))
        return []

    def answers_to(self, asks: Iterable[Ask]) -> list[Reply]:
        """Ask questions, and return the replies to all of them in the same order."""
        asked = list(asks)
        self.ask(Question(ask) for ask in asked)
        found: dict[Ask, Reply] = {}
        while len(found) < len(set(asked)):
            found.update(self.answers())
        return [found[ask] for ask in asked]

    def _resume_all(self) -> list[Answer]:
        found, still = [], []
        for ask, each in self._under_way:
            reply = each.resume(self._clock())
            if reply is None:
                still.append((ask, each))
            else:
                found.append(Answer(ask, reply))
        self._under_way = still
        return found

    def _steps(self, question: Question) -> _Steps[Reply]:
        ask = question.ask
        if question.pause_s > 0:
            # Others that were refused at the same time pause as well.
            yield self._clock() + question.pause_s * self._random.uniform(*_JITTER)
        if question.looks_up:
            self._forget(ask)
        try:
            return (yield from self._methods[type(ask)](ask))
        except _NoReplyError as error:
            if error.is_unanswered:
                self._forget(ask)
                return Unanswered(error.code, error.reason)
            return _FAILED[type(ask)](error=error.code, reason=error.reason)

    def _forget(self, ask: Ask) -> None:
        """Look up again whom to ask."""
        transactional_id = getattr(ask, "transactional_id", None)
        if transactional_id is not None:
            self._coordinators.pop(transactional_id, None)
        if isinstance(ask, DescribeProducers | ReadMarker):
            self._leaders.pop(ask.partition, None)
        if isinstance(ask, WriteRecord | ReadLog | ReadAllRecords):
            self._leaders.pop(self._log, None)

    def _send(
        self,
        node_id: int | None,
        message: Request,
        max_version: int | None = None,
        min_version: int = 0,
    ) -> _Steps[Response]:
        """Send one request and wait for its response. Raise _NoReplyError if there is none."""
        future = self._client.send(node_id, message, max_version, min_version)
        return (yield from self._response_to(future))

    def _response_to(self, future: RequestFuture) -> _Steps[Response]:
        while not future.is_done:
            yield future
        error = future.error
        if isinstance(error, AuthenticationException):
            raise error
        if error is not None:
            is_unanswered = error_code(error.code).retriable
            raise _NoReplyError(error.code, str(error), is_unanswered=is_unanswered)
        if future.node_id is not None:
            self._answered.add(future.node_id)
        return future.response

    # -- whom to ask ------------------------------------------------------------------------------

    def _coordinator(self, transactional_id: str) -> _Steps[int]:
        known = self._coordinators.get(transactional_id)
        if known is not None:
            return known
        if not self._nodes:
            yield from self._metadata([])
        request = FindCoordinatorRequest(
            key=transactional_id, key_type=_TRANSACTION, coordinator_keys=[transactional_id]
        )
        response = yield from self._send(None, request)
        if not isinstance(response, FindCoordinatorResponse):
            raise _unexpected(response)
        found = response.coordinators[0] if response.coordinators else response
        code = found.error_code
        if code == codes.NONE and not found.host:
            code = codes.COORDINATOR_NOT_AVAILABLE
        if code != codes.NONE:
            raise _refused(code, f"the look-up of the coordinator of {transactional_id}",
                           found.error_message)  # fmt: skip
        node = Node(id=found.node_id, host=found.host, port=found.port)
        if self._nodes.get(node.id) != node:
            self._nodes[node.id] = node
            self._client.set_nodes(self._nodes)
        self._coordinators[transactional_id] = node.id
        return node.id

    def _leader(self, partition: TopicPartition) -> _Steps[int]:
        known = self._leaders.get(partition)
        if known is not None:
            return known
        response = yield from self._metadata([partition.topic])
        what = f"the look-up of the leader of {partition}"
        for topic in response.topics:
            if topic.error_code != codes.NONE:
                raise _refused(topic.error_code, what)
            for each in topic.partitions:
                if each.leader_id >= 0 and each.leader_id in self._nodes:
                    at = TopicPartition(topic.name or "", each.partition_index)
                    self._leaders[at] = each.leader_id
                elif each.partition_index == partition.partition:
                    raise _refused(codes.LEADER_NOT_AVAILABLE, what)
        if partition not in self._leaders:
            raise _refused(codes.UNKNOWN_TOPIC_OR_PARTITION, what)
        return self._leaders[partition]

    def _metadata(self, topics: Sequence[str]) -> _Steps[MetadataResponse]:
        """Ask for topics, and learn the brokers."""
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=name) for name in topics],
            allow_auto_topic_creation=False,
        )
        attempts = 0
        while True:
            response = yield from self._send(None, request)
            if not isinstance(response, MetadataResponse):
                raise _unexpected(response)
            # A broker that is starting lists no brokers yet.
            if response.brokers:
                break
            wait = min(_LOOK_UP_WAIT_S * 2**attempts, _LONGEST_LOOK_UP_WAIT_S)
            yield self._clock() + wait
            attempts += 1
        self._nodes = {
            b.node_id: Node(id=b.node_id, host=b.host, port=b.port) for b in response.brokers
        }
        self._client.set_nodes(self._nodes)
        return response

    # -- coordinators -----------------------------------------------------------------------------

    def _list_transactions(self, ask: ListTransactions) -> _Steps[Reply]:
        yield from self._metadata([])
        # In RE2, any punctuation may be escaped. The pattern has to match the whole id.
        pattern = f"(?s){re.escape(ask.prefix)}.*"
        futures = {
            node_id: self._client.send(
                node_id,
                ListTransactionsRequest(state_filters=[ONGOING], transactional_id_pattern=pattern),
            )
            for node_id in self._nodes
        }
        found: set[OpenTransaction] = set()
        for node_id, future in futures.items():
            response = yield from self._response_to(future)
            if not isinstance(response, ListTransactionsResponse):
                raise _unexpected(response)
            if response.error_code != codes.NONE:
                raise _refused(response.error_code, f"ListTransactions at node {node_id}")
            found.update(
                OpenTransaction(each.transactional_id, each.producer_id)
                for each in response.transaction_states
                if each.transactional_id.startswith(ask.prefix)
            )
        return Listed(frozenset(found))

    def _describe_transaction(self, ask: DescribeTransaction) -> _Steps[Reply]:
        node_id = yield from self._coordinator(ask.transactional_id)
        request = DescribeTransactionsRequest(transactional_ids=[ask.transactional_id])
        response = yield from self._send(node_id, request)
        if not isinstance(response, DescribeTransactionsResponse):
            raise _unexpected(response)
        for each in response.transaction_states:
            if each.transactional_id == ask.transactional_id:
                return Described(
                    state=each.transaction_state,
                    producer=ProducerIdAndEpoch(each.producer_id, each.producer_epoch),
                    timeout_ms=each.transaction_timeout_ms,
                    start_ms=each.transaction_start_time_ms,
                    partitions=frozenset(
                        TopicPartition(topic.topic, number)
                        for topic in each.topics
                        for number in topic.partitions
                    ),
                    error=each.error_code,
                    reason=_reason(each.error_code, "DescribeTransactions", node_id),
                )
        raise _left_out("DescribeTransactions", node_id)

    def _init_producer_id(self, ask: InitProducerId) -> _Steps[Reply]:
        node_id = yield from self._coordinator(ask.transactional_id)
        request = InitProducerIdRequest(
            transactional_id=ask.transactional_id, transaction_timeout_ms=ask.timeout_ms
        )
        response = yield from self._send(node_id, request)
        if not isinstance(response, InitProducerIdResponse):
            raise _unexpected(response)
        return Initialized(
            ProducerIdAndEpoch(response.producer_id, response.producer_epoch),
            response.error_code,
            _reason(response.error_code, "InitProducerId", node_id),
        )

    def _add_partitions(self, ask: AddPartitions) -> _Steps[Reply]:
        node_id = yield from self._coordinator(ask.transactional_id)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=ask.transactional_id,
            v3_and_below_producer_id=ask.producer.producer_id,
            v3_and_below_producer_epoch=ask.producer.epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=name, partitions=numbers)
                for name, numbers in _by_topic(ask.partitions).items()
            ],
        )
        response = yield from self._send(node_id, request)
        if not isinstance(response, AddPartitionsToTxnResponse):
            raise _unexpected(response)
        results = {
            TopicPartition(topic.name, each.partition_index): each.partition_error_code
            for topic in response.results_by_topic_v3_and_below
            for each in topic.results_by_partition
        }
        for partition in ask.partitions:
            code = results.get(partition, codes.UNKNOWN_SERVER_ERROR)
            # This one only says that another partition has an error.
            if code not in (codes.NONE, codes.OPERATION_NOT_ATTEMPTED):
                api = f"AddPartitionsToTxn for {partition}"
                return Added(code, _reason(code, api, node_id))
        code = max(results.values(), default=codes.NONE)
        return Added(code, _reason(code, "AddPartitionsToTxn", node_id))

    def _end_txn(self, ask: EndTxn) -> _Steps[Reply]:
        node_id = yield from self._coordinator(ask.transactional_id)
        request = EndTxnRequest(
            transactional_id=ask.transactional_id,
            producer_id=ask.producer.producer_id,
            producer_epoch=ask.producer.epoch,
            committed=ask.commit,
        )
        response = yield from self._send(node_id, request, ask.version, ask.version)
        if not isinstance(response, EndTxnResponse):
            raise _unexpected(response)
        return Ended(
            ProducerIdAndEpoch(response.producer_id, response.producer_epoch),
            response.error_code,
            _reason(response.error_code, "EndTxn", node_id),
        )

    # -- leaders ----------------------------------------------------------------------------------

    def _write_record(self, ask: WriteRecord) -> _Steps[Reply]:
        node_id = yield from self._leader(self._log)
        key = ask.transactional_id
        value = encode(key, ask.record)
        section, info = one_record(key.encode(), value, ask.record.written_at)
        header = batch_header(info, [section], ask.producer, ask.sequence, transactional=True)
        records = Records((header, section), len(header) + len(section))
        data = PartitionProduceData(index=self._log.partition, records=records)
        request = ProduceRequest(
            transactional_id=ask.transactional_id,
            acks=_ALL_REPLICAS,
            timeout_ms=self._request_timeout_ms,
            topic_data=[TopicProduceData(name=self._log.topic, partition_data=[data])],
        )
        is_v2 = ask.level >= 2
        response = yield from self._send(
            node_id,
            request,
            max_version=_PRODUCE_V2 if is_v2 else _LAST_PRODUCE_V1,
            min_version=_PRODUCE_V2 if is_v2 else 0,
        )
        if not isinstance(response, ProduceResponse):
            raise _unexpected(response)
        for topic in response.responses:
            for each in topic.partition_responses:
                reason = _reason(each.error_code, f"Produce to {self._log}", node_id)
                return Written(
                    each.base_offset,
                    each.log_append_time_ms != -1,
                    each.error_code,
                    "; ".join(filter(None, (reason, each.error_message))),
                )
        raise _left_out("Produce", node_id)

    def _describe_producers(self, ask: DescribeProducers) -> _Steps[Reply]:
        node_id = yield from self._leader(ask.partition)
        topic = TopicRequest(name=ask.partition.topic, partition_indexes=[ask.partition.partition])
        response = yield from self._send(node_id, DescribeProducersRequest(topics=[topic]))
        if not isinstance(response, DescribeProducersResponse):
            raise _unexpected(response)
        for found in response.topics:
            for each in found.partitions:
                producers = tuple(
                    ActiveProducer(
                        ProducerIdAndEpoch(one.producer_id, one.producer_epoch),
                        one.last_sequence,
                        one.current_txn_start_offset,
                    )
                    for one in each.active_producers
                )
                api = f"DescribeProducers of {ask.partition}"
                reason = _reason(each.error_code, api, node_id)
                return ProducersDescribed(producers, each.error_code, reason)
        raise _left_out("DescribeProducers", node_id)

    # -- reading ----------------------------------------------------------------------------------

    def _read_log(self, ask: ReadLog) -> _Steps[Reply]:
        reader = yield from self._read_records(ask.key)
        return LogRead(reader.reading(ask.key))

    def _read_all_records(self, ask: ReadAllRecords) -> _Steps[Reply]:
        reader = yield from self._read_records(None)
        keys = sorted(key for key in reader.owners() if key.startswith(ask.prefix))
        return AllRecordsRead(tuple((key, reader.reading(key)) for key in keys))

    def _read_records(self, key: str | None) -> _Steps[LogReader]:
        """Read the log to its end, on from where it was read before; key: None for all owners."""
        end = yield from self._end(self._log)
        reader, position = self._logs.get(key) or (LogReader(key), 0)
        while position < end:
            found = yield from self._fetch(self._log, position)
            if found.error_code == codes.OFFSET_OUT_OF_RANGE:
                # Compaction deletes no offsets, but an operator may delete records.
                position = max(position, found.log_start_offset)
                if found.log_start_offset <= position:
                    raise _refused(found.error_code, f"Fetch of {self._log} at {position}")
                continue
            if found.error_code != codes.NONE:
                raise _refused(found.error_code, f"Fetch of {self._log}")
            batches = _batches(self._log, found)
            reader.read(LogEntry.of(each) for each in batches)
            position = batches[-1].header.last_offset + 1
            self._logs[key] = (reader, position)
        self._warnings += reader.take_warnings()
        return reader

    def _read_marker(self, ask: ReadMarker) -> _Steps[Reply]:
        end = yield from self._end(ask.partition)
        position, records = ask.offset, 0
        while position < end:
            found = yield from self._fetch(ask.partition, position)
            if found.error_code == codes.OFFSET_OUT_OF_RANGE:
                return MarkerRead(is_gone=True)
            if found.error_code != codes.NONE:
                raise _refused(found.error_code, f"Fetch of {ask.partition}")
            batches = _batches(ask.partition, found)
            for each in batches:
                header = each.header
                if header.producer_id != ask.producer_id or header.base_offset < ask.offset:
                    continue
                if not header.is_control:
                    records += header.record_count
                elif (marker := each.marker()) is not None:
                    return MarkerRead(marker, records)
            position = batches[-1].header.last_offset + 1
        return MarkerRead()

    def _end(self, partition: TopicPartition) -> _Steps[int]:
        """Return the high watermark."""
        node_id = yield from self._leader(partition)
        requested = ListOffsetsPartition(
            partition_index=partition.partition, timestamp=LATEST_TIMESTAMP
        )
        request = ListOffsetsRequest(
            isolation_level=READ_UNCOMMITTED,
            topics=[ListOffsetsTopic(name=partition.topic, partitions=[requested])],
        )
        response = yield from self._send(node_id, request, min_version=_LISTS_RELIABLE_ENDS_SINCE)
        if not isinstance(response, ListOffsetsResponse):
            raise _unexpected(response)
        for topic in response.topics:
            for each in topic.partitions:
                if each.error_code != codes.NONE:
                    raise _refused(each.error_code, f"ListOffsets of {partition}")
                return each.offset
        raise _left_out("ListOffsets", node_id)

    def _fetch(self, partition: TopicPartition, offset: int) -> _Steps[PartitionData]:
        node_id = yield from self._leader(partition)
        requested = FetchPartition(
            partition=partition.partition, fetch_offset=offset, partition_max_bytes=_FETCH_BYTES
        )
        request = FetchRequest(
            max_wait_ms=_FETCH_WAIT_MS,
            min_bytes=1,
            max_bytes=_FETCH_BYTES,
            isolation_level=READ_UNCOMMITTED,
            topics=[FetchTopic(topic=partition.topic, partitions=[requested])],
        )
        response = yield from self._send(node_id, request, max_version=_LAST_FETCH_BY_NAME)
        if not isinstance(response, FetchResponse):
            raise _unexpected(response)
        if response.error_code != codes.NONE:
            raise _refused(response.error_code, f"Fetch of {partition}")
        for topic in response.responses:
            for each in topic.partitions:
                return each
        raise _left_out("Fetch", node_id)


class _UnderWay(Generic[_T]):
    """A generator that waits for responses and times. It returns anything but None."""

    def __init__(self, steps: _Steps[_T]) -> None:
        self._steps = steps
        self._wait: _Wait = 0.0

    @property
    def resumes_at(self) -> float:
        """When it resumes by time alone."""
        return self._wait if isinstance(self._wait, float) else float("inf")

    def resume(self, now: float) -> _T | None:
        """Go on for as long as there is nothing to wait for; return what it returns."""
        while True:
            wait = self._wait
            is_over = wait <= now if isinstance(wait, float) else wait.is_done
            if not is_over:
                return None
            try:
                self._wait = next(self._steps)
            except StopIteration as stop:
                found: _T = stop.value
                return found


def _pause(until: float) -> _Steps[bool]:
    yield until
    return True


def _too_old(node: Node, api: Api, version: int, versions: NodeApiVersions) -> ApiException:
    latest = versions.latest_version(api)
    has = f"{api.name} up to version {latest}" if latest >= 0 else f"no {api.name}"
    message = (
        f"exactlyOnce needs {api.name} {version} or later, as brokers of Kafka 3.6 and later have "
        f"it: {node} has {has}"
    )
    return api_exception(codes.UNSUPPORTED_VERSION, message, node_id=node.id, api=api.name)


def _batches(partition: TopicPartition, found: PartitionData) -> list[DefaultBatch]:
    """Return the batches of a fetch below the end, where there is always one."""
    batches = list(read_batches(found.records or b""))
    if not batches:
        reason = f"Fetch of {partition} has no records below the end"
        raise _NoReplyError(codes.REQUEST_TIMED_OUT, reason, is_unanswered=True)
    return batches


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        topics.setdefault(topic, []).append(number)
    return topics


def _reason(code: int, what: str, node_id: int) -> str:
    if code == codes.NONE:
        return ""
    return f"{what} at node {node_id}: {error_code(code).name} ({code})"


def _refused(code: int, what: str, said: str | None = None) -> _NoReplyError:
    row = error_code(code)
    reason = f"{what}: {row.name} ({code})" + (f", {said}" if said else "")
    return _NoReplyError(code, reason, is_unanswered=False)


def _left_out(api: str, node_id: int) -> _NoReplyError:
    reason = f"{api} at node {node_id}: the response does not contain what was asked for"
    return _NoReplyError(codes.UNKNOWN_SERVER_ERROR, reason, is_unanswered=False)


def _unexpected(response: Response) -> TypeError:
    return TypeError(f"a response of another type: {response!r}")


# The reply to each question that got an error code in place of an answer.
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
