"""A program: an application of Spark that writes jobs and a stream exactly once, for tests to kill.

Arguments: the brokers, the mode, a topic for jobs and one for a stream, each with four partitions,
the topic of the commit log, a folder for the stream. It says what it begins, and DONE at the end.
Run again, it goes on.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

from spark_kafka_sink import atomic_layout, register

VERSIONS: Final = range(1, 7)
ROWS: Final = 200
FILES: Final = range(1, 7)
LINES: Final = 50
BEGIN: Final = "begin "
STREAM: Final = "stream"
DONE: Final = "done"


def steps() -> list[str]:
    """Return what the application does, in order."""
    return [*(f"version {version}" for version in VERSIONS), STREAM]


def values_of_jobs() -> list[str]:
    """Return the values of all rows of the jobs, sorted."""
    return sorted(f"{version}.{row}" for version in VERSIONS for row in range(ROWS))


def values_of_stream() -> list[str]:
    """Return the values of all rows of the stream, sorted."""
    return sorted(f"{file}.{line}" for file in FILES for line in range(LINES))


def write_files(folder: Path) -> None:
    """Write the input of the stream."""
    lines = folder / "lines"
    lines.mkdir()
    for file in FILES:
        text = "".join(f"{file}.{line}\n" for line in range(LINES))
        (lines / f"{file}.txt").write_text(text)


def _begin(step: str) -> None:
    print(f"{BEGIN}{step}", flush=True)


def main() -> None:
    """Run everything that was not written yet."""
    bootstrap, mode, topic, stream_topic, log, folder = sys.argv[1:]
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    register(spark)
    shared = {
        "kafka.bootstrap.servers": bootstrap,
        "exactlyOnce": mode,
        "commitLogTopic": log,
    }

    def laid_out(frame: DataFrame, options: dict[str, str]) -> DataFrame:
        return atomic_layout(frame, options) if mode == "single" else frame.repartition(4)

    for version in VERSIONS:
        _begin(f"version {version}")
        value = F.concat(F.lit(f"{version}."), F.col("id").cast("string"))
        options = shared | {"topic": topic, "txnAppId": "killed", "txnVersion": str(version)}
        frame = laid_out(spark.range(ROWS).select(value.alias("value")), options)
        frame.write.format("pykafka").options(**options).save()
    _begin(STREAM)
    reader = spark.readStream.format("text").option("maxFilesPerTrigger", "1")
    options = shared | {"topic": stream_topic}
    frame = laid_out(reader.load(f"{folder}/lines"), options)
    writer = frame.writeStream.format("pykafka").options(**options)
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()
    print(DONE, flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
