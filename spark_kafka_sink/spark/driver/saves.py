"""Refuses a second save of one micro-batch by ``write_batch`` or ``save()``, with exactly once.

A replay is not refused: after a restart, Spark runs the last micro-batch again, and its rows are
skipped. The commit log does not show whether a second save is a replay. So this process remembers
the newest save of each owner (a txnAppId and its topic), and whether the save failed. A failed save
may be retried, even if its rows were committed.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from spark_kafka_sink.commit.names import ANY_TOPIC
from spark_kafka_sink.errors import ConfigException
from spark_kafka_sink.spark.exactly_once import exactly_once
from spark_kafka_sink.spark.micro_batch import (
    MicroBatch,
    batch_id_option,
    micro_batch_of,
    query_option,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# ruff: noqa: SLF001 - Spark has no public way to find the query of a micro-batch


class _Save(NamedTuple):
    """A save of a micro-batch by a run of a query. has_failed: if True, it may be retried."""

    query_id: str
    run_id: str
    batch_id: int
    has_failed: bool = False


# The newest save of each owner.
_saves: dict[tuple[str, ...], _Save] = {}
_lock = threading.Lock()
_MOST_OWNERS: Final = 1000


def micro_batch_in_thread(session: SparkSession) -> MicroBatch | None:
    """Return the micro-batch whose function of foreachBatch runs in this thread, or None.

    session: the classic session of the micro-batch.
    """
    local_property = session.sparkContext.getLocalProperty
    return micro_batch_of(local_property, functools.partial(_active_run, session))


def _active_run(session: SparkSession, query_id: str) -> str | None:
    """Return the run id of an active query, or None if it is not known.

    The session of a micro-batch is a copy that knows no query, so ask what all sessions share.
    """
    try:
        jvm: Any = session._jvm
        key = jvm.java.util.UUID.fromString(query_id)
        query = session._jsparkSession.sharedState().activeStreamingQueries().get(key)
        return None if query is None else str(query.runId().toString())
    except Exception:  # noqa: BLE001 - such as a Spark that does not let Python call this
        return None


@contextmanager
def save_of_micro_batch(
    given: Mapping[str, str], session: SparkSession
) -> Iterator[dict[str, str]]:
    """Yield the options that describe the micro-batch of a ``save()``; empty if there is none.

    With exactly once, ``save()`` writes a micro-batch like `write_batch` if it is called in the
    function of foreachBatch with the batch id as txnVersion. given: options by their names in lower
    case. session: a classic session. Raise ConfigException for a second save of the same
    micro-batch.
    """
    selected = exactly_once(given)
    if selected is None or selected.app_id is None or selected.version is None:
        yield {}
        return
    micro_batch = micro_batch_in_thread(session)
    if micro_batch is None or micro_batch.batch_id != selected.version:
        yield {}
        return
    batch_id = micro_batch.batch_id
    with only_save(given, batch_id, micro_batch, call="save()") as is_retry:
        yield {
            **batch_id_option(batch_id, is_save=True),
            **query_option(micro_batch._replace(is_retry=is_retry)),
        }


@contextmanager
def only_save(
    given: Mapping[str, str],
    batch_id: int,
    micro_batch: MicroBatch | None,
    *,
    call: str = "write_batch",
) -> Iterator[bool]:
    """In a run of a query, refuse a second save of a micro-batch with the same txnAppId and topic.

    A later run may save the micro-batch again. In a classic session, the later run has a different
    run id. With Spark Connect, the later run is a new process, which does not know the earlier
    saves. A failed save may be retried. Yield whether this save is a retry.

    given: options by their names in lower case. micro_batch: None if the query is not known. call:
    the function that saves, for error messages. Raise ConfigException for a second save.
    """
    selected = exactly_once(given)
    if selected is None:
        yield False
        return
    query_id, run_id = "", ""
    if micro_batch is not None:
        query_id, run_id = micro_batch.query_id, micro_batch.run_id
        if not run_id:
            message = (
                f"{call}: exactlyOnce needs to know the run of the query, but the function of "
                "foreachBatch has replaced both local properties that contain the run id, "
                f"spark.jobGroup.id and spark.job.description: call {call} before setJobGroup, or "
                "use setJobDescription instead"
            )
            raise ConfigException(message)
    app_id, topic = selected.app_id or query_id, given.get("topic", "").strip() or ANY_TOPIC
    servers = given.get("kafka.bootstrap.servers", "").split(",")
    cluster = ",".join(sorted(each.strip() for each in servers if each.strip()))
    owner = (cluster, selected.log_topic, selected.id_prefix, app_id, topic)
    save = _Save(query_id, run_id, batch_id)
    failed = save._replace(has_failed=True)
    with _lock:
        if _saves.get(owner) == save:
            message = _second_save(batch_id, app_id, topic, is_known=bool(run_id))
            raise ConfigException(f"{call}: {message}")
        is_retry = _saves.pop(owner, None) == failed
        _saves[owner] = save
        if len(_saves) > _MOST_OWNERS:
            del _saves[next(iter(_saves))]
    try:
        yield is_retry
    except BaseException:
        with _lock:
            if _saves.get(owner) == save:
                _saves[owner] = failed
        raise


def _second_save(batch_id: int, app_id: str, topic: str, *, is_known: bool) -> str:
    """Return the error message for a second save. is_known: whether the query's run is known."""
    where = "the topics of a topic column" if topic == ANY_TOPIC else f"topic {topic}"
    message = (
        f"this process has already saved micro-batch {batch_id} with txnAppId {app_id!r} to "
        f"{where}: two saves of one micro-batch need different topics, or a txnAppId of its "
        "own for the second save"
    )
    if is_known:
        return message
    return (
        f"{message}. The sink does not know the query of this save: if the query was started again "
        "in this process, call "
        "write_batch in the thread that calls the function of foreachBatch, or in a pyspark."
        "InheritableThread"
    )
