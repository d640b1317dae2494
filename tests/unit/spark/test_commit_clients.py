"""The errors of exactly once for users: which option, which right, and how many rows."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from support.programs.forked import in_child, taken

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.auth.acls import Acls
from spark_kafka_sink.commit.attempts import Run
from spark_kafka_sink.commit.names import checked_owner
from spark_kafka_sink.commit.questions import (
    Ask,
    DescribeProducers,
    MarkerRead,
    ProducersDescribed,
    ReadMarker,
    Reply,
)
from spark_kafka_sink.commit.resolve import RECORDS_ARE_GONE, in_doubt
from spark_kafka_sink.commit.steps import Failure, FailureKind, received
from spark_kafka_sink.commit.verdicts import Call
from spark_kafka_sink.commit_client import CommitClient
from spark_kafka_sink.config import producer_config
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.network.request_client import ConsumerNetworkClient
from spark_kafka_sink.spark import commit_clients
from spark_kafka_sink.spark.commit_clients import (
    _lock,
    close_all,
    commit_client,
    exception_of,
)

CONFIG = producer_config({"bootstrap.servers": "b:1"})
OF_COLUMN = TopicPartition("named-by-rows", 2)
RUN = Run(checked_owner("team", "app", "t"), "run", TopicPartition("log", 0), 2, 900_000)


def said_of(failure: Failure, written: str = "") -> str:
    """Return the message of a failure."""
    return str(exception_of(failure, RUN, Acls.of(CONFIG), written))


def test_a_job_that_took_too_long_names_its_rows_its_time_and_the_option() -> None:
    late = Failure(FailureKind.TIMED_OUT, "the job took 840001 ms")
    said = said_of(late, "6 rows were written in 841 s")
    assert said == (
        "the job took 840001 ms; 6 rows were written in 841 s; nothing of the job is visible; "
        "raise kafka.transaction.timeout.ms, up to the transaction.max.timeout.ms of the brokers, "
        "or write less in one job"
    )
    assert "visible" not in said_of(Failure(FailureKind.CONFLICT, "two tasks wrote"), "6 rows")


def test_a_decision_that_the_log_does_not_take_names_the_setting_of_the_log() -> None:
    said = said_of(Failure(FailureKind.REFUSED, "not written", codes.MESSAGE_TOO_LARGE))
    assert "raise max.message.bytes of topic log: in mode two-phase, the commit log record" in said


def test_a_run_whose_result_cannot_be_found_out_can_be_accepted() -> None:
    gone = in_doubt("team/app/t/0.0", TopicPartition("t", 0), 7, RECORDS_ARE_GONE)
    assert said_of(gone).endswith(
        "then run python -m spark_kafka_sink.recover --accept-torn --app-id=app --topic=t "
        "--txn-id-prefix=team --commit-log-topic=log so that the next run can start"
    )


@pytest.mark.parametrize(
    ("call", "right", "command"),
    [
        (Call.DESCRIBE_PRODUCERS, "READ on the topic of the rows", "READ --topic t"),
        (Call.READ_LOG, "READ on commitLogTopic=log", "READ --topic log"),
        (Call.PRODUCE, "WRITE on commitLogTopic=log", "WRITE --topic log"),
        (Call.ADD_PARTITIONS_TO_TXN, "WRITE on the topic of the rows and", "WRITE --topic NAME"),
    ],
)
def test_a_right_on_a_topic_that_is_missing_is_named(call: Call, right: str, command: str) -> None:
    denied = codes.TOPIC_AUTHORIZATION_FAILED
    said = said_of(Failure(FailureKind.REFUSED, "refused", denied, call.value))
    assert said.startswith(f"refused; exactlyOnce needs the permission {right}")
    assert f"--operation {command}" in said


@pytest.mark.parametrize(
    ("ask", "reply"),
    [
        (DescribeProducers(OF_COLUMN), ProducersDescribed(error=29)),
        (ReadMarker(OF_COLUMN, 7, ProducerIdAndEpoch(5, 1), 60.0), MarkerRead(error=29)),
    ],
)
def test_a_right_to_read_a_topic_that_rows_name_is_named_with_the_topic(
    ask: Ask, reply: Reply
) -> None:
    failure = received(ask, reply, 0.0).failure("it could not be checked")
    said = said_of(failure)
    assert "; exactlyOnce needs the permission READ on topic named-by-rows; to allow it: " in said
    assert said.endswith("--operation READ --topic named-by-rows")
    assert "WRITE" not in said


def test_rights_on_transactional_ids_are_named_by_their_prefix() -> None:
    denied = codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    said = said_of(Failure(FailureKind.REFUSED, "refused", denied, Call.INIT_PRODUCER_ID.value))
    assert "--operation WRITE" in said
    assert "--resource-pattern-type prefixed --transactional-id team/" in said


def test_a_missing_right_is_granted_to_the_user_that_the_login_has_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    by_ticket = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "GSSAPI"}
    config = producer_config({"bootstrap.servers": "b:1"} | by_ticket)
    denied = Failure(
        FailureKind.REFUSED, "refused", codes.TOPIC_AUTHORIZATION_FAILED, Call.READ_LOG.value
    )
    monkeypatch.setattr(
        ConsumerNetworkClient,
        "of",
        lambda *_, **__: SimpleNamespace(principal="alice", set_initial_nodes=list, close=list),
    )
    with CommitClient(config, "log") as client:
        said = str(exception_of(denied, RUN, client.acls))
    assert "--allow-principal User:alice --operation READ --topic log" in said


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[CommitClient]:
    """The clients that were closed; none is kept before the test and after it."""
    close_all()
    noted: list[CommitClient] = []
    close = CommitClient.close

    def note(client: CommitClient) -> None:
        assert not _lock.locked(), "others wait while a client is closed"
        noted.append(client)
        close(client)

    monkeypatch.setattr(CommitClient, "close", note)
    return noted


def test_only_the_clients_that_were_used_last_are_kept(closed: list[CommitClient]) -> None:
    # A delegation token that is renewed is another configuration.
    made: list[CommitClient] = []
    with commit_client(CONFIG, "in use") as in_use:
        for number in range(12):
            with commit_client(CONFIG, f"log{number}") as client:
                made.append(client)
            with commit_client(CONFIG, "log0") as first:
                assert first is made[0], "the one that is used again and again is kept"
        assert closed == made[1:5]
        assert in_use not in closed
    close_all()
    assert set(closed) == {*made, in_use}


def test_of_clients_that_are_lent_at_once_one_is_kept(closed: list[CommitClient]) -> None:
    with commit_client(CONFIG, "log") as outer, commit_client(CONFIG, "log") as inner:
        assert inner is not outer
    assert closed == [outer]
    with commit_client(CONFIG, "log") as again:
        assert again is inner
    close_all()
    assert closed == [outer, inner]


def test_a_client_is_of_those_whose_tickets_the_cache_has(
    closed: list[CommitClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {}
    for principal in ("alice@LAB", "bob@LAB"):
        monkeypatch.setattr(commit_clients, "login_identity", lambda _, name=principal: name)
        with commit_client(CONFIG, "log") as client:
            made[principal] = client
        with commit_client(CONFIG, "log") as again:
            assert again is client
    assert made["alice@LAB"] is not made["bob@LAB"]
    close_all()
    assert {*closed} == {*made.values()}


# Python 3.12 and newer: what comes of it is what this test is about.
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_no_client_of_its_parent(closed: list[CommitClient]) -> None:
    with commit_client(CONFIG, "log") as parents:
        pass

    def look() -> None:
        with commit_client(CONFIG, "log") as client:
            assert client is not parents

    with taken(commit_clients._lock):  # as if another thread held it at the fork
        assert in_child({"look": look}) == {"look": "nothing"}
    with commit_client(CONFIG, "log") as again:
        assert again is parents, "the parent lost its own"
    close_all()
    assert closed == [parents]
