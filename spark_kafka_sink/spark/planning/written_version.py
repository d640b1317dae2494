"""Whether the version of an exactly-once job is already written, according to the commit log."""

from __future__ import annotations

from spark_kafka_sink.commit.log_record import CommitRecord, Place, RecordState
from spark_kafka_sink.commit.questions import LogRead, ReadLog
from spark_kafka_sink.errors import ConfigException
from spark_kafka_sink.spark.commit_clients import commit_client, reply_to
from spark_kafka_sink.spark.committing.exactly_once_commit import why_skipped
from spark_kafka_sink.spark.exactly_once import ExactlyOnce
from spark_kafka_sink.spark.options import SinkOptions


def written_record(options: SinkOptions) -> CommitRecord | None:
    """Return the commit log record of the owner if the version is already written, else None.

    This only reads the commit log. Return None if it cannot be read, because the plan of the job
    then raises the error.
    """
    selected = options.exactly_once
    if selected is None or selected.version is None:
        return None
    record = _record(options, selected)
    if record is None or record.state is not RecordState.DONE:
        return None
    return record if record.versions.place(selected.version) is Place.WRITTEN else None


def _record(options: SinkOptions, selected: ExactlyOnce) -> CommitRecord | None:
    with commit_client(options.producer, selected.log_topic, options.brokers) as client:
        found = reply_to(client, ReadLog(selected.owner(options.topic).driver_id))
    return found.reading.record if isinstance(found, LogRead) else None


def refuse_written_version(options: SinkOptions) -> None:
    """Raise ConfigException if the version is already written, although its topic is new.

    The job would be skipped, and the topic would stay empty.
    """
    record = written_record(options)
    if record is not None:
        message = (
            f"topic {options.topic} did not exist and was created now, but "
            f"{why_skipped(options, record)}: the topic was deleted with these rows. To write them "
            "again, use a new txnVersion, or for write_batch a new txnAppId. If the topic may stay "
            "empty, run the job again"
        )
        raise ConfigException(message)
