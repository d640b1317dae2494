"""The user code of a producer: serializers, interceptors and a partitioner.

The objects are created from the configuration, and each is closed once when the producer is closed.
If closing one of them raises, the others are closed nevertheless (closeQuietly of the Java client).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_kafka_sink.config import names_own_partitioner
from spark_kafka_sink.errors import KafkaException
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
from spark_kafka_sink.plugins.loading import close_plugin
from spark_kafka_sink.plugins.serializers import LoadedSerializer, load_serializer

KEY_SERIALIZER = "key.serializer"
VALUE_SERIALIZER = "value.serializer"
# The options whose values are always user code.
CODE_OPTIONS = frozenset({KEY_SERIALIZER, VALUE_SERIALIZER, INTERCEPTORS})


def without_user_code(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration without the options whose values are user code."""
    named = set(CODE_OPTIONS)
    if names_own_partitioner(given.get(PARTITIONER_CLASS)):
        named.add(PARTITIONER_CLASS)
    return {name: value for name, value in given.items() if name not in named}


class UserCode:
    """The user code of a configuration.

    An attribute is None or empty if the configuration does not set it. given: the configuration.
    key_serializer, value_serializer: used instead of the options if they are not None. Raise
    ConfigException if an object cannot be loaded; the objects that were loaded before are closed.
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
        """Close all objects. Return the first failure of a serializer or the partitioner.

        If an object raises a BaseException that is not an Exception, such as SystemExit, raise it
        after all objects are closed.
        """
        raised = self.interceptors.close()
        failures: list[KafkaException] = []
        plugins = {
            PARTITIONER_CLASS: self.partitioner,
            VALUE_SERIALIZER: self.value_serializer and self.value_serializer.plugin,
            KEY_SERIALIZER: self.key_serializer and self.key_serializer.plugin,
        }
        # An object with several roles is closed once, in the first of its roles.
        once = {id(plugin): (option, plugin) for option, plugin in plugins.items()}
        for option, plugin in reversed(once.values()):
            if id(plugin) in self._closed:
                continue
            self._closed.add(id(plugin))
            try:
                failure = close_plugin(option, plugin)
                failures += [] if failure is None else [failure]
            except BaseException as error:  # noqa: BLE001 - raised below
                raised = error if raised is None else raised
        if raised is not None:
            raise raised
        return next(iter(failures), None)


def _serializer(option: str, instance: object, given: Mapping[str, Any]) -> LoadedSerializer | None:
    return load_serializer(option, given.get(option) if instance is None else instance, given)
