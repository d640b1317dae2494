"""Runs behind a proxy that loses or changes answers: each row once, whatever is lost or said."""

from __future__ import annotations

import pytest
from conftest import topic_maker
from support.brokers.fault_proxy import Fault, FaultProxy, Kind
from support.spark.single_job import SingleJob, handed_over

from exactly_once import answers
from exactly_once.conftest import Proxied
from spark_kafka_sink.errors import KafkaException, UnsupportedVersionException
from spark_kafka_sink.spark.commit_clients import close_all
from spark_kafka_sink.spark.committing import single_commit
from spark_kafka_sink.spark.planning.datasource import check_batch_write
from spark_kafka_sink.spark.report import SinkCommitMessage, SkippedMessage, merged

pytestmark = [pytest.mark.kafka, pytest.mark.exactly_once]

PRODUCE, FETCH, LIST_OFFSETS, API_VERSIONS = 0, 1, 2, 18
INIT_PRODUCER_ID, ADD_PARTITIONS, END_TXN = 22, 24, 26
DESCRIBE_PRODUCERS, DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS = 61, 65, 66
ROWS = {0: ["a", "b"], 1: ["c"], 3: ["d"]}
VALUES = ["a", "b", "c", "d"]


@pytest.fixture
def job(proxied: Proxied, mode: str) -> SingleJob:
    """A job that writes to a topic with four partitions."""
    new_topic = topic_maker(proxied[0])
    log = new_topic(1, {"cleanup.policy": "compact"})
    behind = {"kafka.bootstrap.servers": f"127.0.0.1:{proxied[1].port}"}
    return SingleJob(proxied[0], new_topic(4), 4, log, exactlyOnce=mode, **behind)


@pytest.mark.parametrize("times", [1, 5])
@pytest.mark.parametrize("kind", [Kind.DROP_ANSWER, Kind.CUT_REQUEST])
def test_a_commit_whose_response_or_request_is_lost_is_made_once(
    job: SingleJob, proxy: FaultProxy, kind: Kind, times: int
) -> None:
    writer = job.plan()
    messages = job.write(writer, ROWS)
    before = proxy.requests[END_TXN]
    lost = proxy.inject(Fault(kind=kind, api_key=END_TXN, times=times))
    handed_over(writer).commit(messages)
    assert lost.happened.is_set(), "all of them were lost"
    assert proxy.requests[END_TXN] > before + times
    assert job.committed == VALUES
    assert isinstance(job.run({0: ["never"]})[0], SkippedMessage)


@pytest.mark.long(reason="one of many faults; unit tests have its answer")
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


# What a task asks, besides looking up whom to ask.
OF_TASKS = {
    "single": (PRODUCE, DESCRIBE_PRODUCERS),
    "two-phase": (PRODUCE, DESCRIBE_TRANSACTIONS, INIT_PRODUCER_ID),
}


@pytest.mark.long(reason="one of many faults; unit tests have its answer")
@pytest.mark.parametrize(
    "api_key", [PRODUCE, DESCRIBE_PRODUCERS, DESCRIBE_TRANSACTIONS, INIT_PRODUCER_ID]
)
def test_a_task_goes_on_after_a_lost_response(
    job: SingleJob, mode: str, proxy: FaultProxy, api_key: int
) -> None:
    if api_key not in OF_TASKS[mode]:
        pytest.skip("tasks of this mode do not ask that")
    writer = job.plan()
    lost = proxy.inject(Fault(kind=Kind.DROP_ANSWER, api_key=api_key))
    messages = job.write(writer, ROWS)
    assert lost.happened.is_set()
    if api_key == PRODUCE:
        sent = [m for m in messages if isinstance(m, SinkCommitMessage)]
        assert sum(p.retries for p in merged(m.partitions for m in sent)) == 1
    handed_over(writer).commit(messages)
    assert job.committed == VALUES


def test_tasks_use_the_connections_of_the_tasks_before_them(
    job: SingleJob, proxy: FaultProxy
) -> None:
    job.run({0: ["first"]})
    writer = job.plan(txnVersion="2")
    before = proxy.requests[API_VERSIONS]
    messages = job.write(writer, ROWS)
    assert proxy.requests[API_VERSIONS] == before
    writer.commit(messages)
    assert proxy.requests[API_VERSIONS] == before
    assert job.committed == [*VALUES, "first"]


@pytest.mark.long(reason="one of many faults; unit tests have its answer")
@pytest.mark.parametrize("codec", ["gzip", "zstd", "uncompressed"])
def test_a_batch_that_was_sent_twice_is_recognised_in_a_topic_with_its_own_codec(
    proxied: Proxied, proxy: FaultProxy, codec: str
) -> None:
    new_topic = topic_maker(proxied[0])
    log = new_topic(1, {"cleanup.policy": "compact"})
    servers = {"kafka.bootstrap.servers": f"127.0.0.1:{proxy.port}"}
    topic = new_topic(4, {"compression.type": codec})
    sink = {"exactlyOnce": "single", "kafka.compression.type": "lz4"}
    job = SingleJob(proxied[0], topic, 4, log, **servers, **sink)
    writer = job.plan()
    lost = proxy.inject(Fault(kind=Kind.DROP_ANSWER, api_key=PRODUCE))
    messages = job.write(writer, ROWS)
    assert lost.happened.is_set()
    writer.commit(messages)
    assert job.committed == VALUES


@pytest.mark.long(reason="one of many faults; unit tests have its answer")
@pytest.mark.parametrize("api_key", [PRODUCE, DESCRIBE_PRODUCERS, DESCRIBE_TRANSACTIONS])
def test_the_checks_of_a_commit_go_on_after_a_lost_response(
    job: SingleJob, proxy: FaultProxy, api_key: int
) -> None:
    writer = job.plan()
    messages = job.write(writer, ROWS)
    lost = proxy.inject(Fault(kind=Kind.DROP_ANSWER, api_key=api_key))
    handed_over(writer).commit(messages)
    assert lost.happened.is_set()
    assert job.committed == VALUES


@pytest.mark.long(reason="one of many faults; unit tests have its answer")
@pytest.mark.parametrize("code", [47, 48, 49, 90, -1])
def test_a_coordinator_that_answers_a_commit_wrongly_once_is_asked_again(
    job: SingleJob, proxy: FaultProxy, code: int, coordinators_are_never_stale: None
) -> None:
    writer = job.plan()
    messages = job.write(writer, ROWS)
    proxy.change_answers(END_TXN, answers.end_txn_fails_with(code))
    handed_over(writer).commit(messages)
    assert isinstance(job.run({0: ["never"]})[0], SkippedMessage)
    assert job.committed == VALUES


@pytest.mark.long(reason="one of many faults; unit tests have its answer")
def test_transactions_whose_commits_are_answered_wrongly_twice_are_described(
    job: SingleJob, proxy: FaultProxy, mode: str, coordinators_are_never_stale: None
) -> None:
    if mode == "single":
        pytest.skip("its own transaction has the record that tells")
    writer = job.plan()
    messages = job.write(writer, ROWS)
    # The decision is answered as it is.
    proxy.change_answers(END_TXN, answers.end_txn_fails_with(0, 48, 90, 49, 48, 90, 49))
    handed_over(writer).commit(messages)
    assert job.committed == VALUES


@pytest.mark.long(reason="one of many faults; unit tests have its answer")
@pytest.mark.parametrize(
    ("api_key", "name"),
    [
        (INIT_PRODUCER_ID, "InitProducerId"),
        (ADD_PARTITIONS, "AddPartitionsToTxn"),
        (END_TXN, "EndTxn"),
        (DESCRIBE_PRODUCERS, "DescribeProducers"),
        (DESCRIBE_TRANSACTIONS, "DescribeTransactions"),
        (LIST_TRANSACTIONS, "ListTransactions"),
        (LIST_OFFSETS, "ListOffsets"),
    ],
)
def test_a_broker_that_lacks_an_api_is_refused_before_a_row_is_sent(
    job: SingleJob, proxy: FaultProxy, api_key: int, name: str
) -> None:
    close_all()
    proxy.change_answers(API_VERSIONS, answers.without_api(api_key))
    before = proxy.requests[PRODUCE]
    with pytest.raises(UnsupportedVersionException, match=name):
        job.run(ROWS)
    assert proxy.requests[PRODUCE] == before


@pytest.mark.long(reason="one of many faults; unit tests have its answer")
@pytest.mark.parametrize(
    ("api_key", "version", "said"),
    [
        (ADD_PARTITIONS, 3, "has AddPartitionsToTxn up to version 3"),
        (LIST_OFFSETS, 4, "has ListOffsets up to version 4"),
    ],
)
def test_a_broker_with_an_older_version_is_refused_before_a_row_is_sent(
    job: SingleJob, proxy: FaultProxy, api_key: int, version: int, said: str
) -> None:
    close_all()
    proxy.change_answers(API_VERSIONS, answers.only_up_to(api_key, version))
    before = proxy.requests[PRODUCE]
    with pytest.raises(UnsupportedVersionException, match=said):
        job.run(ROWS)
    assert proxy.requests[PRODUCE] == before


@pytest.mark.long(reason="one of many faults; unit tests have its answer")
def test_single_refuses_a_broker_that_does_not_flag_duplicates(
    job: SingleJob, proxy: FaultProxy, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(single_commit, "_fit", set())
    writer = job.plan()
    messages = job.write(writer, ROWS)
    proxy.change_answers(PRODUCE, answers.duplicates_are_not_flagged)
    if mode == "two-phase":
        handed_over(writer).commit(messages)
        assert job.committed == VALUES
        return
    with pytest.raises(KafkaException, match="does not mark the second batch"):
        handed_over(writer).commit(messages)
    assert job.committed == []


@pytest.mark.long(reason="one of many faults; unit tests have its answer")
def test_what_looks_ahead_fences_nobody_and_a_plan_fences_once(
    job: SingleJob, proxy: FaultProxy
) -> None:
    job.run({})
    before = proxy.requests[INIT_PRODUCER_ID]
    for _ in range(2):
        check_batch_write(job.schema, {**job.options, "txnVersion": "2"})
    assert proxy.requests[INIT_PRODUCER_ID] == before
    job.plan(txnVersion="2")
    assert proxy.requests[INIT_PRODUCER_ID] == before + 1
    job.plan(txnVersion="1")
    assert proxy.requests[INIT_PRODUCER_ID] == before + 1
