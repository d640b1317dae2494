"""An option with the value None is ignored with every Spark, as Spark 4.3 ignores it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.connect.plan import Range
from pyspark.sql.types import StructType
from pyspark.sql.utils import to_str

from spark_kafka_sink.errors import ConfigException
from spark_kafka_sink.spark.driver.hooks import writers
from spark_kafka_sink.spark.driver.hooks.writers import WRITERS, SparkWriter
from spark_kafka_sink.spark.driver.write_batch import write_batch

GIVEN = {"kafka.bootstrap.servers": "b:1", "topic": "t"}
CLASSIC = [kind for kind in WRITERS if kind.notes is not None]
CONNECT = [kind for kind in WRITERS if kind.notes is None]


class Jvm:
    """Spark's writer in the JVM; started: the user's options of each write."""

    def __init__(self) -> None:
        self.options: dict[str, str | None] = {}
        self.started: list[dict[str, str | None]] = []

    def option(self, name: str, value: str | None) -> Jvm:
        """Set an option."""
        self.options[name.lower()] = value
        return self

    def format(self, _: str) -> Jvm:
        """Set the format."""
        return self

    def mode(self, _: str) -> Jvm:
        """Set the save mode."""
        return self

    def start(self) -> object:
        """Start a query."""
        own = {name: text for name, text in self.options.items() if not name.startswith("pykafka.")}
        self.started.append(own)
        return object()

    save = start


class PassesNull:
    """A classic writer of Spark 4.0 to 4.2."""

    _jwrite: Jvm

    def option(self, key: str, value: object) -> PassesNull:
        """Set an option."""
        self._jwrite = self._jwrite.option(key, to_str(value))
        return self

    def options(self, **options: object) -> PassesNull:
        """Set options."""
        for name, value in options.items():
            self._jwrite = self._jwrite.option(name, to_str(value))
        return self


class CallsOptions:
    """What a user changes in a writer."""

    options: Callable[..., CallsOptions]

    def option(self, key: str, value: object) -> CallsOptions:
        """Set an option."""
        return self.options(**{key: value})


class ForgetsValue:
    """A batch writer of Spark Connect 4.0 to 4.2."""

    _write: Any

    def option(self, key: str, value: object) -> ForgetsValue:
        """Set an option."""
        self._write.options[key] = to_str(value)
        return self

    def options(self, **options: object) -> ForgetsValue:
        """Set options."""
        for name, value in options.items():
            self._write.options[name] = to_str(value)
        return self


class RefusesNone:
    """A stream's writer of Spark Connect 4.0 to 4.2."""

    _write_proto: Any

    def option(self, key: str, value: object) -> RefusesNone:
        """Set an option."""
        self._write_proto.options[key] = to_str(value)
        return self

    def options(self, **options: object) -> RefusesNone:
        """Set options."""
        for name, value in options.items():
            self.option(name, value)
        return self


WriterClass = Callable[..., Any]
Hook = Callable[..., WriterClass]


@pytest.fixture
def hooked(monkeypatch: pytest.MonkeyPatch) -> Hook:
    """Return a writer class of Spark with the sink's hooks; old: the methods of an older Spark."""

    def hook(kind: SparkWriter, *old: type) -> WriterClass:
        spark_s = getattr(import_module(kind.module), kind.name)
        module: Any = ModuleType("writers_of_this_test")
        module.Writer = type(kind.name, (*old, spark_s), {})
        monkeypatch.setitem(sys.modules, module.__name__, module)
        own = kind._replace(
            module=module.__name__,
            name="Writer",
            schema=lambda _: StructType(),
            look=lambda *_: None,
        )
        monkeypatch.setattr(writers, "WRITERS", (own,))
        for name in ("_enter_thread", "explained"):
            monkeypatch.setattr(writers, name, lambda _: nullcontext())
        writers.hook_writers("pykafka", is_connect=kind.notes is None)
        hooked: WriterClass = module.Writer
        return hooked

    return hook


def classic(writer_class: WriterClass) -> tuple[Any, Jvm]:
    """Return a classic writer, and its other half in the JVM."""
    jvm = Jvm()
    session = SimpleNamespace(
        conf=SimpleNamespace(get={"spark.app.name": "app"}.get),
        sparkContext=SimpleNamespace(getLocalProperty=lambda _: None),
    )
    java = SimpleNamespace(write=lambda: jvm, writeStream=lambda: jvm)
    return writer_class(SimpleNamespace(sparkSession=session, _jdf=java)), jvm


@pytest.mark.parametrize("old", [(), (PassesNull,)], ids=["this Spark", "Spark 4.2"])
@pytest.mark.parametrize("kind", CLASSIC, ids=lambda kind: kind.name)
def test_none_sets_no_option_and_replaces_none(
    hooked: Hook, kind: SparkWriter, old: tuple[type, ...]
) -> None:
    writer_class = hooked(kind, *old)
    writer, jvm = classic(writer_class)
    writer.format("pyKafka").options(**GIVEN, **{"kafka.acks": None, "quiet": True})
    writer.option("TOPIC", None).option(key="kafka.linger.ms", value=None)
    getattr(writer, kind.method)()
    assert jvm.started == [GIVEN | {"quiet": "true"}]
    writer, jvm = classic(writer_class)
    last = getattr(writer.options(**GIVEN), kind.method)
    last(path=None, format="pykafka", **{"kafka.acks": None, "topic": None})
    assert jvm.started == [GIVEN]


@pytest.mark.parametrize("kind", CLASSIC, ids=lambda kind: kind.name)
def test_an_option_of_a_subclass_may_call_options(hooked: Hook, kind: SparkWriter) -> None:
    base: Any = hooked(kind, PassesNull)
    own: Any = type("Own", (CallsOptions, base), {})
    writer, jvm = classic(own)
    writer.format("csv").option("quote", None).options(escape="e")
    getattr(writer, kind.method)()
    writer, to_sink = classic(own)
    writer.format("pykafka").options(**GIVEN).option("kafka.acks", None).option("quiet", "true")
    getattr(writer, kind.method)()
    assert jvm.started == [{"quote": None, "escape": "e"}]
    assert to_sink.started == [GIVEN | {"quiet": "true"}]


@pytest.mark.parametrize("kind", CLASSIC, ids=lambda kind: kind.name)
def test_another_format_gets_null_as_without_the_sink(hooked: Hook, kind: SparkWriter) -> None:
    writer_class = hooked(kind, PassesNull)
    writer, jvm = classic(writer_class)
    writer.option("nullValue", None).format("csv").options(quote=None)
    getattr(writer, kind.method)(escape=None)
    writer, without = classic(writer_class)
    getattr(writer.option("nullValue", None), kind.method)()
    assert jvm.started == [dict.fromkeys(("nullvalue", "quote", "escape"))]
    assert without.started == [{"nullvalue": None}]


@pytest.mark.parametrize("kind", CLASSIC, ids=lambda kind: kind.name)
def test_none_before_the_format_is_refused_with_the_name_of_the_option(
    hooked: Hook, kind: SparkWriter
) -> None:
    writer, jvm = classic(hooked(kind, PassesNull))
    writer.options(**GIVEN, **{"kafka.Acks": None}).format("pykafka")
    with pytest.raises(ConfigException, match=r"^option kafka\.Acks is None, and was set before"):
        getattr(writer, kind.method)()
    assert not jvm.started
    getattr(writer.option("kafka.acks", "all"), kind.method)()
    assert jvm.started == [GIVEN | {"kafka.acks": "all"}]


@pytest.mark.parametrize(
    ("kind", "old"),
    list(zip(CONNECT, (ForgetsValue, RefusesNone), strict=True)),
    ids=["batch", "stream"],
)
def test_none_keeps_an_earlier_value_with_spark_connect(
    hooked: Hook, kind: SparkWriter, old: type
) -> None:
    writer = hooked(kind, old)(Range(0, 1, 1), SimpleNamespace())
    writer.format("pykafka").options(topic="t", quiet=None).option("topic", None)
    assert kind.write(writer).options == {"topic": "t"}


def test_write_batch_passes_no_none_on_without_register(monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module("spark_kafka_sink.spark.driver.write_batch")
    for name in ("check_frame", "check_batch_write", "refuse_speculation"):
        monkeypatch.setattr(module, name, lambda *_: None)
    monkeypatch.setattr(module, "options_of_session", lambda *_, **__: {})
    monkeypatch.setattr(module, "_micro_batch", lambda *_: None)
    jvm = Jvm()
    writer: Any = PassesNull()
    writer._jwrite = jvm
    writer.format = writer.mode = lambda _: writer
    writer.save = jvm.start
    frame: Any = SimpleNamespace(write=writer, schema=StructType(), sparkSession=None)
    options: Any = GIVEN | {"kafka.acks": None, "TOPIC": None}
    write_batch(frame, 3, options)
    assert None not in jvm.started[0].values()
    assert GIVEN.items() <= jvm.started[0].items()
