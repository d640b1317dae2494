"""The Spark session's settings that concern a write with exactlyOnce.

`options_of_session` returns these settings as options. They are added to the user's options. The
application name is stored in the commit log, where administrators can read it. The checkpoint
folder identifies the stream. If only the session sets a checkpoint folder, Spark uses a subfolder
with the name of the query. A query without a name gets a new folder at each start, so its folder
cannot identify the stream.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.errors import ConfigException
from spark_kafka_sink.spark.exactly_once import APPLICATION_OPTION, Mode, is_off
from spark_kafka_sink.spark.tracing import current_traceparent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_APPLICATION: Final = "spark.app.name"
_CHECKPOINTS: Final = "spark.sql.streaming.checkpointLocation"
_CHECKPOINT: Final = "checkpointLocation"
_SPECULATION: Final = "spark.speculation"
# Matches the query names that Hadoop can use as the name of a single folder.
_FOLDER: Final = re.compile(r"[^/:]+\Z")


def options_of_session(
    session: SparkSession,
    options: Mapping[str, str],
    *,
    is_stream: bool,
    query_name: str | None = None,
) -> dict[str, str]:
    """Return the options that the session adds to a write; an empty dict without exactlyOnce.

    options: the options of the write, with names in lower case. session: classic or of Spark
    Connect.
    """
    if is_off(options):
        return {}
    application = _setting(session, _APPLICATION)
    found = {APPLICATION_OPTION: application} if application else {}
    if not is_stream or _CHECKPOINT.lower() in options:
        return found
    folder = _setting(session, _CHECKPOINTS)
    if folder and query_name and _FOLDER.match(query_name):
        found[_CHECKPOINT] = f"{folder.rstrip('/')}/{query_name}"
    return found


def trace_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the option that passes the current span of this process to a write.

    The result is empty if the option openTelemetry is not true, if the package opentelemetry is not
    installed, if there is no current span, or if the user has set the option `traceparent`.
    """
    is_on = options.get("opentelemetry", "").strip().lower() == "true"
    if not is_on or "traceparent" in options or find_spec("opentelemetry") is None:
        return {}
    found = current_traceparent()
    return {} if found is None else {"traceparent": found}


def refuse_speculation(session: SparkSession, options: Mapping[str, str]) -> None:
    """Raise ConfigException for mode `single` if the session has speculative execution enabled."""
    is_single = options.get("exactlyonce", "").strip().lower() == Mode.SINGLE.value
    if is_single and _setting(session, _SPECULATION).lower() == "true":
        message = (
            f"exactlyOnce=single does not go with {_SPECULATION}=true: a second copy of a task "
            "would fail the job; set it to false, or use exactlyOnce=two-phase"
        )
        raise ConfigException(message)


def _setting(session: SparkSession, name: str) -> str:
    return session.conf.get(name, "") or ""
