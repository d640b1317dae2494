r"""Writes a folder of files to a topic as a structured stream, restartable from its checkpoint.

    spark-submit jobs/stream.py --bootstrap host:9092 --topic flights \
        --source incoming/ --format json --checkpoint checkpoints/flights --key carrier

It writes the existing files and ends; with --interval it runs until Ctrl-C. Started again with the
same checkpoint, it writes the new files. Files that a killed run had begun are written again: the
guarantee is at-least-once.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from job import arguments, rows, running
from pyspark.sql import DataFrame
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_kafka_sink import register, write_batch

_NAME = "stream.py"
_POLL_S = 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stream of the command line; return the exit code."""
    parser = arguments.parser(_NAME, str(__doc__))
    _add_stream(parser.add_argument_group("stream"))
    given = parser.parse_args(argv)
    source, columns = stream_source(given), arguments.columns(given)
    arguments.check_target(given)
    settings = {"spark.sql.streaming.schemaInference": "true"}
    with running.session(_NAME, **settings) as spark:
        register(spark)
        target = arguments.target(given, spark)
        data = rows.read_stream(spark, source, given.files_per_batch)
        writer = MODES[given.mode](rows.to_records(data, columns, source), target.options)
        writer = writer.option("checkpointLocation", given.checkpoint)
        print(f"streaming {source.path} to topic {target.topic} by {given.mode}", flush=True)
        if given.interval is None:
            query = writer.trigger(availableNow=True).start()
        else:
            query = writer.trigger(processingTime=given.interval).start()
        total = follow(query)
    print(f"wrote {total.rows:,} rows in {total.batches} micro-batches")
    return 0


def _add_stream(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--checkpoint",
        metavar="DIR",
        required=True,
        help="folder for the state of the stream: what is written already",
    )
    group.add_argument(
        "--mode",
        choices=sorted(MODES),
        default="writeStream",
        help='writeStream.format("pykafka"), or df.write inside foreachBatch (%(default)s)',
    )
    group.add_argument(
        "--interval",
        metavar="'N seconds'",
        help="look for new files so often, until Ctrl-C; without it, write what is there and end",
    )
    group.add_argument(
        "--files-per-batch",
        metavar="N",
        type=int,
        help="at most so many files in a micro-batch; without it, all",
    )


def stream_source(given: argparse.Namespace) -> arguments.Source:
    """Return the folder to read. Raise JobError."""
    source = arguments.source(given)
    if source.path is None or source.format == "table":
        message = "a stream reads a folder of files: give --source FOLDER and its --format"
        raise running.JobError(message)
    if Path(source.path).is_file():
        message = f"--source {source.path} is a file: a stream reads a folder of files"
        raise running.JobError(message)
    return source


def by_write_stream(records: DataFrame, options: Mapping[str, str]) -> DataStreamWriter:
    """Return a stream that writes with the sink's own stream writer."""
    return records.writeStream.format("pykafka").options(**options)


def by_foreach_batch(records: DataFrame, options: Mapping[str, str]) -> DataStreamWriter:
    """Return a stream that saves every micro-batch as a batch job."""
    return records.writeStream.foreachBatch(partial(write_batch, options=options))


MODES: Mapping[str, Callable[[DataFrame, Mapping[str, str]], DataStreamWriter]] = {
    "writeStream": by_write_stream,
    "foreachBatch": by_foreach_batch,
}


@dataclass(slots=True)
class Total:
    """The total of a run; `last` is its newest micro-batch."""

    rows: int = 0
    batches: int = 0
    last: int = -1

    def add(self, progress: StreamingQueryProgress) -> None:
        """Add a micro-batch and print its line; triggers without data are skipped."""
        if progress.numInputRows == 0 or progress.batchId <= self.last:
            return
        self.last = progress.batchId
        self.batches += 1
        self.rows += progress.numInputRows
        seconds = progress.durationMs["triggerExecution"] / 1000
        print(
            f"micro-batch {progress.batchId}: {progress.numInputRows:,} rows in {seconds:.1f} s",
            flush=True,
        )


def follow(query: StreamingQuery) -> Total:
    """Print a line for every micro-batch until the stream ends. Raise the error that ended it."""
    total = Total()
    ended = False
    while not ended:
        ended = bool(query.awaitTermination(_POLL_S))
        for progress in query.recentProgress:
            total.add(progress)
    return total


if __name__ == "__main__":
    sys.exit(running.run(main, _NAME))
