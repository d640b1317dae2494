"""The commit clients of this process, kept with their connections, and the errors for users.

Spark reuses its Python processes: a stream plans and commits in the same two for each
micro-batch. One client is kept for each configuration, which includes the credentials. It is closed
after an error. A forked child starts with none: the connections are its parent's.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.auth.acls import Acls
from spark_kafka_sink.commit.attempts import Run
from spark_kafka_sink.commit.steps import Failure
from spark_kafka_sink.commit_client import CommitClient, login_identity
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.model import Node

_kept: dict[tuple[ProducerConfig, str, str], CommitClient] = {}


@contextmanager
def commit_client(
    config: ProducerConfig, log_topic: str, brokers: Iterable[Node] = ()
) -> Iterator[CommitClient]:
    """Lend a client for the commit log `log_topic`.

    brokers: of the cluster, as they are known, for a new client.
    """
    identity = login_identity(config)
    key = (config, log_topic, identity)
    client = _kept.pop(key, None) or CommitClient(config, log_topic, brokers, identity=identity)
    try:
        yield client
    except BaseException:
        client.close()
        raise
    _kept[key] = client


def exception_of(failure: Failure, run: Run, config: ProducerConfig) -> KafkaException:
    """Return the exception for a failure, with the options or the rights that it is about."""
    error = failure.exception()
    hints = {
        codes.INVALID_TRANSACTION_TIMEOUT: (
            f"kafka.transaction.timeout.ms is {config.transaction_timeout_ms}: expected at most "
            "the transaction.max.timeout.ms of the brokers"
        ),
        codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Acls.of(config).hint(
            failure.error, run.driver_id
        ),
        codes.TOPIC_AUTHORIZATION_FAILED: (
            "exactlyOnce needs the rights READ and WRITE on the topic of the rows and on "
            f"commitLogTopic={run.log.topic}"
        ),
    }
    hint = hints.get(failure.error)
    return error if hint is None else error.with_message(f"{error.message}; {hint}")


def close_all() -> None:
    """Close all clients that are kept."""
    while _kept:
        _kept.popitem()[1].close()


os.register_at_fork(after_in_child=_kept.clear)
