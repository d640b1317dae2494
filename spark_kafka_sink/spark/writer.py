"""The writers that Spark calls: planned on the driver, run in tasks, committed on the driver.

Spark pickles a writer into every task, and calls commit and abort on a copy in a different process.
A writer keeps the options for its tasks as bytes, so that the committing process does not import
the modules of the options. That import takes a third of a second in a new process. For the same
reason, the modules of tasks and of commits are imported only when they are needed.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from pyspark import cloudpickle
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from spark_kafka_sink.errors import ConfigException, KafkaException
from spark_kafka_sink.spark.compat import DataSourceStreamArrowWriter
from spark_kafka_sink.spark.report import CommitReport, SinkCommitMessage, SkippedMessage
from spark_kafka_sink.spark.tracebacks import short_tracebacks
from spark_kafka_sink.spark.worker import build, freeze_imports, new_object

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_kafka_sink.commit.attempts import Plan
    from spark_kafka_sink.commit.log_record import CommitRecord
    from spark_kafka_sink.spark.committing.job_token import JobToken
    from spark_kafka_sink.spark.micro_batch import MicroBatch
    from spark_kafka_sink.spark.options import SinkOptions


_OTHER_TRIGGERS: Final = 'Use .trigger(processingTime="1 second") or .trigger(availableNow=True)'
CONTINUOUS_REFUSAL: Final = (
    f"With the continuous trigger, Spark passes no rows to a Python sink. {_OTHER_TRIGGERS}"
)
REAL_TIME_REFUSAL: Final = (
    f"Spark does not support the real-time trigger for Python sinks. {_OTHER_TRIGGERS}"
)
# The keys are the parameters of ``trigger``, and their names in the plans of Spark Connect.
TRIGGER_REFUSALS: Final = {
    "continuous": CONTINUOUS_REFUSAL,
    "continuous_checkpoint_interval": CONTINUOUS_REFUSAL,
    "realTime": REAL_TIME_REFUSAL,
    "real_time_batch_duration": REAL_TIME_REFUSAL,
}


def mode_refusal(mode: str) -> str:
    """Return the error message for a save mode other than append."""
    start_over = "; to start over, delete or truncate the topic first"
    return (
        f"Save mode {mode} not allowed for Kafka, expected append: records of a topic can be "
        'added, but not replaced. Use .mode("append")'
        f"{start_over if mode.lower() == 'overwrite' else ''}"
    )


class _OptionsOfTasks:
    """The base class of all writers. It stores the options for their tasks.

    full_traceback: whether the tracebacks of exceptions show all frames.
    """

    # Whether batches may contain Arrow views and dictionaries. Only Sail's batches may.
    may_get_other_types = False

    def __init__(self, options: SinkOptions) -> None:
        self._options = pickle.dumps(options)
        self._report_path = options.report_path
        self.full_traceback = options.full_traceback
        self._is_quiet = options.quiet
        self._compression = options.producer.compression_type
        self._trace = options.trace
        self._write_id = options.write_id

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str, bytes], dict[str, object]]:
        # `new_object` is called before the class and the attributes are unpickled.
        kind: bytes = cloudpickle.dumps(type(self))  # type: ignore[no-untyped-call] # of pyspark
        return new_object, (build(), kind), vars(self)

    def _unpacked(self) -> SinkOptions:
        options: SinkOptions = pickle.loads(self._options)  # noqa: S301 - what `__init__` pickled
        return options


class _TaskWriter(_OptionsOfTasks):
    """The base class of writers with at-least-once tasks, for jobs and streams."""

    def _publish(
        self, messages: Sequence[WriterCommitMessage | None], batch_id: int | None
    ) -> None:
        """Publish the report of all tasks. Raise KafkaException if a commit message is missing."""
        from spark_kafka_sink.spark.committing.job_commit import commit_report  # noqa: PLC0415 - tasks do not need it

        report = commit_report(
            messages, batch_id, compression=self._compression, write_id=self._write_id
        )
        self._publish_report(report, messages)

    def _publish_failure(
        self, messages: Sequence[WriterCommitMessage | None], batch_id: int | None
    ) -> None:
        """Publish the report of a failed write. Rows that it has already sent stay in Kafka."""
        from spark_kafka_sink.spark.committing.job_commit import failure_report  # noqa: PLC0415 - as above

        report = failure_report(
            messages, batch_id, compression=self._compression, write_id=self._write_id
        )
        self._publish_report(report, messages)

    def _publish_report(
        self, report: CommitReport, messages: Sequence[WriterCommitMessage | None]
    ) -> None:
        from spark_kafka_sink.spark.committing.job_commit import publish, trace_of  # noqa: PLC0415 - as above

        trace = trace_of(messages, self._trace)
        publish(report, self._report_path, quiet=self._is_quiet, trace=trace)

    @short_tracebacks
    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkCommitMessage:
        """Run a task, and return its commit message."""
        from spark_kafka_sink.spark.tasks.task import write_task  # noqa: PLC0415 - tasks alone need it

        if self.may_get_other_types:
            from spark_kafka_sink.spark.plain_types import plain_batches  # noqa: PLC0415 - Spark does not need it

            iterator = plain_batches(iterator)
        return write_task(self._unpacked(), iterator)


class KafkaArrowWriter(_TaskWriter, DataSourceArrowWriter):
    """Writes a batch job.

    token: the delegation token to expire at the end of the job, or None if there is no token.
    """

    # The batch id of the micro-batch that the job writes, None for a job outside foreachBatch.
    _batch_id: int | None = None

    def __init__(self, options: SinkOptions, token: JobToken | None = None) -> None:
        super().__init__(options)
        self._token = token

    @short_tracebacks
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Publish the report of all tasks. Raise KafkaException if a commit message is missing."""
        freeze_imports()
        self._publish(messages, self._batch_id)
        _expire(self._token)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Publish the report of the failed job. Expire its delegation token in any case."""
        try:
            self._publish_failure(messages, self._batch_id)
        finally:
            _expire(self._token)


class ExactlyOnceWriter(_OptionsOfTasks, DataSourceArrowWriter):
    """Writes a batch job exactly once.

    plan: the plan of the run. If the version is already written, `plan` is the commit log record of
    the application and topic instead. batch_id: the batch id, if the job writes a micro-batch.
    token: as in `KafkaArrowWriter`.
    """

    def __init__(
        self,
        options: SinkOptions,
        plan: Plan | CommitRecord,
        batch_id: int | None = None,
        token: JobToken | None = None,
    ) -> None:
        super().__init__(options)
        self._plan = plan
        self._batch_id = batch_id
        self._token = token

    @short_tracebacks
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Run a task, and return its commit message.

        If the version is already written, write nothing. In that case, read and count the rows only
        if the option `topic` is not set.
        """
        from spark_kafka_sink.commit.attempts import Plan  # noqa: PLC0415 - most jobs do not need it
        from spark_kafka_sink.spark.tasks.task import skip_task, write_task  # noqa: PLC0415 - tasks alone need it

        options = self._unpacked()
        if isinstance(self._plan, Plan):
            return write_task(options, iterator, self._plan)
        return skip_task(options, iterator if options.topic is None else None)

    @short_tracebacks
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit all rows of the job together, and publish the report.

        Raise KafkaException if the commit fails.
        """
        from spark_kafka_sink.spark.committing.exactly_once_commit import commit_batch  # noqa: PLC0415 - as above

        freeze_imports()
        commit_batch(self._unpacked(), self._plan, messages, self._batch_id)
        _expire(self._token)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Abort the transactions of the job. Raise nothing: Spark raises the job's error."""
        try:
            from spark_kafka_sink.spark.committing.exactly_once_commit import abort_batch  # noqa: PLC0415 - as above

            abort_batch(self._unpacked(), self._plan, messages, self._batch_id)
        finally:
            _expire(self._token)


class KafkaStreamArrowWriter(_TaskWriter, DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream."""

    @short_tracebacks
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Publish the micro-batch's report. Raise KafkaException if a commit message is missing."""
        if messages and all(message is None for message in messages):
            raise ConfigException(CONTINUOUS_REFUSAL)
        self._publish(messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Publish the report of the failed micro-batch."""
        self._publish_failure(messages, batchId)


class ExactlyOnceStreamWriter(_OptionsOfTasks, DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream exactly once.

    plan: the plan of a micro-batch, for its tasks. It is None in the writer that commits or aborts.
    """

    def __init__(self, options: SinkOptions, plan: Plan | None = None) -> None:
        super().__init__(options)
        self._plan = plan

    @short_tracebacks
    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkCommitMessage | SkippedMessage:
        """Run a task, and return its commit message."""
        from spark_kafka_sink.spark.tasks.micro_batch_task import write_micro_batch  # noqa: PLC0415 - tasks alone need it

        if self._plan is None:
            message = "a task of a stream has no plan; this is a bug"
            raise KafkaException(message)
        return write_micro_batch(self._unpacked(), self._plan, iterator)

    @short_tracebacks
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Commit all rows of a micro-batch together, and publish the report.

        Raise KafkaException if the commit fails.
        """
        from spark_kafka_sink.spark.committing.exactly_once_commit import commit_micro_batch  # noqa: PLC0415 - at least once does not need it

        if messages and all(message is None for message in messages):
            raise ConfigException(CONTINUOUS_REFUSAL)
        commit_micro_batch(self._unpacked(), messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Abort the transactions. Raise nothing: Spark raises the error of the micro-batch."""
        from spark_kafka_sink.spark.committing.exactly_once_commit import abort_micro_batch  # noqa: PLC0415 - as above

        abort_micro_batch(self._unpacked(), messages, batchId)


class ExactlyOnceMicroBatchWriter(_OptionsOfTasks, DataSourceArrowWriter):
    """Writes a micro-batch exactly once, as a batch job.

    is_written: whether the micro-batch was written before. If so, its rows are only counted.
    """

    def __init__(
        self, options: SinkOptions, plan: Plan, micro_batch: MicroBatch, *, is_written: bool
    ) -> None:
        super().__init__(options)
        self._plan = plan
        self._micro_batch = micro_batch
        self._is_written = is_written

    @short_tracebacks
    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkCommitMessage | SkippedMessage:
        """Run a task, and return its commit message."""
        from spark_kafka_sink.spark.tasks.task import skip_task, write_task  # noqa: PLC0415 - tasks alone need it

        if self._is_written:
            return skip_task(self._unpacked(), iterator, self._plan, self._micro_batch)
        message = write_task(self._unpacked(), iterator, self._plan)
        message.plan, message.micro_batch = self._plan, self._micro_batch
        return message

    @short_tracebacks
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit all rows of the micro-batch together, and publish the report.

        Raise KafkaException if the commit fails.
        """
        from spark_kafka_sink.spark.committing.exactly_once_commit import commit_micro_batch  # noqa: PLC0415 - at least once does not need it

        freeze_imports()
        commit_micro_batch(self._unpacked(), messages, self._micro_batch.batch_id)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Abort the transactions. Raise nothing: Spark raises the error of the micro-batch."""
        from spark_kafka_sink.spark.committing.exactly_once_commit import abort_batch  # noqa: PLC0415 - as above

        abort_batch(
            self._unpacked(),
            self._plan,
            messages,
            self._micro_batch.batch_id,
            replayed=self._micro_batch if self._is_written else None,
        )


class MicroBatchWriter(KafkaArrowWriter):
    """Writes a micro-batch as a batch job. Its report is appended to `reportPath`."""

    def __init__(self, options: SinkOptions, batch_id: int) -> None:
        super().__init__(options)
        self._batch_id = batch_id


def _expire(token: JobToken | None) -> None:
    """Expire the delegation token of a batch job, if it has one."""
    if token is not None:
        token.expire()
