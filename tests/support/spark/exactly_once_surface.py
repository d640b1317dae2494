"""A program: what a user of a classic session sees of exactly once; its parts are the cases.

Arguments: the brokers, three topics with two partitions, the topic of the commit log, an empty
folder. It prints one JSON object: what each case came to.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_kafka_sink import last_reports, register
from spark_kafka_sink.errors import ConfigException
from support.oracles.readers import committed_values


class Application:
    """An application in two-phase mode, with a folder for checkpoints in its session."""

    def __init__(self, bootstrap: str, log: str, folder: Path) -> None:
        self.bootstrap = bootstrap
        self.folder = folder
        self.lines = folder / "lines"
        self.lines.mkdir()
        self.spark = (
            SparkSession.builder.master("local[2]")
            .appName("surface")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.streaming.checkpointLocation", str(folder / "checkpoints"))
            .getOrCreate()
        )
        self.spark.sparkContext.setLogLevel("OFF")
        register(self.spark)
        self.options = {
            "kafka.bootstrap.servers": bootstrap,
            "exactlyOnce": "true",
            "commitLogTopic": log,
        }

    def add_line(self, line: str) -> None:
        """Add a line to the source of streams."""
        (self.lines / f"{line}.txt").write_text(f"{line}\n")

    def start(self, topic: str, name: str | None) -> StreamingQuery:
        """Start a stream that writes what there is to a topic."""
        stream = self.spark.readStream.format("text").load(str(self.lines))
        writer = stream.writeStream.format("pykafka").options(**self.options, topic=topic)
        return writer.trigger(availableNow=True).start(queryName=name)

    def save(self, frame: DataFrame, version: int, **more: str) -> None:
        """Save a version."""
        named = {"txnAppId": "job", "txnVersion": str(version)}
        frame.write.format("pykafka").options(**self.options, **named, **more).save()

    def committed(self, topic: str) -> list[str]:
        """Return what readers see."""
        return committed_values(self.bootstrap, topic)


def marked(frame: DataFrame, mark: Path) -> DataFrame:
    """Return a frame whose tasks leave a mark when they read a row."""
    path = str(mark)

    def mark_row(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            with open(path, "w"):  # noqa: PTH123 - it runs where only Python is installed
                pass
            yield batch

    return frame.mapInArrow(mark_row, frame.schema)


def main() -> None:
    """Run all cases."""
    bootstrap, by_stream, by_job, by_column, log, folder = sys.argv[1:]
    application = Application(bootstrap, log, Path(folder))
    found: dict[str, object] = {}

    application.add_line("a")
    application.start(by_stream, "arrivals").awaitTermination()
    application.add_line("b")
    application.start(by_stream, "arrivals").awaitTermination()
    found["a stream with the checkpoint of its session"] = application.committed(by_stream)
    try:
        application.start(by_stream, None)
    except ConfigException as error:
        found["a stream without a name"] = str(error)

    rows = application.spark.range(3).selectExpr("CAST(id AS STRING) AS value")
    application.save(rows, 1, topic=by_job)
    (report,) = last_reports(application.spark, 1)
    found["a version"] = [report["rows"], report["exactly_once"]]
    mark = application.folder / "mark"
    application.save(marked(rows, mark), 1, topic=by_job)
    (report,) = last_reports(application.spark, 1)
    found["the version again"] = [report["rows"], report["tasks"], mark.exists()]
    found["why it was skipped"] = report["exactly_once"]["skipped"]
    named = rows.selectExpr("value", f"'{by_column}' AS topic")
    application.save(named, 1)
    application.save(marked(named, mark), 1)
    (report,) = last_reports(application.spark, 1)
    found["a topic column again"] = [report["rows"], mark.exists()]
    found["what was counted"] = report["exactly_once"]["skipped"]
    found["values"] = [application.committed(by_job), application.committed(by_column)]
    print(json.dumps(found))
    application.spark.stop()


if __name__ == "__main__":
    main()
