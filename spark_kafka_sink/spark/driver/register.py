"""``register(spark)``: makes the sink known to a session, and changes its settings.

`hooks.writers` describes how Spark's writers behave afterwards.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.logs import warn_once
from spark_kafka_sink.spark.driver.client_logs import mask_client_logs
from spark_kafka_sink.spark.driver.hooks.writers import hook_writers
from spark_kafka_sink.spark.driver.worker_python import choose_worker_python
from spark_kafka_sink.spark.planning.datasource import KafkaDataSource
from spark_kafka_sink.spark.session import change_setting, check_session, is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


logger = logging.getLogger(__name__)

SETTING: Final = "spark.sql.execution.arrow.maxBytesPerBatch"
# Spark's default (SQLConf, 4.1 to 4.3).
SPARKS_DEFAULT: Final = "67108864b"
# Under 8 MiB with the row that goes over it: with a buffer of 16 MiB, rows of 1 and 10 KB cost the
# JVM a sixth to a quarter more (docs/performance.md).
LIMIT_BYTES: Final = 15 * 512 * 1024


def limit_arrow_batches(spark: SparkSession) -> None:
    """Limit Arrow batches to `LIMIT_BYTES`, unless the limit is set already.

    The limit applies to everything else that the session passes to Python as well. If the setting
    does not exist or cannot be changed, do nothing.
    """
    reason = change_setting(
        spark, SETTING, lambda given: str(LIMIT_BYTES) if given == SPARKS_DEFAULT else None
    )
    if reason is not None:
        logger.info("%s is left as it is: %s", SETTING, reason)


# Spark's own words, and Kafka's names of secrets.
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
    """Set a session, classic or of Spark Connect, to mask secrets of Kafka as well.

    Its Python client masks them in this process's logs, too. Calling it again changes nothing. Log
    a warning if the settings cannot be changed.
    """
    for name, regex in SETTINGS.items():
        reason = change_setting(spark, name, partial(_with, regex))
        if reason is not None:
            message = (
                f"{name} could not be set ({reason}): where Spark shows options, it may show "
                "secrets of Kafka; set it for the cluster as conf/spark-defaults.conf does"
            )
            warn_once(logger, message)
    mask_client_logs(SECRET_NAMES)


def _with(regex: str, given: str | None) -> str | None:
    if given is None:
        return regex
    # Ours first, so that flags at the beginning of theirs do not apply to it.
    return None if regex in given else f"{regex}|{given}"


def register(spark: SparkSession) -> None:
    """Make ``format("pykafka")`` known to a session, and let its bare ``save()`` append.

    The session then masks Kafka's secrets where Spark shows options, and passes rows to Python in
    smaller batches, unless their size is set already.

    In local mode, the workers run the driver's Python, unless PYSPARK_PYTHON or
    spark.pyspark.python names another one. Raise ConfigException if that one lacks the sink or is
    of another minor version, and IllegalArgumentException if `spark` is no session.

    For classic sessions and Spark Connect; calling it again is harmless. Call it before
    ``df.write``: a classic writer that is older keeps Spark's meaning of a bare save. After ``pip
    install`` the name is known without it; ``save()`` then needs ``.mode("append")``.
    """
    check_session("register", spark)
    if not is_connect(spark):
        choose_worker_python(spark)
    spark.dataSource.register(KafkaDataSource)
    hook_writers(KafkaDataSource.name(), is_connect=is_connect(spark))
    mask_secrets(spark)
    limit_arrow_batches(spark)
