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


def main() -> None:
    """Run all cases."""
    bootstrap, topic, by_function, log, place = sys.argv[1:]
    folder = Path(place)
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    register(spark)
    (folder / "lines").mkdir()
    found: dict[str, object] = {}

    def options(to: str) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": bootstrap,
            "topic": to,
            "exactlyOnce": "single",
            "commitLogTopic": log,
        }

    def lines() -> DataFrame:
        reader = spark.readStream.format("text").option("maxFilesPerTrigger", "1")
        return reader.load(str(folder / "lines"))

    def add(*files: int) -> None:
        for number in files:
            text = "".join(f"{number}.{line}\n" for line in range(10))
            (folder / "lines" / f"{number}.txt").write_text(text)

    def stream() -> None:
        laid_out = atomic_layout(lines(), options(topic))
        writer = laid_out.writeStream.format("pykafka").options(**options(topic))
        writer = writer.option("checkpointLocation", str(folder / "stream"))
        writer.trigger(availableNow=True).start().awaitTermination()

    def save(frame: DataFrame, batch_id: int) -> None:
        write_batch(atomic_layout(frame, options(by_function)), batch_id, options(by_function))

    def function() -> None:
        writer = lines().writeStream.foreachBatch(save)
        writer = writer.option("checkpointLocation", str(folder / "function"))
        writer.trigger(availableNow=True).start().awaitTermination()

    def replay(checkpoint: str, run: Callable[[], None]) -> None:
        commits = folder / checkpoint / "commits"
        newest = max(int(file.name) for file in commits.iterdir() if file.name.isdecimal())
        for name in (f"{newest}", f".{newest}.crc"):
            (commits / name).unlink(missing_ok=True)
        run()

    def case(name: str, run: Callable[[], None]) -> None:
        try:
            run()
            error = None
        except Exception as failure:  # noqa: BLE001 - it is what the case came to
            error = str(failure)[:1000]
        found[name] = [
            len(committed_values(bootstrap, topic)),
            len(committed_values(bootstrap, by_function)),
            error,
        ]

    add(1, 2)
    case("two micro-batches", stream)
    case("the last one again", lambda: replay("stream", stream))
    case("two by a function", function)
    case("the last one by it again", lambda: replay("function", function))
    add(3)
    case("another one", stream)
    case("another one by the function", function)
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main()
