"""Serializers, interceptors and a partitioner of the user's are closed with their producer."""

from __future__ import annotations

import os
import threading
import traceback
from collections import Counter
from contextlib import suppress
from typing import NoReturn

import pyarrow as pa
import pytest

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.config import producer_config
from spark_kafka_sink.errors import ConfigException, KafkaException
from spark_kafka_sink.plugins.batch_partitioner import chosen_partitions
from spark_kafka_sink.plugins.interceptors import ProducerInterceptor
from spark_kafka_sink.task_producer import TaskProducer

NOBODY = "127.0.0.1:1"
ALL = ["interceptor", "key", "value", "partitioner"]


class Plugin(ProducerInterceptor):
    """A plugin with every method that a producer may call; it notes when it is closed."""

    def __init__(self, name: str, closed: list[str]) -> None:
        self.name, self.closed, self.fails = name, closed, False

    def __call__(self, topic: str, batch: object, partitions: int) -> list[int]:
        """Choose nothing."""
        return []

    def serialize(self, topic: str, value: str) -> bytes:
        """Return the text as bytes."""
        return value.encode()

    def close(self) -> None:
        """Note the call, and raise if the test asks for it."""
        self.closed.append(self.name)
        if self.fails:
            message = f"{self.name} is stuck"
            raise OSError(message)


class Bench:
    """A plugin of each kind, and their producer."""

    def __init__(self) -> None:
        self.closed: list[str] = []
        self.plugins = {name: Plugin(name, self.closed) for name in ALL}

    def producer(self, **more: object) -> KafkaProducer:
        """Return a producer that reaches no broker."""
        config = {
            "bootstrap.servers": NOBODY,
            "interceptor.classes": [self.plugins["interceptor"]],
            "key.serializer": self.plugins["key"],
            "value.serializer": self.plugins["value"],
            "partitioner.class": self.plugins["partitioner"],
        }
        return KafkaProducer(config | more)


def test_closing_a_producer_closes_each_once_and_closing_again_none() -> None:
    bench = Bench()
    producer = bench.producer()
    assert bench.closed == []
    producer.close()
    producer.close()
    assert bench.closed == ALL


def test_what_has_no_close_is_not_closed() -> None:
    bench = Bench()
    bench.producer(**{"partitioner.class": lambda *_: []}).close()
    assert bench.closed == ["interceptor", "key", "value"]


@pytest.mark.parametrize(
    "options",
    [
        ["key.serializer", "value.serializer"],
        ["partitioner.class", "key.serializer"],
        ["interceptor.classes", "value.serializer"],
        ["interceptor.classes", "partitioner.class"],
    ],
)
def test_an_object_with_several_roles_is_closed_once_and_its_error_is_told(
    options: list[str],
) -> None:
    bench = Bench()
    both = Plugin("both", bench.closed)
    both.fails = True
    many = {"interceptor.classes": [both, both]}
    producer = bench.producer(**{option: many.get(option, both) for option in options})
    with pytest.raises(KafkaException, match="both is stuck"):
        producer.close()
    assert bench.closed.count("both") == 1


def test_an_interceptor_that_is_listed_twice_is_closed_once() -> None:
    bench = Bench()
    twice = [bench.plugins["interceptor"]] * 2
    bench.producer(**{"interceptor.classes": twice}).close()
    assert bench.closed == ALL
    with pytest.raises(ConfigException):
        bench.producer(**{"interceptor.classes": [*twice, "no.such.Interceptor"]})
    assert bench.closed == [*ALL, "interceptor"]


NOTED: list[str] = []
SHARED = Plugin("shared", NOTED)


class Made(Plugin):
    """A plugin that can be made without arguments."""

    def __init__(self) -> None:
        super().__init__("made", NOTED)

    def configure(self, *_: object) -> None:
        """Take what serializers and interceptors get."""


@pytest.mark.parametrize(
    "option", ["interceptor.classes", "key.serializer", "value.serializer", "partitioner.class"]
)
def test_an_object_that_is_named_stays_open_for_others_and_one_of_a_named_class_is_closed(
    option: str,
) -> None:
    NOTED.clear()
    KafkaProducer({"bootstrap.servers": NOBODY, option: f"{__name__}.SHARED"}).close()
    assert NOTED == []
    KafkaProducer({"bootstrap.servers": NOBODY, option: f"{__name__}.Made"}).close()
    assert NOTED == ["made"]


def test_a_task_does_not_close_the_partitioner_of_other_tasks() -> None:
    NOTED.clear()
    for name in ("SHARED", "Made"):
        options = {"bootstrap.servers": NOBODY, "partitioner.class": f"{__name__}.{name}"}
        producer = TaskProducer(producer_config(options))
        producer.close()
        producer.close()
    assert NOTED == ["made"]


class Unconfigured(Made):
    """A plugin that cannot be configured."""

    def configure(self, *_: object) -> NoReturn:
        """Raise."""
        raise OSError("the registry is down")


class Useless:
    """An object that has none of the methods that a producer calls."""

    def close(self) -> None:
        """Note the call."""
        NOTED.append("useless")


@pytest.mark.parametrize(
    ("plugin", "options", "error"),
    [
        (Unconfigured, ("interceptor.classes", "key.serializer", "value.serializer"), OSError),
        (
            Useless,
            ("interceptor.classes", "key.serializer", "value.serializer", "partitioner.class"),
            ConfigException,
        ),
    ],
)
@pytest.mark.parametrize("is_named", [False, True])
def test_what_was_made_and_then_refused_is_closed(
    plugin: type, options: tuple[str, ...], error: type[Exception], *, is_named: bool
) -> None:
    for option in options:
        NOTED.clear()
        given = f"{__name__}.{plugin.__name__}" if is_named else plugin
        value = [given] if option == "interceptor.classes" else given
        with pytest.raises(error):
            KafkaProducer({"bootstrap.servers": NOBODY, option: value})
        assert len(NOTED) == 1, option


def test_a_task_closes_a_partitioner_that_it_refuses() -> None:
    NOTED.clear()
    options = {"bootstrap.servers": NOBODY, "partitioner.class": f"{__name__}.Useless"}
    with pytest.raises(ConfigException, match="cannot be called"):
        TaskProducer(producer_config(options))
    assert NOTED == ["useless"]


@pytest.mark.parametrize("timeout", [None, 0])
def test_one_that_raises_is_logged_keeps_no_other_open_and_is_told_when_all_is_closed(
    timeout: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench()
    producer = bench.producer()
    for plugin in bench.plugins.values():
        plugin.fails = True
    with pytest.raises(KafkaException, match=r"Plugin, specified in key\.serializer, .*key is st"):
        producer.close(timeout)
    assert bench.closed == ALL
    assert all(f"{name} is stuck" in caplog.text for name in ALL)
    assert not producer._thread._thread.is_alive()


def test_an_interceptor_that_raises_is_logged_only(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    producer = bench.producer()
    bench.plugins["interceptor"].fails = True
    producer.close()
    assert bench.closed == ALL
    assert "interceptor is stuck" in caplog.text


def test_what_ended_a_with_block_is_not_hidden_by_an_error_of_closing() -> None:
    bench = Bench()
    bench.plugins["value"].fails = True
    with pytest.raises(ZeroDivisionError), bench.producer():
        raise ZeroDivisionError
    assert bench.closed == ALL


def test_a_record_that_was_lost_is_told_of_rather_than_an_error_of_closing() -> None:
    bench = Bench()
    producer = bench.producer()
    bench.plugins["value"].fails = True
    producer._state.deliveries.error = KafkaException("a record was lost")
    with pytest.raises(KafkaException, match="a record was lost"):
        producer.close()
    assert bench.closed == ALL


@pytest.mark.parametrize(
    ("wrong", "closed"),
    [
        ({"partitioner.class": "no.such.partitioner"}, ["interceptor", "key", "value"]),
        ({"value.serializer": 7}, ["interceptor", "key"]),
        ({"acks": "many"}, []),  # looked at before any of the user's code
    ],
)
def test_a_producer_that_cannot_be_made_closes_what_it_had(
    wrong: dict[str, object], closed: list[str]
) -> None:
    bench = Bench()
    with pytest.raises(ConfigException):
        bench.producer(**wrong)
    assert bench.closed == closed


@pytest.mark.parametrize(
    ("written", "nearest"),
    [
        ("key.serialiser", "key.serializer"),
        ("value.serialiser", "value.serializer"),
        ("interceptor.class", "interceptor.classes"),
    ],
)
def test_a_misspelt_option_for_user_code_is_answered_with_the_right_one(
    written: str, nearest: str
) -> None:
    said = f"^{written} is not an option of the Kafka producer; did you mean {nearest}\\?$"
    with pytest.raises(ConfigException, match=said):
        KafkaProducer({"bootstrap.servers": NOBODY, written: str})


def _open_files() -> Counter[str]:
    """Count the open sockets and selectors; a thread of another test may open plain files."""
    found: Counter[str] = Counter()
    for name in os.listdir("/dev/fd"):  # noqa: PTH208 - names of open files, which may close
        with suppress(OSError):
            what = os.readlink(f"/dev/fd/{name}")  # noqa: PTH115 - no file has this path
            if what.startswith(("socket:", "anon_inode:")):
                found[what] += 1
    return found


@pytest.mark.parametrize(
    ("place", "error"),
    [
        ("threading.Thread.start", RuntimeError("can't start new thread")),
        ("socket.socketpair", OSError(24, "Too many open files")),
        ("spark_kafka_sink.client.assembly.NetworkClient", MemoryError("no more")),
        ("spark_kafka_sink.client.base_producer.SliceAppender", MemoryError("no more")),
        ("threading.Thread.start", KeyboardInterrupt()),
        ("spark_kafka_sink.client.base_producer.SliceAppender", KeyboardInterrupt()),
    ],
    ids=lambda value: repr(value) if isinstance(value, BaseException) else str(value),
)
def test_a_producer_whose_parts_cannot_be_made_closes_all_and_says_why(
    place: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench()
    files, threads = _open_files(), set(threading.enumerate())

    def fail(*_: object, **__: object) -> NoReturn:
        raise error

    monkeypatch.setattr(place, fail)
    with pytest.raises(BaseException) as raised:  # noqa: PT011 - which one is looked at below
        bench.producer()
    if isinstance(error, Exception):
        assert type(raised.value) is KafkaException
        said = f"Failed to construct kafka producer: {type(error).__name__}: {error}"
        assert str(raised.value) == said
        assert raised.value.__cause__ is error
    else:
        assert raised.value is error
    assert bench.closed == ALL
    # Those of other tests may end meanwhile.
    assert set(threading.enumerate()) <= threads
    assert _open_files() <= files


class Unwilling(KeyError):
    """An exception that takes no attribute."""

    def __setattr__(self, name: str, value: object) -> None:
        raise TypeError(name)


@pytest.mark.parametrize("error", [KeyError("no such shelf"), SystemExit("closed"), Unwilling("x")])
def test_an_exception_of_a_partitioner_stays_what_it_is_and_names_the_partitioner(
    error: BaseException,
) -> None:
    def by_shelf(*_: object) -> list[int]:
        raise error

    batch = pa.record_batch({"value": ["v"]})
    for _ in range(2):
        with pytest.raises(type(error)) as raised:
            chosen_partitions(by_shelf, "t", batch, 3)
        assert raised.value is error
    shown = "".join(traceback.format_exception(error)).splitlines()
    named = f"specified in partitioner.class, raised {type(error).__name__}: {error}"
    notes = [line for line in shown if named in line]
    assert notes == ([] if isinstance(error, Unwilling) else [shown[-1]])
