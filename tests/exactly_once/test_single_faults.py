"""Mode `single` behind a proxy that loses responses: each row once, whatever is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import need_kafka, running_cluster, topic_maker
from support.brokers import fetch_kafka
from support.brokers.fault_proxy import API_VERSIONS, Fault, FaultProxy, Kind
from support.brokers.kafka_cluster import KafkaCluster
from support.spark.single_job import SingleJob

from spark_kafka_sink.spark import exactly_once
from spark_kafka_sink.spark.commit_clients import close_all
from spark_kafka_sink.spark.report import SinkCommitMessage, SkippedMessage

pytestmark = [pytest.mark.kafka, pytest.mark.exactly_once]

PRODUCE, FETCH, INIT_PRODUCER_ID, ADD_PARTITIONS, END_TXN = 0, 1, 22, 24, 26
DESCRIBE_PRODUCERS, DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS = 61, 65, 66
ROWS = {0: ["a", "b"], 1: ["c"], 3: ["d"]}
VALUES = ["a", "b", "c", "d"]
Proxied = tuple[KafkaCluster, FaultProxy]


@pytest.fixture(autouse=True)
def modes_are_complete(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the modes be used that the sink refuses until they are complete."""
    monkeypatch.setattr(exactly_once, "UNFINISHED", frozenset())
    yield
    close_all()


@pytest.fixture(scope="session", params=["level 2", "level 1"])
def proxied(request: pytest.FixtureRequest, scratch: Path) -> Iterator[Proxied]:
    """One node of each level and its proxy."""
    need_kafka()
    if request.param == "level 2":
        yield request.getfixturevalue("proxied_kafka")
        return
    with (
        FaultProxy() as proxy,
        running_cluster(fetch_kafka.OLD, scratch / "proxied-old", 1, {1: proxy}) as cluster,
    ):
        yield cluster, proxy


@pytest.fixture
def proxy(proxied: Proxied) -> Iterator[FaultProxy]:
    """The proxy, without faults at the end."""
    yield proxied[1]
    proxied[1].clear()


@pytest.fixture
def job(proxied: Proxied) -> SingleJob:
    """A job that writes to a topic with four partitions."""
    new_topic = topic_maker(proxied[0])
    log = new_topic(1, {"cleanup.policy": "compact"})
    behind = {"kafka.bootstrap.servers": f"127.0.0.1:{proxied[1].port}"}
    return SingleJob(proxied[0], new_topic(4), 4, log, **behind)


@pytest.mark.parametrize("times", [1, 5])
@pytest.mark.parametrize("kind", [Kind.DROP_ANSWER, Kind.CUT_REQUEST])
def test_a_commit_whose_response_or_request_is_lost_is_made_once(
    job: SingleJob, proxy: FaultProxy, kind: Kind, times: int
) -> None:
    writer = job.plan()
    messages = job.write(writer, ROWS)
    lost = proxy.inject(Fault(kind=kind, api_key=END_TXN, times=times))
    writer.commit(messages)
    assert lost.happened.is_set()
    assert job.committed == VALUES
    assert isinstance(job.run({0: ["never"]})[0], SkippedMessage)


@pytest.mark.parametrize(
    "api_key",
    [FETCH, INIT_PRODUCER_ID, ADD_PARTITIONS, DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS],
)
def test_a_plan_goes_on_after_a_lost_response(
    job: SingleJob, proxy: FaultProxy, api_key: int
) -> None:
    proxy.inject(Fault(kind=Kind.DROP_ANSWER, api_key=api_key))
    job.run({0: ["first"]})
    job.run(ROWS, txnVersion="2")
    assert job.committed == [*VALUES, "first"]


@pytest.mark.parametrize("api_key", [PRODUCE, DESCRIBE_PRODUCERS])
def test_a_task_goes_on_after_a_lost_response(
    job: SingleJob, proxy: FaultProxy, api_key: int
) -> None:
    writer = job.plan()
    lost = proxy.inject(Fault(kind=Kind.DROP_ANSWER, api_key=api_key))
    messages = job.write(writer, ROWS)
    assert lost.happened.is_set()
    if api_key == PRODUCE:
        sent = [m for m in messages if isinstance(m, SinkCommitMessage)]
        assert sum(p.retries for m in sent for p in m.partitions) == 1
    writer.commit(messages)
    assert job.committed == VALUES


@pytest.mark.parametrize("mode", ["single", "two-phase"])
def test_tasks_use_the_connections_of_the_tasks_before_them(
    job: SingleJob, proxy: FaultProxy, mode: str
) -> None:
    job.options["exactlyOnce"] = mode
    job.run({0: ["first"]})
    writer = job.plan(txnVersion="2")
    before = proxy.requests[API_VERSIONS]
    messages = job.write(writer, ROWS)
    assert proxy.requests[API_VERSIONS] == before
    writer.commit(messages)
    assert proxy.requests[API_VERSIONS] == before
    assert job.committed == [*VALUES, "first"]


@pytest.mark.parametrize("codec", ["gzip", "zstd", "uncompressed"])
def test_a_batch_that_was_sent_twice_is_recognised_in_a_topic_with_its_own_codec(
    proxied: Proxied, proxy: FaultProxy, codec: str
) -> None:
    new_topic = topic_maker(proxied[0])
    log = new_topic(1, {"cleanup.policy": "compact"})
    servers = {"kafka.bootstrap.servers": f"127.0.0.1:{proxy.port}"}
    topic = new_topic(4, {"compression.type": codec})
    sink = {"kafka.compression.type": "lz4"}
    job = SingleJob(proxied[0], topic, 4, log, **servers, **sink)
    writer = job.plan()
    lost = proxy.inject(Fault(kind=Kind.DROP_ANSWER, api_key=PRODUCE))
    messages = job.write(writer, ROWS)
    assert lost.happened.is_set()
    writer.commit(messages)
    assert job.committed == VALUES


@pytest.mark.parametrize("api_key", [PRODUCE, DESCRIBE_PRODUCERS, DESCRIBE_TRANSACTIONS])
def test_the_checks_of_a_commit_go_on_after_a_lost_response(
    job: SingleJob, proxy: FaultProxy, api_key: int
) -> None:
    writer = job.plan()
    messages = job.write(writer, ROWS)
    lost = proxy.inject(Fault(kind=Kind.DROP_ANSWER, api_key=api_key))
    writer.commit(messages)
    assert lost.happened.is_set()
    assert job.committed == VALUES
