"""``mask_secrets(spark)``: has a session mask Kafka's secrets where Spark itself shows options.

Spark prints options with the plan of a query that it cannot analyse, and masks those that
`spark.sql.redaction.options.regex` finds by their name. A server of Spark Connect keeps the text of
every request, in the event log, on its web page and as the description of jobs, and masks there
what `spark.sql.redaction.string.regex` finds. Neither knows all of Kafka's names by default.
A server of Spark Connect says errors outside of any session, though: for the plans in them only its
own settings count. conf/spark-defaults.conf has the same expressions, for it and for sessions in
which nobody calls this.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.logs import warn_once
from spark_kafka_sink.spark.session_settings import change_setting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

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
