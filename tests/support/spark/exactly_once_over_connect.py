"""A program: a job and streams of Spark Connect in one mode of exactly once, each of them twice.

Arguments: the server, the mode, the brokers, an empty folder. It prints one JSON object: the values
that readers see after each case, and the error.
"""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

from spark_kafka_sink import atomic_layout, register, write_batch
from support.oracles.readers import committed_values, create_topic


def save(frame: DataFrame, batch_id: int, options: dict[str, str], *, is_laid_out: bool) -> None:
    """Write a micro-batch, on the server."""
    write_batch(atomic_layout(frame, options) if is_laid_out else frame, batch_id, options)


def _two_files(lines: Path) -> Path:
    """Return the folder with two files of ten lines."""
    lines.mkdir()
    for number in (1, 2):
        text = "".join(f"{number}.{line}\n" for line in range(10))
        (lines / f"{number}.txt").write_text(text)
    return lines


def main() -> None:
    """Run the cases."""
    remote, mode, bootstrap, folder = sys.argv[1:]
    spark = SparkSession.builder.remote(remote).getOrCreate()
    register(spark)
    topic, log = (f"{kind}-{uuid.uuid4().hex[:12]}" for kind in ("topic", "log"))
    create_topic(bootstrap, topic, 4, replicas=1)
    create_topic(bootstrap, log, 1, {"cleanup.policy": "compact"}, replicas=1)
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "topic": topic,
        "exactlyOnce": mode,
        "commitLogTopic": log,
        "kafka.transaction.timeout.ms": "60000",
    }
    lines = _two_files(Path(folder) / "lines")
    found: dict[str, object] = {}

    def ready(frame: DataFrame, given: dict[str, str]) -> DataFrame:
        return atomic_layout(frame, given) if mode == "single" else frame

    def case(name: str, run: Callable[[], None]) -> None:
        try:
            run()
            error = None
        except Exception as failure:  # noqa: BLE001 - it is what the case came to
            error = str(failure)[:1500]
        values = committed_values(bootstrap, topic)
        found[name] = [values, error]
        print(name, len(values), error, file=sys.stderr, flush=True)

    def job() -> None:
        given = {**options, "txnAppId": "job", "txnVersion": "1"}
        rows = spark.range(100).select(F.col("id").cast("string").alias("value"))
        ready(rows, given).write.format("pykafka").mode("append").options(**given).save()

    def stream() -> DataFrame:
        reader = spark.readStream.format("text").option("maxFilesPerTrigger", "1")
        return reader.load(str(lines))

    def forget_commit(name: str) -> None:
        commits = Path(folder) / name / "commits"
        for each in ("1", ".1.crc"):
            (commits / each).unlink(missing_ok=True)

    def write_stream() -> None:
        writer = ready(stream(), options).writeStream.format("pykafka").options(**options)
        writer = writer.option("checkpointLocation", str(Path(folder) / "stream"))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()

    def by_function() -> None:
        given = {**options, "txnAppId": "function"}
        writer = stream().writeStream.foreachBatch(
            partial(save, options=given, is_laid_out=mode == "single")
        )
        writer = writer.option("checkpointLocation", str(Path(folder) / "function"))
        writer.trigger(availableNow=True).start().awaitTermination()

    case("a job", job)
    case("the job again", job)
    case("a stream", write_stream)
    forget_commit("stream")
    case("its last micro-batch again", write_stream)
    case("a function", by_function)
    forget_commit("function")
    case("its last micro-batch by the function again", by_function)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
