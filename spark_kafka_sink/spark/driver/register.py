"""``register(spark)``: registers the sink with a session, and changes settings of the session.

`hooks.writers` and `hooks.queries` describe how Spark's writers and queries behave afterwards.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.logs import warn_once
from spark_kafka_sink.spark.compat import OLD_ARROW_DEFAULT, register_source
from spark_kafka_sink.spark.driver.client_logs import mask_client_logs
from spark_kafka_sink.spark.driver.hooks.queries import hook_queries
from spark_kafka_sink.spark.driver.hooks.writers import hook_writers
from spark_kafka_sink.spark.driver.worker_python import choose_worker_python, is_same_python
from spark_kafka_sink.spark.planning.datasource import KafkaDataSource
from spark_kafka_sink.spark.session import change_setting, check_session, is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


logger = logging.getLogger(__name__)

SETTING: Final = "spark.sql.execution.arrow.maxBytesPerBatch"
# Spark's default value since 4.1, as sessions show it: 64 MiB.
SPARKS_DEFAULT: Final = "67108864b"
# Just under 8 MiB, because a batch exceeds the limit by its last row. A batch of more than 8 MiB
# makes the JVM's buffer grow to 16 MiB. The JVM then takes a sixth to a quarter longer for rows of
# 1 and 10 KB: see docs/contributing/performance.md.
LIMIT_BYTES: Final = 15 * 512 * 1024


def limit_arrow_batches(spark: SparkSession) -> None:
    """Limit Arrow batches to `LIMIT_BYTES`, unless the limit is already set.

    The limit also applies to all other data that the session passes to Python. If the setting does
    not exist or cannot be changed, do nothing.
    """
    defaults = (SPARKS_DEFAULT, OLD_ARROW_DEFAULT)
    reason = change_setting(
        spark, SETTING, lambda given: str(LIMIT_BYTES) if given in defaults else None
    )
    if reason is not None:
        logger.info("%s is left as it is: %s", SETTING, reason)


# Spark's own pattern for secrets, and the names of secret options of Kafka, of schema registries
# and of other clients of Kafka. The URL of a registry may contain a user and a password. As in the
# Java client, options that contain PEM certificates are secret, because the same string often
# contains the private key. From Spark Connect 4.3 on, a client cannot read a setting whose value
# matches `spark.redaction.regex`, by default secret|password|token|access[.]?key. Brackets such as
# [e] keep the pattern itself from matching, so a second `register` can read it.
_SECRET: Final = (
    "s[e]cret|p[a]ssword|p[a]ssphrase|t[o]ken|access[._]?key|j[a]as|keystore[._]key"  # noqa: S105 - words
    "|store[._]certificate|[._]pem|ssl_(ca|certificate|key)|oauthbearer[.](config|extensions)"
    "|user[._]info|registry[._]url"
)
SECRET_NAMES: Final = f"(?i:{_SECRET})"
# Matches a secret option in the text of a Spark Connect request. There, an option is the line
# key: "name" and the line value: "…", or the same two lines inside a literal. Quotes in a value are
# escaped, so the last quote of its line ends the value. The pattern contains no backslash, because
# a backslash would have to be doubled in properties files. The pattern is not slow on long values.
SECRET_OPTIONS: Final = f'key: *".*{SECRET_NAMES}.*"[^"}}]+".*"'

SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.redaction.options.regex": SECRET_NAMES,
    "spark.sql.redaction.string.regex": SECRET_OPTIONS,
}


def mask_secrets(spark: SparkSession) -> None:
    """Make a session mask Kafka's secrets wherever Spark shows options.

    The session is classic or of Spark Connect. The secrets are also masked in the logs of this
    process's Spark client. A second call changes nothing. Log a warning if the settings of the
    session cannot be changed.
    """
    for name, regex in SETTINGS.items():
        reason = change_setting(spark, name, partial(_with, regex))
        if reason is not None:
            message = (
                f"{name} could not be set ({reason}), so Spark may show secrets of Kafka wherever "
                f"it shows options; set {name} for the cluster, as conf/spark-defaults.conf does"
            )
            warn_once(logger, message)
    mask_client_logs(SECRET_NAMES)


def _with(regex: str, given: str | None) -> str | None:
    if given is None:
        return regex
    # The sink's pattern comes first, so that flags at the start of the user's pattern do not apply
    # to the sink's.
    return None if regex in given else f"{regex}|{given}"


def _is_registered(spark: SparkSession, name: str) -> bool:
    """Return whether a classic session has the source already, so that it need not be registered.

    If a source is registered again, Spark logs a warning. Spark also finds installed sources by
    itself. A source runs with the Python, the shipped files and the environment variables that were
    set when it was registered. A source that Spark found runs with Spark's defaults. Return False
    if the current Python, shipped files or variables differ from those of the source, so that it
    must be registered again.
    """
    context = spark.sparkContext
    try:
        manager = spark._jsparkSession.sessionState().dataSourceManager()  # noqa: SLF001 - as below
        if not manager.dataSourceExists(name):
            return False
        function = manager.lookupDataSource(name).dataSourceCls()
        python = function.pythonExec()
        files, variables = list(function.pythonIncludes()), dict(function.envVars())
    except Exception:  # noqa: BLE001 - a runtime may have other classes inside; register there
        return False
    # The sink hashes nothing with Python's hash, so it needs no PYTHONHASHSEED.
    asked = {**context.environment}
    asked.pop("PYTHONHASHSEED", None)
    return (
        (python == context.pythonExec or is_same_python(python, context.pythonExec))
        and files == list(context._python_includes or ())  # noqa: SLF001 - there is no public way
        and asked.items() <= variables.items()
    )


def register(spark: SparkSession) -> None:
    """Make ``format("pykafka")`` known to a session, and let ``save()`` without a mode append.

    The session then masks Kafka's secrets where Spark shows options. It also passes rows to Python
    in batches of at most 7.5 MiB instead of 64 MiB (Spark 4.0: 256 MiB), unless their size is
    already set.

    In local mode, the workers run the Python that PYSPARK_PYTHON or spark.pyspark.python sets, and
    the driver's Python if neither is set. Raise ConfigException if that Python does not have the
    sink, or if its minor version differs from the driver's. Raise IllegalArgumentException if
    `spark` is not a session.

    Classic and Spark Connect sessions are supported. The function may be called again. Call it
    before ``df.write``: the ``save()`` of a classic writer that already exists keeps Spark's
    default mode, and fails. After ``pip install``, Spark knows the format without this call, but
    ``save()`` then needs ``.mode("append")``.
    """
    check_session("register", spark)
    if not is_connect(spark):
        choose_worker_python(spark)
    if is_connect(spark) or not _is_registered(spark, KafkaDataSource.name()):
        register_source(spark, KafkaDataSource)
    hook_writers(KafkaDataSource.name(), is_connect=is_connect(spark))
    hook_queries(is_connect=is_connect(spark))
    mask_secrets(spark)
    limit_arrow_batches(spark)
