"""The options of ``df.write.format("pykafka")``, as a checked struct that can be pickled.

This module defines the option names. ``kafka.*`` are options of the producer. The sink's own
options are those in `_OWN`, and ``topic.config.*``. Spark passes names in lower case, regardless of
how the user wrote them.

Options of Spark's Kafka *source* and of consumers are ignored with a warning, so that existing jobs
run. Any other unknown name is an error that suggests a similar name, because ignoring a misspelt
option is worse than refusing it.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from numbers import Real
from pathlib import Path
from typing import Final

from pyspark import TaskContext

from spark_kafka_sink.admin import NewTopic, find_shipped_files, name_process
from spark_kafka_sink.auth.delegation_tokens import (
    DEFAULT_MECHANISM,
    TOKEN_MECHANISM_OPTION,
    checked_token_mechanism,
)
from spark_kafka_sink.config import (
    ProducerConfig,
    check_names,
    check_options,
    check_unicode,
    java_names,
    nearest,
    of_other_client,
    producer_config,
    refusal,
)
from spark_kafka_sink.errors import ConfigException, Option, listed, name_options
from spark_kafka_sink.logs import shown_value, warn_once
from spark_kafka_sink.model import Node
from spark_kafka_sink.schema_registry.settings import (
    REGISTRY_OPTIONS,
    URL_OPTION,
    RegistrySettings,
    of_either_client,
    of_registry_client,
    registry_settings,
)
from spark_kafka_sink.spark.exactly_once import (
    EXACTLY_ONCE_OPTIONS,
    SESSION_OPTIONS,
    ExactlyOnce,
    check_exactly_once,
    exactly_once,
    transaction_defaults,
)
from spark_kafka_sink.spark.formats import (
    FORMAT_OPTIONS,
    ColumnEncoding,
    FormatOptions,
    format_options,
    instead_of_serializer,
)
from spark_kafka_sink.spark.local_path import absolute_path, shipped_path
from spark_kafka_sink.spark.on_error import (
    BAD_ROW_OPTIONS,
    FAIL_ON_BAD_ROWS,
    BadRowPolicy,
    bad_row_policy,
)
from spark_kafka_sink.spark.report import WRITE_ID_OPTION, JobTrace
from spark_kafka_sink.spark.tracing import checked_traceparent

logger = logging.getLogger(__name__)

# A task has much to send and flushes at the end of its input, so batches larger than the Java
# client's default cost no latency. send.buffer.bytes=-1 lets the system adapt the send buffer. With
# 128 KiB, sending a batch would take several polls of the I/O thread.
SINK_DEFAULTS: Final[Mapping[str, int | str]] = {
    "client.id": "pykafka",
    "batch.size": 512 * 1024,
    "linger.ms": 300,
    "buffer.memory": 64 * 1024 * 1024,
    "max.request.size": 8 * 1024 * 1024,
    "send.buffer.bytes": -1,
}

_OWN: Final = {
    name.lower(): name
    for name in (
        "createTopics", "delegationToken", TOKEN_MECHANISM_OPTION, "fullTraceback",
        "openTelemetry", "progress", "quiet", "reportPath", "topic", "topic.partitions",
        "topic.replication", "traceparent", "unknownOptions", *BAD_ROW_OPTIONS,
        *EXACTLY_ONCE_OPTIONS, *FORMAT_OPTIONS, *REGISTRY_OPTIONS,
    )
}  # fmt: skip
# Options that Spark itself adds (the path of save(path), the name and checkpoint of a stream), and
# options that Spark reads.
_SPARKS: Final = {
    name.lower(): name
    for name in (
        "asyncProgressTrackingCheckpointIntervalMs", "asyncProgressTrackingEnabled",
        "checkpointLocation", "path", "queryName",
    )
}  # fmt: skip
# Options of Java's consumers that are not options of its producers.
_CONSUMERS: Final = (
    "allow.auto.create.topics", "auto.commit.interval.ms", "auto.offset.reset", "check.crcs",
    "default.api.timeout.ms", "enable.auto.commit", "exclude.internal.topics",
    "fetch.max.bytes", "fetch.max.wait.ms", "fetch.min.bytes", "group.id", "group.instance.id",
    "group.protocol", "group.remote.assignor", "heartbeat.interval.ms", "isolation.level",
    "key.deserializer", "max.partition.fetch.bytes", "max.poll.interval.ms", "max.poll.records",
    "partition.assignment.strategy", "session.timeout.ms", "share.acknowledgement.mode",
    "share.acquire.mode", "value.deserializer",
)  # fmt: skip
_SOURCE_ONLY: Final = {
    name.lower(): name
    for name in (
        "assign", "endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp", "failOnDataLoss",
        "fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "groupIdPrefix", "includeHeaders",
        "includeTimestamp", "kafkaConsumer.pollTimeoutMs", "maxOffsetsPerTrigger",
        "maxRecordsPerPartition", "maxTriggerDelay", "minOffsetsPerTrigger", "minPartitions",
        "startingOffsets", "startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy",
        "startingTimestamp", "subscribe", "subscribePattern",
        *(f"kafka.{name}" for name in _CONSUMERS),
    )
}  # fmt: skip
_REFUSED: Final = {
    "kafka.key.serializer": (
        "Kafka option 'key.serializer' is not supported as keys are serialized with "
        "ByteArraySerializer"
    ),
    "kafka.value.serializer": (
        "Kafka option 'value.serializer' is not supported as value are serialized with "
        "ByteArraySerializer"
    ),
    "kafka.transactional.id": (
        "Kafka option 'transactional.id' is not supported: a task of Spark cannot own a "
        "transactional id; remove it"
    ),
}
_KAFKA: Final = "kafka."
_TOPIC_CONFIG: Final = "topic.config."


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of one write.

    topic: None if the data has a topic column. quiet: whether to print no report on stderr.
    progress: whether tasks print their progress on stderr. new_topic: how missing topics are
    created, None if they are not created. delegation_token_mechanism: the SASL mechanism for tasks
    if the driver creates a delegation token for them; None if tasks authenticate as the driver
    does. exactly_once: None for at-least-once writes. traceparent: the parent of the span of the
    job, empty if it has none, and None without openTelemetry. write_id: as in `CommitReport`.
    full_traceback: whether tracebacks of exceptions show the frames of the sink. registry: the
    driver's settings of the schema registry; None in tasks.

    The driver adds the following before tasks start. encodings: the columns that tasks encode, and
    how. laid_out: the partition count of each topic for which `atomic_layout` partitioned the rows.
    max_message_bytes: max.message.bytes of the topic and of the dead letter topic, by topic, where
    it is known. partitions: the topic's partition count, 0 if unknown. retention_ms: the topic's
    retention.ms if it deletes records by their own timestamps, None otherwise or if unknown.
    brokers: the brokers of the cluster. trace: the span of the job, None without openTelemetry.
    """

    producer: ProducerConfig
    topic: str | None = None
    report_path: Path | None = None
    quiet: bool = False
    progress: bool = False
    bad_rows: BadRowPolicy = FAIL_ON_BAD_ROWS
    new_topic: NewTopic | None = None
    delegation_token_mechanism: str | None = None
    exactly_once: ExactlyOnce | None = None
    full_traceback: bool = False
    traceparent: str | None = None
    write_id: str | None = None
    formats: FormatOptions = field(default_factory=FormatOptions)
    registry: RegistrySettings | None = None
    encodings: tuple[ColumnEncoding, ...] = ()
    laid_out: Mapping[str, int] = field(default_factory=dict)
    max_message_bytes: Mapping[str, int] = field(default_factory=dict)
    partitions: int = 0
    retention_ms: int | None = None
    brokers: tuple[Node, ...] = ()
    trace: JobTrace | None = None

    @property
    def new_dead_letter_topic(self) -> NewTopic | None:
        """How the dead letter topic is created; None if the sink does not create it.

        The options topic.config.* are not used, because they are for good rows. For example, a
        compacted topic refuses dead letters without a key.
        """
        return self.new_topic and replace(self.new_topic, configs=())


def check_given_options(options: object) -> None:
    """Raise ConfigException for values that `DataFrameWriter.options` does not accept."""
    for name, value in check_options(options).items():
        if not (value is None or isinstance(value, str | Real | os.PathLike)):
            kind = type(value).__name__
            message = f"option {name} is of type {kind}: expected a str, a number or a bool"
            raise ConfigException(message)
        check_unicode(f"option {name}", str(value))


@contextmanager
def name_kafka_options() -> Iterator[None]:
    """Context manager: error messages use Spark's names for producer options (``kafka.acks``)."""
    with name_options(_KAFKA.__add__):
        yield


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Check the options of a write and return them. Raise ConfigException if they are invalid."""
    with name_kafka_options():
        return _sink_options(options)


def _sink_options(options: Mapping[str, str]) -> SinkOptions:
    check_options(options)
    given = {name.lower(): value for name, value in options.items()}
    lenient = _lenient(given.get("unknownoptions", "error"))
    has_registry = URL_OPTION in given
    for name in _REFUSED:
        reason = _refusal(name, given[name]) if name in given else None
        if reason is not None:
            raise ConfigException(reason)
    ignored = sorted(_SOURCE_ONLY[name] for name in given if name in _SOURCE_ONLY)
    if ignored:
        message = f"options of the Kafka source have no effect on a sink: {listed(ignored)}"
        warn_once(logger, message)
    kafka = {}
    for name, value in given.items():
        if name in _SOURCE_ONLY:
            continue
        if (unknown := _unknown(name, value, has_registry=has_registry)) is not None:
            _complain(unknown, lenient=lenient)
        elif name.startswith(_KAFKA):
            kafka[name.removeprefix(_KAFKA)] = value
        else:
            check_unicode(f"option {_OWN.get(name, name)}", value)
    if not kafka.get("bootstrap.servers"):
        # bootstrap.servers may be misspelt, so check the names first.
        check_names(kafka, lenient=lenient)
        message = (
            "Kafka option bootstrap.servers is not set. Please make sure it is set and retry: "
            '.option("kafka.bootstrap.servers", "host:port")'
        )
        raise ConfigException(message)
    topic = given.get("topic", "").strip()
    defaults = {**SINK_DEFAULTS, **transaction_defaults(given)}
    producer = producer_config(kafka, defaults=defaults, lenient=lenient)
    bad_rows = bad_row_policy(given, topic or None, producer.acks)
    return SinkOptions(
        producer=producer,
        topic=topic or None,
        report_path=report_path(given["reportpath"]) if "reportpath" in given else None,
        quiet=_is_on(given, "quiet"),
        progress=_is_on(given, "progress"),
        bad_rows=bad_rows,
        new_topic=_new_topic(given),
        delegation_token_mechanism=_delegation_token_mechanism(given, producer),
        exactly_once=_exactly_once(given, producer, topic or None, bad_rows),
        traceparent=_given_traceparent(given),
        write_id=given.get(WRITE_ID_OPTION),
        formats=format_options(given),
        registry=registry_settings(given),
        full_traceback=_is_on(given, "fullTraceback"),
    )


def _given_traceparent(given: Mapping[str, str]) -> str | None:
    """Return the parent of the job's span, "" if it has none, or None without openTelemetry."""
    parent = given.get("traceparent", "")
    parent = checked_traceparent(parent) if parent.strip() else ""
    if _is_on(given, "openTelemetry"):
        return parent
    if parent:
        message = (
            "option traceparent has no effect: set openTelemetry to true, or remove traceparent"
        )
        raise ConfigException(message)
    return None


def has_full_traceback(options: Mapping[str, str]) -> bool:
    """Return whether fullTraceback is on, even if other options of a write are invalid."""
    given = {name.lower(): value for name, value in options.items()}
    return given.get("fulltraceback", "").strip().lower() == "true"


def _exactly_once(
    given: Mapping[str, str], producer: ProducerConfig, topic: str | None, bad_rows: BadRowPolicy
) -> ExactlyOnce | None:
    """Return the exactly-once options, or None if exactlyOnce is off.

    Raise ConfigException if they are invalid, or conflict with other options.
    """
    selected = exactly_once(given)
    if selected is None:
        return None
    check_exactly_once(selected, producer, topic, bad_rows.topic)
    if given.get("asyncprogresstrackingenabled", "false").strip().lower() == "true":
        message = (
            "asyncProgressTrackingEnabled cannot be combined with exactlyOnce: with it, a "
            "micro-batch that Spark runs again may have different rows; remove "
            "asyncProgressTrackingEnabled"
        )
        raise ConfigException(message)
    return selected


def is_sink_option(name: str) -> bool:
    """Return whether a name, in any letter case, is an option of the sink, not of the producer."""
    name = name.lower()
    return _is_own(name) or (name in _SOURCE_ONLY and not name.startswith(_KAFKA))


def _is_own(name: str) -> bool:
    return name in _OWN or name.removeprefix(_TOPIC_CONFIG) not in ("", name)


def _lenient(value: str) -> bool:
    chosen = value.strip().lower()
    if chosen not in ("error", "warn"):
        message = f"option unknownOptions is {shown_value(value)}: expected error or warn"
        raise ConfigException(message)
    return chosen == "warn"


def report_path(value: str) -> Path:
    """Return the file that reportPath names: a path on the driver, with or without ``file:``.

    Raise ConfigException if the path is invalid or relative.
    """
    example = "a file on the driver, such as /reports/job.json or file:///reports/job.json"
    return absolute_path("reportPath", value, "which is not on the driver", example)


def _new_topic(given: Mapping[str, str]) -> NewTopic | None:
    """Return how to create topics (options topic.*), or None if createTopics is not true."""
    about_new = sorted(n for n in given if n.startswith("topic.") and is_sink_option(n))
    if not _is_on(given, "createTopics"):
        if about_new:
            message = (
                f"option {about_new[0]} is set, but topics are not created: set createTopics to "
                f"true, or remove {about_new[0]}"
            )
            raise ConfigException(message)
        return None
    configs = [n.removeprefix(_TOPIC_CONFIG) for n in about_new if n.startswith(_TOPIC_CONFIG)]
    return NewTopic(
        partitions=_count(given, "topic.partitions", 2**31 - 1),
        replication=_count(given, "topic.replication", 2**15 - 1),
        configs=tuple((name, given[_TOPIC_CONFIG + name]) for name in configs),
    )


def _is_on(given: Mapping[str, str], name: str) -> bool:
    """Return the value of a boolean option, which is False by default."""
    value = given.get(name.lower(), "false")
    if value.strip().lower() not in ("true", "false"):
        message = f"option {name} is {shown_value(value)}: expected true or false"
        raise ConfigException(message)
    return value.strip().lower() == "true"


def _delegation_token_mechanism(given: Mapping[str, str], config: ProducerConfig) -> str | None:
    """Return the SASL mechanism for delegation tokens, or None if tasks do not use them."""
    mechanism = given.get(TOKEN_MECHANISM_OPTION.lower())
    if not _is_on(given, "delegationToken"):
        if mechanism is not None:
            message = (
                f"option {TOKEN_MECHANISM_OPTION} has no effect: set delegationToken to true, or "
                f"remove {TOKEN_MECHANISM_OPTION}"
            )
            raise ConfigException(message)
        return None
    if not config.has_sasl:
        message = (
            "delegationToken=true needs brokers that tasks log in to by SASL: expected "
            f"{Option('security.protocol')} SASL_SSL or SASL_PLAINTEXT, found "
            f"{config.security_protocol}"
        )
        raise ConfigException(message)
    return checked_token_mechanism(TOKEN_MECHANISM_OPTION, (mechanism or DEFAULT_MECHANISM).strip())


def _count(given: Mapping[str, str], name: str, most: int) -> int | None:
    value = given.get(name)
    if value is None:
        return None
    if re.fullmatch(r"\s*[0-9]{1,10}\s*", value) and 1 <= int(value) <= most:
        return int(value)
    message = f"option {name} is {shown_value(value)}: expected a number from 1 to {most}"
    raise ConfigException(message)


@name_kafka_options()
def not_an_option(name: str, value: str = "", *, has_registry: bool = False) -> str:
    """Return the message about an unknown option, which suggests a similar name.

    An option of the source or of consumers is never suggested, because the sink ignores those. If
    the similar option cannot be set for a sink, the message does not suggest it, but says why.
    has_registry: whether the option with the URL of a schema registry is set.
    """
    reason = of_registry_client(name) or (of_either_client(name) if has_registry else None)
    if reason is not None:
        return f"option {name} {reason}"
    if (reason := of_other_client(name)) is not None:
        return f"option {name} {reason}"
    meant = None if name in _CONSUMERS else _meant(name)
    if meant and (reason := _refusal(meant, value)) is not None:
        return f"option {name} is not an option of the pykafka sink, and {reason}"
    hint = f"; did you mean {meant}?" if meant else ""
    return (
        f"option {name} is not an option of the pykafka sink{hint} "
        "(options of the producer begin with kafka., and unknownOptions=warn ignores others)"
    )


def _unknown(name: str, value: str, *, has_registry: bool) -> str | None:
    """Return the message about an unknown option, or None for a known one.

    Also return None for most ``kafka.`` options, because `check_names` checks these.
    """
    bare = name.removeprefix(_KAFKA)
    if bare == name:
        is_known = is_sink_option(name) or name in (*_SPARKS, *SESSION_OPTIONS, WRITE_ID_OPTION)
        return None if is_known else not_an_option(name, value, has_registry=has_registry)
    if _is_own(bare):
        meant = _OWN.get(bare, bare)
        return f"{name} is not an option of the Kafka producer; did you mean {meant}?"
    if bare in java_names() or of_other_client(bare) is not None:
        return None
    close = nearest(bare, java_names())
    reason = _refusal(_KAFKA + close, value) if close else None
    return f"{name} is not an option of the Kafka producer, and {reason}" if reason else None


def _refusal(name: str, value: str) -> str | None:
    """Return why a ``kafka.`` option cannot be set for a sink, or None for all other options."""
    if name not in _REFUSED:
        return refusal(name.removeprefix(_KAFKA)) if name.startswith(_KAFKA) else None
    if not name.endswith(".serializer"):
        return _REFUSED[name]
    column = name.removeprefix(_KAFKA).removesuffix(".serializer")
    return f"{_REFUSED[name]}: {instead_of_serializer(column, value)}"


def _meant(name: str) -> str | None:
    if name in java_names():
        return _KAFKA + name
    first, _, rest = name.partition(".")
    if "." in rest and nearest(first, ["topic"]):
        return _meant_of_topic(rest)
    of_producer = {each: _KAFKA + each for each in java_names()}
    known = {**of_producer, **{each: each for each in of_producer.values()}, **_OWN}
    close = nearest(name, known)
    return known[close] if close else None


def _meant_of_topic(rest: str) -> str:
    """Return the option that the user probably meant by the unknown option ``topic.<rest>``."""
    second, _, setting = rest.partition(".")
    close = get_close_matches(second, ("config", "partitions", "replication"), 1, cutoff=0.75)
    if close == ["config"]:
        return _TOPIC_CONFIG + setting
    if close:
        return f"topic.{close[0]}"
    # Both topics and producers have a compression.type.
    is_producers = rest in java_names() and rest != "compression.type"
    return (_KAFKA if is_producers else _TOPIC_CONFIG) + rest


def _complain(message: str, *, lenient: bool) -> None:
    if not lenient:
        raise ConfigException(message)
    warn_once(logger, message)


def _process() -> str:
    return "the driver" if TaskContext.get() is None else "this executor"


find_shipped_files(shipped_path)
name_process(_process)
