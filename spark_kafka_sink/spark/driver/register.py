"""``register(spark)``: the sink by name, the bare ``save()``, and nothing lost or shown.

What Spark's writers do after it is in `hooks.writers`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.logs import warn_once
from spark_kafka_sink.spark.driver.hooks.writers import hook_writers
from spark_kafka_sink.spark.driver.worker_python import choose_worker_python
from spark_kafka_sink.spark.planning.datasource import KafkaDataSource
from spark_kafka_sink.spark.session import change_setting, check_session, is_connect

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


# Spark's own words, and what Kafka calls secrets besides.
_SECRET: Final = "secret|password|passphrase|token|access[.]?key|jaas[.]config|keystore[.]key"  # noqa: S105 - words
SECRET_NAMES: Final = f"(?i:{_SECRET})"
# An option in a request's text: key: "name" and then, in a line of its own, value: "…", or the same
# a literal deep. Quotes in a value are escaped, so its line's last one ends it. No backslash is in
# this, which files of properties would have to double, and nothing that is slow on long values.
SECRET_OPTIONS: Final = f'key: *".*{SECRET_NAMES}.*"[^"}}]+".*"'

SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.redaction.options.regex": SECRET_NAMES,
    "spark.sql.redaction.string.regex": SECRET_OPTIONS,
}


def mask_secrets(spark: SparkSession) -> None:
    """Have a session, classic or of Spark Connect, mask what is secret besides what it masks now.

    Calling it again changes nothing. Where the settings may not be changed it warns and goes on.
    """
    for name, regex in SETTINGS.items():
        reason = change_setting(spark, name, partial(_with, regex))
        if reason is not None:
            message = (
                f"{name} could not be set ({reason}): where Spark shows options, it may show "
                "secrets of Kafka; set it for the cluster as conf/spark-defaults.conf does"
            )
            warn_once(logger, message)


def _with(regex: str, given: str | None) -> str | None:
    if given is None:
        return regex
    # Ours first: flags at the beginning of theirs are none of ours.
    return None if regex in given else f"{regex}|{given}"


def register(spark: SparkSession) -> None:
    """Make ``format("pykafka")`` known to a session, and let its bare ``save()`` append.

    From then on the session masks Kafka's secrets where Spark itself shows options, and hands rows
    to Python in smaller batches, unless it was told how large they may be.

    In local mode, the workers run the driver's Python, unless PYSPARK_PYTHON or
    spark.pyspark.python names another one. Raise ConfigException if that one lacks the sink or is
    of another minor version, and IllegalArgumentException if `spark` is no session.

    For classic sessions and Spark Connect; calling it again is harmless. Call it before
    ``df.write``: a classic writer that is older keeps Spark's meaning of a bare save. After
    ``pip install`` the name is known without it; ``save()`` then needs ``.mode("append")``.
    """
    check_session("register", spark)
    if not is_connect(spark):
        choose_worker_python(spark)
    spark.dataSource.register(KafkaDataSource)
    hook_writers(KafkaDataSource.name(), is_connect=is_connect(spark))
    mask_secrets(spark)
    limit_arrow_batches(spark)
