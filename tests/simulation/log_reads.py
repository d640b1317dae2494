"""What leaders return of their logs: ends, records up to the high watermark, and producers.

A new leader returns no end before its followers have fetched what it had when it was elected
(KIP-207). A broker that does not know yet that it is no longer the leader still answers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from simulation.batches import data_at
from simulation.controller import Broker, Controller, Reply
from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.wire.describe_messages import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
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

_OFFSET_NOT_AVAILABLE: Final = 78
_MOST_BATCHES: Final = 20


class LogReads:
    """The requests of readers."""

    def __init__(self, cluster: Controller) -> None:
        self._cluster = cluster
        self.handlers: dict[type, Callable[[Broker, Any, Reply], None]] = {
            ListOffsetsRequest: self._list_offsets,
            FetchRequest: self._fetch,
            DescribeProducersRequest: self._describe_producers,
        }

    def _refusal(self, broker: Broker, tp: TopicPartition) -> int:
        if tp not in broker.known:
            return codes.UNKNOWN_TOPIC_OR_PARTITION
        return codes.NONE if broker.leads(tp) else codes.NOT_LEADER_OR_FOLLOWER

    def _list_offsets(self, broker: Broker, request: ListOffsetsRequest, reply: Reply) -> None:
        topics = [
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    self._end(broker, TopicPartition(topic.name, each.partition_index))
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        reply(ListOffsetsResponse(throttle_time_ms=broker.throttle_ms, topics=topics))

    def _end(self, broker: Broker, tp: TopicPartition) -> ListOffsetsPartitionResponse:
        code = self._refusal(broker, tp)
        if code != codes.NONE:
            return ListOffsetsPartitionResponse(partition_index=tp.partition, error_code=code)
        end = self._cluster.high_watermark(broker, tp)
        if end < broker.led_from.get(tp, 0):
            return ListOffsetsPartitionResponse(
                partition_index=tp.partition, error_code=_OFFSET_NOT_AVAILABLE
            )
        return ListOffsetsPartitionResponse(
            partition_index=tp.partition, error_code=codes.NONE, offset=end
        )

    def _fetch(self, broker: Broker, request: FetchRequest, reply: Reply) -> None:
        responses = [
            FetchableTopicResponse(
                topic=topic.topic,
                partitions=[
                    self._records(
                        broker, TopicPartition(topic.topic, each.partition), each.fetch_offset
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        reply(FetchResponse(throttle_time_ms=broker.throttle_ms, responses=responses))

    def _records(self, broker: Broker, tp: TopicPartition, offset: int) -> PartitionData:
        code = self._refusal(broker, tp)
        found: list[bytes] = []
        end = -1
        if code == codes.NONE:
            end = self._cluster.high_watermark(broker, tp)
            for entry in broker.logs[tp].entries:
                if offset < entry.next_offset <= end and len(found) < _MOST_BATCHES:
                    found.append(data_at(entry.batch, entry.base_offset))
        return PartitionData(
            partition_index=tp.partition,
            error_code=code,
            high_watermark=end,
            aborted_transactions=None,
            records=memoryview(b"".join(found)),
        )

    def _describe_producers(
        self, broker: Broker, request: DescribeProducersRequest, reply: Reply
    ) -> None:
        topics = [
            TopicResponse(
                name=topic.name,
                partitions=[
                    self._producers(broker, TopicPartition(topic.name, number))
                    for number in topic.partition_indexes
                ],
            )
            for topic in request.topics
        ]
        reply(DescribeProducersResponse(throttle_time_ms=broker.throttle_ms, topics=topics))

    def _producers(self, broker: Broker, tp: TopicPartition) -> PartitionResponse:
        code = self._refusal(broker, tp)
        known = broker.logs[tp].producers() if code == codes.NONE else {}
        return PartitionResponse(
            partition_index=tp.partition,
            error_code=code,
            active_producers=[
                ProducerState(
                    producer_id=producer_id,
                    producer_epoch=each.epoch,
                    last_sequence=each.last_sequence,
                    coordinator_epoch=0,
                    current_txn_start_offset=each.transaction_start,
                )
                for producer_id, each in known.items()
            ],
        )
