"""Load a user's object from an option, whose value is an object, a class or ``module.Name``."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from importlib import import_module
from typing import Final

from spark_kafka_sink.config import SECRETS
from spark_kafka_sink.errors import ConfigException, KafkaException, message_of
from spark_kafka_sink.logs import safe_logging
from spark_kafka_sink.model import Secret

logger = logging.getLogger(__name__)

# A class in a package that begins with a reversed domain name, as usual in Java.
_JAVA_CLASS: Final = re.compile(r"(com|org|io|net|edu|gov)(\.\w+)+\.[A-Z][\w$]*")


def load(option: str, given: object) -> object:
    """Return the class or object that an option names. Return any value that is not a str as it is.

    Raise ConfigException if the name cannot be imported.
    """
    if not isinstance(given, str):
        return given
    module_name, _, name = given.strip().rpartition(".")
    try:
        found: object = getattr(import_module(module_name), name)
    except (Exception, SystemExit) as error:
        # A user's module may raise anything when it is imported, and a script may call sys.exit().
        why = _described(error)
        if _JAVA_CLASS.fullmatch(given.strip()):
            why += "; it looks like a Java class, which this Python producer cannot run"
        message = (
            f"{option} is {given!r}, which cannot be imported ({why}): expected a Python object, "
            "a class, or the name of one as module.Name"
        )
        raise ConfigException(message) from error
    return found


def instance(option: str, given: object) -> tuple[object, bool]:
    """Return the object that an option has or names, and whether it was instantiated here."""
    found = load(option, given)
    if not isinstance(found, type):
        return found, False
    try:
        return found(), True
    except Exception as error:
        why = _described(error)
        message = f"{option} is {given!r}, which cannot be instantiated without arguments: {why}"
        raise ConfigException(message) from error


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {message_of(error)}"


def configure(plugin: object, *arguments: Mapping[str, object] | bool) -> None:
    """Call the object's ``configure``, if it has this method (Configurable of the Java client).

    The values of passwords, keys and sasl.jaas.config are passed as `Secret`, so that an object
    that prints its options does not show them.
    """
    method = getattr(plugin, "configure", None)
    if method is not None:
        method(
            *(_without_secrets(each) if isinstance(each, Mapping) else each for each in arguments)
        )


def _without_secrets(configs: Mapping[str, object]) -> Mapping[str, object]:
    return {
        name: Secret.of(value) if name in SECRETS and value is not None else value
        for name, value in configs.items()
    }


def close_plugin(option: str, plugin: object) -> KafkaException | None:
    """Call the object's ``close``, if it has this method. Log and return its failure.

    Only Exceptions are logged and returned. Raise any other BaseException, such as SystemExit.
    """
    close = getattr(plugin, "close", None)
    if close is None:
        return None
    try:
        close()
    except Exception as error:
        with safe_logging():
            logger.exception("close of %r, specified in %s, failed", plugin, option)
        message = (
            f"Failed to close kafka producer: close of {type(plugin).__qualname__}, specified in "
            f"{option}, raised {type(error).__name__}: {message_of(error)}; its resources "
            "may still be open"
        )
        failure = KafkaException(message)
        failure.__cause__ = error
        return failure
    return None
