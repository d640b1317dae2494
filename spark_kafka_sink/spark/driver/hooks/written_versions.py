"""With exactly once, ``save()`` starts no job for a version that is already written.

A version is the txnVersion of an application. This check only reads the commit log. The job reads
the log again, and then fences older runs of the application.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_kafka_sink.spark.committing.exactly_once_commit import skipped_report
from spark_kafka_sink.spark.committing.job_commit import publish
from spark_kafka_sink.spark.micro_batch import options_of_user
from spark_kafka_sink.spark.options import name_kafka_options, sink_options
from spark_kafka_sink.spark.planning.written_version import written_record


@name_kafka_options()
def is_written(options: Mapping[str, str]) -> bool:
    """Return whether the version is already written; if so, publish the report of a skipped job.

    options: the options of the write, with names in lower case. exactlyOnce is set in them.

    If the option `topic` is not set, return False without reading the commit log. The job then
    runs. If the version is already written, the job only counts its rows.
    """
    # A writer that is used again has options that cancel those of an earlier micro-batch.
    checked = sink_options(options_of_user(options, is_exactly_once=True))
    record = None if checked.topic is None else written_record(checked)
    if record is None:
        return False
    trace = None
    if checked.traceparent is not None:
        from spark_kafka_sink.spark.tracing import begin_job  # noqa: PLC0415 - few jobs have a trace

        trace = begin_job(checked.traceparent, checked.topic)
    report = skipped_report(checked, record)
    publish(report, checked.report_path, quiet=checked.quiet, trace=trace)
    return True
