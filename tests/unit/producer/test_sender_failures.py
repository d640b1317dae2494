"""The sender and batches that fail: retries that end, times that are over, stale metadata."""

from __future__ import annotations

import pytest
from support.pure.pure_producer import FULL, PureProducer, Settings, batches, sequences

from spark_kafka_sink.errors import (
    ApiException,
    NotEnoughReplicasException,
    PolicyViolationException,
    SaslAuthenticationException,
    TimeoutException,
    name_options,
)
from spark_kafka_sink.producer.batch_state import BatchState
from spark_kafka_sink.wire.exchange import Answered, ClientRequest, NodeDown, NodeThrottled
from spark_kafka_sink.wire.messages import MetadataRequest, MetadataResponseTopic

STALE, NOT_STALE = [3, 5, 6, 9, 13, 56, 72, 74, 100, 103], [2, 7, 19, 44, 75]

CORRUPT, NOT_LEADER, TIMED_OUT, POLICY = 2, 6, 7, 44
UNKNOWN_TOPIC_OR_PARTITION, NOT_ENOUGH_REPLICAS = 3, 19
UNKNOWN_SERVER, UNKNOWN_HERE = -1, 999


def test_what_expired_while_it_was_being_written_may_be_written_after_that() -> None:
    settings = Settings(idempotent=False, acks=0, delivery_timeout=30.0)
    producer = PureProducer([1], settings)
    producer.append(0, FULL)
    producer.ready()
    (request,) = producer.poll()
    producer.now = 30.0
    producer.poll()
    producer.sender.handle(Answered(request, 1, None), 30.0)
    assert [b.state for b in producer.done()] == [BatchState.FAILED]
    assert producer.accumulator.pool.available_bytes == settings.buffer_memory


def test_retries_end_with_the_last_error() -> None:
    producer = PureProducer([1], Settings(retries=2))
    producer.append(0, FULL)
    producer.ready()
    for _ in range(3):
        (request,) = producer.poll()
        producer.answer(request, CORRUPT)
        producer.now += 10
    (batch,) = producer.done()
    assert batch.error is not None
    said = "t-0: 2 record(s) were not acknowledged: CORRUPT_MESSAGE (2) from node 1 after 3"
    assert said in str(batch.error)


def test_an_error_that_no_retry_helps_is_given_at_once() -> None:
    producer = PureProducer([1])
    producer.append(0, FULL)
    producer.ready()
    producer.answer(producer.poll()[0], POLICY)
    (batch,) = producer.done()
    assert isinstance(batch.error, PolicyViolationException)
    assert producer.accumulator.pool.available_bytes == producer.settings.buffer_memory


def test_a_batch_that_waits_too_long_expires_with_what_is_known() -> None:
    producer = PureProducer([-1], Settings(delivery_timeout=30.0))
    producer.append(0, FULL)
    producer.ready()
    producer.now = 30.0
    producer.poll()
    (batch,) = producer.done()
    assert isinstance(batch.error, TimeoutException)
    assert "within delivery.timeout.ms=30000: waiting to be sent" in str(batch.error)
    assert "it has no leader at present" in str(batch.error)
    assert batch.error.attempts == 0
    assert producer.accumulator.pool.available_bytes == producer.settings.buffer_memory


def test_a_batch_that_might_be_sent_again_says_that_its_time_is_over() -> None:
    for now, is_named in ((29.0, False), (30.0, True)):
        producer = PureProducer([1], Settings(delivery_timeout=30.0, retries=0))
        producer.append(0, FULL)
        producer.ready()
        (request,) = producer.poll()
        producer.now = now
        producer.lose(request, TIMED_OUT)
        (batch,) = producer.done()
        assert ("; delivery.timeout.ms=30000 has passed" in str(batch.error)) is is_named


def test_a_batch_that_expires_names_why_its_leader_cannot_be_reached() -> None:
    producer = PureProducer([1], Settings(delivery_timeout=30.0))
    producer.append(0, FULL)
    producer.ready()
    producer.sender.handle(NodeDown(1, "Connection refused"), producer.now)
    producer.now = 30.0
    producer.poll()
    errors = [str(batch.error) for batch in producer.done()]
    assert errors
    assert all("its leader is node 1 (127.0.0.1:9001) (Connection refused)" in e for e in errors)


def test_a_batch_whose_leader_rejects_the_client_expires_with_that_error() -> None:
    producer = PureProducer([1], Settings(delivery_timeout=30.0))
    producer.append(0, FULL)
    producer.ready()
    refusal = SaslAuthenticationException("node 1 refused the login of user 'alice'")
    producer.sender.handle(NodeDown(1, str(refusal), refusal), producer.now)
    producer.sender.handle(NodeDown(1, "Connection refused"), producer.now)
    producer.now = 29.9
    producer.poll()
    assert not producer.done(), "the node may let the client in again"
    producer.now = 30.0
    producer.poll()
    (batch,) = producer.done()
    assert type(batch.error) is SaslAuthenticationException
    assert batch.error.__cause__ is refusal
    assert "within delivery.timeout.ms=30000: waiting to be sent" in str(batch.error)
    assert (batch.error.topic, batch.error.partition) == ("t", 0)


def test_a_rejection_that_is_over_is_not_blamed() -> None:
    producer = PureProducer([1], Settings(delivery_timeout=30.0))
    producer.append(0, FULL)
    refusal = SaslAuthenticationException("node 1 refused the login of user 'alice'")
    producer.sender.handle(NodeDown(1, str(refusal), refusal), producer.now)
    producer.ready()
    producer.now = 30.0
    producer.poll()
    (batch,) = producer.done()
    assert type(batch.error) is TimeoutException


@pytest.mark.parametrize("prefix", ["", "kafka."])
def test_a_batch_that_expires_names_the_error_that_it_was_tried_again_for(prefix: str) -> None:
    producer = PureProducer([1], Settings(delivery_timeout=30.0))
    producer.append(0, FULL)
    producer.ready()
    for code in (NOT_LEADER, NOT_ENOUGH_REPLICAS, NOT_ENOUGH_REPLICAS):
        (request,) = producer.poll()
        producer.answer(request, code)
        producer.now += 2.0
    producer.now = 30.0
    with name_options(prefix.__add__):
        producer.poll()
    (batch,) = producer.done()
    assert isinstance(batch.error, TimeoutException)
    assert (
        f"within {prefix}delivery.timeout.ms=30000: waiting to be sent after 30000 ms and 3 failed "
        "attempt(s); its leader is node 1 (127.0.0.1:9001); the last attempt failed with "
        "NOT_ENOUGH_REPLICAS (19) from node 1; fewer replicas are in sync than "
        "min.insync.replicas asks for"
    ) in str(batch.error)
    assert batch.error.attempts == 3
    cause = batch.error.__cause__
    assert isinstance(cause, NotEnoughReplicasException)
    assert (cause.topic, cause.partition, cause.node_id, cause.attempts) == ("t", 0, 1, 3)


def test_a_batch_whose_topic_was_made_again_with_fewer_partitions_says_so() -> None:
    producer = PureProducer([1, 1, 1], Settings(delivery_timeout=30.0))
    producer.append(2, FULL)
    producer.ready()
    (request,) = producer.poll()
    producer.leaders = [1]
    producer.metadata.forget_topics()
    producer.metadata.track("t", producer.now)
    producer.answer(request, UNKNOWN_TOPIC_OR_PARTITION)
    producer.now = 5.0
    assert producer.poll() == []
    producer.now = 30.0
    producer.poll()
    (batch,) = producer.done()
    assert "topic t was recreated with fewer partitions, and has 1 now" in str(batch.error)
    assert "the last attempt failed with UNKNOWN_TOPIC_OR_PARTITION (3) from node 1" in str(
        batch.error
    )


def test_a_batch_whose_topic_is_gone_says_so() -> None:
    producer = PureProducer([1], Settings(delivery_timeout=30.0))
    producer.append(0, FULL)
    producer.ready()
    producer.metadata.forget_topics()
    producer.metadata.track("t", producer.now)
    gone = MetadataResponseTopic(error_code=UNKNOWN_TOPIC_OR_PARTITION, name="t", partitions=[])
    answer = producer.metadata_response()
    answer.topics = [gone]
    producer.metadata.update(answer, producer.now)
    producer.now = 30.0
    producer.sender.poll(producer.now)
    (batch,) = producer.done()
    assert "topic t: UNKNOWN_TOPIC_OR_PARTITION (3)" in str(batch.error)


def test_a_batch_that_a_throttle_held_until_it_expired_says_for_how_long() -> None:
    producer = PureProducer([1], Settings(delivery_timeout=30.0))
    producer.append(0, FULL)
    producer.ready()
    producer.now = 1.0
    producer.sender.handle(NodeThrottled(1, 61.0), producer.now)
    assert producer.poll() == []
    producer.now = 30.0
    producer.poll()
    (batch,) = producer.done()
    assert "node 1 throttles this client for 60000 ms, as brokers do if a quota" in str(batch.error)


def test_a_throttle_that_was_over_before_a_batch_began_is_not_blamed() -> None:
    producer = PureProducer([1], Settings(delivery_timeout=30.0))
    producer.ready()
    producer.sender.handle(NodeThrottled(1, 1.0), producer.now)
    producer.now = 2.0
    producer.append(0, FULL)
    producer.sender.handle(NodeDown(1, "Connection refused"), producer.now)
    producer.now = 32.0
    producer.poll()
    (batch,) = producer.done()
    assert "pause" not in str(batch.error)


def test_the_first_retry_of_each_kind_is_a_warning() -> None:
    producer = PureProducer([1, 1])
    producer.append(0, FULL)
    producer.append(1, FULL)
    producer.ready()
    for code in (NOT_ENOUGH_REPLICAS, NOT_LEADER, NOT_ENOUGH_REPLICAS, NOT_LEADER):
        (request,) = producer.poll()
        producer.answer(request, code)
        producer.now += 2.0
    (request,) = producer.poll()
    producer.answer(request)
    assert producer.warnings == [
        "t-0: 2 record(s) are sent again after NOT_ENOUGH_REPLICAS (19) from node 1; fewer "
        "replicas are in sync than min.insync.replicas asks for",
        "t-0: 2 record(s) are sent again after NOT_LEADER_OR_FOLLOWER (6) from node 1",
    ]


def test_a_batch_that_expires_in_flight_keeps_its_memory_until_the_answer() -> None:
    producer = PureProducer([1], Settings(delivery_timeout=30.0))
    producer.append(0, FULL)
    producer.append(0, FULL)
    producer.ready()
    (request,) = producer.poll()
    producer.now = 30.0
    producer.poll()
    in_flight, waiting = producer.done()
    assert (in_flight.state, waiting.state) == (BatchState.ABANDONED, BatchState.FAILED)
    errors = [batch.error for batch in (in_flight, waiting)]
    assert [error.attempts for error in errors if isinstance(error, ApiException)] == [1, 0]
    assert producer.accumulator.pool.available_bytes < producer.settings.buffer_memory
    producer.lose(request, TIMED_OUT)
    assert producer.done() == []
    assert producer.accumulator.pool.available_bytes == producer.settings.buffer_memory
    assert in_flight.state is BatchState.FAILED


def _expired_in_flight() -> tuple[PureProducer, ClientRequest]:
    """Return a producer whose second batch expired at its broker, and that request."""
    producer = PureProducer([1], Settings(delivery_timeout=30.0))
    producer.append(0, FULL)
    producer.ready()
    producer.answer(producer.poll()[0])
    producer.append(0, FULL)
    (request,) = producer.poll()
    producer.now = 30.0
    producer.append(0, FULL)
    assert producer.poll() == [], "sent before the fate of the batch before is known"
    assert [b.state for b in producer.done()] == [BatchState.SUCCEEDED, BatchState.ABANDONED]
    return producer, request


def test_what_follows_a_batch_that_expired_goes_on_where_it_was_written_after_all() -> None:
    producer, expired = _expired_in_flight()
    producer.answer(expired)
    (after,) = producer.poll()
    assert (sequences(after), batches(after)[0].producer.epoch) == ([4], 0)


def test_what_follows_a_batch_that_expired_has_a_new_epoch_where_it_may_be_missing() -> None:
    producer, expired = _expired_in_flight()
    producer.lose(expired, TIMED_OUT)
    (after,) = producer.poll()
    assert (sequences(after), batches(after)[0].producer.epoch) == ([0], 1)


@pytest.mark.parametrize("code", STALE + NOT_STALE)
def test_an_error_that_means_stale_metadata_has_it_asked_for(code: int) -> None:
    producer = PureProducer([1])
    producer.append(0, FULL)
    producer.ready()
    (request,) = producer.poll()
    producer.now = 10.0
    assert producer.poll() == []
    producer.now = 20.0
    assert producer.sender.poll(producer.now).requests == []
    producer.answer(request, code)
    asked = [r.message for r in producer.sender.poll(producer.now).requests]
    assert [type(message) for message in asked] == [MetadataRequest] * (code in STALE)


def test_stale_metadata_is_asked_for_also_where_the_batch_had_expired() -> None:
    for code in (NOT_LEADER, POLICY):
        producer, expired = _expired_in_flight()
        producer.now = 60.0
        assert producer.poll() == []
        assert producer.sender.poll(producer.now).requests == []
        producer.answer(expired, code)
        asked = [r.message for r in producer.sender.poll(producer.now).requests]
        assert [type(message) for message in asked] == [MetadataRequest] * (code == NOT_LEADER)


def test_memory_is_free_again_after_every_kind_of_end() -> None:
    producer = PureProducer([1], Settings(compression="lz4", retries=1))
    for values in (FULL, [b"a" * 90_000, b"b" * 100], [b"c"] * 500):
        producer.append(0, values)
    producer.ready()
    code = 0
    for _ in range(20):
        for request in producer.poll():
            producer.answer(request, code)
            code = 0 if code else CORRUPT
        producer.now += 10
    assert not producer.accumulator.has_incomplete
    assert producer.accumulator.pool.available_bytes == producer.settings.buffer_memory


@pytest.mark.parametrize("code", [TIMED_OUT, UNKNOWN_SERVER, UNKNOWN_HERE, None])
def test_the_error_does_not_say_that_a_batch_was_not_written_if_it_may_be(code: int | None) -> None:
    producer = PureProducer([1], Settings(retries=0))
    producer.append(0, FULL)
    producer.ready()
    (request,) = producer.poll()
    if code is None:
        producer.lose(request)
    else:
        producer.answer(request, code)
    (batch,) = producer.done()
    assert str(batch.error).startswith("t-0: 2 record(s) were not acknowledged: ")
