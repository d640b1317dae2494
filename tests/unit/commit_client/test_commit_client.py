"""The client of exactly once, without a network: the test is the brokers and the clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from uuid import UUID

import pytest
from crc32c import crc32c
from support.pure.broker_replies import replies_to

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.commit import one_question
from spark_kafka_sink.commit.log_record import CommitRecord, RecordState, decode, encode
from spark_kafka_sink.commit.questions import (
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
from spark_kafka_sink.commit.steps import Step, received
from spark_kafka_sink.commit_client import CommitClient
from spark_kafka_sink.config import producer_config
from spark_kafka_sink.errors import (
    NO_BROKER,
    KafkaException,
    Option,
    SaslAuthenticationException,
    TimeoutException,
    TopicAuthorizationException,
    UnsupportedVersionException,
    error_code,
)
from spark_kafka_sink.model import NO_PRODUCER_ID, Node, ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.network.request_client import ConsumerNetworkClient, RequestFuture
from spark_kafka_sink.records.batch import Marker, batch_header
from spark_kafka_sink.records.default_record import one_record, read_batches
from spark_kafka_sink.wire.describe_messages import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    PartitionResponse,
    ProducerState,
    TopicData,
    TopicResponse,
    TransactionState,
)
from spark_kafka_sink.wire.exchange import ClientRequest
from spark_kafka_sink.wire.fetch_messages import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    PartitionData,
)
from spark_kafka_sink.wire.messages import (
    ADD_PARTITIONS_TO_TXN,
    InitProducerIdRequest,
    InitProducerIdResponse,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    Request,
    Response,
    TopicProduceResponse,
)
from spark_kafka_sink.wire.primitives import ZERO_UUID
from spark_kafka_sink.wire.transaction_messages import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
    Coordinator,
    EndTxnRequest,
    EndTxnResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from spark_kafka_sink.wire.transaction_messages import TransactionState as ListedState
from spark_kafka_sink.wire.versions import NodeApiVersions

OWNER = "pykafka/app/t"
PRODUCER = ProducerIdAndEpoch(9, 4)
LOG, TARGET = TopicPartition("log", 0), TopicPartition("t", 1)
RECORD = CommitRecord(RecordState.DONE, "run", rows=3, written_at=1_700_000_000_000)
ALL_VERSIONS = dict.fromkeys(range(80), (0, 13))
END, DESCRIBE = EndTxn(OWNER, PRODUCER, True, 5), DescribeTransaction(OWNER)  # noqa: FBT003 - a field


class Cluster:
    """Two brokers behind a network that needs no time, and a clock that moves while nobody asks.

    codes: of the next responses to a kind of request; lost: how many requests get no response.
    silent: brokers that never respond, though their connections last. silence_s: when the client
    gives up a request to a silent broker. coordinator_of: the coordinators of some ids; others have
    the coordinator `coordinator`. partitions: how many each topic has. moved: the partitions whose
    leader is not node `2 - number % 2` any more; None stands for all, and they have no leader.
    """

    def __init__(self) -> None:
        self.now = 100.0
        self.sent: list[tuple[int | None, Request]] = []
        self.limits: list[tuple[int, int | None]] = []
        self.send_by: list[float] = []
        self.codes: dict[type[Request], list[int]] = {}
        self.lost: dict[type[Request], int] = {}
        self.silent: set[int | None] = set()
        self.silence_s = float("inf")
        self.words: str | None = None
        self.errors = ""
        self.assigned = ProducerIdAndEpoch(9, 5)
        self.log = b""
        self.log_start = 0
        self.log_end = 0
        self.topic_id = ZERO_UUID
        self.coordinator = 2
        self.coordinator_of: dict[str, int] = {}
        self.partitions = 2
        self.moved: set[int] | None = set()
        self.brokers = [1, 2]
        self.node = 0
        self.versions_of = {node: NodeApiVersions(ALL_VERSIONS) for node in (1, 2)}
        self._waiting: list[RequestFuture] = []
        self._given_up: list[tuple[float, RequestFuture]] = []

    def set_initial_nodes(self, brokers: object) -> None:
        """Do nothing: there are no connections."""

    set_nodes = set_initial_nodes

    def close(self) -> None:
        """Do nothing."""

    no_broker = NO_BROKER

    def last_errors(self) -> str:
        """Return the errors of nodes."""
        return self.errors

    def versions(self, node_id: int) -> NodeApiVersions:
        """Return what a broker announces."""
        return self.versions_of[node_id]

    def send(
        self,
        node_id: int | None,
        message: Request,
        max_version: int | None = None,
        min_version: int = 0,
        send_by: float = float("inf"),
    ) -> RequestFuture:
        """Take a request."""
        self.sent.append((node_id, message))
        self.send_by.append(send_by)
        self.limits.append((min_version, max_version))
        future = RequestFuture(ClientRequest(node_id=node_id, message=message), 0.0)
        if node_id in self.silent:
            self._given_up.append((self.now + self.silence_s, future))
        else:
            self._waiting.append(future)
        return future

    def poll(self, timeout_s: float) -> None:
        """Answer what waits, or let the time pass."""
        if not self._waiting:
            self.now = min([self.now + timeout_s, *(at for at, _ in self._given_up)])
        for at, future in self._given_up:
            if at <= self.now:
                future.fail(codes.REQUEST_TIMED_OUT, "no response", future.request.node_id)
        self._given_up = [(at, future) for at, future in self._given_up if at > self.now]
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            message, node_id = future.request.message, future.request.node_id or 1
            if self.lost.get(type(message), 0):
                self.lost[type(message)] -= 1
                future.fail(codes.NETWORK_EXCEPTION, "connection lost", node_id)
                continue
            self.node = node_id
            future.complete(self._answer(message), 0, node_id)

    def code(self, message: Request) -> int:
        """Return the next code of a kind of request."""
        found = self.codes.get(type(message))
        return found.pop(0) if found else codes.NONE

    def asked(self, kind: type[Request]) -> list[int | None]:
        """Return the nodes that a kind of request went to."""
        return [node_id for node_id, message in self.sent if isinstance(message, kind)]

    def leader(self, number: int) -> int:
        """Return the leader of a partition, or -1 if it has none."""
        return -1 if self.moved is None else 2 - (number + (number in self.moved)) % 2

    def _answer(self, message: Request) -> Response:
        for kind, answer in ANSWERS.items():
            if isinstance(message, kind):
                return answer(self, message)
        raise AssertionError(message)


def _metadata(cluster: Cluster, message: MetadataRequest) -> MetadataResponse:
    assert not message.allow_auto_topic_creation, "brokers create a topic that is only asked about"
    brokers = [MetadataResponseBroker(node_id=n, host="b", port=n) for n in cluster.brokers]
    topics = [
        MetadataResponseTopic(
            error_code=cluster.code(message),
            name=topic.name,
            topic_id=cluster.topic_id,
            partitions=[
                MetadataResponsePartition(
                    error_code=0,
                    partition_index=number,
                    leader_id=cluster.leader(number),
                    replica_nodes=[],
                    isr_nodes=[],
                )
                for number in range(cluster.partitions)
            ],
        )
        for topic in message.topics or []
    ]
    return MetadataResponse(brokers=brokers, topics=topics)


def _found(cluster: Cluster, message: FindCoordinatorRequest) -> FindCoordinatorResponse:
    node = cluster.coordinator_of.get(message.key, cluster.coordinator)
    code = cluster.code(message)
    found = Coordinator(
        key=message.key,
        node_id=node,
        host="b",
        port=node,
        error_code=code,
        error_message=cluster.words,
    )
    return FindCoordinatorResponse(coordinators=[found])


def _described(
    cluster: Cluster, message: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    (tid,) = message.transactional_ids
    state = TransactionState(
        error_code=cluster.code(message),
        transactional_id=tid,
        transaction_state="Ongoing",
        transaction_timeout_ms=60_000,
        transaction_start_time_ms=1_000,
        producer_id=9,
        producer_epoch=4,
        topics=[TopicData(topic="t", partitions=[1])],
    )
    return DescribeTransactionsResponse(transaction_states=[state])


def _initialized(cluster: Cluster, message: InitProducerIdRequest) -> InitProducerIdResponse:
    producer = cluster.assigned
    return InitProducerIdResponse(
        error_code=cluster.code(message),
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
    )


def _ended(cluster: Cluster, message: EndTxnRequest) -> EndTxnResponse:
    return EndTxnResponse(error_code=cluster.code(message), producer_id=9, producer_epoch=5)


def _listed(cluster: Cluster, message: ListTransactionsRequest) -> ListTransactionsResponse:
    assert message.state_filters == ["Ongoing"]
    states = [
        ListedState(transactional_id=tid, producer_id=7, transaction_state="Ongoing")
        for tid in (f"{OWNER}/{cluster.node}.0", "somebody/else")
    ]
    code = cluster.code(message)
    return ListTransactionsResponse(error_code=code, transaction_states=states)


def _added(cluster: Cluster, message: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    AddPartitionsToTxnPartitionResult(
                        partition_index=number, partition_error_code=cluster.code(message)
                    )
                    for number in topic.partitions
                ],
            )
            for topic in message.v3_and_below_topics
        ]
    )


def _producers(cluster: Cluster, message: DescribeProducersRequest) -> DescribeProducersResponse:
    active = ProducerState(
        producer_id=9,
        producer_epoch=4,
        last_sequence=7,
        coordinator_epoch=0,
        current_txn_start_offset=40,
    )
    (number,) = message.topics[0].partition_indexes
    is_moved = cluster.leader(number) != cluster.node
    code = codes.NOT_LEADER_OR_FOLLOWER if is_moved else cluster.code(message)
    found = PartitionResponse(partition_index=number, error_code=code, active_producers=[active])
    return DescribeProducersResponse(topics=[TopicResponse(name="t", partitions=[found])])


def _produced(cluster: Cluster, message: ProduceRequest) -> ProduceResponse:
    answer = PartitionProduceResponse(
        index=0,
        error_code=cluster.code(message),
        base_offset=3,
        log_append_time_ms=5,
        error_message=cluster.words,
    )
    of_topic = TopicProduceResponse(name="log", partition_responses=[answer])
    return ProduceResponse(responses=[of_topic])


def _ends(cluster: Cluster, message: ListOffsetsRequest) -> ListOffsetsResponse:
    found = ListOffsetsPartitionResponse(
        partition_index=0, error_code=cluster.code(message), offset=cluster.log_end
    )
    return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="log", partitions=[found])])


def _from(offset: int, log: bytes) -> bytes:
    """Return the batches of a log from an offset on; each has one record."""
    while log and int.from_bytes(log[:8]) < offset:
        log = log[12 + int.from_bytes(log[8:12]) :]
    return log


def _fetched(cluster: Cluster, message: FetchRequest) -> FetchResponse:
    assert message.isolation_level == 0
    offset = message.topics[0].partitions[0].fetch_offset
    found = PartitionData(
        partition_index=0,
        error_code=cluster.code(message),
        high_watermark=cluster.log_end,
        log_start_offset=cluster.log_start,
        aborted_transactions=None,
        records=memoryview(_from(offset, cluster.log)),
    )
    return FetchResponse(responses=[FetchableTopicResponse(topic="log", partitions=[found])])


ANSWERS: dict[type[Request], Callable[..., Response]] = {
    MetadataRequest: _metadata,
    FindCoordinatorRequest: _found,
    DescribeTransactionsRequest: _described,
    InitProducerIdRequest: _initialized,
    EndTxnRequest: _ended,
    ListTransactionsRequest: _listed,
    AddPartitionsToTxnRequest: _added,
    DescribeProducersRequest: _producers,
    ProduceRequest: _produced,
    ListOffsetsRequest: _ends,
    FetchRequest: _fetched,
}


@pytest.fixture
def cluster() -> Cluster:
    """The brokers."""
    return Cluster()


@pytest.fixture
def client(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> CommitClient:
    """A client of the brokers."""
    config = producer_config({"bootstrap.servers": "b:1"})
    monkeypatch.setattr(ConsumerNetworkClient, "of", lambda *_, **__: cluster)
    return CommitClient(config, "log", clock=lambda: cluster.now)


def reply_to(client: CommitClient, question: Question) -> Reply:
    """Ask one question, and return its reply."""
    client.ask([question])
    (answer,) = client.answers()
    assert answer.ask == question.ask
    return answer.reply


def test_a_coordinator_is_looked_up_once_and_again_where_a_question_says_so(
    cluster: Cluster, client: CommitClient
) -> None:
    expected = Described(
        state="Ongoing",
        producer=PRODUCER,
        timeout_ms=60_000,
        start_ms=1_000,
        partitions=frozenset({TARGET}),
    )
    assert replies_to(client, [DESCRIBE]) == [expected]
    assert replies_to(client, [END]) == [Ended(ProducerIdAndEpoch(9, 5))]
    assert cluster.asked(FindCoordinatorRequest) == [None]
    cluster.coordinator = 1
    assert reply_to(client, Question(DESCRIBE, looks_up=True)) == expected
    assert cluster.asked(DescribeTransactionsRequest) == [2, 1]
    assert cluster.asked(EndTxnRequest) == [2]


def test_the_end_of_a_transaction_goes_in_exactly_the_version_that_was_asked_for(
    cluster: Cluster, client: CommitClient
) -> None:
    for version in (4, 5):
        replies_to(client, [EndTxn(OWNER, PRODUCER, False, version)])  # noqa: FBT003 - a field
        assert cluster.limits[-1] == (version, version)


def test_the_end_of_a_transaction_is_not_sent_after_its_last_time(
    cluster: Cluster, client: CommitClient
) -> None:
    replies_to(client, [replace(END, send_by=130.0)])
    assert cluster.send_by[-1] == 130.0
    assert isinstance(cluster.sent[-1][1], EndTxnRequest)


def test_a_pause_is_kept_with_jitter_and_others_go_on_meanwhile(
    cluster: Cluster, client: CommitClient
) -> None:
    client.ask([Question(DESCRIBE, pause_s=5.0), Question(InitProducerId(OWNER, 1000))])
    (first,) = client.answers()
    assert first.reply == Initialized(ProducerIdAndEpoch(9, 5))
    assert cluster.now == 100.0
    (second,) = client.answers()
    assert isinstance(second.reply, Described)
    assert 104.0 <= cluster.now <= 106.0
    assert client.answers() == []


def commits(count: int) -> list[EndTxn]:
    """Return requests to commit transactions; the coordinator of every third is node 1."""
    return [replace(END, transactional_id=f"{OWNER}/{number}.0") for number in range(count)]


def coordinators(asks: list[EndTxn]) -> dict[str, int]:
    """Return which nodes are the coordinators of transactions."""
    return {ask.transactional_id: 2 if n % 3 else 1 for n, ask in enumerate(asks)}


def replies_now(client: CommitClient) -> list[Answer]:
    """Return the replies that come without a wait for a silent broker."""
    found: list[Answer] = []
    while more := client.answers(timeout_s=0.001):
        found += more
    return found


@pytest.mark.parametrize("is_known", [True, False])
def test_transactions_are_committed_while_the_coordinator_of_others_is_silent(
    cluster: Cluster, client: CommitClient, *, is_known: bool
) -> None:
    asks = commits(900)
    cluster.coordinator_of = coordinators(asks)
    if is_known:
        replies_to(client, [DescribeTransaction(ask.transactional_id) for ask in asks])
    cluster.silent = {1}
    client.ask(Question(ask) for ask in asks)
    ended = [answer.ask for answer in replies_now(client)]
    assert ended == [ask for ask in asks if cluster.coordinator_of[ask.transactional_id] == 2]
    assert cluster.now < 100.01
    assert len(cluster.asked(EndTxnRequest)) == 600 + 64


def test_after_a_fail_over_the_transactions_that_wait_go_to_the_new_coordinator(
    cluster: Cluster, client: CommitClient
) -> None:
    asks = commits(900)
    cluster.coordinator_of, cluster.silent, cluster.silence_s = coordinators(asks), {1}, 30.0
    client.ask(Question(ask) for ask in asks)
    replies_now(client)
    cluster.coordinator_of = {}
    lost = client.answers()
    assert cluster.now < 130.01
    assert {type(answer.reply) for answer in lost} == {Unanswered}
    ended = replies_now(client)
    assert {type(answer.reply) for answer in ended} == {Ended}
    assert len(lost) + len(ended) == 300
    assert cluster.now < 130.02
    assert client.answers() == []


def test_a_silent_leader_is_looked_up_again_for_all_its_partitions(
    cluster: Cluster, client: CommitClient
) -> None:
    asks = [DescribeProducers(TARGET), DescribeProducers(TopicPartition("u", 1))]
    replies_to(client, asks)
    assert len(cluster.asked(MetadataRequest)) == 2
    cluster.lost = {DescribeProducersRequest: 1}
    replies_to(client, asks[:1])
    replies_to(client, asks[1:])
    assert len(cluster.asked(MetadataRequest)) == 3


def again(answer: Answer, now: float) -> Question:
    """Return the question that a machine asks after a failure."""
    return received(answer.ask, answer.reply, now).again()


def producers_of(
    cluster: Cluster, client: CommitClient, asks: Iterable[DescribeProducers]
) -> set[Ask]:
    """Describe partitions, each again until that succeeds. Return the requests with a reply."""
    client.ask(Question(ask) for ask in asks)
    found: set[Ask] = set()
    while answers := client.answers():
        failed = [each for each in answers if each.reply.error]
        found.update(each.ask for each in answers if each not in failed)
        client.ask(again(each, cluster.now) for each in failed)
    return found


def test_one_look_up_finds_the_leaders_of_all_partitions_also_after_many_have_moved(
    cluster: Cluster, client: CommitClient
) -> None:
    cluster.partitions = 1000
    asks = {DescribeProducers(TopicPartition("t", number)) for number in range(1000)}
    assert producers_of(cluster, client, asks) == asks
    assert len(cluster.asked(MetadataRequest)) == 1
    cluster.moved = set(range(0, 1000, 10))
    assert producers_of(cluster, client, asks) == asks
    assert len(cluster.asked(MetadataRequest)) == 2
    assert len(cluster.asked(DescribeProducersRequest)) == 2100


def test_what_one_look_up_does_not_find_fails_for_all_who_wait_and_is_looked_up_again(
    cluster: Cluster, client: CommitClient
) -> None:
    cluster.partitions = 1000
    asks = {DescribeProducers(TopicPartition("t", number)) for number in range(1000)}
    cluster.lost, cluster.moved = {MetadataRequest: 1}, None
    client.ask(map(Question, asks))
    lost = client.answers()
    assert {(each.ask, type(each.reply)) for each in lost} == {(ask, Unanswered) for ask in asks}
    client.ask(again(each, cluster.now) for each in lost)
    errors: list[Answer] = []
    while len(errors) < len(asks):
        errors += client.answers()
    assert {each.reply.error for each in errors} == {codes.LEADER_NOT_AVAILABLE}
    assert len(cluster.asked(MetadataRequest)) == 2
    cluster.moved = set()
    client.ask(again(each, cluster.now) for each in errors)
    assert producers_of(cluster, client, []) == asks
    assert len(cluster.asked(MetadataRequest)) == 3


def test_a_look_up_of_a_machine_that_has_ended_is_not_used(
    cluster: Cluster, client: CommitClient
) -> None:
    client.ask([Question(DescribeProducers(TARGET))])
    cluster.silent, cluster.silence_s = {None}, 30.0
    assert client.answers(timeout_s=1.0) == []
    client._drop_questions()
    cluster.silent = set()
    assert isinstance(replies_to(client, [DescribeProducers(TARGET)])[0], ProducersDescribed)
    assert cluster.now < 102.0


def test_markers_are_read_while_another_leader_is_silent_and_not_too_many_at_once(
    cluster: Cluster, client: CommitClient
) -> None:
    cluster.silent = {1}
    numbers = range(200)
    client.ask(
        Question(ReadMarker(at, 0, ProducerIdAndEpoch(number, 0)))
        for number in numbers
        for at in (LOG, TARGET)
    )
    read = [answer.ask for answer in replies_now(client)]
    assert read == [ReadMarker(LOG, 0, ProducerIdAndEpoch(number, 0)) for number in numbers]
    cluster.silent = {1, 2}
    client.ask(Question(ReadMarker(LOG, 0, ProducerIdAndEpoch(number, 0))) for number in numbers)
    before = len(cluster.sent)
    assert replies_now(client) == []
    assert len(cluster.sent) - before == 32
    assert cluster.asked(ListOffsetsRequest).count(1) == 32


def test_pauses_of_many_requests_do_not_delay_others_nor_each_other(
    cluster: Cluster, client: CommitClient
) -> None:
    client.ask(Question(ask, pause_s=5.0) for ask in commits(300))
    client.ask([Question(END)])
    (first,) = client.answers()
    assert first.ask == END
    assert cluster.now == 100.0
    found: list[Answer] = []
    while len(found) < 300:
        found += client.answers()
        assert 104.0 <= cluster.now <= 106.0
    assert client.answers() == []


def test_what_got_no_response_is_unanswered_and_its_node_is_looked_up_again(
    cluster: Cluster, client: CommitClient
) -> None:
    cluster.lost = {EndTxnRequest: 1}
    (lost,) = replies_to(client, [END])
    assert isinstance(lost, Unanswered)
    assert lost.error == codes.NETWORK_EXCEPTION
    assert isinstance(replies_to(client, [END])[0], Ended)
    assert len(cluster.asked(FindCoordinatorRequest)) == 2
    cluster.lost = {DescribeProducersRequest: 1}
    assert isinstance(replies_to(client, [DescribeProducers(TARGET)])[0], Unanswered)
    assert isinstance(replies_to(client, [DescribeProducers(TARGET)])[0], ProducersDescribed)


@pytest.mark.parametrize("code", [codes.NOT_COORDINATOR, codes.CONCURRENT_TRANSACTIONS, 90])
def test_an_error_code_is_passed_on_as_it_came(
    cluster: Cluster, client: CommitClient, code: int
) -> None:
    cluster.codes = {EndTxnRequest: [code], DescribeProducersRequest: [code]}
    (ended, described) = replies_to(client, [END, DescribeProducers(TARGET)])
    assert (ended.error, described.error) == (code, code)
    assert f"({code})" in ended.reason
    cluster.codes = {FindCoordinatorRequest: [53], MetadataRequest: [29]}
    other = EndTxn("pykafka/other/t", PRODUCER, True, 5)  # noqa: FBT003 - a field
    (ended, described) = replies_to(client, [other, DescribeProducers(LOG)])
    assert (type(ended), ended.error) == (Ended, 53)
    assert (type(described), described.error) == (ProducersDescribed, 29)


def test_the_next_epoch_is_asked_for_with_the_epoch_that_the_caller_has(
    cluster: Cluster, client: CommitClient
) -> None:
    for producer in (NO_PRODUCER_ID, PRODUCER):
        replies_to(client, [InitProducerId(OWNER, 60_000, producer)])
        message = cluster.sent[-1][1]
        assert isinstance(message, InitProducerIdRequest)
        assert ProducerIdAndEpoch(message.producer_id, message.producer_epoch) == producer


def test_a_producer_id_that_no_coordinator_assigns_is_no_reply(
    cluster: Cluster, client: CommitClient
) -> None:
    for producer in (ProducerIdAndEpoch(-1, -1), ProducerIdAndEpoch(9, -1)):
        cluster.assigned = producer
        (reply,) = replies_to(client, [InitProducerId(OWNER, 60_000)])
        assert isinstance(reply, Unanswered)
        assert error_code(reply.error).retriable
        assert f"producer id {producer.producer_id} and epoch -1: expected" in reply.reason


def test_the_words_of_a_broker_are_one_line_that_is_cut(
    cluster: Cluster, client: CommitClient
) -> None:
    cluster.words = "one\n" + "x" * 30_000
    cluster.codes = {FindCoordinatorRequest: [53], ProduceRequest: [29]}
    (ended,) = replies_to(client, [END])
    (written,) = replies_to(client, [WriteRecord(OWNER, PRODUCER, 0, RECORD, 1)])
    for reply in (ended, written):
        assert reply.reason.endswith(f"one {'x' * 996}…")


def test_every_broker_lists_and_one_that_does_not_answer_spoils_the_list(
    cluster: Cluster, client: CommitClient
) -> None:
    (listed,) = replies_to(client, [ListTransactions(f"{OWNER}/")])
    assert isinstance(listed, Listed)
    assert cluster.asked(ListTransactionsRequest) == [1, 2]
    assert {each.transactional_id for each in listed.transactions} == {
        f"{OWNER}/1.0", f"{OWNER}/2.0"
    }  # fmt: skip
    assert OpenTransaction("somebody/else", 7) not in listed.transactions
    cluster.lost = {ListTransactionsRequest: 1}
    assert isinstance(replies_to(client, [ListTransactions("x")])[0], Unanswered)
    cluster.codes = {ListTransactionsRequest: [0, 14]}
    (loading,) = replies_to(client, [ListTransactions("x")])
    assert (type(loading), loading.error) == (Listed, 14)


def test_of_several_partitions_the_error_counts_that_is_not_about_another(
    cluster: Cluster, client: CommitClient
) -> None:
    ask = AddPartitions(OWNER, PRODUCER, (TopicPartition("t", 0), TARGET))
    cluster.codes = {AddPartitionsToTxnRequest: [55, 29]}
    (added,) = replies_to(client, [ask])
    assert added.error == 29
    assert "t-1" in added.reason
    assert replies_to(client, [ask])[0].error == codes.NONE


def test_the_record_is_one_batch_in_the_transaction_in_the_version_of_the_level(
    cluster: Cluster, client: CommitClient
) -> None:
    for level, limits in ((1, (0, 11)), (2, (12, 12))):
        (written,) = replies_to(client, [WriteRecord(OWNER, PRODUCER, 0, RECORD, level)])
        assert written == Written(offset=3, is_duplicate=True)
        assert cluster.limits[-1] == limits
    message = cluster.sent[-1][1]
    assert isinstance(message, ProduceRequest)
    assert (message.transactional_id, message.acks) == (OWNER, -1)
    assert cluster.asked(ProduceRequest) == [2, 2]


def test_a_record_has_the_time_when_it_is_written(
    cluster: Cluster, client: CommitClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 1_800_000_000_123_000_000)
    made_before = replace(RECORD, written_at=0)
    replies_to(client, [WriteRecord(OWNER, PRODUCER, 0, made_before, 2)])
    message = cluster.sent[-1][1]
    assert isinstance(message, ProduceRequest)
    records = message.topic_data[0].partition_data[0].records
    assert records is not None
    (batch,) = read_batches(b"".join(records.buffers))
    assert batch.header.max_timestamp_ms == 1_800_000_000_123
    (record,) = batch.records()
    assert decode(OWNER, record.value).written_at == 0


@dataclass
class Log:
    """Batches of a log."""

    data: bytes = b""
    end: int = 0

    def add(
        self,
        producer: ProducerIdAndEpoch,
        value: bytes,
        *,
        marker: bool = False,
        kind: Marker = Marker.COMMIT,
        is_emptied: bool = False,
    ) -> None:
        """Add a record of the owner, or a marker, whose record compaction may have removed.

        The bytes 57 to 60 of a header are its number of records.
        """
        key = bytes(3) + bytes([kind.value]) if marker else OWNER.encode()
        section, info = one_record(key, value, 0)
        attributes = info._replace(codec_id=0x20 if marker else 0)
        if is_emptied:
            section = b""
        header = batch_header(attributes, [section], producer, 0, transactional=True)
        if is_emptied:
            inside = header[21:57] + bytes(4)
            header = header[:17] + crc32c(inside).to_bytes(4) + inside
        self.data += self.end.to_bytes(8) + header[8:] + section
        self.end += 1


def test_the_log_is_read_to_its_end_and_then_from_there(
    cluster: Cluster, client: CommitClient
) -> None:
    log = Log()
    log.add(PRODUCER, encode(OWNER, RECORD))
    other = ProducerIdAndEpoch(1, 0)
    log.add(other, encode(OWNER, RECORD.after_version(5)))
    log.add(PRODUCER, b"", marker=True)
    cluster.log, cluster.log_end = log.data, log.end
    (read,) = replies_to(client, [ReadLog(OWNER)])
    assert isinstance(read, LogRead)
    assert read.reading.record == RECORD
    assert read.reading.undecided == RECORD.after_version(5)
    assert replies_to(client, [ReadLog(OWNER)]) == [read]
    # Only the record without a marker is read again.
    assert len(cluster.asked(FetchRequest)) == 2
    assert client._log._read[OWNER][1] == 3
    assert replies_to(client, [ReadMarker(LOG, 0, PRODUCER)]) == [MarkerRead(Marker.COMMIT, 1)]
    assert replies_to(client, [ReadMarker(LOG, 0, other)]) == [MarkerRead()]
    cluster.codes = {FetchRequest: [codes.OFFSET_OUT_OF_RANGE]}
    assert replies_to(client, [ReadMarker(LOG, 0, PRODUCER)]) == [MarkerRead(is_gone=True)]


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_record_that_compaction_has_removed_since_is_not_committed_by_what_is_left_of_its_marker(
    cluster: Cluster, client: CommitClient, *, is_lost: bool
) -> None:
    log, compacted = Log(), Log()
    log.add(PRODUCER, encode(OWNER, RECORD))
    cluster.log, cluster.log_end = log.data, log.end
    (before,) = replies_to(client, [ReadLog(OWNER)])
    assert isinstance(before, LogRead)
    assert (before.reading.record, before.reading.undecided) == (None, RECORD)
    if is_lost:
        cluster.lost = {FetchRequest: 1}
        assert isinstance(replies_to(client, [ReadLog(OWNER)])[0], Unanswered)
        log.add(PRODUCER, b"", marker=True)
        cluster.log, cluster.log_end = log.data, log.end
        expected = RECORD
    else:
        # The transaction was aborted, and the cleaner has removed the record before the marker.
        compacted.end = 1
        compacted.add(PRODUCER, b"", marker=True, is_emptied=True)
        cluster.log, cluster.log_end = compacted.data, compacted.end
        expected = None
    (after,) = replies_to(client, [ReadLog(OWNER)])
    assert isinstance(after, LogRead)
    assert (after.reading.record, after.reading.undecided) == (expected, None)


def test_a_marker_that_is_far_from_its_record_is_looked_for_only_until_the_deadline(
    cluster: Cluster, client: CommitClient
) -> None:
    log, now = Log(), client.now()
    log.add(PRODUCER, encode(OWNER, RECORD))
    cluster.log, cluster.log_end = log.data, 2  # the marker is in the next response
    found = []
    for deadline in (now, now + 60):
        cluster.codes = {FetchRequest: [codes.NONE, codes.OFFSET_OUT_OF_RANGE]}
        found += replies_to(client, [ReadMarker(LOG, 0, PRODUCER, deadline)])
    late, in_time = found
    assert isinstance(late, Unanswered)
    assert late.reason.endswith("only the offsets below 1 of 2 were read; raise max.block.ms")
    assert isinstance(in_time, MarkerRead)


@pytest.mark.parametrize(
    ("epochs", "expected"),
    [
        # The epochs of a record of the producer and of the marker behind it.
        ((4, 4), MarkerRead(Marker.COMMIT, 1)),
        ((4, 5), MarkerRead(Marker.COMMIT, 1)),
        ((None, 5), MarkerRead(Marker.COMMIT, 0)),
        ((4, 6), MarkerRead(is_gone=True)),
        ((5, 6), MarkerRead(is_gone=True)),
        ((5, 5), MarkerRead(is_gone=True)),
    ],
)
def test_the_marker_of_a_later_transaction_says_nothing(
    epochs: tuple[int | None, int],
    expected: MarkerRead,
    cluster: Cluster,
    client: CommitClient,
) -> None:
    log, (written, ended) = Log(), epochs
    if written is not None:
        log.add(replace(PRODUCER, epoch=written), encode(OWNER, RECORD))
    log.add(replace(PRODUCER, epoch=ended), b"", marker=True)
    cluster.log, cluster.log_end = log.data, log.end
    assert replies_to(client, [ReadMarker(LOG, 0, PRODUCER)]) == [expected]


def test_the_marker_of_an_abort_by_kafka_4_0_may_be_two_epochs_later(
    cluster: Cluster, client: CommitClient
) -> None:
    for written, expected in (
        (True, MarkerRead(Marker.ABORT, 1)),
        (False, MarkerRead(is_gone=True)),
    ):
        log = Log()
        if written:
            log.add(PRODUCER, encode(OWNER, RECORD))
        log.add(replace(PRODUCER, epoch=6), b"", marker=True, kind=Marker.ABORT)
        cluster.log, cluster.log_end = log.data, log.end
        assert replies_to(client, [ReadMarker(LOG, 0, PRODUCER)]) == [expected]


def test_a_marker_behind_a_damaged_batch_is_an_error_and_no_exception(
    cluster: Cluster, client: CommitClient
) -> None:
    log = Log()
    log.add(PRODUCER, encode(OWNER, RECORD))
    log.add(PRODUCER, b"", marker=True)
    damaged = bytearray(log.data)
    damaged[-1] ^= 1
    cluster.log, cluster.log_end = bytes(damaged), log.end
    (read,) = replies_to(client, [ReadMarker(LOG, 0, PRODUCER)])
    assert isinstance(read, MarkerRead)
    assert (read.marker, read.error) == (None, codes.CORRUPT_MESSAGE)
    assert read.reason.startswith("Fetch of log-0: records cannot be read: ")


def test_a_marker_in_front_of_a_damaged_batch_is_found(
    cluster: Cluster, client: CommitClient
) -> None:
    log = Log()
    log.add(PRODUCER, encode(OWNER, RECORD))
    log.add(PRODUCER, b"", marker=True)
    log.add(ProducerIdAndEpoch(1, 0), encode(OWNER, RECORD))
    damaged = bytearray(log.data)
    damaged[-1] ^= 1
    cluster.log, cluster.log_end = bytes(damaged), log.end
    assert replies_to(client, [ReadMarker(LOG, 0, PRODUCER)]) == [MarkerRead(Marker.COMMIT, 1)]


def test_a_log_whose_first_records_were_deleted_is_read_from_its_start_with_a_warning(
    cluster: Cluster, client: CommitClient
) -> None:
    log = Log(end=7)
    log.add(PRODUCER, encode(OWNER, RECORD))
    log.add(PRODUCER, b"", marker=True)
    cluster.log, cluster.log_start, cluster.log_end = log.data, 7, log.end
    cluster.codes = {FetchRequest: [codes.OFFSET_OUT_OF_RANGE]}
    (read,) = replies_to(client, [ReadLog(OWNER)])
    assert isinstance(read, LogRead)
    assert read.reading.record == RECORD
    (warning,) = client.take_warnings()
    assert "below offset 7 of log-0 were deleted" in warning
    # An offset that is out of range for another reason is an error.
    cluster.log_end += 1
    cluster.codes = {FetchRequest: [codes.OFFSET_OUT_OF_RANGE]}
    assert replies_to(client, [ReadLog(OWNER)])[0].error == codes.OFFSET_OUT_OF_RANGE


def test_a_log_that_was_created_again_is_read_from_its_start_with_a_warning(
    cluster: Cluster, client: CommitClient
) -> None:
    log = Log()
    log.add(PRODUCER, encode(OWNER, RECORD.after_version(5)))
    log.add(PRODUCER, b"", marker=True)
    log.add(PRODUCER, encode(OWNER, RECORD.after_version(6)))
    log.add(PRODUCER, b"", marker=True)
    cluster.log, cluster.log_end = log.data, log.end
    replies_to(client, [ReadLog(OWNER)])
    log = Log()
    log.add(PRODUCER, encode(OWNER, RECORD))
    log.add(PRODUCER, b"", marker=True)
    cluster.log, cluster.log_end = log.data, log.end
    (read,) = replies_to(client, [ReadLog(OWNER)])
    assert isinstance(read, LogRead)
    assert (read.reading.record, read.end) == (RECORD, 2)
    (warning,) = client.take_warnings()
    assert "log-0 ends at offset 2, and was read up to offset 4 before" in warning
    cluster.log, cluster.log_end = b"", 0
    assert replies_to(client, [ReadLog(OWNER)]) == [LogRead()]


def test_a_log_that_was_created_again_is_known_by_its_topic_id(
    cluster: Cluster, client: CommitClient
) -> None:
    for number, version in enumerate((5, 6), start=1):
        log = Log()
        log.add(PRODUCER, encode(OWNER, RECORD.after_version(version)))
        log.add(PRODUCER, b"", marker=True)
        cluster.log, cluster.log_end, cluster.topic_id = log.data, log.end, UUID(int=number)
        for _ in range(2):
            (read,) = replies_to(client, [ReadLog(OWNER)])
            assert isinstance(read, LogRead)
            assert read.reading.record == RECORD.after_version(version)
    (warning,) = client.take_warnings()
    assert "log-0 was deleted and created again; it is read again from its start" in warning
    assert len(cluster.asked(FetchRequest)) == 2
    # Only the leader has to be available.
    assert cluster.asked(MetadataRequest) == [None, 2, 2, 2, 2]


def test_a_batch_is_read_back_from_the_leader_also_if_that_moves(
    cluster: Cluster, client: CommitClient
) -> None:
    log = Log()
    log.add(PRODUCER, encode(OWNER, RECORD))
    cluster.log, cluster.log_end = log.data, log.end
    for code in (codes.NOT_LEADER_OR_FOLLOWER, codes.FENCED_LEADER_EPOCH):
        cluster.codes = {FetchRequest: [code]}
        looked_up = len(cluster.asked(MetadataRequest))
        found = client.batch_at(LOG, 0, cluster.now + 60)
        assert bytes(found or b"") == log.data
        assert len(cluster.asked(MetadataRequest)) > looked_up
    # A new leader may return an end that is too low, and says so.
    cluster.codes = {ListOffsetsRequest: [78]}
    assert client.batch_at(LOG, 0, cluster.now + 60) is not None
    assert client.batch_at(LOG, 1, cluster.now + 60) is None
    cluster.codes = {FetchRequest: [codes.OFFSET_OUT_OF_RANGE]}
    assert client.batch_at(LOG, 0, cluster.now + 60) is None
    cluster.codes = {FetchRequest: [codes.TOPIC_AUTHORIZATION_FAILED]}
    with pytest.raises(TopicAuthorizationException):
        client.batch_at(LOG, 0, cluster.now + 60)


def test_the_records_of_all_owners_are_read_at_once(cluster: Cluster, client: CommitClient) -> None:
    log = Log()
    log.add(PRODUCER, encode(OWNER, RECORD))
    log.add(PRODUCER, b"", marker=True)
    log.add(PRODUCER, encode(OWNER, RECORD.after_version(5)))
    cluster.log, cluster.log_end = log.data, log.end
    (read,) = replies_to(client, [ReadAllRecords("pykafka/")])
    assert isinstance(read, AllRecordsRead)
    ((key, reading),) = read.readings
    assert (key, reading.record, reading.undecided) == (OWNER, RECORD, RECORD.after_version(5))
    assert replies_to(client, [ReadAllRecords("py/")]) == [AllRecordsRead()]
    cluster.codes = {MetadataRequest: [29]}
    client.ask([Question(ReadAllRecords("pykafka/"), looks_up=True)])
    ((_, refused),) = client.answers()
    assert isinstance(refused, AllRecordsRead)
    assert refused.error == 29


@dataclass(frozen=True)
class Machine:
    """Ends the transaction, and asks again until that is done."""

    answered: tuple[int, ...] = ()
    outcome: str | None = None


def test_a_machine_is_run_to_its_end(cluster: Cluster, client: CommitClient) -> None:
    cluster.codes = {EndTxnRequest: [51, 51, 0]}

    def step(machine: Machine, answer: Answer, now: float) -> tuple[Machine, tuple[Question, ...]]:
        assert now == cluster.now
        answered = (*machine.answered, answer.reply.error)
        if answer.reply.error:
            return Machine(answered), (Question(answer.ask, pause_s=0.02),)
        return Machine(answered, "done"), ()

    forgotten = Question(DESCRIBE, pause_s=1000.0)
    found = client.run((Machine(), (Question(END), forgotten)), step)
    assert found == Machine((51, 51, 0), "done")
    assert client.answers() == []


def test_a_machine_that_waits_says_why(cluster: Cluster, client: CommitClient) -> None:
    seen: list[str] = []

    def step(machine: one_question.Asking, answer: Answer, now: float) -> Step[one_question.Asking]:
        seen.append(client.trouble)
        return one_question.step(machine, answer, now)

    cluster.codes = {DescribeTransactionsRequest: [codes.COORDINATOR_LOAD_IN_PROGRESS]}
    cluster.lost = {FindCoordinatorRequest: 1}
    cluster.errors = "node 3: refused"
    assert client.trouble == "node 3: refused"
    begun = one_question.begin(DESCRIBE, deadline=cluster.now + 5)
    client.run(begun, step)
    lost, loading, described = seen
    assert "connection lost" in lost
    assert loading == "DescribeTransactions at node 2: COORDINATOR_LOAD_IN_PROGRESS (14)"
    assert described == "node 3: refused"


def test_a_wait_for_the_leader_of_a_partition_says_why(
    cluster: Cluster, client: CommitClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    poll = cluster.poll

    def recording_poll(timeout_s: float) -> None:
        seen.append(client.trouble)
        poll(timeout_s)

    monkeypatch.setattr(cluster, "poll", recording_poll)
    cluster.codes = {ListOffsetsRequest: [codes.NOT_LEADER_OR_FOLLOWER]}
    assert client.log_ends([LOG], cluster.now + 5) == {LOG: 0}
    assert any("NOT_LEADER_OR_FOLLOWER (6)" in each for each in seen)
    assert not client.trouble, "it was answered"


def test_a_machine_that_waits_for_nothing_does_not_hang(client: CommitClient) -> None:
    def step(machine: Machine, _: Answer, __: float) -> tuple[Machine, tuple[Question, ...]]:
        return machine, ()

    with pytest.raises(KafkaException, match="Machine waits for no reply; this is a bug"):
        client.run((Machine(), (Question(END),)), step)


@pytest.mark.parametrize(("lost", "expected"), [(3, Described), (1000, Unanswered)])
def test_a_question_of_a_client_that_was_idle_is_asked_again(
    lost: int, expected: type[Reply], cluster: Cluster, client: CommitClient
) -> None:
    begin, step = one_question.begin, one_question.step
    cluster.lost = {DescribeTransactionsRequest: lost}
    found = client.run(begin(DESCRIBE, deadline=client.now() + 10), step).outcome
    assert isinstance(found, expected)
    assert cluster.now <= 112.0
    cluster.lost, cluster.codes = {}, {DescribeTransactionsRequest: [16, 105, 0]}
    found = client.run(begin(DESCRIBE, deadline=client.now() + 10), step).outcome
    assert isinstance(found, Described)
    assert found.error == 105


def test_brokers_that_lack_something_are_named(cluster: Cluster, client: CommitClient) -> None:
    lacks = {**ALL_VERSIONS, ADD_PARTITIONS_TO_TXN.key: (0, 3)}
    cluster.versions_of[2] = NodeApiVersions(lacks)
    said = r"needs AddPartitionsToTxn 4 or later.*node 2 .b:2. has AddPartitionsToTxn up to ver"
    with pytest.raises(UnsupportedVersionException, match=said):
        client.check_brokers(deadline=200.0)
    cluster.versions_of[2] = NodeApiVersions(ALL_VERSIONS)
    client.check_brokers(deadline=200.0)
    asked = len(cluster.sent)
    client.check_brokers(deadline=200.0)
    assert client.level(deadline=200.0) == 1
    assert len(cluster.sent) == asked, "it was asked again"


def test_a_broker_that_does_not_respond_is_not_checked(
    cluster: Cluster, client: CommitClient
) -> None:
    cluster.silent = {1}
    lacks = {**ALL_VERSIONS, ADD_PARTITIONS_TO_TXN.key: (0, 3)}
    cluster.versions_of[2] = NodeApiVersions(lacks)
    with pytest.raises(UnsupportedVersionException, match=r"node 2 .b:2."):
        client.check_brokers(deadline=110.0)
    assert cluster.now <= 111.0
    cluster.versions_of[2] = NodeApiVersions(ALL_VERSIONS)
    client.check_brokers(deadline=120.0)


def test_the_newest_features_of_any_broker_count(cluster: Cluster, client: CommitClient) -> None:
    cluster.versions_of = {
        1: NodeApiVersions(ALL_VERSIONS, {"transaction.version": 2}, 7),
        2: NodeApiVersions(ALL_VERSIONS, {"transaction.version": 1}, 6),
    }
    client.check_brokers(deadline=200.0)
    assert client.level(deadline=200.0) == 2


def test_no_broker_answers_in_time(cluster: Cluster, client: CommitClient) -> None:
    cluster.lost = {MetadataRequest: 1000}
    words = r"^no broker has answered within {}; check bootstrap\.servers=b:1"
    with pytest.raises(TimeoutException, match=words.format(r"max\.block\.ms=60000")):
        client.level(deadline=110.0)
    assert cluster.now <= 111.0
    with pytest.raises(TimeoutException, match=words.format(r"delivery\.timeout\.ms=9")):
        client.level(120.0, Option("delivery.timeout.ms", 9))


def test_a_wait_for_a_leader_that_times_out_names_the_error_for_which_it_was_repeated(
    cluster: Cluster, client: CommitClient
) -> None:
    cluster.codes = {ListOffsetsRequest: [codes.NOT_LEADER_OR_FOLLOWER] * 1000}
    said = r"^max\.block\.ms=60000 has passed; the last error was: ListOffsets of .*: NOT_LEADER"
    with pytest.raises(TimeoutException, match=said):
        client.log_ends([LOG], deadline=110.0)
    assert cluster.now <= 111.0


def test_a_cluster_that_lists_no_brokers_is_asked_again_until_the_deadline(
    cluster: Cluster, client: CommitClient
) -> None:
    cluster.brokers = []
    with pytest.raises(TimeoutException, match=r"answered within max\.block\.ms=60000"):
        client.level(deadline=110.0)
    assert cluster.now <= 111.0
    # The machine that has sent a request decides how long it is sent again.
    (found,) = replies_to(client, [ListTransactions("pykafka/")])
    assert isinstance(found, Unanswered)
    assert "lists no brokers" in found.reason
    cluster.brokers = [1, 2]
    assert isinstance(replies_to(client, [ListTransactions("pykafka/")])[0], Listed)


def test_a_broker_with_the_id_of_a_bootstrap_address_is_ignored(
    cluster: Cluster, client: CommitClient
) -> None:
    cluster.brokers = [-1, 1, 2]
    assert isinstance(replies_to(client, [ListTransactions("pykafka/")])[0], Listed)
    assert sorted(node.id for node in client.brokers()) == [1, 2]
    cluster.coordinator = -1
    (found,) = replies_to(client, [DESCRIBE])
    assert found.error == codes.COORDINATOR_NOT_AVAILABLE
    assert cluster.asked(DescribeTransactionsRequest) == []


def test_a_login_that_is_refused_is_raised(cluster: Cluster, client: CommitClient) -> None:
    refused = SaslAuthenticationException("no")

    def poll(timeout_s: float) -> None:
        for future in cluster._waiting:
            future.error = refused

    cluster.poll = poll  # type: ignore[method-assign]
    with pytest.raises(SaslAuthenticationException):
        replies_to(client, [DESCRIBE])


def test_the_brokers_are_those_of_the_metadata(client: CommitClient) -> None:
    client.level(deadline=200.0)
    assert client.brokers() == (Node(id=1, host="b", port=1), Node(id=2, host="b", port=2))
