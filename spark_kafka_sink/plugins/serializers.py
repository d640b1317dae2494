"""Serializers: convert the keys and values of `send` to bytes.

A serializer is a function of the value, or an object with a method ``serialize(topic, value)``.
Without a serializer, bytes, str (encoded as UTF-8) and None are accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from spark_kafka_sink.errors import ConfigException, SerializationException, message_of
from spark_kafka_sink.plugins import loading

Serializer: TypeAlias = Callable[[str, object], bytes | None]


def as_bytes(option: str, data: object) -> bytes | None:
    """Convert bytes, bytearray, memoryview or str (as UTF-8) to bytes; return None for None.

    option: the name of the serializer's option, for the error message. Raise SerializationException
    for any other type, and for a str that cannot be encoded.
    """
    if data is None or isinstance(data, bytes):
        return data
    if isinstance(data, str):
        return _utf8(option, data)
    if isinstance(data, bytearray | memoryview):
        return bytes(data)
    message = (
        f"Can't convert {option.partition('.')[0]} of class {type(data).__name__} to bytes: "
        f"expected bytes, str or None; serialize it, or set {option}"
    )
    raise SerializationException(message)


def _utf8(option: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        message = f"Can't convert {option.partition('.')[0]} of class str to UTF-8: {error}"
        raise SerializationException(message) from error


def load_serializer(
    option: str, given: object, configs: Mapping[str, object], owned: loading.OwnedPlugins
) -> Serializer | None:
    """Return the serializer for the value of an option; None if the value is None.

    option: key.serializer or value.serializer. given: an object, a class, or a name
    ``module.Name``. owned: gets the object if the producer must close it. Raise ConfigException if
    it cannot be loaded.
    """
    if given is None:
        return None
    plugin, made = owned.instance(option, given)
    if made:
        loading.configure(plugin, configs, option.startswith("key"))
    serialize = getattr(plugin, "serialize", None)
    if serialize is None and not callable(plugin):
        message = (
            f"{option} is {plugin!r}: expected a function of the value, or an object with "
            "serialize(topic, value)"
        )
        raise ConfigException(message)
    if serialize is None:
        function: Callable[[object], object] = plugin  # type: ignore[assignment] # callable above
        return _named(option, plugin, lambda _, value: function(value))
    return _named(option, plugin, serialize)


def _named(option: str, plugin: object, serialize: Callable[[str, object], object]) -> Serializer:
    name = loading.name_of(plugin)

    def run(topic: str, data: object) -> bytes | None:
        try:
            made = serialize(topic, data)
        except SerializationException:
            raise
        except Exception as error:
            message = (
                f"Can't convert {option.partition('.')[0]} of class {type(data).__name__} with "
                f"{name}, specified in {option}: {type(error).__name__}: "
                f"{message_of(error)}"
            )
            raise SerializationException(message, topic=topic) from error
        if isinstance(made, bytes):
            return made
        try:
            return as_bytes(option, made)
        except SerializationException:
            message = (
                f"{name}, specified in {option}, returned {type(made).__name__} for "
                f"{type(data).__name__}: expected bytes, str or None"
            )
            raise SerializationException(message, topic=topic) from None

    return run
