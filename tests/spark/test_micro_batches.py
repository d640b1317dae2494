"""What the sink asks Spark about the query of a micro-batch, in the function of foreachBatch."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_kafka_sink.spark.driver.saves import micro_batch_in_thread

pytestmark = pytest.mark.spark


def test_a_job_group_of_the_user_is_not_taken_for_the_run_of_the_query(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "a.txt").write_text("a\n")
    found = []

    def look(frame: DataFrame, _batch_id: int) -> None:
        session = frame.sparkSession
        context = session.sparkContext
        own = context.getLocalProperty("spark.jobGroup.id") or ""
        for group in (own, str(uuid.uuid4())):
            context.setJobGroup(group, "of the user")
            micro_batch = micro_batch_in_thread(session)
            found.append(None if micro_batch is None else micro_batch.run_id)

    lines = spark.readStream.format("text").load(str(tmp_path / "lines"))
    writer = lines.writeStream.foreachBatch(look).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    query.awaitTermination()
    assert found == [str(query.runId), ""]
