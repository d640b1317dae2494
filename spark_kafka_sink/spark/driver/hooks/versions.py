"""Before ``save()`` with exactly once: no job for a version that is written, and no speculation.

The log of commits is only read here; the job itself looks again, and then fences older runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_kafka_sink.commit.log_record import CommitRecord, Place, RecordState
from spark_kafka_sink.commit.questions import LogRead, ReadLog
from spark_kafka_sink.errors import ConfigException
from spark_kafka_sink.spark.commit_clients import commit_client
from spark_kafka_sink.spark.committing.exactly_once_commit import skipped
from spark_kafka_sink.spark.committing.job_commit import say
from spark_kafka_sink.spark.exactly_once import Mode
from spark_kafka_sink.spark.options import SinkOptions, name_kafka_options, sink_options

_SPECULATION = "spark.speculation"


@name_kafka_options()
def is_written(session: Any, options: Mapping[str, str]) -> bool:
    """Return whether there is nothing to write, and print why.

    Raise ConfigException for mode `single` in a session with speculation: a copy of a task that has
    begun to write fails the job.
    """
    checked = sink_options(options)
    selected = checked.exactly_once
    if selected is None or selected.version is None or selected.app_id is None:
        return False
    is_speculative = session.sparkContext.getConf().get(_SPECULATION, "false").lower() == "true"
    if selected.mode is Mode.SINGLE and is_speculative:
        message = (
            f"exactlyOnce=single does not go with {_SPECULATION}=true: a copy of a task that has "
            "begun to write would fail the job; set it to false, or use exactlyOnce=two-phase"
        )
        raise ConfigException(message)
    record = _record(checked, selected.owner(checked.topic).driver_id, selected.log_topic)
    is_done = record is not None and record.state is RecordState.DONE
    if (
        record is None
        or not is_done
        or record.versions.place(selected.version) is not Place.WRITTEN
    ):
        return False
    say(skipped(record, selected.version, selected.app_id))
    return True


def _record(options: SinkOptions, key: str, log_topic: str) -> CommitRecord | None:
    """Return the owner's record; None also if the log cannot be read, which the job will say."""
    with commit_client(options.producer, log_topic, options.brokers) as client:
        (found,) = client.answers_to([ReadLog(key)])
    return found.reading.record if isinstance(found, LogRead) else None
