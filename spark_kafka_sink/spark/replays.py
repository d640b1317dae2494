"""Whether a micro-batch is to be written, by the record of its owner.

Spark runs a micro-batch again after a restart, also one that was committed, with the same rows.
"""

from __future__ import annotations

from spark_kafka_sink.commit.attempts import Plan
from spark_kafka_sink.commit.log_record import BatchPlace
from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.spark.micro_batch import MicroBatch


def is_written(plan: Plan, micro_batch: MicroBatch) -> bool:
    """Return whether a micro-batch was written by an earlier run of its query.

    Raise KafkaException if it was written by this run, or if a later one was written.
    """
    if plan.record is None:
        return False
    place = plan.record.place_of_batch(
        micro_batch.query_id, micro_batch.batch_id, micro_batch.run_id
    )
    owner = plan.run.owner
    if place is BatchPlace.SAME_RUN:
        message = (
            f"{micro_batch} was written by this run of the query already, by {owner}: two saves of "
            "one micro-batch need different topics, or different values of txnAppId"
        )
        raise KafkaException(message)
    last = plan.record.last_batch(micro_batch.query_id)
    if place is BatchPlace.OLDER and last is not None:
        message = (
            f"{micro_batch} is older than micro-batch {last.batch_id}, which {owner} has written: "
            "the checkpoint is an older copy, or two queries share it"
        )
        raise KafkaException(message)
    return place is BatchPlace.REPLAY


def warning_of_new_query(plan: Plan, micro_batch: MicroBatch) -> str | None:
    """Return the warning about a query that may have written its last rows as another owner.

    That is so for the first micro-batch that the owner's record has of a query, if the owner has
    other queries, or if it is not the query's first. None otherwise.
    """
    owner, record = plan.run.owner, plan.record
    if record is not None and record.last_batch(micro_batch.query_id) is not None:
        return None
    if record is not None and record.streams:
        last = record.streams[-1]
        return (
            f"query {micro_batch.query_id} is written as a new stream of {owner}, as which query "
            f"{last.query_id} wrote until micro-batch {last.batch_id}: if this is the same stream "
            "with a new checkpoint, rows that both have read come twice"
        )
    if micro_batch.batch_id == 0:
        return None
    return (
        f"{micro_batch} is the first that the commit log has of {owner}: if it was written before, "
        "its rows come twice; that may be so if txnAppId, txnIdPrefix, commitLogTopic, the topic, "
        "the cluster, or the spelling of checkpointLocation has changed"
    )
