"""The code of the user's that a producer calls: serializers, interceptors and a partitioner.

Owns their making from a configuration and their end: each is closed once, with its producer, and
one that raises keeps no other from being closed (closeQuietly of the Java client). It calls none of
them otherwise.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from spark_kafka_sink.config import names_own_partitioner
from spark_kafka_sink.errors import KafkaException, message_of
from spark_kafka_sink.plugins.batch_partitioner import (
    PARTITIONER_CLASS,
    BatchPartitioner,
    load_partitioner,
)
from spark_kafka_sink.plugins.interceptors import (
    INTERCEPTORS,
    ProducerInterceptors,
    load_interceptors,
)
from spark_kafka_sink.plugins.serializers import LoadedSerializer, load_serializer

logger = logging.getLogger(__name__)

KEY_SERIALIZER = "key.serializer"
VALUE_SERIALIZER = "value.serializer"


def without_user_code(given: Mapping[str, Any]) -> dict[str, Any]:
    """Give a configuration without the options that name code of the user's."""
    named = {KEY_SERIALIZER, VALUE_SERIALIZER, INTERCEPTORS}
    if names_own_partitioner(given.get(PARTITIONER_CLASS)):
        named.add(PARTITIONER_CLASS)
    return {name: value for name, value in given.items() if name not in named}


class UserCode:
    """What is called, None or empty where the user named nothing.

    given: the configuration; key_serializer, value_serializer: in place of its options. Raises
    ConfigException; what was made or given by then is closed.
    """

    def __init__(
        self,
        given: Mapping[str, Any],
        *,
        key_serializer: object,
        value_serializer: object,
    ) -> None:
        self.interceptors = ProducerInterceptors()
        self.partitioner: BatchPartitioner | None = None
        self.key_serializer: LoadedSerializer | None = None
        self.value_serializer: LoadedSerializer | None = None
        self._closed: set[int] = set()
        try:
            self.partitioner = load_partitioner(given.get(PARTITIONER_CLASS))
            self.key_serializer = _serializer(KEY_SERIALIZER, key_serializer, given)
            self.value_serializer = _serializer(VALUE_SERIALIZER, value_serializer, given)
            self.interceptors = load_interceptors(given.get(INTERCEPTORS, ()), given)
        except BaseException:
            self.close()
            raise

    def close(self) -> KafkaException | None:
        """Close all that is open; return the first failure, besides those of interceptors.

        Raises what is no Exception, as SystemExit, when all is closed.
        """
        raised = self.interceptors.close()
        failures: list[KafkaException] = []
        plugins = {
            PARTITIONER_CLASS: self.partitioner,
            VALUE_SERIALIZER: self.value_serializer and self.value_serializer.plugin,
            KEY_SERIALIZER: self.key_serializer and self.key_serializer.plugin,
        }
        # An object that is more than one of them stands under the first it is closed as.
        once = {id(plugin): (option, plugin) for option, plugin in plugins.items()}
        for option, plugin in reversed(once.values()):
            if id(plugin) in self._closed:
                continue
            self._closed.add(id(plugin))
            try:
                _close(option, plugin, failures)
            except BaseException as error:  # noqa: BLE001 - raised below
                raised = error if raised is None else raised
        if raised is not None:
            raise raised
        return next(iter(failures), None)


def _serializer(option: str, instance: object, given: Mapping[str, Any]) -> LoadedSerializer | None:
    return load_serializer(option, given.get(option) if instance is None else instance, given)


def _close(option: str, plugin: object, failures: list[KafkaException]) -> None:
    close = getattr(plugin, "close", None)
    if close is None:
        return
    try:
        close()
    except Exception as error:
        logger.exception("close of %r, specified in %s, failed", plugin, option)
        message = (
            f"Failed to close kafka producer: close of {type(plugin).__qualname__}, specified in "
            f"{option}, raised {type(error).__name__}: {message_of(error)}; what it holds may "
            "still be open"
        )
        failure = KafkaException(message)
        failure.__cause__ = error
        failures.append(failure)
