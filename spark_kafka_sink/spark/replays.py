"""Finds out from the commit log record of an owner whether a micro-batch still has to be written.

After a restart, Spark may run the last micro-batch again with the same rows, although it was
committed. A function of foreachBatch may also save a micro-batch again after an error, although the
rows were committed before that error. An owner is a txnAppId and its target topic.
"""

from __future__ import annotations

from spark_kafka_sink.commit.attempts import Plan
from spark_kafka_sink.commit.log_record import BatchPlace
from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.spark.micro_batch import MicroBatch


def is_written(plan: Plan, micro_batch: MicroBatch) -> bool:
    """Return whether a micro-batch is written already.

    An earlier run of the query may have written it. This run may also have written it, if
    `write_batch` retries a failed save (`is_retry`). Raise KafkaException if this run has written
    the micro-batch with a save that succeeded, or if a later micro-batch of the query is written.
    """
    if plan.record is None:
        return False
    place = plan.record.place_of_batch(
        micro_batch.query_id, micro_batch.batch_id, micro_batch.run_id
    )
    owner = plan.run.owner
    if place is BatchPlace.SAME_RUN and not micro_batch.is_retry:
        message = (
            f"this run of the query has already written {micro_batch} as {owner}: two saves of one "
            "micro-batch need different topics, or a txnAppId of its own for the second save"
        )
        raise KafkaException(message)
    last = plan.record.last_batch(micro_batch.query_id)
    if place is BatchPlace.OLDER and last is not None:
        message = (
            f"{micro_batch} is older than micro-batch {last.batch_id}, which was written as "
            f"{owner}: the checkpoint is an older copy, or two queries share it"
        )
        raise KafkaException(message)
    return place in (BatchPlace.REPLAY, BatchPlace.SAME_RUN)


def warning_of_new_query(plan: Plan, micro_batch: MicroBatch) -> str | None:
    """Return a warning if rows may already be in Kafka from a write that the sink cannot recognize.

    The earlier write may have had a different query id or a different owner. If the owner's record
    contains a micro-batch of this query, return None. If not, return a warning in two cases: the
    record contains micro-batches of other queries, or the batch id is not 0. In any other case,
    return None.
    """
    owner, record = plan.run.owner, plan.record
    if record is not None and record.last_batch(micro_batch.query_id) is not None:
        return None
    if record is not None and record.streams:
        last = record.streams[-1]
        return (
            f"query {micro_batch.query_id} is written as a new stream of {owner}; query "
            f"{last.query_id} wrote for it before, until micro-batch {last.batch_id}: if this is "
            "the same stream with a new checkpoint, rows that both queries have read are written "
            "twice"
        )
    if micro_batch.batch_id == 0:
        return None
    return (
        f"{micro_batch} is not the first, but the commit log has no micro-batch of {owner}: "
        "either all earlier micro-batches had no rows, or they were written without exactlyOnce, "
        "by another sink or with Spark Connect, or txnAppId, txnIdPrefix, commitLogTopic, the "
        "topic, the cluster, or the spelling of checkpointLocation has changed; if this "
        "micro-batch was written before, its rows are written twice"
    )
