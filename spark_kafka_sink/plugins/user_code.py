"""The user code of a producer: serializers, interceptors and a partitioner.

The objects are created from the configuration. Each is closed once when the producer is closed, but
an object that was imported by its name stays open, because other producers may use it. If closing
one of them raises, the others are closed nevertheless (closeQuietly of the Java client).
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
from spark_kafka_sink.plugins.interceptors import ProducerInterceptors, load_interceptors
from spark_kafka_sink.plugins.loading import INTERCEPTORS, OwnedPlugins
from spark_kafka_sink.plugins.serializers import Serializer, load_serializer

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
    ConfigException if an object cannot be loaded. Before that, this object and those that were
    loaded before are closed.
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
        self.key_serializer: Serializer | None = None
        self.value_serializer: Serializer | None = None
        self._owned = owned = OwnedPlugins()
        if key_serializer is None:
            key_serializer = given.get(KEY_SERIALIZER)
        if value_serializer is None:
            value_serializer = given.get(VALUE_SERIALIZER)
        try:
            # They are closed in the order in which they are loaded here. It is that of the Java
            # client's close.
            self.interceptors = load_interceptors(given.get(INTERCEPTORS, ()), given, owned)
            self.key_serializer = load_serializer(KEY_SERIALIZER, key_serializer, given, owned)
            self.value_serializer = load_serializer(
                VALUE_SERIALIZER, value_serializer, given, owned
            )
            self.partitioner = load_partitioner(given.get(PARTITIONER_CLASS), owned)
        except BaseException:
            self.close()
            raise

    def close(self) -> KafkaException | None:
        """Close all objects. Return the first failure of a serializer or the partitioner.

        If an object raises a BaseException that is not an Exception, such as SystemExit, raise it
        after all objects are closed.
        """
        return self._owned.close()
