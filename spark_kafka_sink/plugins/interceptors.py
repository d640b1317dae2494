"""Interceptors: user code that sees every record before it is sent and after it is acknowledged.

If an interceptor raises an Exception, the exception is logged, and the next interceptor is called
(ProducerInterceptors of the Java client). Any other BaseException, such as SystemExit, is raised to
the caller. In the I/O thread, it is only logged.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence

from spark_kafka_sink.errors import ConfigException
from spark_kafka_sink.logs import safe_logging
from spark_kafka_sink.model import ProducerRecord, RecordMetadata
from spark_kafka_sink.plugins.loading import INTERCEPTORS, OwnedPlugins, configure
from spark_kafka_sink.plugins.user_calls import call_in_caller, call_in_io_thread

logger = logging.getLogger(__name__)


class ProducerInterceptor:
    """The interface of interceptors. Derive from it, or implement some of its methods."""

    def configure(self, configs: Mapping[str, object]) -> None:
        """Receive the producer's configuration.

        It is called once if interceptor.classes contains the class or its name. For an instance, it
        is not called.
        """

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """Return the record to send in place of `record`.

        It is called before the record is serialized, in the thread that calls `send`.
        """
        return record

    def on_acknowledgement(self, metadata: RecordMetadata, error: BaseException | None) -> None:
        """Receive the result of a record.

        It is called in the I/O thread, before the on_delivery callback of the record. If `send`
        itself rejects the record, this method is called in the thread that calls `send`.
        """

    def close(self) -> None:
        """Release resources. It is called when the producer is closed.

        It is not called for an object that interceptor.classes contains by its name, because other
        producers may use this object.
        """


class ProducerInterceptors:
    """The chain of a producer's interceptors, in the order of interceptor.classes."""

    def __init__(self, interceptors: Sequence[ProducerInterceptor] = ()) -> None:
        self._interceptors = tuple(interceptors)

    def __bool__(self) -> bool:
        return bool(self._interceptors)

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """Call all interceptors, and return the record to send.

        Each interceptor receives the record that the interceptor before it returned. A result that
        is not a ProducerRecord is ignored, with a warning.
        """
        for interceptor in self._interceptors:
            try:
                made = interceptor.on_send(record)
                if isinstance(made, ProducerRecord):
                    record = made
                else:
                    logger.warning(
                        "on_send of %r returned %r, which is not a ProducerRecord; it is ignored",
                        interceptor,
                        made,
                    )
            except Exception:
                with safe_logging():
                    logger.exception("on_send of %r failed for topic %s", interceptor, record.topic)
        return record

    def on_acknowledgement(self, metadata: RecordMetadata, error: BaseException | None) -> None:
        """Call all interceptors for an acknowledged or failed record, in the I/O thread."""
        for interceptor in self._interceptors:
            call_in_io_thread("interceptor", interceptor.on_acknowledgement, metadata, error)

    def on_send_error(
        self, topic: str, partition: int | None, error: BaseException
    ) -> BaseException | None:
        """Call all interceptors for a record that `send` rejects, in the caller's thread.

        Return the exception of an interceptor that the caller must raise; None if there is none.
        """
        if not self._interceptors:
            return None
        calls = [interceptor.on_acknowledgement for interceptor in self._interceptors]
        return call_in_caller("interceptor", calls, unsent_metadata(topic, partition), error)


def unsent_metadata(topic: str, partition: int | None) -> RecordMetadata:
    """Return the metadata of a record that was not written; offset, timestamp and sizes are -1."""
    return RecordMetadata(topic, -1 if partition is None else partition, -1, -1, -1, -1)


def load_interceptors(
    given: object, configs: Mapping[str, object], owned: OwnedPlugins
) -> ProducerInterceptors:
    """Return the chain for the value of interceptor.classes.

    given: a list of objects, classes and names, or a str of names separated by commas. A class or a
    name that is repeated is instantiated once. owned: gets the objects that the producer must
    close. Raise ConfigException if an interceptor cannot be loaded.
    """
    if isinstance(given, str):
        given = [name for name in given.split(",") if name.strip()]
    if not isinstance(given, Iterable):
        message = f"{INTERCEPTORS} is {given!r}: expected a list"
        raise ConfigException(message)
    chain: list[ProducerInterceptor] = []
    for item in _each_once(given):
        interceptor, made = owned.instance(INTERCEPTORS, item)
        if made:
            configure(interceptor, configs)
        if not isinstance(interceptor, ProducerInterceptor):
            interceptor = _Adapted(interceptor)
        chain.append(interceptor)
    return ProducerInterceptors(chain)


def _each_once(given: Iterable[object]) -> Iterator[object]:
    """Yield the items, but a repeated name or class only once (ConfigDef of the Java client)."""
    seen: set[object] = set()
    for item in given:
        name = item.strip() if isinstance(item, str) else item
        if isinstance(name, str | type):
            if name in seen:
                logger.warning(
                    "%s names %r more than once; it is instantiated once", INTERCEPTORS, name
                )
                continue
            seen.add(name)
        yield item


class _Adapted(ProducerInterceptor):
    """An interceptor that wraps an object with only some of an interceptor's methods."""

    _METHODS = ("on_send", "on_acknowledgement")

    def __init__(self, wrapped: object) -> None:
        self._wrapped = wrapped
        methods = {name: getattr(wrapped, name) for name in self._METHODS if hasattr(wrapped, name)}
        if not methods:
            message = (
                f"{INTERCEPTORS} has {wrapped!r}, which has neither on_send nor on_acknowledgement"
            )
            raise ConfigException(message)
        self.__dict__.update(methods)

    def __repr__(self) -> str:
        return repr(self._wrapped)
