"""Sessions, tokens and tickets that end while rows are written, for long."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from conftest import need_kdc
from support.brokers.logins import (
    PARTITIONS,
    SHORT_LIVED,
    SIGNED,
    Login,
    by_keytab,
    measured,
    new_topic,
    numbers,
    options,
)
from support.brokers.secured_kafka import SecuredKafka
from support.brokers.steady_load import SteadyLoad
from support.brokers.token_server import TokenServer
from support.oracles.readers import read_with_confluent

from spark_kafka_sink import KafkaProducer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.long(reason="sessions, tokens and tickets have to end, which takes minutes"),
    pytest.mark.timeout(600),
]


LOGIN = "spark_kafka_sink.network.login"


def wait(seconds: float) -> None:
    """Let time pass: it is what sessions, tokens and tickets live by."""
    threading.Event().wait(seconds)


@contextmanager
def load(
    kafka: SecuredKafka, given: dict[str, str], *, stays_connected: bool = True
) -> Iterator[tuple[KafkaProducer, SteadyLoad]]:
    """Write numbered rows for the time of a `with` block; then each is there once, and in order.

    stays_connected: whether no connection may be made after the first ones.
    """
    topic = new_topic(kafka)
    more = {"linger.ms": "5", "max.in.flight.requests.per.connection": "5"}
    with KafkaProducer(given | more) as producer:
        running = SteadyLoad(producer, topic, PARTITIONS)
        try:
            running.wait_for_progress()
            made = measured(producer, "connection-creation-total")
            yield producer, running
            running.wait_for_progress()
            if stays_connected:
                assert measured(producer, "connection-creation-total") == made
                assert measured(producer, "failed-reauthentication-total") == 0
        finally:
            running.stop()
    running.rows.check(read_with_confluent(kafka.bootstrap, topic))


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512", "GSSAPI"])
def test_sessions_of_5_seconds_are_renewed_for_60(
    guarded_cluster: SecuredKafka, mechanism: str, tmp_path: Path
) -> None:
    if mechanism == "GSSAPI":
        need_kdc()
    given = options(guarded_cluster, Login(mechanism, "SASL_SSL"), tmp_path)
    with load(guarded_cluster, given) as (producer, _):
        wait(60)
        # Each partition has a leader of its own.
        assert measured(producer, "successful-reauthentication-total") >= 10 * PARTITIONS


@pytest.fixture
def server(guarded_cluster: SecuredKafka) -> Iterator[TokenServer]:
    """A token endpoint whose tokens the brokers take."""
    with TokenServer(guarded_cluster.jwt_key.read_text()) as running:
        yield running


def test_tokens_of_8_seconds_are_renewed_for_60(
    guarded_cluster: SecuredKafka, server: TokenServer, tmp_path: Path
) -> None:
    server.life_s = 8
    with load(guarded_cluster, options(guarded_cluster, SIGNED, tmp_path, server)) as (producer, _):
        wait(60)
        assert measured(producer, "successful-reauthentication-total") >= 10 * PARTITIONS
        assert len(server.asked) >= 60 // 8


def test_an_idle_producer_goes_on_after_three_lives_of_a_token(
    guarded_cluster: SecuredKafka, server: TokenServer, tmp_path: Path
) -> None:
    server.life_s = 8
    topic = new_topic(guarded_cluster)
    rows = ("before", "after")
    given = options(guarded_cluster, SIGNED, tmp_path, server)
    # Half of a token's life is left when its session begins: a slow broker reads requests late.
    given |= {"sasl.login.refresh.window.factor": "0.5"}
    with KafkaProducer(given) as producer:
        made = []
        for row in rows:
            # To all partitions, whose leaders are all nodes.
            for partition in range(PARTITIONS):
                values = pa.record_batch(
                    {"value": [row], "partition": pa.array([partition], pa.int32())}
                )
                producer.append(topic, values)
            producer.flush()
            made.append(measured(producer, "connection-creation-total"))
            if row == "before":
                wait(25)
        assert made[0] == made[1]
        assert len(server.asked) >= 3
    found = [each.value for each in read_with_confluent(guarded_cluster.bootstrap, topic)]
    assert found == [row.encode() for _ in range(PARTITIONS) for row in rows]


def add_file(source: Path, file: Path, values: range) -> None:
    """Write a file with a line per value, and put it into the source of a stream all at once."""
    file.write_text("".join(f"{value}\n" for value in values))
    file.rename(source / file.name)


def wait_for_token(server: TokenServer, at: float) -> None:
    """Wait until somebody asks for a token at this time or later."""
    limit = at + 60
    while server.asked[-1].at < at:
        assert time.monotonic() < limit, "nobody asks for a token"
        wait(0.1)


@pytest.mark.spark
def test_an_idle_stream_goes_on_after_three_lives_of_a_token(
    guarded_cluster: SecuredKafka, server: TokenServer, tmp_path: Path, spark: SparkSession
) -> None:
    server.life_s = 8
    topic, source = new_topic(guarded_cluster), tmp_path / "source"
    source.mkdir()
    given = options(guarded_cluster, SIGNED, tmp_path, server)
    # As for the idle producer above.
    given |= {"sasl.login.refresh.window.factor": "0.5"}
    query = (
        spark.readStream.text(str(source))
        .writeStream.format("pykafka")
        .options(**{f"kafka.{name}": value for name, value in given.items()})
        .option("topic", topic)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        add_file(source, tmp_path / "a.txt", range(100))
        query.processAllAvailable()
        assert numbers(guarded_cluster, topic) == list(range(100))
        # While the stream is idle, only what runs in the background asks for tokens.
        wait_for_token(server, time.monotonic() + 3 * server.life_s)
        add_file(source, tmp_path / "b.txt", range(100, 200))
        query.processAllAvailable()
    finally:
        query.stop()
    assert query.exception() is None
    rows = [each["numInputRows"] for each in query.recentProgress]
    assert [each for each in rows if each] == [100, 100]
    assert numbers(guarded_cluster, topic) == list(range(200))


def failed_fetches(caplog: pytest.LogCaptureFixture) -> tuple[int, int]:
    """Return how many fetches of a token failed while there was a token, and without one."""
    levels = [each.levelno for each in caplog.records if "returned no token: " in each.getMessage()]
    return levels.count(logging.INFO), levels.count(logging.WARNING)


def test_a_token_server_that_is_away_for_20_seconds_is_not_noticed(
    guarded_cluster: SecuredKafka,
    server: TokenServer,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, LOGIN)
    server.life_s = 60
    given = options(guarded_cluster, SIGNED, tmp_path, server)
    begun = time.monotonic()
    with load(guarded_cluster, given | {"sasl.login.refresh.window.factor": "0.5"}):
        # The token is refreshed at least 30 s after it was fetched.
        wait(begun + 28 - time.monotonic())
        server.stop()
        wait(20)
        with_token, without_token = failed_fetches(caplog)
        assert (with_token > 0, without_token) == (True, 0)
        server.start()
        wait(30)
        assert len(server.asked) >= 2


def test_while_a_token_server_is_away_for_40_seconds_batches_wait(
    guarded_cluster: SecuredKafka,
    server: TokenServer,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, LOGIN)
    server.life_s = 60
    given = options(guarded_cluster, SIGNED, tmp_path, server)
    more = {"sasl.login.refresh.window.factor": "0.5"}
    begun = time.monotonic()
    with load(guarded_cluster, given | more, stays_connected=False) as (_, running):
        wait(begun + 28 - time.monotonic())
        server.stop()
        stopped = time.monotonic()
        wait(33)
        # The token has expired, or is about to. Then rows wait.
        running.wait_for_stall(5)
        wait(stopped + 40 - time.monotonic())
        with_token, without_token = failed_fetches(caplog)
        assert (with_token > 0, without_token > 0) == (True, True)
        server.start()
        running.wait_for_progress()
        assert len(server.asked) >= 2


def test_tickets_of_60_seconds_are_renewed_for_3_minutes(
    guarded_cluster: SecuredKafka, tmp_path: Path
) -> None:
    need_kdc()
    kdc = guarded_cluster.kdc
    assert kdc is not None
    keytab = kdc.add(SHORT_LIVED, "-maxlife", '"60 seconds"')
    given = options(guarded_cluster, Login("GSSAPI", "SASL_SSL"), tmp_path)
    with load(guarded_cluster, given | by_keytab(SHORT_LIVED, keytab)):
        wait(180)
