"""The errors of batches: the messages that a user reads when an attempt or a batch has failed.

This module defines the text and the class of each error. It decides nothing and has no state:
`BatchCompletion` determines the result of a batch. Information that is not in the batch (for
example, why a node cannot be reached) is passed as an argument.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.errors import (
    TOO_LARGE_FOR_TOPIC,
    ApiException,
    AuthenticationException,
    InvalidRecordException,
    InvalidTxnStateException,
    KafkaException,
    RetriableException,
    TimeoutException,
    TransactionAbortableException,
    advice,
    api_exception,
    error_code,
    one_line,
    words_of_refusal,
)
from spark_kafka_sink.producer.batch_state import BatchState
from spark_kafka_sink.producer.metadata import ClusterMetadata
from spark_kafka_sink.producer.producer_batch import ProducerBatch
from spark_kafka_sink.wire.messages import PartitionProduceResponse

# The reason that is shown when a part of a split batch fails instead of getting a new sequence. Its
# records may be in the log already. With a new sequence, the broker would write them again.
IN_DOUBT: Final = (
    "its records were first sent in a larger batch, which may have been written although a broker "
    "rejected it as too large"
)
# The reason that is shown when a batch fails instead of getting a new sequence, because a later
# batch of its partition was, or may have been, written.
OVERTAKEN: Final = (
    "it is not known whether these records were written: a later batch of the partition was, or "
    "may have been, and after a restart a broker recognises only the last batch of a producer; or "
    "the topic was created again, or producer.id.expiration.ms had passed"
)


def abortable(error: KafkaException) -> KafkaException:
    """Return the error that a transaction reports for the error of one of its batches.

    A retriable error or an InvalidTxnStateException becomes a TransactionAbortableException,
    because the transaction must be aborted and a retry by the caller cannot help (KAFKA-19176).
    """
    if not isinstance(error, RetriableException | InvalidTxnStateException):
        return error
    wrapped = TransactionAbortableException(
        f"{error}; {advice(codes.TRANSACTION_ABORTABLE)}",
        topic=error.topic,
        partition=error.partition,
        node_id=error.node_id,
        api=error.api,
        attempts=error.attempts,
    )
    wrapped.code = codes.TRANSACTION_ABORTABLE
    wrapped.__cause__ = error
    return wrapped


def reason_of(batch: ProducerBatch, answer: PartitionProduceResponse) -> str:
    """Return why a broker rejected a batch: its message, and its error for one record."""
    said = [one_line(answer.error_message)] if answer.error_message else []
    if answer.record_errors:
        first = answer.record_errors[0]
        text = f"record {first.batch_index} of the batch"
        if first.batch_index_error_message:
            text += f": {one_line(first.batch_index_error_message)}"
        said.append(text)
    if answer.error_code == codes.INVALID_TIMESTAMP and batch.state is BatchState.IN_FLIGHT:
        earliest, latest = batch.timestamp_range()
        said.append(f"its timestamps are {earliest} to {latest} ms")
    return "; ".join(said)


def record_errors(
    batch: ProducerBatch, answer: PartitionProduceResponse, error: ApiException
) -> dict[int, KafkaException]:
    """Return the errors of the records that the broker rejected, by record number in the batch.

    If one record was rejected, its error has the class of the batch's error. If several records
    were rejected, each gets an InvalidRecordException. The Java client has the same rule.
    """
    # A record number outside the batch is ignored.
    numbers = range(batch.record_count)
    refused = [record for record in answer.record_errors if record.batch_index in numbers]
    kind = type(error) if len(refused) == 1 else InvalidRecordException
    # The text is shared by the records that have no message of their own.
    shared = _refusal(answer.error_message) if answer.error_message else str(error)
    found: dict[int, KafkaException] = {}
    for record in refused:
        own = record.batch_index_error_message
        found[record.batch_index] = kind(
            _refusal(own) if own else shared,
            topic=error.topic,
            partition=error.partition,
            node_id=error.node_id,
            api=error.api,
            attempts=error.attempts,
        )
    return found


def _refusal(said: str) -> str:
    return f"the broker refused the record: {one_line(said)}"


def error_of_attempt(
    batch: ProducerBatch, code: int, reason: str, node_id: int | None
) -> ApiException:
    """Return the error of a failed attempt that will be retried."""
    said = (_named(code, node_id), reason, advice(code))
    return _api_exception(batch, code, node_id, said)


def error_of_batch(
    batch: ProducerBatch, code: int, reason: str, node_id: int | None, hint: str | None
) -> ApiException:
    """Return the error of a batch that fails with an error code; hint: what the user can do."""
    text = f"{batch.topic_partition}: {batch.record_count} record(s) were not written"
    if batch.maybe_written or OVERTAKEN in reason:
        text = f"{batch.topic_partition}: {batch.record_count} record(s) were not acknowledged"
    attempts = f" after {batch.attempts + 1} attempts" if batch.attempts else ""
    if code == codes.TOPIC_AUTHORIZATION_FAILED:
        # The driver's checks show the same message. So does a failed Metadata request if the client
        # lacks the permission DESCRIBE.
        where = "" if node_id is None else f" by node {node_id}"
        cause = words_of_refusal(code, batch.topic_partition.topic, hint)
        return _api_exception(batch, code, node_id, (cause, f"{text}{where}{attempts}", reason))
    named = f"{_named(code, node_id)}{attempts}"
    if code == codes.MESSAGE_TOO_LARGE:
        # The message is the same as if max.message.bytes had been known before the send.
        return _api_exception(batch, code, node_id, (_too_large(batch), named, reason))
    text += f": {named}"
    return _api_exception(batch, code, node_id, (text, reason, hint))


def _too_large(batch: ProducerBatch) -> str:
    count = batch.record_count
    record = "the record" if count == 1 else f"the batch of {count} records"
    compressed = "" if batch.codec.compress is None else f", compressed with {batch.codec.name},"
    sentence = TOO_LARGE_FOR_TOPIC.sentence.format(
        record=f"{record}{compressed}",
        size=batch.sent_bytes,
        topic=batch.topic_partition.topic,
        limit="max.message.bytes",
    )
    return f"{batch.topic_partition}: {sentence}"


def _named(code: int, node_id: int | None) -> str:
    """Return the name of an error code, and the node that returned it."""
    text = f"{error_code(code).name} ({code})"
    return text if node_id is None else f"{text} from node {node_id}"


def _api_exception(
    batch: ProducerBatch, code: int, node_id: int | None, said: Iterable[str | None]
) -> ApiException:
    return api_exception(
        code,
        joined(said),
        topic=batch.topic_partition.topic,
        partition=batch.topic_partition.partition,
        node_id=node_id,
        api="Produce",
        attempts=batch.attempts + 1,
    )


def joined(parts: Iterable[str | None]) -> str:
    """Return the non-empty parts, joined with semicolons."""
    return "; ".join(part for part in parts if part)


def error_of_expired_batch(
    batch: ProducerBatch,
    now: float,
    timeout: str,
    throttle: str,
    where: str,
    refusal: AuthenticationException | None,
    prerequisite_error: KafkaException | None,
) -> ApiException:
    """Return the error of a batch whose delivery.timeout.ms has passed.

    timeout: the option and its value, as text. throttle: a note that a node throttles this client,
    or "" if no node does. where: a note on the partition's leader, or why no leader is known.
    refusal: the error if the leader and this client could not authenticate each other, otherwise
    None. If `refusal` is set, the returned error has its class; if not, it is a TimeoutException.
    prerequisite_error: the last error of a request that had to succeed before the batch could be
    sent, such as InitProducerId; None if there was no such error.
    """
    waited_ms = round((now - batch.created_at) * 1000)
    is_in_flight = batch.state is BatchState.IN_FLIGHT
    state = "in flight" if is_in_flight else "waiting to be sent"
    message = (
        f"{batch.topic_partition}: {batch.record_count} record(s) were not acknowledged within "
        f"{timeout}: {state} after {waited_ms} ms and {batch.attempts} failed attempt(s)"
    )
    progress = ""
    if batch.progress_at > batch.created_at and not batch.attempts:
        ago_ms = round((now - batch.progress_at) * 1000)
        progress = f"a leader of this partition last acknowledged other records {ago_ms} ms ago"
    last = "" if batch.last_error is None else f"the last attempt failed with {batch.last_error}"
    before = "" if prerequisite_error is None else str(prerequisite_error)
    kind = TimeoutException if refusal is None else type(refusal)
    error = kind(
        joined((message, throttle, where, progress, last, before)),
        topic=batch.topic_partition.topic,
        partition=batch.topic_partition.partition,
        node_id=batch.node_id,
        api="Produce",
        attempts=batch.attempts + is_in_flight,
    )
    error.__cause__ = refusal or batch.last_error or prerequisite_error
    return error


def why_no_leader(metadata: ClusterMetadata, name: str, partition: int) -> str:
    """Return why a partition has no known leader."""
    topic = metadata.topic(name)
    if topic is None:
        error = metadata.topic_error(name)
        return "no leader is known" if error is None else str(error)
    if partition < len(topic.leaders):
        return "it has no leader at present"
    return f"topic {name} was recreated with fewer partitions, and has {len(topic.leaders)} now"
