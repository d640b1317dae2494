"""The requests of a reader; the test controls brokers and clock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from support.oracles.log_records import batch_of
from support.oracles.record_batches import Row
from support.pure.interrupts import InterruptError, interrupt_first

from spark_kafka_sink.consumer.topic_reader import TopicReader
from spark_kafka_sink.errors import (
    NO_BROKER,
    ConfigException,
    DataException,
    InvalidTopicException,
    OffsetOutOfRangeException,
    TimeoutException,
    TopicAuthorizationException,
    UnknownTopicOrPartitionException,
    UnsupportedVersionException,
)
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.request_client import RequestFuture
from spark_kafka_sink.wire.exchange import ClientRequest
from spark_kafka_sink.wire.fetch_messages import (
    EARLIEST_TIMESTAMP,
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
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
    Request,
)

UNKNOWN_TOPIC, INVALID_TOPIC, DENIED, NETWORK, UNSUPPORTED_VERSION = 3, 17, 29, 13, 35
NOT_LEADER, UNKNOWN_TOPIC_ID = 6, 100
TOO_OLD = "the broker has no usable version of Metadata"


class Cluster:
    """One broker, which answers Metadata at once, and a clock that advances during waits.

    codes: the broker's errors for topics, by name. topic_number: the id of all topics, 0 for none.
    partitions: the number of partitions of all topics.
    is_late: whether responses wait for `answer`. unsent: the error code of requests that cannot be
    sent, None if they can. nodes: the brokers that the reader has set. fetch_caps: the version
    limits of the Fetch requests. new_topic_number: the id of the topics that replace all topics at
    the first request of the type `replaced_by`. A leader that a client knows from the metadata of
    the earlier topics has no offset then. records: the number of records of each partition. Each
    Fetch returns one of them; there is no response if there are none.
    """

    def __init__(self) -> None:
        self.now = 100.0
        self.nodes: Mapping[int, Node] = {}
        self.codes: dict[str, int] = {}
        self.topic_number = 0
        self.partitions = 1
        self.fetch_caps: list[int | None] = []
        self.new_topic_number: int | None = None
        self.replaced_by: type[Request] = ListOffsetsRequest
        self.records = 0
        self.asked: list[list[str | None]] = []
        self.is_late = False
        self.unsent: int | None = None
        self._late: list[tuple[RequestFuture, MetadataResponse]] = []
        self._has_news = False
        self._shown_number = 0

    def send(
        self, node_id: int | None, message: Request, max_version: int | None = None
    ) -> RequestFuture:
        """Take a request."""
        future = RequestFuture(ClientRequest(node_id=node_id, message=message), float("inf"))
        if self.new_topic_number is not None and isinstance(message, self.replaced_by):
            self.topic_number = self.new_topic_number
        if isinstance(message, FetchRequest):
            self.fetch_caps.append(max_version)
            if self.records:
                future.complete(self._fetched(message))
                self._has_news = True
            return future
        if isinstance(message, ListOffsetsRequest):
            future.complete(self._offsets(message))
            self._has_news = True
            return future
        assert isinstance(message, MetadataRequest)
        assert message.topics is not None
        self.asked.append([topic.name for topic in message.topics])
        if self.unsent is not None:
            future.fail(self.unsent, TOO_OLD, 1)
            self._has_news = True
            return future
        self._late.append((future, self._response(message)))
        if not self.is_late:
            self.answer()
        return future

    def answer(self) -> None:
        """Deliver the delayed responses in order."""
        while self._late:
            future, response = self._late.pop(0)
            future.complete(response)
            self._has_news = True

    def _offsets(self, message: ListOffsetsRequest) -> ListOffsetsResponse:
        code = 0 if self._shown_number == self.topic_number else NOT_LEADER
        (topic,) = message.topics
        (partition,) = topic.partitions
        is_start = self.records and partition.timestamp == EARLIEST_TIMESTAMP
        offset = 0 if is_start else self.records or 100
        found = ListOffsetsPartitionResponse(
            partition_index=partition.partition_index,
            error_code=code,
            offset=-1 if code else offset,
        )
        return ListOffsetsResponse(
            topics=[ListOffsetsTopicResponse(name=topic.name, partitions=[found])]
        )

    def _fetched(self, message: FetchRequest) -> FetchResponse:
        (topic,) = message.topics
        (asked,) = topic.partitions
        code = 0 if topic.topic_id == UUID(int=self.topic_number) else UNKNOWN_TOPIC_ID
        value = str(self.topic_number).encode()
        row = batch_of([Row(None, value, (), 1)], first_offset=asked.fetch_offset)
        data = PartitionData(
            partition_index=asked.partition,
            error_code=code,
            high_watermark=self.records,
            aborted_transactions=None,
            records=None if code else memoryview(row),
        )
        fetched = FetchableTopicResponse(topic_id=topic.topic_id, partitions=[data])
        return FetchResponse(responses=[fetched])

    def _response(self, message: MetadataRequest) -> MetadataResponse:
        self._shown_number = self.topic_number
        return MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=1, host="host-1", port=9092)],
            topics=[
                MetadataResponseTopic(
                    error_code=self.codes.get(topic.name or "", 0),
                    name=topic.name,
                    topic_id=UUID(int=self.topic_number),
                    partitions=[
                        MetadataResponsePartition(
                            error_code=0,
                            partition_index=number,
                            leader_id=1,
                            replica_nodes=[],
                            isr_nodes=[],
                        )
                        for number in range(self.partitions)
                    ],
                )
                for topic in message.topics or []
            ],
        )

    def poll(self, timeout_s: float) -> None:
        """Let time pass, unless an answer has come."""
        self.now += 0.0 if self._has_news else timeout_s
        self._has_news = False

    def set_nodes(self, nodes: Mapping[int, Node]) -> None:
        """Take brokers."""
        self.nodes = nodes

    no_broker = NO_BROKER

    def last_errors(self) -> str:
        """Return no errors."""
        return ""

    def close(self) -> None:
        """Do nothing."""


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def reader(cluster: Cluster) -> Iterator[TopicReader]:
    with TopicReader(
        {"bootstrap.servers": "127.0.0.1:1", "default.api.timeout.ms": 5000}
    ) as reader:
        reader._client.close()
        reader._client = cluster  # type: ignore[assignment] # all of it that a reader uses
        reader._clock = lambda: cluster.now
        yield reader


def read(reader: TopicReader, topic: str = "t") -> None:
    """Read nothing of a topic, which is done as soon as its partitions are known."""
    assert list(reader.read(topic, [0], start={0: 0}, end={0: 0})) == []


@pytest.mark.parametrize("name", ["_metadata._take_topic", "_client.set_nodes"])
def test_the_client_learns_the_brokers_also_after_an_interrupt(
    monkeypatch: pytest.MonkeyPatch, reader: TopicReader, cluster: Cluster, name: str
) -> None:
    owner, method = name.split(".")
    interrupt_first(monkeypatch, getattr(reader, owner), method)
    with pytest.raises(InterruptError):
        read(reader)
    read(reader, "other")
    assert cluster.nodes.keys() == {1}


def test_a_topic_that_was_denied_is_asked_for_again_and_read_once_it_is_allowed(
    reader: TopicReader, cluster: Cluster
) -> None:
    cluster.codes = {"t": DENIED}
    for asked in (1, 2):
        with pytest.raises(TopicAuthorizationException):
            read(reader)
        assert len(cluster.asked) == asked
    cluster.codes = {}
    read(reader)
    assert len(cluster.asked) == 3


def test_a_refusal_that_came_while_another_topic_was_read_is_none_of_a_later_reading(
    reader: TopicReader, cluster: Cluster
) -> None:
    read(reader, "other")
    cluster.codes = {"t": DENIED}
    with pytest.raises(TopicAuthorizationException):
        read(reader)
    cluster.now += 1000.0  # more than metadata.max.age.ms
    read(reader, "new")
    assert cluster.asked[-1] == ["other", "t", "new"]
    cluster.codes = {}
    read(reader)


def test_a_refusal_that_answers_what_was_asked_before_a_reading_is_none_of_its_own(
    reader: TopicReader, cluster: Cluster
) -> None:
    cluster.codes, cluster.is_late = {"t": DENIED}, True
    with pytest.raises(TimeoutException):
        read(reader)
    cluster.codes, cluster.is_late = {}, False
    cluster.answer()
    read(reader)


@pytest.mark.parametrize("is_late", [False, True])
def test_a_reading_knows_the_partitions_that_were_added_since_the_last_one(
    reader: TopicReader, cluster: Cluster, *, is_late: bool
) -> None:
    read(reader)
    if is_late:  # the answer to an earlier reading comes during the next
        cluster.is_late = True
        with pytest.raises(TimeoutException, match="current partitions of topic t are not known; "):
            read(reader)
    cluster.partitions, cluster.is_late = 3, False
    cluster.answer()
    began = cluster.now
    assert list(reader.read("t", [2], start={2: 0}, end={2: 0})) == []
    assert cluster.now - began <= 0.1
    assert set(map(tuple, cluster.asked)) == {("t",)}


def test_a_reading_asks_only_about_its_own_topic(reader: TopicReader, cluster: Cluster) -> None:
    read(reader, "other")
    read(reader)
    read(reader)
    assert cluster.asked == [["other"], ["t"], ["t"]]


def test_a_name_that_cannot_be_a_topic_is_refused_at_once_and_asked_for_only_once(
    reader: TopicReader, cluster: Cluster
) -> None:
    cluster.codes = {"t": INVALID_TOPIC}
    for _ in range(2):
        with pytest.raises(InvalidTopicException):
            read(reader)
    assert (len(cluster.asked), cluster.now) == (1, 100.0)


def test_a_topic_that_may_come_is_asked_for_until_the_time_is_over(
    reader: TopicReader, cluster: Cluster
) -> None:
    cluster.codes = {"t": UNKNOWN_TOPIC}
    with pytest.raises(UnknownTopicOrPartitionException):
        read(reader)
    assert len(cluster.asked) > 1
    assert cluster.now == pytest.approx(105.0, abs=1.0)


def test_who_reads_is_told_what_reading_needs(reader: TopicReader, cluster: Cluster) -> None:
    cluster.codes = {"t": DENIED}
    with pytest.raises(
        TopicAuthorizationException, match=r"; grant READ and DESCRIBE on the topic"
    ):
        read(reader)
    cluster.codes = {"t": UNKNOWN_TOPIC}
    with pytest.raises(UnknownTopicOrPartitionException, match=r"; create the topic, or check its"):
        read(reader)


def test_a_broker_that_speaks_no_metadata_that_a_reader_does_is_an_error_at_once(
    reader: TopicReader, cluster: Cluster
) -> None:
    cluster.unsent = UNSUPPORTED_VERSION
    for asked in (1, 2):
        with pytest.raises(UnsupportedVersionException, match=TOO_OLD):
            read(reader)
        assert len(cluster.asked) == asked
        assert cluster.now == pytest.approx(100.0, abs=1.0)
    cluster.unsent = None
    read(reader)


def test_metadata_that_a_retry_may_bring_is_asked_for_until_the_time_is_over(
    reader: TopicReader, cluster: Cluster
) -> None:
    cluster.unsent = NETWORK
    with pytest.raises(TimeoutException):
        read(reader)
    assert len(cluster.asked) > 1


@pytest.mark.parametrize("name", ["\ud800", "x" * 250, b"t", None])
def test_what_is_no_topic_s_name_is_refused_before_anybody_is_asked_about_it(
    reader: TopicReader, cluster: Cluster, name: str
) -> None:
    with pytest.raises(DataException, match="Topic cannot be"):
        reader.read(name)
    assert cluster.asked == []


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"start": {7: 0}, "end": {7: 5}}, "topic t has the partitions 0 to 0, not 7$"),
        ({"start": {0: 5, 7: 0}, "end": {7: 5, 0: 5}}, "the partitions 0 to 0, not 7$"),
        ({"end": {0: 0, -1: 5}}, "end has -1: expected a partition number from 0 to 2147483647"),
        ({"start": {0: 5}, "end": {}}, "given for these partitions of topic t: 0$"),
        ({"start": {}, "end": {0: 5}}, "given for these partitions of topic t: 0$"),
    ],
)
def test_offsets_of_partitions_that_are_not_read_are_refused(
    reader: TopicReader, how: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigException, match=message):
        list(reader.read("t", **how))


def test_of_many_partitions_that_cannot_be_read_ten_are_named(
    reader: TopicReader, cluster: Cluster
) -> None:
    with pytest.raises(ConfigException) as absent:
        list(reader.read("t", range(3000)))
    numbers = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10"
    assert str(absent.value) == f"topic t has the partitions 0 to 0, not {numbers} and 2989 more"
    cluster.partitions = 3000
    with pytest.raises(ConfigException) as without:
        list(reader.read("wide", start={0: 5}, end=dict.fromkeys(range(3000), 5)))
    assert str(without.value) == (
        f"no offset is given for these partitions of topic wide: {numbers} and 2989 more"
    )


def test_without_partitions_those_are_read_that_have_offsets(reader: TopicReader) -> None:
    assert list(reader.read("t", start={0: 5}, end={0: 5})) == []
    zero: Any = np.int32(0)
    five: Any = np.int64(5)
    assert list(reader.read("t", start={zero: five}, end={0: 5})) == []
    assert list(reader.read("t", [zero], start={0: 5}, end={0: 5})) == []
    assert list(reader.read("t", start={}, end={})) == []
    assert list(reader.read("t", end={})) == []
    assert list(reader.read("t", partitions=[])) == []


@pytest.mark.parametrize("name", ["start", "end"])
@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ({0: -1}, r"has -1 for partition 0: expected an offset, 0 or more"),
        ({0: 2**63}, r"has 9223372036854775808 for partition 0: expected"),
        ({0: 1.0}, r"has 1\.0 for partition 0: expected"),
        ({0: "5"}, r"has '5' for partition 0: expected"),
        ({0: True}, r"has True for partition 0: expected"),
        ({0: None}, r"has None for partition 0: expected"),
        ({0: np.array([1, 2])}, r"has array\(\[1, 2\]\) for partition 0: expected"),
        (5, r"is 5: expected earliest, latest or an offset by partition"),
        ([0], r"is \[0\]: expected earliest, latest or an offset by partition"),
        (None, r"is None: expected earliest, latest or an offset by partition"),
    ],
)
def test_what_is_no_offset_is_refused_at_once(
    reader: TopicReader, name: str, offsets: object, message: str
) -> None:
    with pytest.raises(ConfigException, match=f"^{name} {message}"):
        reader.read("t", [0], **{name: offsets})  # type: ignore[arg-type] # what is looked at


@pytest.mark.parametrize(("topic_number", "last_version"), [(0, 12), (7, None)])
def test_records_are_fetched_by_topic_ids_only_where_brokers_tell_them(
    reader: TopicReader, cluster: Cluster, topic_number: int, last_version: int | None
) -> None:
    cluster.topic_number = topic_number
    with pytest.raises(TimeoutException):
        list(reader.read("t", [0], start={0: 0}, end={0: 1}))
    assert cluster.fetch_caps == [last_version]


def test_the_new_topic_is_not_read_at_the_offsets_of_the_topic_that_it_replaced(
    reader: TopicReader, cluster: Cluster
) -> None:
    cluster.topic_number, cluster.new_topic_number = 1, 2
    with pytest.raises(OffsetOutOfRangeException, match="created again while it was read"):
        list(reader.read("t", [0], start={0: 50}))
    assert cluster.fetch_caps == []


@pytest.mark.parametrize("replaced_by", [ListOffsetsRequest, FetchRequest])
def test_a_topic_that_was_created_again_before_the_first_record_is_read_from_its_own_offsets(
    reader: TopicReader, cluster: Cluster, replaced_by: type[Request]
) -> None:
    cluster.topic_number, cluster.new_topic_number = 1, 2
    cluster.replaced_by, cluster.records = replaced_by, 3
    batches = list(reader.read("t"))
    assert [batch["value"].to_pylist() for batch in batches] == [[b"2"]] * 3
    assert [batch["offset"].to_pylist() for batch in batches] == [[0], [1], [2]]


def test_a_topic_that_is_created_again_after_the_first_record_is_not_read_on(
    reader: TopicReader, cluster: Cluster
) -> None:
    cluster.topic_number, cluster.records = 1, 3
    batches = reader.read("t")
    assert next(batches)["value"].to_pylist() == [b"1"]
    cluster.topic_number = 2
    with pytest.raises(OffsetOutOfRangeException, match="created again while it was read"):
        list(batches)


@pytest.mark.parametrize("offsets", [{"start": {0: 1}}, {"end": {0: 2}}])
def test_an_offset_of_a_topic_that_was_created_again_is_not_looked_for_in_the_new_one(
    reader: TopicReader, cluster: Cluster, offsets: dict[str, Any]
) -> None:
    cluster.topic_number, cluster.new_topic_number = 1, 2
    cluster.replaced_by, cluster.records = FetchRequest, 3
    with pytest.raises(OffsetOutOfRangeException, match="created again while it was read"):
        list(reader.read("t", **offsets))


def test_a_topic_that_is_created_again_and_again_is_an_error_in_the_end(
    monkeypatch: pytest.MonkeyPatch, reader: TopicReader, cluster: Cluster
) -> None:
    fetched = cluster._fetched
    cluster.topic_number, cluster.records = 1, 3

    def replaced(message: FetchRequest) -> FetchResponse:
        cluster.topic_number += 1
        return fetched(message)

    monkeypatch.setattr(cluster, "_fetched", replaced)
    with pytest.raises(OffsetOutOfRangeException, match="created again while it was read"):
        list(reader.read("t"))
    assert 105.0 <= cluster.now <= 107.0
    assert len(cluster.fetch_caps) > 2
