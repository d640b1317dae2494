"""A reading of a topic, with the test as brokers and clock."""

from __future__ import annotations

from random import Random
from uuid import UUID

import pytest
from support.oracles.log_records import batch_of
from support.oracles.record_batches import Row
from support.pure.reading_cluster import BACKOFF, TOPIC, TOPIC_ID, lead, metadata_of

from spark_kafka_sink.consumer.reading import Fetch, FetchLimits, FetchOutcome, Reading
from spark_kafka_sink.errors import (
    CorruptRecordException,
    OffsetOutOfRangeException,
    TopicAuthorizationException,
    UnsupportedVersionException,
    api_exception,
)
from spark_kafka_sink.wire.fetch_messages import (
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
)

OUT_OF_RANGE, NOT_LEADER, UNAUTHORIZED, UNKNOWN_EPOCH, UNKNOWN_TOPIC_ID = 1, 6, 29, 75, 100


class World:
    """A reading and the cluster it reads from; each partition has `end` records."""

    def __init__(self, leaders: list[int], end: int = 10, *, from_earliest: bool = True) -> None:
        self.now = 0.0
        self.metadata = metadata_of(leaders)
        self.reading = Reading(
            TOPIC,
            dict.fromkeys(range(len(leaders)), (0, end)),
            limits=FetchLimits(
                max_bytes=1000,
                partition_max_bytes=100,
                min_bytes=1,
                max_wait_ms=500,
                budget_bytes=1000,
            ),
            read_committed=False,
            from_earliest=from_earliest,
            metadata=self.metadata,
            retry_backoff=BACKOFF,
            random=Random(1),
        )

    def lead(self, leaders: list[int], epoch: int = 0, topic_id: UUID = TOPIC_ID) -> None:
        """Let these nodes lead the partitions, and the client know it."""
        lead(self.metadata, leaders, self.now, epoch, topic_id)

    def fetches(self) -> dict[int, Fetch]:
        """Return the requests that are due, by node."""
        return {fetch.node_id: fetch for fetch in self.reading.fetches(self.now)}

    def answer(self, fetch: Fetch, code: int = 0, records: int = 5) -> FetchOutcome:
        """Answer all partitions of a request, from their positions."""
        partitions = [
            PartitionData(
                partition_index=asked.partition,
                error_code=code,
                high_watermark=10,
                aborted_transactions=None,
                records=None
                if code or not records
                else memoryview(
                    batch_of([Row(None, b"v", (), 1)] * records, first_offset=asked.fetch_offset)
                ),
            )
            for asked in fetch.message.topics[0].partitions
        ]
        topic = FetchableTopicResponse(topic_id=TOPIC_ID, partitions=partitions)
        return self.reading.answered(fetch, FetchResponse(responses=[topic]), self.now)


def row_counts(outcome: FetchOutcome) -> list[int]:
    """Read the rows and return the number in each batch."""
    return [len(batch) for records in outcome.records for batch in records]


def places(fetch: Fetch) -> dict[int, int]:
    """Return the offsets by partition in a request."""
    return {asked.partition: asked.fetch_offset for asked in fetch.message.topics[0].partitions}


def test_each_node_has_one_request_under_way_and_partitions_are_read_to_their_end() -> None:
    world = World([1, 2, 1])
    first = world.fetches()
    assert {node: places(fetch) for node, fetch in first.items()} == {1: {0: 0, 2: 0}, 2: {1: 0}}
    assert first[1].message.topics[0].topic_id == TOPIC_ID
    assert world.fetches() == {}
    assert row_counts(world.answer(first[1])) == [5, 5]
    second = world.fetches()
    assert {node: places(fetch) for node, fetch in second.items()} == {1: {0: 5, 2: 5}}
    world.answer(second[1])
    assert not world.reading.is_done
    world.answer(first[2], records=10)
    assert world.reading.is_done
    assert world.fetches() == {}


def test_a_partition_whose_leader_moves_is_not_asked_for_twice() -> None:
    world = World([1])
    (at_old,) = world.fetches().values()
    world.lead([2], epoch=1)
    assert world.fetches() == {}, "its rows would be given twice"
    world.answer(at_old, NOT_LEADER)
    world.now += 1
    (at_new,) = world.fetches().values()
    assert at_new.node_id == 2
    assert at_new.message.topics[0].partitions[0].current_leader_epoch == 1


@pytest.mark.parametrize("code", [NOT_LEADER, UNKNOWN_EPOCH, 3, 5, 74, 78, 100])
def test_what_a_retry_may_help_waits_longer_each_time_and_asks_for_metadata(code: int) -> None:
    world = World([1])
    waits = []
    for _ in range(5):
        (fetch,) = world.fetches().values()
        outcome = world.answer(fetch, code)
        assert (outcome.records, outcome.progress) == ([], False)
        assert world.metadata.next_update_at() < float("inf")
        assert world.fetches() == {}
        waits.append(world.reading.next_due_at(world.now) - world.now)
        world.now = world.reading.next_due_at(world.now)
    assert 0.07 < waits[0] < 0.13
    assert 0.7 < waits[-1] < 1.3
    assert "t-0 at offset 0 of 10 (t-0 cannot be read: " in world.reading.unfinished()
    (fetch,) = world.fetches().values()
    world.answer(fetch)
    assert world.reading.unfinished() == "t-0 at offset 5 of 10"


def empty_waits(world: World, answered_after_s: float) -> list[float]:
    """Answer six requests without records; return the times from one request to the next."""
    waits = []
    for _ in range(6):
        made_at = world.now
        (fetch,) = world.fetches().values()
        world.now += answered_after_s
        outcome = world.answer(fetch, records=0)
        assert (outcome.records, outcome.progress) == ([], False)
        due = world.reading.next_due_at(world.now)
        if due != float("inf"):
            assert world.fetches() == {}
            world.now = due
        waits.append(world.now - made_at)
    return waits


def test_answers_without_records_are_asked_again_more_slowly_each_time() -> None:
    world = World([1])
    waits = empty_waits(world, 0.001)
    assert 0.07 < waits[0] < 0.13
    assert waits[0] < waits[1] < waits[2] < waits[3]
    assert 0.7 < waits[-1] < 1.3
    assert world.reading.unfinished() == "t-0 at offset 0 of 10 (node 1 returned no records)"
    (fetch,) = world.fetches().values()
    assert world.answer(fetch).progress
    assert len(world.fetches()) == 1, "there is a back-off after progress"
    assert world.reading.unfinished() == "t-0 at offset 5 of 10"


def test_a_broker_that_waits_for_records_is_asked_again_at_once() -> None:
    # World asks brokers to wait 500 ms for records.
    assert empty_waits(World([1]), 0.5) == pytest.approx([0.5] * 6)


def test_a_partition_that_did_not_fit_a_response_is_asked_for_again_at_once() -> None:
    world = World([1, 1])
    (fetch,) = world.fetches().values()
    data = [
        PartitionData(
            partition_index=number,
            error_code=0,
            high_watermark=10,
            aborted_transactions=None,
            records=memoryview(records),
        )
        for number, records in ((0, batch_of([Row(None, b"v", (), 1)] * 5)), (1, b""))
    ]
    topic = FetchableTopicResponse(topic_id=TOPIC_ID, partitions=data)
    assert world.reading.answered(fetch, FetchResponse(responses=[topic]), world.now).progress
    (again,) = world.fetches().values()
    assert places(again) == {0: 5, 1: 0}


def test_of_many_partitions_that_are_not_read_ten_are_named() -> None:
    world = World([1] * 1000)
    said = world.reading.unfinished()
    assert said.startswith("t-0 at offset 0 of 10, t-1 at offset 0 of 10, ")
    assert said.endswith("t-9 at offset 0 of 10 and 990 more")


def test_other_partitions_go_on_while_one_waits() -> None:
    world = World([1, -1])
    (fetch,) = world.fetches().values()
    assert places(fetch) == {0: 0}
    world.answer(fetch, records=10)
    world.lead([1, 2], epoch=1)
    world.now += 1
    (fetch,) = world.fetches().values()
    assert (fetch.node_id, places(fetch)) == (2, {1: 0})


def test_a_request_that_was_lost_is_made_again_and_a_hopeless_one_is_raised() -> None:
    world = World([1])
    (fetch,) = world.fetches().values()
    world.reading.failed(fetch, api_exception(13, "lost"), world.now)
    assert "lost" in world.reading.unfinished()
    world.now += 1
    (fetch,) = world.fetches().values()
    with pytest.raises(UnsupportedVersionException):
        world.reading.failed(fetch, api_exception(35, "too old"), world.now)


def test_what_no_retry_helps_is_raised_with_its_partition_and_advice() -> None:
    world = World([1])
    (fetch,) = world.fetches().values()
    with pytest.raises(
        TopicAuthorizationException, match=r"t-0 cannot be .* grant READ"
    ) as refused:
        world.answer(fetch, UNAUTHORIZED)
    assert (
        f"--allow-principal User:alice --operation READ --operation DESCRIBE --topic {TOPIC}"
        in (str(refused.value))
    )
    assert (refused.value.topic, refused.value.partition, refused.value.node_id) == (TOPIC, 0, 1)


def test_an_error_of_the_whole_answer_counts_for_every_partition() -> None:
    world = World([1, 1])
    (fetch,) = world.fetches().values()
    world.reading.answered(fetch, FetchResponse(error_code=100, responses=[]), world.now)
    assert world.fetches() == {}
    world.now += 1
    (fetch,) = world.fetches().values()
    assert places(fetch) == {0: 0, 1: 0}


def test_an_answer_that_leaves_a_partition_out_is_asked_again() -> None:
    world = World([1])
    (fetch,) = world.fetches().values()
    world.reading.answered(fetch, FetchResponse(responses=[]), world.now)
    assert "does not contain this partition" in world.reading.unfinished()
    world.now += 1
    assert len(world.fetches()) == 1


def broken(records: bytes) -> bytes:
    """Return a batch with one byte changed, so that its checksum is wrong."""
    return records[:-1] + bytes([records[-1] ^ 1])


def log_answer(log: bytes) -> FetchResponse:
    """Return a response for partition 0."""
    data = PartitionData(
        partition_index=0,
        error_code=0,
        high_watermark=10,
        aborted_transactions=None,
        records=memoryview(log),
    )
    return FetchResponse(responses=[FetchableTopicResponse(partitions=[data])])


def test_corrupt_records_are_raised_with_their_place() -> None:
    world = World([1])
    (fetch,) = world.fetches().values()
    last = broken(batch_of([Row(None, b"v", (), 1)]))
    with pytest.raises(CorruptRecordException, match=r"t-0 from offset 0: .* CRC-32C") as raised:
        world.reading.answered(fetch, log_answer(last), world.now)
    assert (raised.value.topic, raised.value.partition) == (TOPIC, 0)


def test_what_lies_before_corrupt_records_is_read() -> None:
    world = World([1])
    (fetch,) = world.fetches().values()
    parts = [batch_of([Row(None, bytes(600), (), 1)], first_offset=offset) for offset in range(4)]
    parts[2] = broken(parts[2])
    (records,) = world.reading.answered(fetch, log_answer(b"".join(parts)), world.now).records
    assert [len(next(records)) for _ in range(2)] == [1, 1]
    with pytest.raises(CorruptRecordException, match=r"t-0 from offset 0: .* CRC-32C") as raised:
        next(records)
    assert (raised.value.topic, raised.value.partition) == (TOPIC, 0)


def test_the_next_request_is_made_before_the_rows_of_a_response_are_unpacked() -> None:
    world = World([1])
    (fetch,) = world.fetches().values()
    outcome = world.answer(fetch)
    (fetch,) = world.fetches().values()
    assert places(fetch) == {0: 5}
    assert row_counts(outcome) == [5]
    assert row_counts(world.answer(fetch)) == [5]
    assert world.reading.is_done


def test_a_position_that_was_deleted_moves_on_only_for_a_reading_from_the_earliest() -> None:
    for from_earliest in (True, False):
        world = World([1], from_earliest=from_earliest)
        (fetch,) = world.fetches().values()
        world.answer(fetch, OUT_OF_RANGE)
        assert world.fetches() == {}, "asked again before its offset is known"
        (moved,) = world.reading.out_of_range()
        if not from_earliest:
            with pytest.raises(OffsetOutOfRangeException, match="has the offsets 4 to 9"):
                world.reading.reset(moved, 4, 10, world.now)
            continue
        world.reading.reset(moved, 4, 10, world.now)
        assert world.reading.out_of_range() == []
        (fetch,) = world.fetches().values()
        assert places(fetch) == {0: 4}
        world.answer(fetch, OUT_OF_RANGE)
        with pytest.raises(OffsetOutOfRangeException, match="cannot be read from offset 4"):
            world.reading.reset(moved, 0, 3, world.now)


@pytest.mark.parametrize("leaders", [[2], [2, 2, 2], [-1, -1]])
def test_a_topic_that_was_created_again_is_not_read_on_at_the_offsets_of_the_old_one(
    leaders: list[int],
) -> None:
    world = World([1, 1])
    (fetch,) = world.fetches().values()
    world.answer(fetch)
    (fetch,) = world.fetches().values()
    world.answer(fetch, UNKNOWN_TOPIC_ID)
    world.now += 5
    world.lead(leaders, topic_id=UUID(int=8))
    with pytest.raises(
        OffsetOutOfRangeException,
        match=r"^t-0 from offset 5: the topic was created again while it was read$",
    ):
        world.fetches()


def test_a_topic_whose_id_becomes_known_later_is_read_on() -> None:
    world = World([-1])
    for position, topic_id in enumerate((UUID(int=0), TOPIC_ID, UUID(int=0), TOPIC_ID)):
        world.now += 5
        world.lead([1], topic_id=topic_id)
        (fetch,) = world.fetches().values()
        assert places(fetch) == {0: position}
        world.answer(fetch, records=1)


def test_a_log_that_has_nothing_left_has_no_offsets_to_name() -> None:
    world = World([1], from_earliest=False)
    (fetch,) = world.fetches().values()
    world.answer(fetch, OUT_OF_RANGE)
    (moved,) = world.reading.out_of_range()
    with pytest.raises(
        OffsetOutOfRangeException,
        match=r"from offset 0: the partition has no records, and the next record will get offset "
        r"100; the records",
    ):
        world.reading.reset(moved, 100, 100, world.now)


def test_a_position_that_is_in_range_after_all_is_tried_again() -> None:
    world = World([1], from_earliest=False)
    (fetch,) = world.fetches().values()
    world.answer(fetch, OUT_OF_RANGE)
    (moved,) = world.reading.out_of_range()
    world.reading.reset(moved, 0, 10, world.now)
    assert world.reading.out_of_range() == []
    assert world.fetches() == {}, "asked again without a pause"
    world.now += 1
    (fetch,) = world.fetches().values()
    assert places(fetch) == {0: 0}
