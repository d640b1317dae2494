"""Keeps open the clients that send commits and aborts, and makes exceptions from their failures.

Spark reuses its Python processes. For example, a stream plans all its micro-batches in one process
and commits them in a second one. One client is kept for each configuration and its credentials.
Each new delegation token makes new credentials, and thus a new client. So only the most recently
used clients are kept. A client is closed after an error. A forked child does not use the parent's
clients, because their connections belong to the parent process.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.auth.acls import Acls
from spark_kafka_sink.commit import one_question
from spark_kafka_sink.commit.attempts import Plan, Run
from spark_kafka_sink.commit.names import ANY_TOPIC
from spark_kafka_sink.commit.outcomes import accept_torn
from spark_kafka_sink.commit.questions import Ask, Described, DescribeTransaction, Reply
from spark_kafka_sink.commit.steps import Failure, FailureKind, is_newer
from spark_kafka_sink.commit.verdicts import Call
from spark_kafka_sink.commit_client import CommitClient, login_identity
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.model import Node

_TOO_LONG: Final = (
    "nothing of the job is visible; raise kafka.transaction.timeout.ms, up to the "
    "transaction.max.timeout.ms of the brokers, or write less in one job"
)

# How many clients are kept: more than an application needs at a time for its clusters and commit
# logs.
_MOST_KEPT: Final = 8
# For how many seconds `reply_to` retries a request. The time is short, because the sink also works
# without the reply.
_ANSWERS_S: Final = 10.0

# The clients that are not in use, in the order of their last use.
_kept: dict[tuple[ProducerConfig, str, str], CommitClient] = {}
_lock = threading.Lock()


@contextmanager
def commit_client(
    config: ProducerConfig, log_topic: str, brokers: Iterable[Node] = ()
) -> Iterator[CommitClient]:
    """Return a context manager that lends a client for the commit log topic `log_topic`.

    brokers: the known brokers of the cluster, which are used if a new client is created.
    """
    identity = login_identity(config)
    key = (config, log_topic, identity)
    with _lock:
        kept = _kept.pop(key, None)
    client = kept or CommitClient(config, log_topic, brokers, identity=identity)
    try:
        yield client
    except BaseException:
        client.close()
        raise
    for each in _keep(key, client):
        each.close()


def _keep(key: tuple[ProducerConfig, str, str], client: CommitClient) -> list[CommitClient]:
    """Keep a client for later use. Return surplus clients, which the caller closes."""
    with _lock:
        # Meanwhile, a different thread may have created and kept a second client for this key.
        if _kept.setdefault(key, client) is not client:
            return [client]
        surplus = list(_kept)[:-_MOST_KEPT]
        return [_kept.pop(each) for each in surplus]


def exception_of(failure: Failure, run: Run, acls: Acls, written: str = "") -> KafkaException:
    """Return the exception for a failure. Its message names options or ACLs that can avoid it.

    acls: the attribute `acls` of the client whose request failed. written: how many rows were
    written, in words. The message contains this if the job took too long.
    """
    error = failure.exception()
    hints = [written, _TOO_LONG] if failure.kind is FailureKind.TIMED_OUT else []
    if failure.error == codes.INVALID_TRANSACTION_TIMEOUT:
        hints.append(
            f"kafka.transaction.timeout.ms is {run.timeout_ms}: expected at most "
            "the transaction.max.timeout.ms of the brokers"
        )
    if failure.error == codes.MESSAGE_TOO_LARGE:
        hints.append(
            f"raise max.message.bytes of topic {run.log.topic}: in mode two-phase, the commit log "
            "record has about 40 bytes for each task that has rows"
        )
    if failure.kind is FailureKind.IN_DOUBT:
        hints.append(
            "if a later run fails in the same way, check whether these records are needed and "
            f"missing; then run {accept_torn(run.owner, run.log.topic)} so that the next run can "
            "start"
        )
    hints.append(_rights(failure, run, acls))
    return error.with_message("; ".join(filter(None, [error.message, *hints])))


def _rights(failure: Failure, run: Run, acls: Acls) -> str:
    """Return how to grant the missing ACL; an empty string if no ACL is missing."""
    if failure.error == codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        needed_id = f"{run.owner.prefix}/"
        how = acls.hint(failure.error, needed_id, is_prefix=True)
        return f"exactlyOnce uses transactional ids that begin with {needed_id}; {how}"
    if failure.error != codes.TOPIC_AUTHORIZATION_FAILED:
        return ""
    of_rows = "the topic of the rows" if failure.topic is None else f"topic {failure.topic}"
    of_log = f"commitLogTopic={run.log.topic}"
    read_rows = (f"READ on {of_rows}", failure.topic or _topic(run), ("READ",))
    needed = {
        Call.DESCRIBE_PRODUCERS.value: read_rows,
        # Transaction markers are read from the topics of the rows.
        Call.READ_MARKER.value: read_rows,
        Call.READ_LOG.value: (f"READ on {of_log}", run.log.topic, ("READ",)),
        Call.PRODUCE.value: (f"WRITE on {of_log}", run.log.topic, ("WRITE",)),
        Call.ADD_PARTITIONS_TO_TXN.value: (f"WRITE on {of_rows} and {of_log}", None, ("WRITE",)),
    }
    if failure.api not in needed:
        return f"exactlyOnce needs the permissions READ and WRITE on {of_rows} and on {of_log}"
    right, topic, operations = needed[failure.api]
    return (
        f"exactlyOnce needs the permission {right}; {acls.hint(failure.error, topic, operations)}"
    )


def _topic(run: Run) -> str | None:
    return None if run.owner.target == ANY_TOPIC else run.owner.target


def has_newer_run(client: CommitClient, plan: Plan) -> bool | None:
    """Return whether a newer run has fenced the driver of `plan`; None if this is not known.

    A newer run also aborts the transactions of the run of `plan`.
    """
    found = reply_to(client, DescribeTransaction(plan.run.driver_id))
    if not isinstance(found, Described) or found.error:
        return None
    return is_newer(found, plan)


def reply_to(client: CommitClient, ask: Ask) -> Reply:
    """Send a request, and retry it for up to ten seconds if it fails. Return the last reply.

    Raise the exceptions of `CommitClient.run`.
    """
    begun = one_question.begin(ask, deadline=client.now() + _ANSWERS_S)
    reply = client.run(begun, one_question.step).outcome
    if reply is None:
        message = "a request has no reply; this is a bug"
        raise KafkaException(message)
    return reply


def close_all() -> None:
    """Close all clients that this process keeps."""
    with _lock:
        clients = list(_kept.values())
        _kept.clear()
    for each in clients:
        each.close()


def _forget() -> None:
    """Forget all clients in a forked child, because they and the lock belong to the parent."""
    global _lock  # noqa: PLW0603 - the parent may hold the lock
    _lock = threading.Lock()
    _kept.clear()


os.register_at_fork(after_in_child=_forget)
