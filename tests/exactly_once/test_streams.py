"""Streams, without a JVM: micro-batches, replays and aborts in both modes, on real brokers."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.spark.played_stream import PlayedStream
from support.spark.single_job import SingleJob

from spark_kafka_sink.errors import ConfigException, KafkaException

pytestmark = [pytest.mark.kafka, pytest.mark.exactly_once]


@pytest.fixture
def stream(job: SingleJob, driver_folder: Path) -> PlayedStream:
    """A stream that writes to a topic with four partitions."""
    return PlayedStream(job)


def test_each_micro_batch_is_written_once_and_a_replay_only_compared(
    stream: PlayedStream, capfd: pytest.CaptureFixture[str]
) -> None:
    stream.run(0, {0: ["a"], 1: ["b"]})
    stream.run(1, {})
    stream.run(2, {2: ["c"]})
    stream.restart()
    stream.run(2, {2: ["c"]})
    assert "skipped: micro-batch 2 of query query was written before" in capfd.readouterr().err
    stream.run(3, {3: ["d"]})
    assert stream.committed == ["a", "b", "c", "d"]


def test_what_cannot_be_a_replay_fails_with_both_numbers(
    stream: PlayedStream, capfd: pytest.CaptureFixture[str]
) -> None:
    stream.run(4, {0: ["a", "b"]})
    assert "is the first that the commit log has of" in capfd.readouterr().err
    with pytest.raises(KafkaException, match="was written by this run of the query already"):
        stream.run(4, {0: ["a", "b"]})
    stream.restart()
    with pytest.raises(KafkaException, match="has 1 rows now, and had 2 when"):
        stream.run(4, {0: ["a"]})
    with pytest.raises(KafkaException, match=r"micro-batch 3 .* is older than micro-batch 4"):
        stream.run(3, {0: ["a"]})
    stream.query_id = "another query"
    stream.run(0, {1: ["c"]})
    assert "query another query is written as a new stream of" in capfd.readouterr().err
    assert stream.committed == ["a", "b", "c"]


@pytest.mark.parametrize("has_messages", [True, False])
def test_a_micro_batch_that_failed_is_aborted_also_without_messages(
    stream: PlayedStream, capfd: pytest.CaptureFixture[str], *, has_messages: bool
) -> None:
    source, writer = stream.plan()
    messages = stream.write(writer, 0, {0: ["a"]})
    stream.ended_by(source).abort(messages if has_messages else [None] * 4, 0)
    assert "nothing of it is visible" in capfd.readouterr().err
    assert stream.committed == []
    stream.run(0, {0: ["a"]})
    assert stream.committed == ["a"]


def test_a_query_that_is_stopped_without_an_abort_writes_its_micro_batch_once(
    stream: PlayedStream,
) -> None:
    _, writer = stream.plan()
    stream.write(writer, 0, {0: ["a"], 1: ["b"]})
    stream.restart()
    stream.run(0, {0: ["a"], 1: ["b"]})
    assert stream.committed == ["a", "b"]


def test_a_micro_batch_that_was_committed_before_the_query_stopped_is_only_compared(
    stream: PlayedStream, capfd: pytest.CaptureFixture[str]
) -> None:
    source, writer = stream.plan()
    messages = stream.write(writer, 0, {0: ["a"], 1: ["b"]})
    stream.ended_by(source).commit(messages, 0)
    stream.ended_by(source).abort(messages, 0)
    stream.restart()
    stream.run(0, {0: ["a"], 1: ["b"]})
    assert "skipped: micro-batch 0 of query query was written before" in capfd.readouterr().err
    assert stream.committed == ["a", "b"]


def test_a_stream_has_to_have_a_name(stream: PlayedStream) -> None:
    del stream.options["checkpointLocation"]
    with pytest.raises(ConfigException, match="needs to know which stream this is"):
        stream.plan()
    stream.options["txnAppId"] = "named"
    stream.run(0, {0: ["a"]})
    stream.options["txnVersion"] = "1"
    with pytest.raises(ConfigException, match="txnVersion is for batch jobs"):
        stream.plan()
    assert stream.committed == ["a"]
