"""The coordinator's responses to transactional requests; the coordinator is always node 1."""

from __future__ import annotations

from spark_kafka_sink.model import ProducerIdAndEpoch
from spark_kafka_sink.producer.transactions.requests import TransactionalRequest
from spark_kafka_sink.wire.messages import (
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    InitProducerIdRequest,
    InitProducerIdResponse,
    Response,
)
from spark_kafka_sink.wire.transaction_messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
    Coordinator,
    EndTxnRequest,
    EndTxnResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from spark_kafka_sink.wire.versions import NodeApiVersions

COORDINATOR = 1


def versions_of(transaction_version: int, init_producer_id: int = 5) -> NodeApiVersions:
    """Return the versions that a broker announces; transaction_version 0: without the feature."""
    features = {"transaction.version": transaction_version} if transaction_version else {}
    ranges = {INIT_PRODUCER_ID.key: (0, init_producer_id), FIND_COORDINATOR.key: (0, 6)}
    return NodeApiVersions(ranges, features, finalized_features_epoch=10)


class TransactionCoordinator:
    """Assigns producer ids, and epochs as transaction.version 1 and 2 do."""

    def __init__(self) -> None:
        self.producer = ProducerIdAndEpoch(4000, -1)
        self.ended: list[bool] = []

    def answer(self, request: TransactionalRequest, code: int = 0) -> Response:
        """Return the response to a request, with a code for every partition."""
        message = request.message
        if isinstance(message, FindCoordinatorRequest):
            return _found(message.key, code)
        if isinstance(message, InitProducerIdRequest):
            return self._initialized(code)
        if isinstance(message, EndTxnRequest):
            return self._ended(message, code, is_v2=request.max_version is None)
        if isinstance(message, AddPartitionsToTxnRequest):
            return _added(message, code)
        if isinstance(message, AddOffsetsToTxnRequest):
            return AddOffsetsToTxnResponse(error_code=code)
        assert isinstance(message, TxnOffsetCommitRequest)
        return _committed(message, code)

    def _initialized(self, code: int) -> InitProducerIdResponse:
        if code:
            return InitProducerIdResponse(error_code=code)
        self.producer = ProducerIdAndEpoch(self.producer.producer_id, self.producer.epoch + 1)
        return InitProducerIdResponse(
            error_code=0,
            producer_id=self.producer.producer_id,
            producer_epoch=self.producer.epoch,
        )

    def _ended(self, message: EndTxnRequest, code: int, *, is_v2: bool) -> EndTxnResponse:
        if code:
            return EndTxnResponse(error_code=code)
        asked = ProducerIdAndEpoch(message.producer_id, message.producer_epoch)
        assert asked == self.producer
        self.ended.append(message.committed)
        if not is_v2:
            return EndTxnResponse(error_code=0)
        self.producer = ProducerIdAndEpoch(self.producer.producer_id, self.producer.epoch + 1)
        return EndTxnResponse(
            error_code=0,
            producer_id=self.producer.producer_id,
            producer_epoch=self.producer.epoch,
        )


def _found(key: str, code: int) -> FindCoordinatorResponse:
    found = Coordinator(key=key, node_id=COORDINATOR, host="127.0.0.1", port=9001, error_code=code)
    return FindCoordinatorResponse(coordinators=[found])


def _added(message: AddPartitionsToTxnRequest, code: int) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    AddPartitionsToTxnPartitionResult(
                        partition_index=number, partition_error_code=code
                    )
                    for number in topic.partitions
                ],
            )
            for topic in message.v3_and_below_topics
        ]
    )


def _committed(message: TxnOffsetCommitRequest, code: int) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=code
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in message.topics
        ]
    )
