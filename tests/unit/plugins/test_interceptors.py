"""Interceptors: the chain, its order, and what happens when one of them raises."""

from __future__ import annotations

import logging

import pytest

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.errors import ConfigException, KafkaException
from spark_kafka_sink.model import ProducerRecord, RecordMetadata
from spark_kafka_sink.plugins.interceptors import (
    ProducerInterceptor,
    ProducerInterceptors,
    load_interceptors,
)
from spark_kafka_sink.plugins.loading import INTERCEPTORS, OwnedPlugins

RECORD = ProducerRecord("t", "value")
METADATA = RecordMetadata("t", 0, 7, 1000, -1, 5)


class Append(ProducerInterceptor):
    """Appends its letter to values, and records acknowledgements."""

    def __init__(self, letter: str = "?") -> None:
        self.letter = letter
        self.acknowledged: list[tuple[RecordMetadata, BaseException | None]] = []
        self.configs: dict[str, object] = {}
        self.closed = 0

    def configure(self, configs: object) -> None:
        """Keep the configuration."""
        self.configs = dict(configs)  # type: ignore[call-overload]

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """Append the letter."""
        return ProducerRecord(record.topic, f"{record.value}{self.letter}", record.key)

    def on_acknowledgement(self, metadata: RecordMetadata, error: BaseException | None) -> None:
        """Record an acknowledgement."""
        self.acknowledged.append((metadata, error))

    def close(self) -> None:
        """Count."""
        self.closed += 1


class Raise(ProducerInterceptor):
    """Raises in every method."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """Raise."""
        raise ZeroDivisionError

    def on_acknowledgement(self, metadata: RecordMetadata, error: BaseException | None) -> None:
        """Raise."""
        raise ZeroDivisionError

    def close(self) -> None:
        """Raise."""
        raise ZeroDivisionError


class GiveNothing:
    """An interceptor with one method, which forgets to return the record."""

    def on_send(self, record: ProducerRecord) -> None:
        """Return None."""


def test_each_interceptor_sees_what_the_one_before_made() -> None:
    chain = ProducerInterceptors([Append("a"), Append("b")])
    assert chain.on_send(RECORD).value == "valueab"


@pytest.mark.parametrize("broken", [Raise(), GiveNothing()])
def test_one_that_raises_or_gives_no_record_is_logged_and_skipped(
    broken: object, caplog: pytest.LogCaptureFixture
) -> None:
    chain = load_interceptors([Append("a"), broken, Append("b")], {}, OwnedPlugins())
    assert chain.on_send(RECORD).value == "valueab"
    assert "on_send of" in caplog.text


def test_all_are_told_of_an_acknowledgement_though_one_raises(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, last = Append(), Append()
    chain = ProducerInterceptors([first, Raise(), last])
    with caplog.at_level(logging.ERROR):
        chain.on_acknowledgement(METADATA, None)
    assert first.acknowledged == last.acknowledged == [(METADATA, None)]
    assert "on_acknowledgement of" in caplog.text


@pytest.mark.parametrize("partition", [None, 4])
def test_a_record_that_send_refuses_is_told_of_with_where_it_was_to_go(
    partition: int | None,
) -> None:
    interceptor, error = Append(), KafkaException("refused")
    chain = ProducerInterceptors([interceptor])
    assert chain.on_send_error("t", partition, error) is None
    known = -1 if partition is None else partition
    assert interceptor.acknowledged == [(RecordMetadata("t", known, -1, -1, -1, -1), error)]


def test_closing_reaches_all_though_one_raises() -> None:
    first, last = Append(), Append()
    owned = OwnedPlugins()
    load_interceptors([first, Raise(), last], {}, owned)
    assert owned.close() is None
    assert (first.closed, last.closed) == (1, 1)


def test_classes_and_names_are_made_and_configured_and_objects_taken_as_they_are() -> None:
    given = Append("x")
    chain = load_interceptors(
        [Append, f"{__name__}.Append", given], {"acks": "all"}, OwnedPlugins()
    )
    by_class, by_name, as_is = chain._interceptors
    assert isinstance(by_class, Append)
    assert isinstance(by_name, Append)
    assert by_class.configs == by_name.configs == {"acks": "all"}
    assert as_is is given
    assert given.configs == {}
    assert (
        len(
            load_interceptors(
                f"{__name__}.Append, {__name__}.Raise", {}, OwnedPlugins()
            )._interceptors
        )
        == 2
    )
    assert not load_interceptors([], {}, OwnedPlugins())


NAME = f"{__name__}.Append"


@pytest.mark.parametrize(
    ("value", "made"),
    [
        (f"{NAME},{NAME}", 1),
        (f"{NAME}, {__name__}.Raise , {NAME} ", 2),
        ([NAME, f" {NAME}"], 1),
        ([Append, Raise, Append], 2),
        ((Append, Append), 1),
        ([Append, NAME], 2),
    ],
)
def test_a_name_or_a_class_that_stands_twice_is_made_once_as_in_java(
    value: object, made: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert len(load_interceptors(value, {}, OwnedPlugins())._interceptors) == made
    assert ("more than once" in caplog.text) is (value != [Append, NAME])


def test_objects_are_each_taken_also_where_they_are_equal() -> None:
    class Equal(Append):
        """Equal to all."""

        __hash__ = None  # type: ignore[assignment] # as of any class with its own __eq__

        def __eq__(self, other: object) -> bool:
            return True

    one, other = Equal("x"), Equal("y")
    chain = load_interceptors([one, other, one], {}, OwnedPlugins())
    assert [id(each) for each in chain._interceptors] == [id(one), id(other), id(one)]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (["no.such.Thing"], "interceptor.classes is 'no.such.Thing', which cannot be imported"),
        (["nodot"], "interceptor.classes is 'nodot', which cannot be imported"),
        ([object()], "neither on_send nor on_acknowledgement"),
        (7, "interceptor.classes is 7: expected a list"),
        (["builtins.memoryview"], "cannot be instantiated without arguments"),
    ],
)
def test_what_is_no_interceptor_is_refused(value: object, message: str) -> None:
    with pytest.raises(ConfigException, match=message):
        load_interceptors(value, {}, OwnedPlugins())


def test_interceptors_are_closed_where_one_after_them_cannot_be_made() -> None:
    made = Append("a")
    given = {"bootstrap.servers": "127.0.0.1:1", INTERCEPTORS: [made, "no.such.Interceptor"]}
    with pytest.raises(ConfigException):
        KafkaProducer(given)
    assert made.closed == 1
