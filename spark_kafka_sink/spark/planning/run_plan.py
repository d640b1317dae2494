"""Plans a run of an exactly-once write before its tasks start, by the state machine `commit.plan`.

A run is one batch job or one micro-batch of an owner. An owner is a txnAppId and its topic. Only
the process that plans a job calls this. The reason is that planning fences older runs of the owner,
and commits or aborts their open transactions. The checks that the user's process may run are in
`single_checks`.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterable

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.admin import KafkaAdmin, NewTopic, TopicDescription
from spark_kafka_sink.commit import plan
from spark_kafka_sink.commit.attempts import Plan, Run
from spark_kafka_sink.commit.log_record import LOG_PARTITION, CommitRecord
from spark_kafka_sink.commit.outcomes import Planned, Skipped, Torn
from spark_kafka_sink.commit_client import CommitClient
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.errors import (
    ApiException,
    AuthenticationException,
    ConfigException,
    KafkaException,
    TimeoutException,
)
from spark_kafka_sink.logs import warn_once
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.spark.commit_clients import commit_client, exception_of
from spark_kafka_sink.spark.exactly_once import ExactlyOnce, Mode
from spark_kafka_sink.spark.kept_plans import keep_plan
from spark_kafka_sink.spark.layout_mark import laid_out_partitions
from spark_kafka_sink.spark.options import SinkOptions, name_kafka_options
from spark_kafka_sink.spark.planning.check_cache import CheckCache
from spark_kafka_sink.spark.planning.preflight import check_may_read, check_may_write

logger = logging.getLogger(__name__)

_COMPACT = ("cleanup.policy", "compact")
_LOG_SETTINGS = (
    _COMPACT,
    ("segment.bytes", str(16 * 1024 * 1024)),
    ("segment.ms", str(60 * 60 * 1000)),
    # The record of a decision has about 40 bytes for each task. The default is 1 MiB.
    ("max.message.bytes", str(16 * 1024 * 1024)),
    ("min.cleanable.dirty.ratio", "0.1"),
    ("unclean.leader.election.enable", "false"),
    # With LogAppendTime, a response does not show whether the broker treated a record as a
    # duplicate.
    ("message.timestamp.type", "CreateTime"),
)
# The number of replicas that a commit log needs, if the cluster has so many brokers.
_REPLICAS = 3
# The error codes that brokers return if they refuse topic configs, for example by a policy.
_REFUSED_SETTINGS = (codes.INVALID_CONFIG, codes.POLICY_VIOLATION)
# Settings of sizes, which such a policy is likely to limit.
_SIZES = ("segment.bytes", "max.message.bytes")


# The times until which the checks of commit logs are valid.
_found: CheckCache[tuple[ProducerConfig, str], float] = CheckCache()


def plan_micro_batch(options: SinkOptions) -> Plan:
    """Plan a micro-batch of a stream, and store the plan in case the micro-batch is aborted.

    Raise the exceptions of `plan_run`.
    """
    selected = options.exactly_once
    found = None if selected is None else plan_run(options, selected)
    if not isinstance(found, Plan):
        message = f"the plan of a micro-batch is {found!r}; this is a bug"
        raise KafkaException(message)
    keep_plan(found)
    return found


@name_kafka_options()
def plan_run(options: SinkOptions, selected: ExactlyOnce) -> Plan | CommitRecord:
    """Plan a run: fence older runs, end their transactions, and look up the version.

    Return the plan. If the version is already written, return the commit log record of the owner
    (the txnAppId and its topic) instead. Raise KafkaException if the brokers refuse a request. Also
    raise it if the owner's last run is torn: brokers have aborted some of its transactions after
    the decision to commit was recorded.
    """
    config = options.producer
    with commit_client(config, selected.log_topic, options.brokers) as client:
        # Check this first, so that no commit log is created on brokers that are too old.
        client.check_brokers(client.now() + config.max_block_ms / 1000)
        _check_log(options, selected)
        deadline = client.now() + config.max_block_ms / 1000
        run = Run(
            owner=selected.owner(options.topic),
            name=uuid.uuid4().hex,
            log=TopicPartition(selected.log_topic, LOG_PARTITION),
            level=client.level(deadline),
            timeout_ms=config.transaction_timeout_ms,
        )
        # In mode single, the driver adds all partitions to its transaction before its tasks run.
        is_single = selected.mode is Mode.SINGLE
        partitions = laid_out_partitions(options.laid_out) if is_single else None
        begun = plan.begin(run, deadline=deadline, version=selected.version, partitions=partitions)
        outcome = client.run(begun, plan.step).outcome
        _warn(client)
    if isinstance(outcome, Planned):
        return outcome.plan
    if isinstance(outcome, Skipped):
        return outcome.record
    if isinstance(outcome, Torn):
        raise outcome.exception(run)
    if outcome is None:
        message = "the plan has no outcome; this is a bug"
        raise KafkaException(message)
    raise exception_of(outcome, run, client.acls)


def _warn(client: CommitClient) -> None:
    for warning in client.take_warnings():
        warn_once(logger, f"commit log: {warning}")


# -- the commit log -------------------------------------------------------------------------------


def _check_log(options: SinkOptions, selected: ExactlyOnce) -> None:
    """Check the topic of the commit log; for a micro-batch, use a cached result if possible."""
    config, is_micro_batch = options.producer, selected.version is None
    key, now = (config, selected.log_topic), time.monotonic()
    valid_until = _found.get(key) if is_micro_batch else None
    if valid_until is not None and now < valid_until:
        return
    _need_log(options, selected.log_topic)
    if is_micro_batch:
        _found.keep(key, now + config.metadata_max_age_ms / 1000)


def _need_log(options: SinkOptions, log_topic: str) -> None:
    """Create the topic of the commit log if it is missing. Check its ACLs and cleanup.policy."""
    config = options.producer
    with KafkaAdmin(config, brokers=options.brokers) as admin:
        try:
            found = admin.topics([log_topic], NewTopic(partitions=1, configs=_LOG_SETTINGS))
        except ApiException as error:
            if error.code not in _REFUSED_SETTINGS:
                raise _not_there(error, log_topic, admin) from None
            found = _created_with_less(admin, log_topic, error)
        _check_replicas(found[log_topic], len(admin.brokers))
        check_may_read(found[log_topic], admin.acls)
        check_may_write(found[log_topic], admin.acls)
        _check_compacted(admin, log_topic)


def _created_with_less(
    admin: KafkaAdmin, log_topic: str, refusal: ApiException
) -> dict[str, TopicDescription]:
    """Create the topic of the commit log with fewer settings, because brokers refuse some."""
    safe = tuple(each for each in _LOG_SETTINGS if each[0] not in _SIZES)
    for configs in (safe, (_COMPACT,)):
        try:
            found = admin.topics([log_topic], NewTopic(partitions=1, configs=configs))
        except ApiException as error:
            if configs == (_COMPACT,) or error.code not in _REFUSED_SETTINGS:
                raise _not_there(error, log_topic, admin) from None
            continue
        warn_once(
            logger,
            f"commit log: topic {log_topic} is created with {_shown(configs)} alone, because the "
            f"brokers refuse other settings: {refusal}",
        )
        break
    return found


def _shown(configs: Iterable[tuple[str, str]]) -> str:
    return " ".join("=".join(each) for each in configs)


def _check_replicas(log: TopicDescription, brokers: int) -> None:
    if log.replication == 1 and brokers >= _REPLICAS:
        warn_once(
            logger,
            f"commit log: topic {log.name} has one replica, so the log is lost with one broker, "
            f"although the cluster has {brokers}: give the topic {_REPLICAS} replicas by "
            "kafka-reassign-partitions.sh, because without the log, versions are written again",
        )


def _not_there(error: ApiException, log_topic: str, admin: KafkaAdmin) -> ApiException:
    """Return the exception for a commit log whose topic is missing and cannot be created."""
    if isinstance(error, TimeoutException | AuthenticationException):
        return error
    message = (
        f"the commit log of exactlyOnce, option commitLogTopic={log_topic}: {error.message}; "
        f"create it by: kafka-topics.sh --create --topic {log_topic} --partitions 1 "
        f"--replication-factor {min(_REPLICAS, len(admin.brokers) or _REPLICAS)} --config "
        f"{'='.join(_COMPACT)}, or set commitLogTopic to a topic that you may create"
    )
    return error.with_message(message)


def _check_compacted(admin: KafkaAdmin, log_topic: str) -> None:
    name, expected = _COMPACT
    try:
        found = admin.topic_configs(log_topic, [name]).get(name)
    except ApiException as error:
        warn_once(
            logger,
            f"commit log: brokers delete the log's records if {name} of topic {log_topic} is not "
            f"{expected}, which could not be checked: {error}",
        )
        return
    if found is not None and found.replace(" ", "") != expected:
        message = (
            f"the commit log of exactlyOnce, option commitLogTopic={log_topic}, has "
            f"{name}={found}: set it to {expected}; otherwise brokers delete the log's records"
        )
        raise ConfigException(message)
