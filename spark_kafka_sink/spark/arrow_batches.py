"""``limit_arrow_batches(spark)``: has a session hand over rows in batches of less than 8 MiB.

Spark makes Arrow batches of 10,000 rows or 64 MiB, whichever comes first. Arrow in the JVM doubles
a buffer that is full, and zeroes all of it after each batch (BaseVariableWidthVector.reset).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.spark.session_settings import change_setting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

SETTING: Final = "spark.sql.execution.arrow.maxBytesPerBatch"
# What Spark gives where nobody has set it (SQLConf, 4.1 to 4.3).
SPARKS_DEFAULT: Final = "67108864b"
# Under 8 MiB with the row that goes over it: with a buffer of 16 MiB, rows of 1 and 10 KB cost the
# JVM a sixth to a quarter more (docs/performance.md).
LIMIT_BYTES: Final = 15 * 512 * 1024


def limit_arrow_batches(spark: SparkSession) -> None:
    """Limit Arrow batches to `LIMIT_BYTES`, unless somebody has set the limit.

    It counts for whatever else the session hands to Python, too. Where the setting is not there, or
    may not be changed, nothing happens.
    """
    reason = change_setting(
        spark, SETTING, lambda given: str(LIMIT_BYTES) if given == SPARKS_DEFAULT else None
    )
    if reason is not None:
        logger.info("%s is left as it is: %s", SETTING, reason)
