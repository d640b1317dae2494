"""KafkaDataSource: the data source of ``format("pykafka")``.

Spark creates a new data source on the driver for every write, every micro-batch and each of their
commits, so its constructor must be cheap. This module only checks and plans a write.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.errors import ConfigException, KafkaException
from spark_kafka_sink.logs import warnings_disabled
from spark_kafka_sink.spark.exactly_once import CHECKPOINT_OPTION, ExactlyOnce, is_off
from spark_kafka_sink.spark.layout_mark import laid_out_counts
from spark_kafka_sink.spark.micro_batch import (
    MicroBatch,
    batch_id_of,
    micro_batch_in,
    options_of_user,
)
from spark_kafka_sink.spark.options import SinkOptions, has_full_traceback, sink_options
from spark_kafka_sink.spark.planning.encodings import (
    adds_headers,
    encoded_columns,
    with_encodings,
    with_registered_encodings,
)
from spark_kafka_sink.spark.planning.preflight import (
    check_cluster,
    check_dead_letter_topic,
    check_partitioner,
    check_report_path,
    make_dead_letter_path,
)
from spark_kafka_sink.spark.planning.schema import (
    check_dead_letters,
    check_has_columns,
    check_schema,
    warn_of_unsent_columns,
)
from spark_kafka_sink.spark.planning.single_checks import check_layout, check_targets
from spark_kafka_sink.spark.planning.task_tokens import (
    checked_with_shared_token,
    with_job_token,
)
from spark_kafka_sink.spark.report import WRITE_ID_OPTION
from spark_kafka_sink.spark.tracebacks import short_tracebacks
from spark_kafka_sink.spark.tracing import begin_job, check_installed, keep_trace, kept_trace
from spark_kafka_sink.spark.worker import freeze_imports
from spark_kafka_sink.spark.writer import (
    ExactlyOnceMicroBatchWriter,
    ExactlyOnceStreamWriter,
    ExactlyOnceWriter,
    KafkaArrowWriter,
    KafkaStreamArrowWriter,
    MicroBatchWriter,
    mode_refusal,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_kafka_sink.spark.committing.job_token import JobToken


# The options that distinguish the streams of an application, in lower case.
_OF_STREAM: Final = (WRITE_ID_OPTION, "checkpointlocation", "queryname", "topic", "txnappid")


class KafkaDataSource(DataSource):
    """The Kafka sink as a Python data source."""

    # Spark plans with a new source in the planning process, and commits with a pickled copy.
    _is_copy = False

    @property
    def full_traceback(self) -> bool:
        """Whether the tracebacks of exceptions show all frames."""
        return has_full_traceback(self.options)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._is_copy = True

    @classmethod
    def name(cls) -> str:
        """Return the name of the format, for ``format(…)``."""
        return "pykafka"

    @short_tracebacks
    def schema(self) -> StructType:
        """Raise ConfigException. Spark calls this only for reading, which is not supported."""
        message = 'pykafka is a sink: read Kafka with spark.read.format("kafka")'
        raise ConfigException(message)

    @short_tracebacks
    def writer(
        self,
        schema: StructType | pa.Schema,
        overwrite: bool,  # noqa: FBT001 - Spark's signature
    ) -> KafkaArrowWriter | ExactlyOnceWriter | ExactlyOnceMicroBatchWriter:
        """Check and plan a batch write, and return its writer.

        schema: a Spark schema, or a pyarrow schema if Sail calls this. Raise ConfigException,
        DataException and the exceptions of the brokers.
        """
        freeze_imports()
        if overwrite:
            raise ConfigException(mode_refusal("Overwrite"))
        if isinstance(schema, StructType):
            return self._planned_writer(schema)
        from spark_kafka_sink.spark.planning.arrow_schema import (  # noqa: PLC0415 - Spark does not need it
            as_spark_schema,
            check_without_task_numbers,
        )

        found = as_spark_schema(schema)
        options, _ = self.check(found)
        check_without_task_numbers(options)
        writer = self._planned_writer(found)
        writer.may_get_other_types = True
        return writer

    def _planned_writer(
        self, schema: StructType
    ) -> KafkaArrowWriter | ExactlyOnceWriter | ExactlyOnceMicroBatchWriter:
        options, batch_id = self.check(schema)
        options = _traced(options)
        if batch_id is not None and options.exactly_once is None:
            return MicroBatchWriter(_checked_micro_batch(options, schema), batch_id)
        micro_batch = micro_batch_in({name.lower(): text for name, text in self.options.items()})
        if micro_batch is not None:
            return _planned_save(_checked_micro_batch(options, schema), micro_batch)
        if options.delegation_token_mechanism is None:
            return _planned(options, schema, batch_id, None, options.producer)
        of_driver = options.producer
        options, token = with_job_token(options)
        try:
            return _planned(options, schema, batch_id, token, of_driver)
        except BaseException:
            if token is not None:
                token.expire()
            raise

    def check(
        self, schema: StructType, *, reads_files: bool = True
    ) -> tuple[SinkOptions, int | None]:
        """Check options and columns. Return the options, and the batch id of the micro-batch.

        The batch id is None if no micro-batch is saved. reads_files: as in `_checked_options`.
        Raise ConfigException and DataException.
        """
        given = {name.lower(): value for name, value in self.options.items()}
        batch_id, micro_batch = batch_id_of(given), micro_batch_in(given)
        own = options_of_user(given, is_exactly_once=not is_off(given))
        options = _checked_options(own, schema, reads_files=reads_files)
        if options.exactly_once is not None:
            query_id = None if micro_batch is None else micro_batch.query_id
            selected = options.exactly_once.of_batch(batch_id, query_id)
            options = replace(options, exactly_once=selected)
        return options, batch_id

    @short_tracebacks
    def streamWriter(  # noqa: N802 - Spark's name
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001, ARG002 - Spark's signature
    ) -> KafkaStreamArrowWriter | ExactlyOnceStreamWriter:
        """Plan a micro-batch, and return its writer.

        A pickled copy of this source plans nothing, checks no brokers and reads no schema file: its
        writer only commits or aborts a micro-batch whose rows were written. overwrite is True in
        output mode complete. As in Spark's own sink, each micro-batch then appends the complete
        result again. Raise the exceptions of `writer`.
        """
        freeze_imports()
        checked = self.check_stream(schema, reads_files=not self._is_copy)
        options = self._traced_stream(checked)
        if self._is_copy:
            # A copy does not use the schema registry, so its writer must not get the credentials.
            options = replace(options, registry=None)
        if options.exactly_once is None:
            if not self._is_copy:
                options = _checked_micro_batch(options, schema)
            return KafkaStreamArrowWriter(options)
        if self._is_copy:
            return ExactlyOnceStreamWriter(options)
        return _planned_micro_batch(_checked_micro_batch(options, schema))

    def _traced_stream(self, options: SinkOptions) -> SinkOptions:
        """Return the options with the span of the micro-batch, if openTelemetry is set.

        The span begins when the micro-batch is planned, and is then stored. A pickled copy of this
        source gets the stored span. If no span is stored, a new span begins now.
        """
        if options.traceparent is None:
            return options
        from spark_kafka_sink.spark.session import driver_folder  # noqa: PLC0415 - few streams have a trace

        folder = driver_folder()
        given = {name.lower(): text for name, text in self.options.items()}
        stream = [given.get(name) for name in _OF_STREAM]
        if self._is_copy and folder is not None:
            kept = kept_trace(folder, stream)
            return _traced(options) if kept is None else replace(options, trace=kept)
        options = _traced(options)
        if folder is not None:
            keep_trace(folder, stream, options.trace)
        return options

    def check_stream(self, schema: StructType, *, reads_files: bool = True) -> SinkOptions:
        """Check the options and columns of a stream, and return the options.

        reads_files: as in `_checked_options`. Raise ConfigException and DataException.
        """
        options = _checked_options(self.options, schema, reads_files=reads_files)
        if options.exactly_once is None:
            return options
        return _of_stream(options, options.exactly_once, self.options)


def _traced(options: SinkOptions) -> SinkOptions:
    """Begin the span of the job, if openTelemetry is set. Return the options with the span."""
    if options.traceparent is None:
        return options
    return replace(options, trace=begin_job(options.traceparent, options.topic))


def _planned(
    options: SinkOptions,
    schema: StructType,
    batch_id: int | None,
    token: JobToken | None,
    of_driver: ProducerConfig,
) -> KafkaArrowWriter | ExactlyOnceWriter:
    """Check the cluster for a job, plan a run if exactly once is on, and return the job's writer.

    batch_id: the batch id if the job is a micro-batch of an unknown query, else None. of_driver: as
    in `check_environment`.
    """
    in_batches = batch_id is not None
    options = check_environment(
        options, schema, in_batches=in_batches, may_remember=False, of_driver=of_driver
    )
    if options.exactly_once is None:
        return KafkaArrowWriter(options, token)
    from spark_kafka_sink.spark.planning.run_plan import plan_run  # noqa: PLC0415 - most jobs do not need it

    return ExactlyOnceWriter(options, plan_run(options, options.exactly_once), batch_id, token)


def _of_stream(
    options: SinkOptions, selected: ExactlyOnce, given: Mapping[str, str]
) -> SinkOptions:
    """Return the options with the txnAppId that identifies the stream in the commit log."""
    named = {name.lower(): value for name, value in given.items()}
    checkpoint = named.get("checkpointlocation", named.get(CHECKPOINT_OPTION) or None)
    return replace(options, exactly_once=selected.of_stream(checkpoint))


def _planned_save(options: SinkOptions, micro_batch: MicroBatch) -> ExactlyOnceMicroBatchWriter:
    """Plan a micro-batch that is written as a job, in the function of foreachBatch."""
    from spark_kafka_sink.spark.committing.exactly_once_commit import end_unused  # noqa: PLC0415 - most jobs do not need it
    from spark_kafka_sink.spark.planning.run_plan import plan_micro_batch  # noqa: PLC0415 - as above
    from spark_kafka_sink.spark.replays import is_written  # noqa: PLC0415 - as above

    plan = plan_micro_batch(options)
    try:
        is_replay = is_written(plan, micro_batch)
    except KafkaException:
        # Without a writer, Spark does not call abort. So end the transaction here.
        end_unused(options, plan)
        raise
    return ExactlyOnceMicroBatchWriter(options, plan, micro_batch, is_written=is_replay)


def _planned_micro_batch(options: SinkOptions) -> ExactlyOnceStreamWriter:
    """Plan a micro-batch and return its writer. Spark requests a writer for each micro-batch."""
    from spark_kafka_sink.spark.planning.run_plan import plan_micro_batch  # noqa: PLC0415 - most streams do not need it

    return ExactlyOnceStreamWriter(options, plan_micro_batch(options))


def _checked_options(
    given: Mapping[str, str], schema: StructType, *, reads_files: bool
) -> SinkOptions:
    """Check the options and the columns, and return the options.

    reads_files: as in `with_encodings`. It is False in a process that does not plan the write. Such
    a process begins no span, so OpenTelemetry is not checked there.
    """
    options = sink_options(given)
    if reads_files and options.traceparent is not None:
        check_installed()
    # Check this first: an option may have no effect only because a column is missing, and the
    # subject of a schema may depend on the topic.
    check_has_columns(schema, options.topic)
    options = with_encodings(options, schema, reads_files=reads_files)
    encoded = encoded_columns(options, schema)
    check_schema(schema, options.topic, encoded)
    if options.bad_rows.path is not None:
        check_dead_letters(schema, encoded)
    laid_out = laid_out_counts(schema)
    check_layout(options, laid_out)
    return replace(options, laid_out=laid_out or {})


def _checked_micro_batch(options: SinkOptions, schema: StructType) -> SinkOptions:
    """Check the options and the cluster for a micro-batch; use cached results if possible.

    If delegationToken is set, the check authenticates with the token that all micro-batches share.
    """
    check = partial(
        check_environment,
        schema=schema,
        in_batches=True,
        may_remember=True,
        of_driver=options.producer,
    )
    if options.delegation_token_mechanism is None:
        return check(options)
    return checked_with_shared_token(options, check)


def check_environment(
    options: SinkOptions,
    schema: StructType,
    *,
    in_batches: bool,
    may_remember: bool,
    of_driver: ProducerConfig | None = None,
) -> SinkOptions:
    """Check everything except options and columns, log warnings, and return the options.

    Check the partitioner, the paths, the brokers and the topics, because they may change between
    two writes. The returned options contain the results. in_batches: whether micro-batches are
    written. If so, schemas of earlier micro-batches may be reused. may_remember: whether cached
    results about the cluster, up to metadata.max.age.ms old, may be used. of_driver: the producer's
    options with the driver's credentials, if `options` contain a delegation token. These
    credentials are for the schema registry, which does not accept such a token.
    """
    options = _checked_cluster(options, schema, in_batches=in_batches, may_remember=may_remember)
    # Do this last, because it may register a schema.
    asking = replace(options, producer=of_driver or options.producer)
    checked = with_registered_encodings(asking, schema, may_remember=in_batches)
    return replace(checked, producer=options.producer)


def _checked_cluster(
    options: SinkOptions, schema: StructType, *, in_batches: bool, may_remember: bool
) -> SinkOptions:
    """Make the checks of `check_environment` that do not need the schema registry."""
    check_partitioner(options)
    check_report_path(options, in_batches=in_batches)
    make_dead_letter_path(options)
    has_headers = "headers" in schema.names or adds_headers(options)
    options = check_cluster(options, has_headers=has_headers, may_remember=may_remember)
    options = check_dead_letter_topic(options, may_remember=may_remember)
    check_targets(options, may_remember=may_remember)
    warn_of_unsent_columns(schema)
    return options


def check_batch_write(
    schema: StructType, options: Mapping[str, str], *, asks_registry: bool = True
) -> None:
    """Check on the driver that rows with a schema can be written. Raise an exception if not.

    The process that plans the write makes these checks again, and logs their warnings. But it does
    not query the schema registry again. So this function logs the warnings about the registry.
    asks_registry: whether to query the schema registry, if the options set one.
    """
    with warnings_disabled():
        checked, batch_id = KafkaDataSource(dict(options)).check(schema)
        in_batches = batch_id is not None
        checked = _checked_cluster(checked, schema, in_batches=in_batches, may_remember=in_batches)
    if asks_registry:
        with_registered_encodings(checked, schema, may_remember=in_batches)


def check_stream_write(
    schema: StructType, options: Mapping[str, str], *, asks_registry: bool = True
) -> None:
    """Check that a stream with a schema can be written, like `check_batch_write`."""
    with warnings_disabled():
        checked = KafkaDataSource(dict(options)).check_stream(schema)
        checked = _checked_cluster(checked, schema, in_batches=True, may_remember=False)
    if asks_registry:
        with_registered_encodings(checked, schema, may_remember=True)


def check_options_and_columns(schema: StructType, options: Mapping[str, str]) -> None:
    """Check only the options and the columns. Raise an exception if they are invalid.

    This is for Spark Connect clients, which may not be able to read the server's files.
    """
    with warnings_disabled():
        KafkaDataSource(dict(options)).check(schema, reads_files=False)


def check_options_and_columns_of_stream(schema: StructType, options: Mapping[str, str]) -> None:
    """Check only the options and the columns of a stream, like `check_options_and_columns`."""
    with warnings_disabled():
        KafkaDataSource(dict(options)).check_stream(schema, reads_files=False)
