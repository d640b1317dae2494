"""Renews the delegation token of a write while its tasks run.

The process that plans a write creates the token, and Spark may end that process after a minute. The
user's process runs until the write ends. So a thread of the user's process renews the token, up to
its maximum lifetime. A Spark Connect client is not a process of the driver, and renews no token.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Protocol

from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.logs import safe_logging, warnings_disabled
from spark_kafka_sink.spark.exactly_once import is_off
from spark_kafka_sink.spark.micro_batch import options_of_user
from spark_kafka_sink.spark.options import sink_options
from spark_kafka_sink.spark.planning.task_tokens import (
    forget_write,
    longer_wait_s,
    renew_for_write,
)
from spark_kafka_sink.spark.session import is_connect

logger = logging.getLogger(__name__)

# The name, in lower case, of the option with which a write uses a delegation token.
_OPTION: Final = "delegationtoken"


@contextmanager
def renewing_token(options: Mapping[str, str], writer: object) -> Iterator[None]:
    """Context manager: renew a job's token during the `with` block, except with Spark Connect.

    options: the options of the write, with names in lower case. writer: Spark's writer.
    """
    is_over = threading.Event()
    _start(options, writer, is_over.wait)
    try:
        yield
    finally:
        is_over.set()


class Query(Protocol):
    """A streaming query of Spark."""

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's name
        """Whether the query runs."""


def renew_token_of_query(query: Query, options: Mapping[str, str]) -> None:
    """Renew the token of a query while the query is active, except with Spark Connect.

    options: as in `renewing_token`.
    """

    def is_over(seconds: float) -> bool:
        time.sleep(seconds)
        return not query.isActive

    _start(options, query, is_over)


def _start(options: Mapping[str, str], write: object, is_over: Callable[[float], bool]) -> None:
    """Start the thread that renews the token of a write, if the write has one.

    write: Spark's writer or query. is_over: waits for a number of seconds, or until the write ends,
    and returns whether it has ended.
    """
    if _OPTION in options and not is_connect(write):
        name = "kafka-delegation-token"
        threading.Thread(target=_run, args=(options, is_over), name=name, daemon=True).start()


def _run(given: Mapping[str, str], is_over: Callable[[float], bool]) -> None:
    try:
        with warnings_disabled():
            own = options_of_user(given, is_exactly_once=not is_off(given))
            options = sink_options(own)
        if options.delegation_token_mechanism is None:
            return
        wait_s = failed_s = 0.0
        while not is_over(wait_s):
            try:
                wait_s = renew_for_write(options, wait_s)
                failed_s = 0.0
            except Exception as error:  # noqa: BLE001 - such as an OSError of the driver's folder
                # The next look is soon: `retry_at_ms` limits how often the brokers are asked.
                wait_s = failed_s = longer_wait_s(failed_s)
                why = error if isinstance(error, KafkaException) else type(error).__name__
                with safe_logging():
                    logger.warning(
                        "the delegation token of a running write cannot be renewed now: %s", why
                    )
        forget_write(options)
    except Exception as error:  # noqa: BLE001 - the write goes on, and says what is wrong with it
        with safe_logging():
            logger.debug("no delegation token is renewed any more (%s)", type(error).__name__)
