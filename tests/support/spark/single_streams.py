"""A program: streams of Spark in mode `single`, one after another, as its cases.

Arguments: the brokers, two topics with four partitions, the topic of the commit log, an empty
folder. It prints one JSON object: what each case came to.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from spark_kafka_sink import atomic_layout, register, write_batch
from support.oracles.readers import committed_values


class Streams:
    """Two streams of one folder of files: one to a topic, one by a function to another topic."""

    def __init__(self, spark: SparkSession, bootstrap: str, log: str, folder: Path) -> None:
        self._spark = spark
        self._bootstrap = bootstrap
        self._log = log
        self._folder = folder
        (folder / "lines").mkdir()

    def add(self, *files: int) -> None:
        """Add files of ten lines."""
        for number in files:
            text = "".join(f"{number}.{line}\n" for line in range(10))
            (self._folder / "lines" / f"{number}.txt").write_text(text)

    def _options(self, topic: str) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self._bootstrap,
            "topic": topic,
            "exactlyOnce": "single",
            "commitLogTopic": self._log,
        }

    def _lines(self) -> DataFrame:
        """Return the files as a stream, one to a micro-batch."""
        reader = self._spark.readStream.format("text").option("maxFilesPerTrigger", "1")
        return reader.load(str(self._folder / "lines"))

    def run(self, topic: str) -> None:
        """Write what there is to a topic."""
        laid_out = atomic_layout(self._lines(), self._options(topic))
        writer = laid_out.writeStream.format("pykafka").options(**self._options(topic))
        writer = writer.option("checkpointLocation", str(self._folder / topic))
        writer.trigger(availableNow=True).start().awaitTermination()

    def run_by_function(self, topic: str) -> None:
        """Write what there is to a topic, by `write_batch`."""
        options = self._options(topic)

        def save(frame: DataFrame, batch_id: int) -> None:
            write_batch(atomic_layout(frame, options), batch_id, options)

        writer = self._lines().writeStream.foreachBatch(save)
        writer = writer.option("checkpointLocation", str(self._folder / topic))
        writer.trigger(availableNow=True).start().awaitTermination()

    def forget_commit(self, topic: str) -> None:
        """Make Spark run the last micro-batch again."""
        commits = self._folder / topic / "commits"
        newest = max(int(file.name) for file in commits.iterdir() if file.name.isdecimal())
        for name in (f"{newest}", f".{newest}.crc"):
            (commits / name).unlink(missing_ok=True)


def main() -> None:
    """Run all cases."""
    bootstrap, topic, by_function, log, folder = sys.argv[1:]
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    register(spark)
    streams = Streams(spark, bootstrap, log, Path(folder))
    found: dict[str, object] = {}

    def case(name: str, run: Callable[[str], None], to: str) -> None:
        try:
            run(to)
            error = None
        except Exception as failure:  # noqa: BLE001 - it is what the case came to
            error = str(failure)[:1000]
        counts = [len(committed_values(bootstrap, each)) for each in (topic, by_function)]
        found[name] = [*counts, error]
        print(name, found[name], file=sys.stderr, flush=True)

    streams.add(1, 2)
    case("two micro-batches", streams.run, topic)
    streams.forget_commit(topic)
    case("the last one again", streams.run, topic)
    case("two by a function", streams.run_by_function, by_function)
    streams.forget_commit(by_function)
    case("the last one by it again", streams.run_by_function, by_function)
    streams.add(3)
    case("another one", streams.run, topic)
    case("another one by the function", streams.run_by_function, by_function)
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main()
