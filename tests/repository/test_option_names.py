"""Errors name an option as the user wrote it: with the prefix kafka. in Spark, else without."""

from __future__ import annotations

import ast
import re
import socket
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path

import pyarrow as pa
import pytest
from support.pure.pure_producer import PureProducer, Settings

import spark_kafka_sink
from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.config import ProducerConfig, producer_config
from spark_kafka_sink.error_codes import UNSUPPORTED_COMPRESSION_TYPE
from spark_kafka_sink.errors import ConfigException, RecordTooLargeException, TimeoutException
from spark_kafka_sink.spark.options import name_kafka_options, sink_options

PACKAGE = Path(spark_kafka_sink.__file__).parent
PREFIXED = re.compile(r"(?<![\w.])kafka\.[a-z]")


def config_of(user: str, options: dict[str, str]) -> ProducerConfig:
    """Return the configuration for the options of a user of Spark or of KafkaProducer."""
    if user == "spark":
        return sink_options({f"kafka.{k}": v for k, v in options.items()} | {"topic": "t"}).producer
    return producer_config(options)


def naming_of(user: str) -> AbstractContextManager[None]:
    """Return the context in which a user's producers are made."""
    return name_kafka_options() if user == "spark" else nullcontext()


USERS = pytest.mark.parametrize(("user", "prefix"), [("spark", "kafka."), ("python", "")])


@USERS
def test_what_was_waited_for_in_vain_is_named(user: str, prefix: str) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        config = config_of(user, {"bootstrap.servers": address, "max.block.ms": "200"})
        with (
            naming_of(user),
            KafkaProducer(config) as producer,
            pytest.raises(TimeoutException) as failed,
        ):
            producer.partitions_for("t")
    text = str(failed.value)
    assert f" within {prefix}max.block.ms=200; " in text
    assert f" check {prefix}bootstrap.servers={address}" in text


@USERS
def test_an_answer_that_does_not_come_is_named(user: str, prefix: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        options = {
            "bootstrap.servers": f"127.0.0.1:{silent.getsockname()[1]}",
            "request.timeout.ms": "100",
            "max.block.ms": "1000",
        }
        with (
            naming_of(user),
            KafkaProducer(config_of(user, options)) as producer,
            pytest.raises(TimeoutException, match=f" within {prefix}request.timeout.ms=100"),
        ):
            producer.partitions_for("t")


def test_two_producers_of_one_process_name_options_as_their_own_users_do() -> None:
    """The messages come from their threads, not from the thread that makes them."""
    with socket.create_server(("127.0.0.1", 0)) as silent, ExitStack() as made:
        options = {
            "bootstrap.servers": f"127.0.0.1:{silent.getsockname()[1]}",
            "request.timeout.ms": "100",
            "max.block.ms": "1000",
        }
        producers = []
        for user, prefix in (("spark", "kafka."), ("python", "")):
            with naming_of(user):
                producer = made.enter_context(KafkaProducer(config_of(user, options)))
            producers.append((producer, prefix))
        for producer, prefix in producers:
            said = f"no response within {prefix}request.timeout.ms=100"
            with pytest.raises(TimeoutException, match=said):
                producer.partitions_for("t")


@USERS
def test_the_limit_of_a_record_is_named(user: str, prefix: str) -> None:
    options = {"bootstrap.servers": "127.0.0.1:1", "max.request.size": "1000"}
    with naming_of(user), KafkaProducer(config_of(user, options)) as producer:
        with pytest.raises(RecordTooLargeException, match=f" than {prefix}max.request.size=1000"):
            producer.append("t", pa.record_batch({"value": ["x" * 2000]}))
        producer.close(0)


@USERS
def test_an_option_that_is_wrong_is_named(user: str, prefix: str) -> None:
    address = {"bootstrap.servers": "127.0.0.1:1"}
    for options, said in (
        (address | {"linger.ms": "soon"}, f"{prefix}linger.ms is "),
        (address | {"delivery.timeout.ms": "1"}, f"{prefix}linger.ms + {prefix}request.timeout.ms"),
        ({"bootstrap.servers": "localhost"}, f"{prefix}bootstrap.servers has 'localhost'"),
    ):
        with pytest.raises(ConfigException) as refused:
            config_of(user, options)
        assert re.search(rf"(^| ){re.escape(said)}", str(refused.value))


@USERS
def test_what_is_late_and_what_brokers_refuse_is_named(user: str, prefix: str) -> None:
    with naming_of(user):
        producer = PureProducer([1, -1], Settings(delivery_timeout=30.0))
        producer.append(0, [b"x"])
        producer.ready()
        producer.answer(producer.poll()[0], UNSUPPORTED_COMPRESSION_TYPE)
        (refused,) = producer.done()
        producer.append(1, [b"x"])
        producer.now = 30.0
        producer.poll()
        (late,) = producer.done()
    assert str(refused.error).endswith(f"; choose another {prefix}compression.type")
    assert f" within {prefix}delivery.timeout.ms=30000: " in str(late.error)


def test_only_spark_s_own_package_writes_the_prefix() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}: {text}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).parts[0] != "spark"
        for text in _strings(ast.parse(path.read_text()))
        if PREFIXED.search(text)
    ]
    assert found == []


def _strings(tree: ast.AST) -> list[str]:
    """Return the strings of a module that are not docstrings."""
    nodes = list(ast.walk(tree))
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    return [
        node.value
        for node in nodes
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in docstrings
    ]
