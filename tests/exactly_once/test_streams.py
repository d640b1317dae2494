"""Streams, without a JVM: micro-batches, replays and aborts in both modes, on real brokers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from support.spark.played_stream import PlayedStream
from support.spark.single_job import SingleJob, handed_over

from spark_kafka_sink.errors import ConfigException, KafkaException
from spark_kafka_sink.spark.micro_batch import MicroBatch, batch_id_option, query_option
from spark_kafka_sink.spark.planning.datasource import KafkaDataSource
from spark_kafka_sink.spark.writer import ExactlyOnceMicroBatchWriter

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
    assert "is not the first, but the commit log has no micro-batch" in capfd.readouterr().err
    with pytest.raises(KafkaException, match="this run of the query has already written"):
        stream.run(4, {0: ["a", "b"]})
    stream.restart()
    with pytest.raises(KafkaException, match="has 1 row now, and had 2 when"):
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
    assert "no row is visible" in capfd.readouterr().err
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


def test_a_save_that_is_tried_again_after_its_rows_were_committed_only_counts_them(
    job: SingleJob, driver_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    del job.options["txnVersion"]

    def save(rows: Mapping[int, Sequence[str]], *, is_retry: bool) -> None:
        micro_batch = MicroBatch("query", 3, "run", is_retry=is_retry)
        options = {**job.options, **batch_id_option(3), **query_option(micro_batch)}
        writer = KafkaDataSource(options).writer(job.schema, overwrite=False)
        assert isinstance(writer, ExactlyOnceMicroBatchWriter)
        handed_over(writer).commit(job.write(writer, rows))

    save({0: ["a"], 1: ["b"]}, is_retry=False)
    with pytest.raises(KafkaException, match="two saves of one micro-batch need different topics"):
        save({0: ["a"], 1: ["b"]}, is_retry=False)
    save({0: ["a"], 1: ["b"]}, is_retry=True)
    assert "skipped: micro-batch 3 of query query was written before" in capfd.readouterr().err
    with pytest.raises(KafkaException, match="has 1 row now, and had 2 when"):
        save({0: ["a"]}, is_retry=True)
    assert job.committed == ["a", "b"]


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
