"""What is checked on the driver before any task writes: partitioner, report, brokers and topic.

One clear error from the driver takes the place of four attempts of every task. Stream writers are
planned for every micro-batch, so what was found is remembered per process and set of options for
metadata.max.age.ms, as long as Spark keeps the process that plans (it ends one that was idle for a
minute); a batch job looks anew. Nothing is checked on the commit side: rows are in
Kafka then.
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

from spark_kafka_sink.admin import KafkaAdmin, NewTopic, TopicDescription
from spark_kafka_sink.config import ProducerConfig, names_own_partitioner
from spark_kafka_sink.error_codes import TOPIC_AUTHORIZATION_FAILED
from spark_kafka_sink.errors import (
    ConfigException,
    UnsupportedForMessageFormatException,
    advice,
    topic_refusal,
)
from spark_kafka_sink.logs import masked, warn_once, without_path
from spark_kafka_sink.model import Node
from spark_kafka_sink.spark.committing.report_files import is_special
from spark_kafka_sink.spark.layout_mark import check_laid_out_topic, check_partition_counts
from spark_kafka_sink.spark.options import (
    DEAD_LETTER_FOLDER,
    SinkOptions,
    name_kafka_options,
    with_shipped_files,
)
from spark_kafka_sink.spark.topics import (
    RETENTION_SETTINGS,
    check_not_internal,
    limit_of,
    retention_of,
    settings_with_limit,
    suggest_create_topics,
)

logger = logging.getLogger(__name__)


def warn_of_differences(
    topic: TopicDescription, new: NewTopic, settings: Mapping[str, str | None]
) -> None:
    """Say, once, which options are not what the topic has, or where that is not known.

    settings: the topic's, as far as the brokers tell; none at all where they do not.
    """
    if topic.is_new:
        return
    counts = {"topic.partitions": topic.partitions, "topic.replication": topic.replication}
    has = {name: str(count) for name, count in counts.items()}
    has |= {f"topic.config.{name}": value for name, value in settings.items() if value is not None}
    nothing = "Kafka has no such setting" if settings else "what it has is not known"
    different = []
    for name, asked in new.options.items():
        found = has.get(name)
        if found is None:
            different.append(f"{name}={asked} ({nothing})")
        elif _meaning(found) != _meaning(asked):
            different.append(f"{name}={asked} (it has {found})")
    if different:
        message = (
            f"topic {topic.name} exists and stays as it is; options for topics that do not exist "
            f"say otherwise: {', '.join(different)}"
        )
        warn_once(logger, message)


def _meaning(value: str) -> frozenset[str | Decimal]:
    """Give what brokers read in a value: a list, or one entry; numbers as numbers."""
    return frozenset(_entry(entry.strip().lower()) for entry in value.split(","))


def _entry(text: str) -> str | Decimal:
    try:
        number = Decimal(text)
    except InvalidOperation:
        return text
    return number if number.is_finite() else text


# All that what was found depends on; another user or address may find something else.
_Asked: TypeAlias = tuple[
    ProducerConfig, str | None, NewTopic | None, bool, tuple[tuple[str, int], ...]
]


class _Found(NamedTuple):
    """What was found, and when."""

    at: float
    max_message_bytes: int | None
    partitions: int
    retention_ms: int | None
    brokers: tuple[Node, ...]


# By streams and write_batch, which ask again and again.
_found: dict[_Asked, _Found] = {}


@name_kafka_options()
def check_partitioner(options: SinkOptions) -> None:
    """Raise ConfigException where kafka.partitioner.class is a name that cannot be imported."""
    given = options.producer.partitioner_class
    if names_own_partitioner(given):
        # It is for Arrow batches, which who plans has no other use for.
        from spark_kafka_sink.plugins.batch_partitioner import load_partitioner  # noqa: PLC0415

        load_partitioner(given)


def check_report_path(options: SinkOptions, *, in_batches: bool) -> None:
    """Raise ConfigException where no report can be written to reportPath.

    in_batches: whether a line is to be added for every micro-batch; a job's report takes the file's
    place, or, where its folder may not be written into, overwrites it.
    """
    path = options.report_path
    if path is None:
        return
    try:
        found = _against_report(path, in_batches=in_batches)
    except (OSError, RuntimeError) as error:  # of links that lead round
        found = f"which cannot be looked at ({without_path(error)})"
    if found is None:
        return
    shown = masked(str(path))
    message = f"option reportPath is {shown}, {found}: expected a file in a folder that exists"
    raise ConfigException(message)


def _against_report(path: Path, *, in_batches: bool) -> str | None:
    """Give what stands against a report at a path, None where nothing does."""
    may_write = path.exists() and os.access(path, os.W_OK)
    file = path.resolve() if path.is_symlink() and not is_special(path) else path
    folder = masked(str(file.parent))
    if path.is_dir():
        return "a folder"
    if not file.parent.is_dir():
        return f"in the folder {folder}, which does not exist on the driver"
    if path.exists() and not may_write and (in_batches or is_special(path)):
        return "which the driver may not write"
    if not may_write and not os.access(file.parent, os.W_OK | os.X_OK):
        return f"in the folder {folder}, which the driver may not write into"
    return None


def make_dead_letter_path(options: SinkOptions) -> None:
    """Make the folder for bad rows, if there is to be one; raise ConfigException where it cannot.

    Tasks make none: an executor that has not mounted the filesystem would make one on its own disk.
    """
    path = options.bad_rows.path
    if path is None:
        return
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = (
            f"option deadLetterPath is {masked(str(path))}, which the driver cannot make "
            f"({error.strerror}): expected {DEAD_LETTER_FOLDER}"
        )
        raise ConfigException(message) from None


@name_kafka_options()
def check_cluster(
    options: SinkOptions, *, has_headers: bool, may_remember: bool = False
) -> SinkOptions:
    """Give the options with what was found of brokers and topic, created where that is asked.

    has_headers: whether the data has a column of headers. may_remember: be content with what this
    process has found, metadata.max.age.ms ago at most. Raises what stands against writing to the
    topic, within kafka.max.block.ms, and rows that were laid out for another number of partitions.
    Topics of a topic column are not known before the rows are, but for those that rows were laid
    out for: else only that a broker answers, is not too old, and would create such as are asked
    for, is checked then.
    """
    laid_out = tuple(options.laid_out.items())
    asked = (options.producer, options.topic, options.new_topic, has_headers, laid_out)
    found = _found.get(asked) if may_remember else None
    max_age_s = options.producer.metadata_max_age_ms / 1000
    if found is None or time.monotonic() >= found.at + max_age_s:
        found = _look(options, has_headers=has_headers, again=found is not None)
        if may_remember:
            _found[asked] = found
    return replace(
        options,
        max_message_bytes=found.max_message_bytes,
        partitions=found.partitions,
        retention_ms=found.retention_ms,
        brokers=found.brokers,
    )


@name_kafka_options()
def check_dead_letter_topic(options: SinkOptions, *, may_remember: bool = False) -> None:
    """Look at the topic for bad rows, if there is one, as at the topic of all rows."""
    if options.bad_rows.topic is None:
        return
    letters = replace(
        options, topic=options.bad_rows.topic, new_topic=options.new_dead_letter_topic
    )
    try:
        check_cluster(letters, has_headers=True, may_remember=may_remember)
    except UnsupportedForMessageFormatException as error:
        message = (
            f"option deadLetterTopic is {letters.topic}: what is wrong with a row stands in "
            "headers, which Kafka has from 0.11 on, and a broker is older; set deadLetterPath "
            "instead"
        )
        raise UnsupportedForMessageFormatException(message, topic=letters.topic) from error


def _look(options: SinkOptions, *, has_headers: bool, again: bool) -> _Found:
    """Ask the cluster; the topic's max.message.bytes is None where it is not known.

    again: with the same options as before; settings that were right then stay so, while a broker
    that is being restarted may have others say otherwise.
    """
    name = options.topic
    with KafkaAdmin(with_shipped_files(options.producer), has_headers=has_headers) as admin:
        if name is None:
            with suggest_create_topics(options):
                there = admin.topics(list(options.laid_out), options.new_topic)
            _check_layout(options, there)
            if options.new_topic is not None and not again:
                admin.check_creation(options.new_topic)
            return _Found(time.monotonic(), None, 0, None, admin.brokers)
        check_laid_out_topic(options.laid_out, name)
        check_not_internal(options.producer, name)
        with suggest_create_topics(options):
            there = admin.topics([name], options.new_topic)
        topic = there[name]
        check_not_internal(options.producer, name, is_internal=topic.is_internal)
        _check_may_write(topic)
        if options.laid_out:
            _check_layout(options, there)
        new = options.new_topic or NewTopic()
        asked_for = (*RETENTION_SETTINGS, *(name for name, _ in new.configs))
        settings = settings_with_limit(admin, name, asked_for)
        warn_of_differences(topic, new, settings)
        limit, retention_ms = limit_of(settings), retention_of(settings)
        return _Found(time.monotonic(), limit, topic.partitions, retention_ms, admin.brokers)


def _check_layout(options: SinkOptions, there: Mapping[str, TopicDescription]) -> None:
    counts = {name: there[name].partitions for name in options.laid_out if name in there}
    check_partition_counts(options.laid_out, counts)


def _check_may_write(topic: TopicDescription) -> None:
    if topic.may_be_written:
        return
    allowed = ", ".join(sorted(topic.allowed or ()))
    hint = f"{advice(TOPIC_AUTHORIZATION_FAILED)}, which is allowed only {allowed}"
    raise topic_refusal(TOPIC_AUTHORIZATION_FAILED, topic.name, hint)
