"""Checks on the driver before any task writes: partitioner, report, brokers and topic.

If a check fails, the driver raises one error. Without the checks, every task would fail four times.
Stream writers are planned for every micro-batch. So the results for each set of options are cached
in the process for metadata.max.age.ms. Spark ends a process that was idle for a minute, and then
the results are lost. A batch job does not use cached results. The commit checks nothing, because
the rows are already in Kafka.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import NamedTuple, TypeAlias

from spark_kafka_sink.admin import KafkaAdmin, NewTopic, TopicDescription, login_identity
from spark_kafka_sink.auth.acls import READ, Acls
from spark_kafka_sink.auth.delegation_tokens import delegation_token
from spark_kafka_sink.config import ProducerConfig, names_own_partitioner
from spark_kafka_sink.error_codes import TOPIC_AUTHORIZATION_FAILED
from spark_kafka_sink.errors import (
    ConfigException,
    UnsupportedForMessageFormatException,
    advice,
    listed,
    topic_refusal,
)
from spark_kafka_sink.logs import masked, warn_once, without_path
from spark_kafka_sink.model import Node
from spark_kafka_sink.spark.committing.report_files import is_special
from spark_kafka_sink.spark.exactly_once import Mode
from spark_kafka_sink.spark.layout_mark import check_laid_out_topic, check_partition_counts
from spark_kafka_sink.spark.on_error import DEAD_LETTER_FOLDER
from spark_kafka_sink.spark.options import SinkOptions, name_kafka_options
from spark_kafka_sink.spark.planning.check_cache import CheckCache
from spark_kafka_sink.spark.topics import (
    RETENTION_SETTINGS,
    limit_of,
    retention_of,
    settings_with_limit,
    topics_to_write,
)

logger = logging.getLogger(__name__)


def warn_of_differences(
    topic: TopicDescription, new: NewTopic, settings: Mapping[str, str | None]
) -> None:
    """Log a warning if options for new topics differ from an existing topic, or cannot be compared.

    settings: the topic configs that the brokers returned. It is empty if they returned none.
    """
    if topic.is_new:
        return
    counts = {"topic.partitions": topic.partitions, "topic.replication": topic.replication}
    has = {name: str(count) for name, count in counts.items()}
    has |= {f"topic.config.{name}": value for name, value in settings.items() if value is not None}
    nothing = "Kafka has no such setting" if settings else "its value is unknown"
    different = []
    for name, asked in new.options.items():
        found = has.get(name)
        if found is None:
            different.append(f"{name}={asked} ({nothing})")
        elif _meaning(found) != _meaning(asked):
            different.append(f"{name}={asked} (it has {found})")
    if different:
        message = (
            f"topic {topic.name} exists and is not changed; options for new topics differ from it: "
            f"{listed(different)}"
        )
        warn_once(logger, message)


def _meaning(value: str) -> frozenset[str | Decimal]:
    """Return the entries of a topic config, to compare them: in lower case, with parsed numbers."""
    return frozenset(_entry(entry.strip().lower()) for entry in value.split(","))


def _entry(text: str) -> str | Decimal:
    try:
        number = Decimal(text)
    except InvalidOperation:
        return text
    return number if number.is_finite() else text


# Everything that the results depend on, including the brokers and the user. The last entry
# identifies the user if the options do not (see `login_identity`).
_Asked: TypeAlias = tuple[
    ProducerConfig, str | None, NewTopic | None, bool, Mode | None, tuple[tuple[str, int], ...], str
]


class _Found(NamedTuple):
    """The results of the checks, and the time of the checks."""

    at: float
    max_message_bytes: int | None
    partitions: int
    retention_ms: int | None
    brokers: tuple[Node, ...]


_found: CheckCache[_Asked, _Found] = CheckCache()


@name_kafka_options()
def check_partitioner(options: SinkOptions) -> None:
    """Raise ConfigException if kafka.partitioner.class cannot be imported, made or called.

    If it is a class, an instance is made and closed. An error of its close is only logged.
    """
    given = options.producer.partitioner_class
    if names_own_partitioner(given):
        # This import loads pyarrow, which planning does not need otherwise.
        from spark_kafka_sink.plugins.batch_partitioner import OwnPartitioner  # noqa: PLC0415

        OwnPartitioner(given).close()


def check_report_path(options: SinkOptions, *, in_batches: bool) -> None:
    """Raise ConfigException if no report can be written to reportPath.

    in_batches: whether each micro-batch appends a line to the file. If False, the report of a job
    replaces the file, or overwrites its content if the folder is not writable.
    """
    path = options.report_path
    if path is None:
        return
    try:
        found = _against_report(path, in_batches=in_batches)
    except (OSError, RuntimeError) as error:  # RuntimeError: circular symbolic links
        found = f"which cannot be checked ({without_path(error)})"
    if found is None:
        return
    shown = masked(str(path))
    message = f"option reportPath is {shown}, {found}: expected a file in a folder that exists"
    raise ConfigException(message)


def _against_report(path: Path, *, in_batches: bool) -> str | None:
    """Return why no report can be written to a path, or None if a report can be written."""
    may_write = path.exists() and os.access(path, os.W_OK)
    file = path.resolve() if path.is_symlink() and not is_special(path) else path
    folder = masked(str(file.parent))
    if path.is_dir():
        return "a folder"
    if not file.parent.is_dir():
        return f"in the folder {folder}, which does not exist on the driver"
    if path.exists() and not may_write and (in_batches or is_special(path)):
        return "which the driver has no permission to write"
    if not may_write and not os.access(file.parent, os.W_OK | os.X_OK):
        return f"in the folder {folder}, to which the driver has no permission to write"
    return None


def make_dead_letter_path(options: SinkOptions) -> None:
    """Create the folder deadLetterPath, if it is set. Raise ConfigException if that fails.

    Tasks do not create the folder, because an executor without the mounted filesystem would create
    it on its own disk.
    """
    path = options.bad_rows.path
    if path is None:
        return
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = (
            f"option deadLetterPath is {masked(str(path))}, which the driver cannot create "
            f"({error.strerror}): expected {DEAD_LETTER_FOLDER}"
        )
        raise ConfigException(message) from None


@name_kafka_options()
def check_cluster(
    options: SinkOptions, *, has_headers: bool, may_remember: bool = False
) -> SinkOptions:
    """Check brokers and topic. Return the options, with the values that the brokers returned.

    Create the topic if createTopics is true. has_headers: whether records have headers.
    may_remember: whether cached results up to metadata.max.age.ms old may be used. Raise the
    exceptions of the brokers and the topic, after at most kafka.max.block.ms. Raise DataException
    if atomic_layout partitioned the rows for a different partition count.

    If the rows have a topic column and atomic_layout was not called, the topics are not known. Then
    only check that a broker responds and is not too old, and that topics can be created if
    createTopics is true.
    """
    laid_out = tuple(options.laid_out.items())
    mode = None if options.exactly_once is None else options.exactly_once.mode
    identity = login_identity(options.producer) if may_remember else ""
    asked = (
        *(options.producer, options.topic, options.new_topic),
        *(has_headers, mode, laid_out, identity),
    )
    found = _found.get(asked) if may_remember else None
    max_age_s = options.producer.metadata_max_age_ms / 1000
    if found is None or time.monotonic() >= found.at + max_age_s:
        found = _look(options, has_headers=has_headers, again=found is not None)
        if may_remember:
            _found.keep(asked, found)
    limits = dict(options.max_message_bytes)
    if options.topic is not None and found.max_message_bytes is not None:
        limits[options.topic] = found.max_message_bytes
    return replace(
        options,
        max_message_bytes=limits,
        partitions=found.partitions,
        retention_ms=found.retention_ms,
        brokers=found.brokers,
    )


@name_kafka_options()
def check_dead_letter_topic(options: SinkOptions, *, may_remember: bool = False) -> SinkOptions:
    """Check the dead letter topic, if it is set, in the same way as the topic of the rows.

    Return the options with the topic's max.message.bytes, if it is known.
    """
    if options.bad_rows.topic is None:
        return options
    letters = replace(
        options,
        topic=options.bad_rows.topic,
        new_topic=options.new_dead_letter_topic,
        laid_out={},  # atomic_layout does not partition dead letters
    )
    try:
        checked = check_cluster(letters, has_headers=True, may_remember=may_remember)
    except UnsupportedForMessageFormatException as error:
        message = (
            f"option deadLetterTopic is {letters.topic}: dead letters need headers, which Kafka "
            "has since 0.11, and a broker is older; set deadLetterPath instead"
        )
        raise UnsupportedForMessageFormatException(message, topic=letters.topic) from error
    return replace(options, max_message_bytes=checked.max_message_bytes)


def _look(options: SinkOptions, *, has_headers: bool, again: bool) -> _Found:
    """Check the cluster and return the results.

    again: whether the same options were checked before. If so, do not check again whether topics
    can be created, because brokers may respond differently while one of them restarts.
    """
    name = options.topic
    with KafkaAdmin(options.producer, has_headers=has_headers) as admin:
        if options.delegation_token_mechanism and delegation_token(options.producer) is None:
            # The user's process only checks that tokens can be used. The planning process then
            # creates the token.
            admin.describe_delegation_token([])
        if name is None:
            _check_layout(options, _laid_out_topics(options, admin))
            if options.new_topic is not None and not again:
                admin.check_creation(options.new_topic)
            return _Found(time.monotonic(), None, 0, None, admin.brokers)
        check_laid_out_topic(options.laid_out, name)
        there = topics_to_write(options, admin, [name])
        topic = there[name]
        check_may_write(topic, admin.acls)
        if options.exactly_once is not None:
            check_may_read(topic, admin.acls)
            if topic.is_new and options.exactly_once.version is not None:
                from spark_kafka_sink.spark.planning.written_version import refuse_written_version  # noqa: PLC0415 - most jobs do not need it

                refuse_written_version(options)
        if options.laid_out:
            _check_layout(options, there)
        new = options.new_topic or NewTopic()
        asked_for = (*RETENTION_SETTINGS, *(name for name, _ in new.configs))
        settings = settings_with_limit(admin, name, asked_for)
        warn_of_differences(topic, new, settings)
        limit, retention_ms = limit_of(settings), retention_of(settings)
        return _Found(time.monotonic(), limit, topic.partitions, retention_ms, admin.brokers)


def _laid_out_topics(options: SinkOptions, admin: KafkaAdmin) -> dict[str, TopicDescription]:
    """Return the topics for which atomic_layout partitioned the rows, if it was called.

    In mode `single`, create missing topics or wait for them, because the driver's transaction
    contains the partitions of all topics. In other modes, the result lacks missing topics, because
    there may be no rows for them. A task with rows for a missing topic creates it or waits for it.
    """
    names = list(options.laid_out)
    selected = options.exactly_once
    if selected is None or selected.mode is not Mode.SINGLE:
        return admin.existing_topics(names)
    return topics_to_write(options, admin, names)


def _check_layout(options: SinkOptions, there: Mapping[str, TopicDescription]) -> None:
    counts = {name: there[name].partitions for name in options.laid_out if name in there}
    check_partition_counts(options.laid_out, counts)


def check_may_read(topic: TopicDescription, acls: Acls) -> None:
    """Raise TopicAuthorizationException if READ on a topic is denied. Exactly once needs it."""
    if topic.allowed is None or "READ" in topic.allowed:
        return
    hint = (
        "exactlyOnce needs the permission READ on it, to check which records it contains; "
        f"{acls.hint(TOPIC_AUTHORIZATION_FAILED, topic.name, READ)}"
    )
    raise topic_refusal(TOPIC_AUTHORIZATION_FAILED, topic.name, hint)


def check_may_write(topic: TopicDescription, acls: Acls) -> None:
    """Raise TopicAuthorizationException if the client is not allowed to write to a topic."""
    if topic.may_be_written:
        return
    allowed = ", ".join(sorted(topic.allowed or ()))
    hint = f"{advice(TOPIC_AUTHORIZATION_FAILED)}; now it is allowed only {allowed}"
    hint += f"; {acls.hint(TOPIC_AUTHORIZATION_FAILED, topic.name)}"
    raise topic_refusal(TOPIC_AUTHORIZATION_FAILED, topic.name, hint)
