r"""Writes the files of a folder to a topic as a structured stream, with a checkpoint.

    spark-submit jobs/stream.py --bootstrap host:9092 --topic flights \
        --source incoming/ --format json --checkpoint checkpoints/flights --key carrier

The job writes the existing files and ends; with --interval it runs until Ctrl-C. If it is started
again with the same checkpoint, it writes the new files. If it is killed, the next start writes the
files of the unfinished micro-batch again: the guarantee is at-least-once.
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
        help="folder for the checkpoint, in which Spark records the files that are written already",
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
        help="how often to look for new files, until Ctrl-C; without it, the job writes the files "
        "that exist and ends",
    )
    group.add_argument(
        "--files-per-batch",
        metavar="N",
        type=int,
        help="the largest number of files in a micro-batch (default: all)",
    )


def stream_source(given: argparse.Namespace) -> arguments.Source:
    """Return the folder to read. Raise JobError if the source is not a folder of files."""
    source = arguments.source(given)
    if source.path is None or source.format == "table":
        message = "a stream reads a folder of files: give --source FOLDER and its --format"
        raise running.JobError(message)
    if Path(source.path).is_file():
        message = f"--source {source.path} is a file: a stream reads a folder of files"
        raise running.JobError(message)
    return source


def by_write_stream(records: DataFrame, options: Mapping[str, str]) -> DataStreamWriter:
    """Return a stream that `writeStream.format("pykafka")` writes."""
    return records.writeStream.format("pykafka").options(**options)


def by_foreach_batch(records: DataFrame, options: Mapping[str, str]) -> DataStreamWriter:
    """Return a stream that writes each micro-batch as a batch job, inside `foreachBatch`."""
    return records.writeStream.foreachBatch(partial(write_batch, options=options))


MODES: Mapping[str, Callable[[DataFrame, Mapping[str, str]], DataStreamWriter]] = {
    "writeStream": by_write_stream,
    "foreachBatch": by_foreach_batch,
}


@dataclass(slots=True)
class Total:
    """The numbers of rows and micro-batches that a run wrote, and its last micro-batch's id."""

    rows: int = 0
    batches: int = 0
    last: int = -1

    def add(self, progress: StreamingQueryProgress) -> None:
        """Add a micro-batch and print its line, unless it has no rows or was added before."""
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
