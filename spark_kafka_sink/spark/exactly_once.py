"""The exactly-once options: the mode, the name of the job, and the version that it writes.

The option `txnAppId` names the job, and `txnVersion` is the version of the data that the job
writes. Delta has options with the same names and meanings. Each version is written once. This
module only reads the options; the package `commit` implements the protocol.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from spark_kafka_sink.commit.names import (
    ANY_TOPIC,
    DEFAULT_LOG_TOPIC,
    DEFAULT_PREFIX,
    Owner,
    app_id_of_checkpoint,
    check_app_id,
    check_prefix,
    checked_owner,
)
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.errors import INTERNAL_TOPICS, ConfigException, Option
from spark_kafka_sink.model import LARGEST_INT64, TOPIC_NAME

# The default of the broker config transaction.max.timeout.ms, so that jobs have as much time as
# brokers allow by default.
TRANSACTION_TIMEOUT_MS: Final = 900_000
EXACTLY_ONCE_OPTIONS: Final = (
    "exactlyOnce", "txnAppId", "txnVersion", "txnIdPrefix", "commitLogTopic",
)  # fmt: skip
# The options with which `register` and `write_batch` pass on what the session says about a write:
# the name of the Spark application, and the checkpoint location of a stream that Spark itself finds
# in the session. Spark reads neither of them.
APPLICATION_OPTION: Final = "pykafka.application"
CHECKPOINT_OPTION: Final = "pykafka.checkpoint"
SESSION_OPTIONS: Final = (APPLICATION_OPTION, CHECKPOINT_OPTION)
_OFF: Final = "false"
_VERSION: Final = re.compile(r"[0-9]{1,19}\Z")


class Mode(Enum):
    """The modes of exactly once: the values of the option exactlyOnce other than false and true."""

    TWO_PHASE = "two-phase"
    SINGLE = "single"


_SPELLINGS: Final[Mapping[str, Mode | None]] = {
    _OFF: None,
    "true": Mode.TWO_PHASE,
    **{mode.value: mode for mode in Mode},
}


@dataclass(frozen=True, slots=True)
class ExactlyOnce:
    """The exactly-once options of a write.

    app_id, version: None if the option is not set. application: the name of the Spark application.
    checkpoint: the checkpoint location of a stream. `application` and `checkpoint` are stored in
    the commit log as information for administrators. They are empty if not known.
    """

    mode: Mode
    id_prefix: str = DEFAULT_PREFIX
    log_topic: str = DEFAULT_LOG_TOPIC
    app_id: str | None = None
    version: int | None = None
    application: str = ""
    checkpoint: str = ""

    def owner(self, topic: str | None) -> Owner:
        """Return the owner (txnAppId and target). topic: None if rows have a topic column."""
        return checked_owner(self.id_prefix, self.app_id or "", topic or ANY_TOPIC)

    def of_stream(self, checkpoint: str | None) -> ExactlyOnce:
        """Return the options of a stream. Without txnAppId, `checkpoint` identifies the stream.

        checkpoint: the checkpoint location of the stream. Raise ConfigException if neither txnAppId
        nor `checkpoint` is set. Also raise it if txnVersion is set, because the version of a
        micro-batch is its batch id.
        """
        if self.version is not None:
            message = (
                "option txnVersion is for batch jobs: the version of a micro-batch is its "
                "batch id; remove it"
            )
            raise ConfigException(message)
        if self.app_id is not None:
            return replace(self, checkpoint=checkpoint or "")
        if checkpoint is None:
            message = (
                f"exactlyOnce={self.mode.value} needs to know which stream this is: set the option "
                "txnAppId, or checkpointLocation on this stream, not only in the session (Spark "
                "Connect may hide the session's setting because of spark.redaction.regex)"
            )
            raise ConfigException(message)
        app_id = app_id_of_checkpoint(checkpoint)
        return replace(self, app_id=app_id, checkpoint=checkpoint)

    def of_batch(self, batch_id: int | None, query_id: str | None) -> ExactlyOnce:
        """Return the options of a batch job, or of a micro-batch that `write_batch` saves.

        For a micro-batch of a known query, the query id is the default of txnAppId. For a
        micro-batch of an unknown query (query_id=None), the batch id is the version. Raise
        ConfigException if txnAppId or the version is missing, or if txnVersion is set for a
        micro-batch.
        """
        if batch_id is not None and self.version is not None:
            message = (
                "option txnVersion does not go with write_batch, which uses its argument batch_id "
                "as the version: remove it"
            )
            raise ConfigException(message)
        if query_id is not None:
            return replace(self, app_id=self.app_id or query_id)
        if batch_id is not None:
            if self.app_id is None:
                message = (
                    f"write_batch with exactlyOnce={self.mode.value} needs the option txnAppId: "
                    "with Spark Connect, and outside foreachBatch, it does not know the query"
                )
                raise ConfigException(message)
            return replace(self, version=batch_id)
        self._check_version()
        return self

    def _check_version(self) -> None:
        given = {"txnAppId": self.app_id, "txnVersion": self.version}
        missing = [name for name, value in given.items() if value is None]
        if missing:
            message = (
                f"exactlyOnce={self.mode.value} needs the options txnAppId and txnVersion, found "
                f"no {' and no '.join(missing)}: txnAppId names the job. txnVersion numbers its "
                "writes, for example by the date of the data; each version is written only once"
            )
            raise ConfigException(message)


def exactly_once(given: Mapping[str, str]) -> ExactlyOnce | None:
    """Return the exactly-once options, or None if exactlyOnce is false or not set.

    given: the options of the write, with names in lower case. Raise ConfigException if an
    exactly-once option is invalid.
    """
    value = given.get("exactlyonce")
    if value is None:
        _refuse_others(given)
        return None
    chosen = value.strip().lower()
    if chosen not in _SPELLINGS:
        message = f"option exactlyOnce is {value!r}: expected one of {', '.join(_SPELLINGS)}"
        raise ConfigException(message)
    mode = _SPELLINGS[chosen]
    if mode is None:
        return None
    log_topic = given.get("commitlogtopic", DEFAULT_LOG_TOPIC).strip()
    if TOPIC_NAME.match(log_topic) is None:
        message = (
            f"option commitLogTopic is {log_topic!r}: expected a topic name, which has 1 to 249 of "
            "the characters a-z A-Z 0-9 . _ -"
        )
        raise ConfigException(message)
    if log_topic in INTERNAL_TOPICS:
        message = (
            f"option commitLogTopic is {log_topic!r}, which is internal to Kafka: expected a topic "
            "for the commit log alone"
        )
        raise ConfigException(message)
    prefix, app_id = given.get("txnidprefix", DEFAULT_PREFIX), given.get("txnappid")
    check_prefix(prefix)
    if app_id is not None:
        check_app_id(app_id)
        if app_id != app_id.strip():
            message = (
                f"option txnAppId is {app_id!r}: expected no white space at its beginning or end, "
                "which would make it another txnAppId, whose versions are written again"
            )
            raise ConfigException(message)
    return ExactlyOnce(
        mode=mode,
        id_prefix=prefix,
        log_topic=log_topic,
        app_id=app_id,
        version=_version(given.get("txnversion")),
        application=given.get(APPLICATION_OPTION, ""),
    )


def _refuse_others(given: Mapping[str, str]) -> None:
    for name in EXACTLY_ONCE_OPTIONS:
        if name.lower() in given:
            message = f"option {name} has no effect without exactlyOnce: set that, or remove it"
            raise ConfigException(message)


def _version(value: str | None) -> int | None:
    if value is None:
        return None
    text = value.strip()
    if _VERSION.match(text) is None or int(text) > LARGEST_INT64:
        message = f"option txnVersion is {value!r}: expected a number from 0 to {LARGEST_INT64}"
        raise ConfigException(message)
    return int(text)


def check_exactly_once(
    selected: ExactlyOnce,
    producer: ProducerConfig,
    topic: str | None,
    dead_letter_topic: str | None,
) -> None:
    """Raise ConfigException if other options conflict with exactly once.

    topic, dead_letter_topic: the values of these options, None if they are not set.
    """
    conflicts = [
        f"{name}={selected.log_topic}, the topic of the commit log (commitLogTopic), which is "
        "compacted: use another topic"
        for name, used in (("topic", topic), ("deadLetterTopic", dead_letter_topic))
        if used == selected.log_topic
    ]
    if producer.acks_number != -1:
        conflicts.append(f"{Option('acks', producer.acks)}: set it to all, or remove it")
    if not producer.enable_idempotence:
        conflicts.append(f"{Option('enable.idempotence')}=false: remove it")
    if selected.mode is Mode.SINGLE and dead_letter_topic is not None:
        conflicts.append(
            f"deadLetterTopic={dead_letter_topic}, which every task would write to: use "
            "deadLetterPath, or exactlyOnce=two-phase"
        )
    if conflicts:
        message = f"exactlyOnce={selected.mode.value} does not go with {conflicts[0]}"
        raise ConfigException(message)


def is_off(given: Mapping[str, str]) -> bool:
    """Return whether exactlyOnce is false or not set. given: options with names in lower case."""
    return given.get("exactlyonce", _OFF).strip().lower() == _OFF


def transaction_defaults(given: Mapping[str, str]) -> dict[str, int | str]:
    """Return the defaults that producer options have only with exactly once, by option name."""
    return {} if is_off(given) else {"transaction.timeout.ms": TRANSACTION_TIMEOUT_MS}
