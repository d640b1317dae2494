"""The thread that renews the delegation token of a write while its tasks run."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from importlib import import_module
from queue import SimpleQueue
from types import SimpleNamespace

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from spark_kafka_sink.errors import TimeoutException
from spark_kafka_sink.spark.driver.hooks import delegation_token_renewal
from spark_kafka_sink.spark.driver.hooks.delegation_token_renewal import (
    renew_token_of_query,
    renewing_token,
)
from spark_kafka_sink.spark.driver.hooks.notes import is_first_time
from spark_kafka_sink.spark.driver.write_batch import write_batch
from spark_kafka_sink.spark.micro_batch import batch_id_option
from spark_kafka_sink.spark.options import SinkOptions

GIVEN = {
    "kafka.bootstrap.servers": "b:1",
    "kafka.security.protocol": "SASL_SSL",
    "kafka.sasl.mechanism": "PLAIN",
    "kafka.sasl.username": "alice",
    "kafka.sasl.password": "hunter2",
    "topic": "t",
    "delegationtoken": "true",
}
NO_WAIT_S = 0.001
WRITER = object()


EXACTLY_ONCE = {"exactlyonce": "true", "txnappid": "app", "txnversion": "3"}


class Renewals:
    """The calls of the thread; failures: what the first ones raise."""

    def __init__(self) -> None:
        self.calls: SimpleQueue[str] = SimpleQueue()
        self.failures: list[Exception] = []

    def renew(self, options: SinkOptions, waited_s: float) -> float:
        """Renew."""
        assert waited_s in (0.0, NO_WAIT_S)
        assert options.producer.sasl_username == "alice"
        self.calls.put("renew")
        if self.failures:
            raise self.failures.pop(0)
        return NO_WAIT_S

    def forget(self, _: SinkOptions) -> None:
        """Forget."""
        self.calls.put("forget")

    def wait_for(self, call: str) -> None:
        """Wait for a call."""
        while self.calls.get(timeout=60) != call:
            pass


@pytest.fixture
def renewals(monkeypatch: pytest.MonkeyPatch) -> Renewals:
    """The calls of the threads of a test."""
    made = Renewals()
    monkeypatch.setattr(delegation_token_renewal, "renew_for_write", made.renew)
    monkeypatch.setattr(delegation_token_renewal, "forget_write", made.forget)
    monkeypatch.setattr(delegation_token_renewal, "longer_wait_s", lambda _: NO_WAIT_S)
    return made


def threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "kafka-delegation-token"]


@pytest.mark.parametrize(
    "more",
    [
        {},
        batch_id_option(3),
        batch_id_option(3, is_save=True),
        EXACTLY_ONCE | batch_id_option(3, is_save=True),
    ],
)
def test_the_token_of_a_job_is_renewed_until_it_ends(
    renewals: Renewals, more: dict[str, str]
) -> None:
    with renewing_token(GIVEN | more, WRITER):
        renewals.wait_for("renew")
        renewals.wait_for("renew")
    renewals.wait_for("forget")
    for each in threads():
        each.join(60)
    assert renewals.calls.empty()


def test_the_token_of_a_query_is_renewed_while_it_is_active(renewals: Renewals) -> None:
    class Query:
        isActive = True  # noqa: N815 - Spark's name

    query = Query()
    renew_token_of_query(query, GIVEN)
    renewals.wait_for("renew")
    renewals.wait_for("renew")
    query.isActive = False
    renewals.wait_for("forget")
    assert renewals.calls.empty()


def test_a_renewal_that_fails_is_tried_again_and_told(
    renewals: Renewals, caplog: pytest.LogCaptureFixture
) -> None:
    renewals.failures = [TimeoutException("the brokers are away"), OSError("hunter2")]
    with caplog.at_level(logging.WARNING), renewing_token(GIVEN, WRITER):
        for _ in range(3):
            renewals.wait_for("renew")
    renewals.wait_for("forget")
    said = "the delegation token of a running write cannot be renewed now: "
    assert caplog.messages == [f"{said}the brokers are away", f"{said}OSError"]


@pytest.mark.parametrize("value", [None, "false"])
def test_a_write_without_a_token_renews_none(renewals: Renewals, value: str | None) -> None:
    given = {name: text for name, text in GIVEN.items() if name != "delegationtoken"}
    with renewing_token(given if value is None else given | {"delegationtoken": value}, WRITER):
        for each in threads():
            each.join(60)
    assert renewals.calls.empty()


def test_a_client_of_spark_connect_renews_none(renewals: Renewals) -> None:
    pytest.importorskip("grpc")
    from pyspark.sql.connect.readwriter import DataFrameWriter

    before = threads()
    with renewing_token(GIVEN, DataFrameWriter.__new__(DataFrameWriter)):
        assert {*threads()} <= {*before}
    assert renewals.calls.empty()


class Frame:
    """A DataFrame, and also its writer, whose job ends when a test says so."""

    sparkSession = SimpleNamespace(  # noqa: N815 - Spark's name
        conf=SimpleNamespace(get=lambda _, default: default),
        sparkContext=SimpleNamespace(getLocalProperty=lambda _: None),
    )
    schema = StructType([StructField("value", StringType())])

    def __init__(self, job: Callable[[], None]) -> None:
        self.save = job
        self.write = self

    def format(self, _: str) -> Frame:
        """Set the format."""
        return self

    def mode(self, _: str) -> Frame:
        """Set the mode."""
        return self

    def options(self, **_: str) -> Frame:
        """Set the options."""
        return self


@pytest.fixture
def no_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """`write_batch` takes any frame, and asks no broker."""
    module = import_module("spark_kafka_sink.spark.driver.write_batch")
    for name in ("check_frame", "check_batch_write"):
        monkeypatch.setattr(module, name, lambda *_: None)


@pytest.mark.usefixtures("no_checks")
def test_write_batch_renews_the_token_without_register(renewals: Renewals) -> None:
    def job() -> None:
        renewals.wait_for("renew")
        renewals.wait_for("renew")

    write_batch(Frame(job), 3, GIVEN)  # type: ignore[arg-type] # a fake
    renewals.wait_for("forget")
    assert renewals.calls.empty()


@pytest.mark.usefixtures("no_checks")
def test_after_register_write_batch_leaves_the_token_to_its_writer(renewals: Renewals) -> None:
    before = threads()
    found: list[threading.Thread] = []
    frame = Frame(lambda: found.extend(threads()))
    is_first_time(frame)
    write_batch(frame, 3, GIVEN)  # type: ignore[arg-type] # a fake
    assert {*found} <= {*before}
    assert renewals.calls.empty()


def test_options_that_are_refused_are_left_to_the_write(renewals: Renewals) -> None:
    with renewing_token(GIVEN | {"kafka.acks": "many"}, WRITER):
        for each in threads():
            each.join(60)
    assert renewals.calls.empty()
