"""``last_reports(spark)``: the reports of an application's writes, from the driver's own folder.

A job is committed by a Python process of its own, which knows neither the session nor the
application. What it shares with the user's process is the folder in which Spark's driver keeps what
is to be shipped to executors: of one application alone, readable by its user alone, and removed
with it. There the reports are kept as lines of a file, the newest last.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from pyspark import SparkFiles

from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.model import LARGEST_INT32, checked_number
from spark_kafka_sink.spark.connect import check_session, is_connect
from spark_kafka_sink.spark.report_lines import append_report, newest_reports

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NAME: Final = ".pykafka-reports.jsonl"
# Beyond this the older half of the file is dropped: a stream goes on for weeks.
_FULL_BYTES: Final = 8 * 1024 * 1024


def remember(report: dict[str, Any]) -> None:
    """Add a report to those of the application; on the commit side. Raises OSError."""
    folder = _folder()
    if folder is None:
        return
    flags = os.O_CREAT | os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW
    with os.fdopen(os.open(folder / _NAME, flags, 0o600), "a+b") as lines:
        fcntl.flock(lines, fcntl.LOCK_EX)
        if lines.seek(0, os.SEEK_END) > _FULL_BYTES:
            _drop_older_half(lines)
        append_report(lines, report)


def last_reports(spark: SparkSession, n: int = 10) -> list[dict[str, Any]]:
    """Give the reports of the application's last n writes and micro-batches, the newest last.

    spark: a classic session; with Spark Connect the driver's files are out of reach. Raises
    KafkaException for such a session, IllegalArgumentException for what is none.
    """
    check_session("last_reports", spark)
    checked_number("n", n, 0, LARGEST_INT32)
    if is_connect(spark):
        message = (
            "last_reports needs a classic session: over Spark Connect the reports stay with the "
            "server; set the option reportPath and read that file there"
        )
        raise KafkaException(message)
    folder = _folder()
    if folder is None or not (folder / _NAME).exists():
        return []
    with (folder / _NAME).open("rb") as lines:
        fcntl.flock(lines, fcntl.LOCK_SH)
        return newest_reports(lines.read(), n)


def _folder() -> Path | None:
    """Give the folder of driver's files, None where no Spark runs."""
    try:
        return Path(SparkFiles.getRootDirectory())
    except AssertionError:  # how PySpark says that there is no SparkContext
        return None


def _drop_older_half(lines: BinaryIO) -> None:
    lines.seek(lines.tell() // 2)
    lines.readline()
    newer = lines.read()
    lines.truncate(0)
    lines.write(newer)
