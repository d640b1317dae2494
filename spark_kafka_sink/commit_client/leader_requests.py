"""Requests to a partition's leader: for active producers, the log end, batches or markers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.commit.questions import (
    ActiveProducer,
    DescribeProducers,
    MarkerRead,
    ProducersDescribed,
    ReadMarker,
    Reply,
)
from spark_kafka_sink.commit_client.brokers import Brokers
from spark_kafka_sink.commit_client.generators import (
    NoReplyError,
    Steps,
    left_out,
    reason_of,
    refused,
)
from spark_kafka_sink.errors import CorruptRecordException, Option
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.records.batch import Marker
from spark_kafka_sink.records.default_record import DefaultBatch, read_batches
from spark_kafka_sink.wire.describe_messages import (
    DescribeProducersRequest,
    DescribeProducersResponse,
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

# Before ListOffsets 5, a new leader may return an end that is below committed records (KIP-207).
LISTS_RELIABLE_ENDS_SINCE: Final = 5
# Fetch 13 contains topic ids instead of names.
_LAST_FETCH_BY_NAME: Final = 12
# The size is limited because the markers of many transactions may be read at once.
_FETCH_BYTES: Final = 1024 * 1024
_FETCH_WAIT_MS: Final = 500


class Partitions:
    """Queries leaders of partitions. Each method raises the exceptions of `Brokers.ask`."""

    def __init__(self, brokers: Brokers, clock: Callable[[], float]) -> None:
        self._brokers = brokers
        self._clock = clock

    def describe_producers(self, ask: DescribeProducers) -> Steps[Reply]:
        """Return the active producers of a partition."""
        node_id = yield from self._brokers.leader(ask.partition)
        topic = TopicRequest(name=ask.partition.topic, partition_indexes=[ask.partition.partition])
        response = yield from self._brokers.ask(
            node_id, DescribeProducersRequest(topics=[topic]), DescribeProducersResponse
        )
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
                reason = reason_of(each.error_code, api, node_id)
                return ProducersDescribed(producers, each.error_code, reason)
        raise left_out("DescribeProducers", node_id)

    def read_marker(self, ask: ReadMarker) -> Steps[Reply]:
        """Find the marker that ends a producer's transaction in a partition, from an offset on.

        The marker has the epoch of the records, or the next epoch. It has the next epoch if EndTxn
        has version 5 or later, or if the transaction timed out or was fenced. In Kafka 4.0.0, the
        abort of a transaction that timed out or was fenced may raise the epoch by two
        (KAFKA-19367). Return CORRUPT_MESSAGE if a batch before the marker is damaged. Raise
        NoReplyError at the deadline of `ask`.
        """
        try:
            return (yield from self._find_marker(ask))
        except CorruptRecordException as error:
            reason = f"Fetch of {ask.partition}: {error}"
            return MarkerRead(error=codes.CORRUPT_MESSAGE, reason=reason)

    def _find_marker(self, ask: ReadMarker) -> Steps[Reply]:
        end = yield from self.end(ask.partition)
        position, records = ask.offset, 0
        while position < end:
            if position > ask.offset and self._clock() >= ask.deadline:
                reason = (
                    f"no marker was found in {ask.partition} in time: only the offsets below "
                    f"{position} of {end} were read; raise {Option('max.block.ms')}"
                )
                raise NoReplyError(codes.REQUEST_TIMED_OUT, reason, is_unanswered=True)
            found = yield from self.fetch(ask.partition, position)
            if found.error_code == codes.OFFSET_OUT_OF_RANGE:
                return MarkerRead(is_gone=True)
            for each in batches_of(ask.partition, found):
                header = each.header
                position = header.last_offset + 1
                if header.producer_id != ask.producer_id or header.base_offset < ask.offset:
                    continue
                later = header.producer_epoch - ask.producer.epoch
                marker = each.marker() if header.is_control else None
                is_abort_of_records = marker is Marker.ABORT and records > 0
                if later > (2 if is_abort_of_records else 1 if header.is_control else 0):
                    return MarkerRead(is_gone=True)
                if not header.is_control:
                    records += header.record_count
                elif later >= 0 and marker is not None:
                    return MarkerRead(marker, records)
        return MarkerRead()

    def batches_from(self, partition: TopicPartition, offset: int) -> Steps[list[DefaultBatch]]:
        """Return batches from `offset` on, or [] if the log does not contain this offset."""
        if (yield from self.end(partition)) <= offset:
            return []
        found = yield from self.fetch(partition, offset)
        if found.error_code == codes.OFFSET_OUT_OF_RANGE:
            return []
        return list(batches_of(partition, found))

    def end(self, partition: TopicPartition) -> Steps[int]:
        """Return the high watermark of a partition."""
        node_id = yield from self._brokers.leader(partition)
        requested = ListOffsetsPartition(
            partition_index=partition.partition, timestamp=LATEST_TIMESTAMP
        )
        response = yield from self._brokers.ask(
            node_id,
            ListOffsetsRequest(
                isolation_level=READ_UNCOMMITTED,
                topics=[ListOffsetsTopic(name=partition.topic, partitions=[requested])],
            ),
            ListOffsetsResponse,
            min_version=LISTS_RELIABLE_ENDS_SINCE,
        )
        for topic in response.topics:
            for each in topic.partitions:
                if each.error_code != codes.NONE:
                    raise refused(each.error_code, f"ListOffsets of {partition}")
                return each.offset
        raise left_out("ListOffsets", node_id)

    def fetch(self, partition: TopicPartition, offset: int) -> Steps[PartitionData]:
        """Return the response data of a Fetch from `offset` on, which may contain an error code."""
        node_id = yield from self._brokers.leader(partition)
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
        response = yield from self._brokers.ask(
            node_id, request, FetchResponse, max_version=_LAST_FETCH_BY_NAME
        )
        if response.error_code != codes.NONE:
            raise refused(response.error_code, f"Fetch of {partition}")
        for topic in response.responses:
            for each in topic.partitions:
                return each
        raise left_out("Fetch", node_id)


def batches_of(partition: TopicPartition, found: PartitionData) -> Iterator[DefaultBatch]:
    """Yield the batches in a Fetch response.

    The offset in the request must be below the end of the log. Raise NoReplyError if the response
    contains an error code or no batch. Raise CorruptRecordException when a damaged batch is
    reached.
    """
    if found.error_code != codes.NONE:
        raise refused(found.error_code, f"Fetch of {partition}")
    is_empty = True
    for each in read_batches(found.records or b""):
        is_empty = False
        yield each
    if is_empty:
        reason = f"Fetch of {partition} returned no records, though the offset is in the log"
        raise NoReplyError(codes.REQUEST_TIMED_OUT, reason, is_unanswered=True)
