"""Offsets of a consumer group that no request can carry are rejected before anything is sent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from support.pure.idle_producer import idle_producer

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.errors import DataException, IllegalArgumentException, TimeoutException
from spark_kafka_sink.model import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from spark_kafka_sink.producer.transactions.manager import TransactionManager
from spark_kafka_sink.producer.transactions.state import TransactionState
from spark_kafka_sink.wire.frames import encode_request
from spark_kafka_sink.wire.messages import API_OF
from spark_kafka_sink.wire.transaction_messages import TxnOffsetCommitRequest

PARTITION = TopicPartition("t", 3)
GROUP = ConsumerGroupMetadata("g")
LARGEST_INT32, LARGEST_INT64, LONGEST = 2**31 - 1, 2**63 - 1, 32_767


@pytest.fixture
def producer() -> Iterator[KafkaProducer]:
    """A producer in a transaction, with no broker to ask."""
    with idle_producer(1, transactional_id="tid", max_block_ms=0) as made:
        with made._state.lock:
            manager_of(made)._state = TransactionState.IN_TRANSACTION
        yield made


def manager_of(producer: KafkaProducer) -> TransactionManager:
    """Return the state machine of a transactional producer."""
    manager = producer._state.transactions
    assert manager is not None
    return manager


# Invalid offsets, and their messages.
NO_OFFSETS: dict[str, tuple[Any, str]] = {
    "negative": ({PARTITION: OffsetAndMetadata(-1)}, "the offset of t-3 is -1: .* from 0 to 92"),
    "beyond int64": ({PARTITION: OffsetAndMetadata(2**63)}, "the offset of t-3 is 92.*: expected"),
    "a float": ({PARTITION: OffsetAndMetadata(1.0)}, "the offset of t-3 is 1.0: expected"),  # type: ignore[arg-type]
    "a bool": ({PARTITION: OffsetAndMetadata(True)}, "the offset of t-3 is True: expected"),  # noqa: FBT003
    "no partition": ({("t", -1): OffsetAndMetadata(1)}, "the partition of topic t is -1: expected"),
    "partition beyond int32": ({("t", 2**31): OffsetAndMetadata(1)}, "of topic t is 2147483648: "),
    "partition as text": ({("t", "3"): OffsetAndMetadata(1)}, "of topic t is '3': expected"),
    "epoch below -1": ({PARTITION: OffsetAndMetadata(1, "", -2)}, "epoch of t-3 is -2: .* from -1"),
    "epoch beyond int32": ({PARTITION: OffsetAndMetadata(1, "", 2**31)}, "epoch of t-3 is 21474"),
    "epoch is None": ({PARTITION: OffsetAndMetadata(1, "", None)}, "epoch of t-3 is None: "),  # type: ignore[arg-type]
    "metadata as bytes": ({PARTITION: OffsetAndMetadata(1, b"m")}, "t-3 is b'm': expected a str"),  # type: ignore[arg-type]
    "metadata too long": (
        {PARTITION: OffsetAndMetadata(1, "ä" * 16_384)},
        "the metadata of t-3 has 32768 bytes: expected at most 32767",
    ),
    "half a surrogate pair": (
        {PARTITION: OffsetAndMetadata(1, "\ud800")},
        r"the metadata of t-3 cannot be encoded as UTF-8 \(surrogates not allowed\)",
    ),
    "a number alone": ({PARTITION: 7}, "the offset of t-3 is 7: expected an OffsetAndMetadata"),
    "a topic alone": ({"topic": OffsetAndMetadata(1)}, "'topic': expected a TopicPartition"),
    "a list": ([PARTITION], r"the offsets are \[.*\]: expected a mapping"),
    "the second of two": (
        {TopicPartition("t", 0): OffsetAndMetadata(1), PARTITION: OffsetAndMetadata(-1)},
        "the offset of t-3 is -1",
    ),
}
# Invalid groups, and their messages.
NO_GROUPS: dict[str, tuple[Any, str]] = {
    "empty": (ConsumerGroupMetadata(""), "the group id is empty"),
    "None": (ConsumerGroupMetadata(None), "the group id is None: expected a str"),  # type: ignore[arg-type]
    "its id alone": ("g", "the group is 'g': expected a ConsumerGroupMetadata"),
    "nothing": (None, "the group is None: expected a ConsumerGroupMetadata"),
    "too long": (ConsumerGroupMetadata("x" * 32_768), "the group id has 32768 bytes"),
    "half a surrogate pair": (ConsumerGroupMetadata("\ud800"), "the group id cannot be encoded"),
    "generation below -1": (ConsumerGroupMetadata("g", -2), "the generation id is -2: expected"),
    "generation beyond int32": (ConsumerGroupMetadata("g", 2**31, "m"), "id is 2147483648: "),
    "generation of nobody": (ConsumerGroupMetadata("g", 1), "generation 1 .* no member id"),
    "member as bytes": (ConsumerGroupMetadata("g", 1, b"m"), "the member id is b'm': "),  # type: ignore[arg-type]
    "instance too long": (
        ConsumerGroupMetadata("g", 1, "m", "x" * 32_768),
        "the group instance id has 32768 bytes",
    ),
}


def assert_nothing_has_begun(producer: KafkaProducer) -> None:
    """See that no request waits, and that the transaction may go on."""
    manager = manager_of(producer)
    assert manager.queue._waiting == []
    assert not manager.queue.is_busy
    assert manager.state is TransactionState.IN_TRANSACTION
    assert producer._state.fatal_error is None


@pytest.mark.parametrize("kind", NO_OFFSETS)
def test_what_is_no_offset_is_refused_before_anything_is_sent(
    kind: str, producer: KafkaProducer
) -> None:
    offsets, said = NO_OFFSETS[kind]
    with pytest.raises(IllegalArgumentException, match=said):
        producer.send_offsets_to_transaction(offsets, GROUP)
    assert_nothing_has_begun(producer)


@pytest.mark.parametrize("kind", NO_GROUPS)
def test_what_is_no_group_is_refused_before_anything_is_sent(
    kind: str, producer: KafkaProducer
) -> None:
    group, said = NO_GROUPS[kind]
    with pytest.raises(IllegalArgumentException, match=said):
        producer.send_offsets_to_transaction({PARTITION: OffsetAndMetadata(1)}, group)
    assert_nothing_has_begun(producer)


@pytest.mark.parametrize("name", ["\ud800", "x" * 250, b"t", None])
def test_offsets_of_what_is_no_topic_are_refused_before_anything_is_sent(
    name: Any,  # noqa: ANN401 - what a caller may give by mistake
    producer: KafkaProducer,
) -> None:
    with pytest.raises(DataException, match="Topic cannot be"):
        producer.send_offsets_to_transaction({(name, 0): OffsetAndMetadata(1)}, GROUP)  # type: ignore[dict-item]
    assert_nothing_has_begun(producer)


class OtherOffset(NamedTuple):
    """An OffsetAndMetadata of another Python client."""

    offset: int
    metadata: str | None
    leader_epoch: int


class Index:
    """A number that is no int, as numpy's are not."""

    def __index__(self) -> int:
        return 7


@pytest.mark.parametrize(
    ("partition", "offset"),
    [
        (("t", 0), OffsetAndMetadata(0)),
        (
            ("t", LARGEST_INT32),
            OffsetAndMetadata(LARGEST_INT64, "x" * LONGEST, LARGEST_INT32),
        ),
        (PARTITION, OtherOffset(7, None, -1)),
        (("t", Index()), OtherOffset(Index(), "", Index())),  # type: ignore[arg-type]
    ],
)
@pytest.mark.parametrize(
    "group",
    [
        GROUP,
        ConsumerGroupMetadata("x" * LONGEST, LARGEST_INT32, "m" * LONGEST, "i" * LONGEST),
        ConsumerGroupMetadata("g", 0),
    ],
)
def test_what_requests_can_carry_is_sent(
    partition: Any,  # noqa: ANN401 - a TopicPartition, or what does as one
    offset: Any,  # noqa: ANN401 - likewise
    group: ConsumerGroupMetadata,
    producer: KafkaProducer,
) -> None:
    with pytest.raises(TimeoutException, match="send_offsets_to_transaction was not done"):
        producer.send_offsets_to_transaction({partition: offset}, group)
    with producer._state.lock:
        messages = [request.message for _, _, request in manager_of(producer).queue._waiting]
    assert TxnOffsetCommitRequest in map(type, messages)
    for message in messages:
        api = API_OF[type(message)]
        for version in range(api.min_version, api.max_version + 1):
            encode_request(api, version, 1, "client", message)


class AskedOnce:
    """A group of another Python client, which raises when an attribute is read again."""

    generation_id, member_id, group_instance_id = -1, "", None

    def __init__(self) -> None:
        self._asked = 0

    @property
    def group_id(self) -> str:
        """The group's id, once."""
        self._asked += 1
        if self._asked > 1:
            message = "user code"
            raise ValueError(message)
        return "g"


def test_the_objects_of_a_user_are_read_before_the_producer_is_changed(
    producer: KafkaProducer,
) -> None:
    with pytest.raises(TimeoutException):  # the request waits for a coordinator
        producer.send_offsets_to_transaction({PARTITION: OffsetAndMetadata(1)}, AskedOnce())  # type: ignore[arg-type]
    assert producer._state.fatal_error is None
    assert manager_of(producer).queue._waiting
