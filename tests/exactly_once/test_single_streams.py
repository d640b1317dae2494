"""Mode `single` for streams: micro-batches, replays and aborts, on real brokers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from conftest import NewTopic
from pyspark.sql.datasource import WriterCommitMessage
from support.brokers.kafka_cluster import KafkaCluster
from support.spark.single_job import SingleJob, batches, handed_over

from spark_kafka_sink.errors import ConfigException, KafkaException
from spark_kafka_sink.spark import exactly_once, kept_plans
from spark_kafka_sink.spark.commit_clients import close_all
from spark_kafka_sink.spark.micro_batch import MicroBatch
from spark_kafka_sink.spark.planning.datasource import KafkaDataSource
from spark_kafka_sink.spark.tasks import micro_batch_task
from spark_kafka_sink.spark.writer import ExactlyOnceStreamWriter

pytestmark = [pytest.mark.kafka, pytest.mark.exactly_once]


@pytest.fixture(autouse=True)
def modes_are_complete(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Let the modes be used that the sink refuses until they are complete."""
    monkeypatch.setattr(exactly_once, "UNFINISHED", frozenset())
    monkeypatch.setattr(kept_plans, "driver_folder", lambda: tmp_path)
    yield
    close_all()


class Stream:
    """A stream that writes to one topic; the test is Spark.

    run_id: of the query's run, another one after a restart.
    """

    def __init__(self, job: SingleJob, monkeypatch: pytest.MonkeyPatch) -> None:
        self._job = job
        self._monkeypatch = monkeypatch
        self.run_id = "first run"
        self.query_id = "query"
        self.options = {
            name: value for name, value in job.options.items() if not name.startswith("txn")
        } | {"checkpointLocation": f"file:/checkpoints/{job.topic}"}

    def plan(self) -> tuple[KafkaDataSource, ExactlyOnceStreamWriter]:
        """Plan a micro-batch."""
        source = KafkaDataSource(self.options)
        writer = source.streamWriter(self._job.schema, overwrite=True)
        assert isinstance(writer, ExactlyOnceStreamWriter)
        return handed_over(source), handed_over(writer)

    def write(
        self, writer: ExactlyOnceStreamWriter, batch_id: int, rows: Mapping[int, Sequence[str]]
    ) -> list[WriterCommitMessage | None]:
        """Run the tasks of a micro-batch."""
        micro_batch = MicroBatch(self.query_id, batch_id, self.run_id)
        self._monkeypatch.setattr(micro_batch_task, "_micro_batch", lambda: micro_batch)
        return [
            handed_over(writer.write(iter(batches(number, rows.get(number, ())))))
            for number in range(self._job.partitions)
        ]

    def ended_by(self, source: KafkaDataSource) -> ExactlyOnceStreamWriter:
        """Return the writer that Spark makes to commit or abort."""
        writer = source.streamWriter(self._job.schema, overwrite=True)
        assert isinstance(writer, ExactlyOnceStreamWriter)
        return writer

    def run(self, batch_id: int, rows: Mapping[int, Sequence[str]]) -> None:
        """Run a micro-batch."""
        source, writer = self.plan()
        messages = self.write(writer, batch_id, rows)
        self.ended_by(source).commit(messages, batch_id)

    @property
    def committed(self) -> list[str]:
        """The values that readers see."""
        return self._job.committed


@pytest.fixture
def stream(cluster: KafkaCluster, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch) -> Stream:
    """A stream that writes to a topic with four partitions."""
    log = new_topic(1, {"cleanup.policy": "compact"})
    return Stream(SingleJob(cluster, new_topic(4), 4, log), monkeypatch)


def test_each_micro_batch_is_written_once_and_a_replay_only_compared(
    stream: Stream, capfd: pytest.CaptureFixture[str]
) -> None:
    stream.run(0, {0: ["a"], 1: ["b"]})
    stream.run(1, {})
    stream.run(2, {2: ["c"]})
    stream.run_id = "second run"
    stream.run(2, {2: ["c"]})
    assert "skipped: micro-batch 2 of query query was written before" in capfd.readouterr().err
    stream.run(3, {3: ["d"]})
    assert stream.committed == ["a", "b", "c", "d"]


def test_what_cannot_be_a_replay_fails_with_both_numbers(stream: Stream) -> None:
    stream.run(4, {0: ["a", "b"]})
    with pytest.raises(KafkaException, match="was written by this run of the query already"):
        stream.run(4, {0: ["a", "b"]})
    stream.run_id = "second run"
    with pytest.raises(KafkaException, match="has 1 rows now, and had 2 when"):
        stream.run(4, {0: ["a"]})
    with pytest.raises(KafkaException, match=r"micro-batch 3 .* is older than micro-batch 4"):
        stream.run(3, {0: ["a"]})
    stream.query_id = "another query"
    stream.run(0, {1: ["c"]})
    assert stream.committed == ["a", "b", "c"]


@pytest.mark.parametrize("has_messages", [True, False])
def test_a_micro_batch_that_failed_is_aborted_also_without_messages(
    stream: Stream, capfd: pytest.CaptureFixture[str], *, has_messages: bool
) -> None:
    source, writer = stream.plan()
    messages = stream.write(writer, 0, {0: ["a"]})
    stream.ended_by(source).abort(messages if has_messages else [None] * 4, 0)
    assert "nothing of it is visible" in capfd.readouterr().err
    assert stream.committed == []
    stream.run(0, {0: ["a"]})
    assert stream.committed == ["a"]


def test_a_stream_has_to_have_a_name(stream: Stream) -> None:
    del stream.options["checkpointLocation"]
    with pytest.raises(ConfigException, match="needs to know which stream this is"):
        stream.plan()
    stream.options["txnAppId"] = "named"
    stream.run(0, {0: ["a"]})
    stream.options["txnVersion"] = "1"
    with pytest.raises(ConfigException, match="txnVersion is for batch jobs"):
        stream.plan()
    assert stream.committed == ["a"]
