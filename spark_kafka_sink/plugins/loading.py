"""Load and close a user's object; an option contains it, its class, or a name ``module.Name``."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from typing import Final

from spark_kafka_sink.config import SECRETS, is_java_class, may_be_java_class
from spark_kafka_sink.errors import ConfigException, KafkaException, add_last_line, message_of
from spark_kafka_sink.logs import may_be_key, safe_logging, shown_value
from spark_kafka_sink.model import Secret

logger = logging.getLogger(__name__)

INTERCEPTORS: Final = "interceptor.classes"

# What to use in place of a Java class, by the end of the option's name.
_IN_PLACE_OF_JAVA: Final = {
    "partitioner.class": "roundrobin, uniformsticky, or module.Name of a Python callable",
    "key.serializer": "a Python function, or leave it unset if keys are str or bytes",
    "value.serializer": "a Python function, or leave it unset if values are str or bytes",
}


def load(option: str, given: object) -> object:
    """Import the class or object that a str names, and return it. Return other values as they are.

    Raise ConfigException if the name cannot be imported.
    """
    if not isinstance(given, str):
        return given
    if may_be_key(given):
        raise ConfigException(
            f"{option} is {shown_value(given)}: expected a Python object, a class, or the name of "
            "one as module.Name"
        )
    module_name, _, name = given.strip().rpartition(".")
    try:
        found: object = getattr(import_module(module_name), name)
    except (Exception, SystemExit) as error:
        # A user's module may raise anything when it is imported, and a script may call sys.exit().
        message = (
            f"{option} is {given!r}, which cannot be imported ({_described(error)}): "
            f"{_expected(option, given, is_missing=_is_missing(given, error))}"
        )
        raise ConfigException(message) from error
    return found


def _is_missing(given: str, error: BaseException) -> bool:
    """Return whether the import of a name raised `error` because the name does not exist."""
    module_name, _, name = given.strip().rpartition(".")
    if isinstance(error, AttributeError):
        return error.name == name  # otherwise, code of the module raised it
    if isinstance(error, ModuleNotFoundError):
        # If an import in the code of the module fails, the error contains the name of a different
        # module.
        return f"{module_name}.".startswith(f"{error.name}.")
    return not module_name


def _expected(option: str, given: str, *, is_missing: bool) -> str:
    """Describe the expected values. is_missing: whether the given name does not exist."""
    expected = "expected a Python object, a class, or the name of one as module.Name"
    if not (is_java_class(given) or (is_missing and may_be_java_class(given))):
        return expected
    uses = (use for name, use in _IN_PLACE_OF_JAVA.items() if option.endswith(name))
    use = next(uses, "a Python class or object, or the name of one as module.Name")
    no_java = f"Java classes cannot run here; use {use}"
    return no_java if is_java_class(given) else f"{expected}. If it is a Java class: {no_java}"


class OwnedPlugins:
    """The user's objects that a producer closes.

    These are the objects that the producer instantiated, and the objects that its caller passed. An
    object that an import found stays open, because other producers may use it.
    """

    def __init__(self) -> None:
        self._open: dict[int, tuple[str, object]] = {}

    def instance(self, option: str, given: object) -> tuple[object, bool]:
        """Return the object for the value of an option, and whether this call instantiated it.

        Raise ConfigException if it cannot be imported or instantiated.
        """
        plugin, made = _instance(option, given)
        if made or not isinstance(given, str):
            # An object with several roles is closed once. The error of its close is that of the
            # last role.
            self._open[id(plugin)] = (option, plugin)
        return plugin, made

    def close(self) -> KafkaException | None:
        """Close each object once, in the order in which they were loaded.

        Errors are logged. Return the first of them that is not an interceptor's. If an object
        raises a BaseException that is not an Exception, such as SystemExit, raise it after all
        objects are closed.
        """
        failures: list[KafkaException] = []
        raised: BaseException | None = None
        for key in tuple(self._open):
            found = self._open.pop(key, None)
            if found is None:  # another call closes it
                continue
            option, plugin = found
            try:
                failure = close_plugin(option, plugin)
                if failure is not None and option != INTERCEPTORS:
                    failures.append(failure)
            except BaseException as error:  # noqa: BLE001 - raised below
                raised = error if raised is None else raised
        if raised is not None:
            raise raised
        return next(iter(failures), None)


def _instance(option: str, given: object) -> tuple[object, bool]:
    found = load(option, given)
    if not isinstance(found, type):
        return found, False
    try:
        return found(), True
    except Exception as error:
        why = _described(error)
        message = f"{option} is {given!r}, which cannot be instantiated without arguments: {why}"
        raise ConfigException(message) from error


def name_of(plugin: object) -> str:
    """Return the name of a user's function, or the class name of a user's object."""
    return str(getattr(plugin, "__qualname__", type(plugin).__qualname__))


def name_user_code(error: BaseException, option: str, plugin: object) -> None:
    """Add the name of user code to the traceback of its exception, as the last line.

    plugin: the user's function or object. option: the option that specifies it. This function
    itself raises no exception.
    """
    with suppress(Exception):  # a user's object may raise when its name is read
        raised = _described(error)
        name = name_of(plugin)
        add_last_line(error, f"spark_kafka_sink: {name}, specified in {option}, raised {raised}")


def _described(error: BaseException) -> str:
    """Return the class of an exception, and the first line of its message that is not empty.

    One line is enough: Spark's exception shows the sink's message as one line, and the traceback
    shows all lines.
    """
    first, *_ = message_of(error).strip().split("\n", 1)
    return f"{type(error).__name__}: {first.strip()}"


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
    """Call the object's ``close``, if it has this method. If it fails, log and return the error.

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
