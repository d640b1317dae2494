"""The Spark session's settings that concern a write with exactlyOnce.

`options_of_session` returns these settings as options. They are added to the user's options. The
application name is stored in the commit log, where administrators can read it. The checkpoint
folder identifies the stream. If only the session sets a checkpoint folder, Spark uses a subfolder
with the name of the query. A query without a name gets a new folder at each start, so its folder
cannot identify the stream.

A writer of Spark keeps the added options, also for later queries of other names and formats. So no
option of Spark is added, and `cancelling` cancels those that a later write does not have.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.errors import ConfigException
from spark_kafka_sink.spark.exactly_once import (
    APPLICATION_OPTION,
    CHECKPOINT_OPTION,
    Mode,
    is_off,
)
from spark_kafka_sink.spark.micro_batch import without_micro_batch
from spark_kafka_sink.spark.tracing import current_traceparent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_APPLICATION: Final = "spark.app.name"
_CHECKPOINTS: Final = "spark.sql.streaming.checkpointLocation"
_TRACEPARENT: Final = "traceparent"
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
    Connect. query_name: the argument of ``queryName()``. Spark also takes the name from an option.
    """
    if is_off(options):
        return {}
    application = _setting(session, _APPLICATION)
    found = {APPLICATION_OPTION: application} if application else {}
    if not is_stream or "checkpointlocation" in options:
        return found
    folder = _setting(session, _CHECKPOINTS)
    name = query_name or options.get("queryname") or ""
    # If there are two names, Spark uses the one that was set later, which is not known here.
    is_the_only_name = options.get("queryname", name) == name
    if folder and is_the_only_name and _FOLDER.match(name):
        found[CHECKPOINT_OPTION] = f"{folder.rstrip('/')}/{name}"
    return found


def trace_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the option that passes the current span of this process to a write.

    The result is empty if the option openTelemetry is not true, if the package opentelemetry is not
    installed, if there is no current span, or if the user has set the option `traceparent`.
    """
    is_on = options.get("opentelemetry", "").strip().lower() == "true"
    if not is_on or _TRACEPARENT in options or find_spec("opentelemetry") is None:
        return {}
    found = current_traceparent()
    return {} if found is None else {_TRACEPARENT: found}


def cancelling(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """Return options that cancel what earlier writes of a writer have added to it.

    Spark's writer keeps options, so they can only be replaced. before: the options that earlier
    writes added. now: the options of this write. Names are in lower case.
    """
    names = (CHECKPOINT_OPTION, _TRACEPARENT)
    gone = {name: "" for name in names if name in before and name not in now}
    return without_micro_batch(before, now) | gone


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
    """Return a setting of a session; an empty string if it has none or if it cannot be read."""
    try:
        return session.conf.get(name, "") or ""
    except Exception:  # noqa: BLE001 - a platform may refuse it; the write itself may work
        return ""
