"""What the plan of exactly once says of the topic of its commit log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self

import pytest
from support.pure.planned_run import DECIDED, PLAN

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.admin import NewTopic, TopicDescription
from spark_kafka_sink.auth.acls import Acls
from spark_kafka_sink.commit.attempts import Plan
from spark_kafka_sink.commit.log_record import StreamMark
from spark_kafka_sink.errors import (
    ApiException,
    ConfigException,
    KafkaException,
    TimeoutException,
    UnsupportedVersionException,
    api_exception,
)
from spark_kafka_sink.logs import _warn
from spark_kafka_sink.model import Node
from spark_kafka_sink.spark.committing import single_commit
from spark_kafka_sink.spark.exactly_once import ExactlyOnce, Mode
from spark_kafka_sink.spark.micro_batch import MicroBatch
from spark_kafka_sink.spark.options import SinkOptions, sink_options
from spark_kafka_sink.spark.planning import datasource, run_plan
from spark_kafka_sink.spark.planning.check_cache import CheckCache
from spark_kafka_sink.spark.planning.run_plan import _check_compacted, _check_log


class Admin:
    """An admin client. answer: the settings of the log, or the error for them.

    refusals: the errors for the next requests to create the log. created: what was requested.
    """

    def __init__(
        self,
        answer: dict[str, str] | Exception,
        refusals: Sequence[ApiException] = (),
        brokers: int = 1,
        replication: int = 1,
    ) -> None:
        self.brokers = tuple(Node(id=number, host="b", port=1) for number in range(brokers))
        self._replication = replication
        self._answer = answer
        self._refusals = list(refusals)
        self.created: list[tuple[tuple[str, str], ...]] = []
        self.acls = Acls()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def topics(self, names: list[str], new: NewTopic) -> dict[str, TopicDescription]:
        """Create a topic, or raise the next refusal."""
        self.created.append(tuple(new.configs))
        if self._refusals:
            raise self._refusals.pop(0)
        return {name: TopicDescription(name, 1, self._replication, None) for name in names}

    def topic_configs(self, *_: object) -> dict[str, str]:
        """Return the answer, or raise it."""
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def check(answer: dict[str, str] | Exception) -> None:
    """Check a log with this answer."""
    admin: Any = Admin(answer)
    _check_compacted(admin, "log")


def test_a_log_that_would_forget_is_refused() -> None:
    check({"cleanup.policy": "compact"})
    with pytest.raises(ConfigException, match=r"has cleanup\.policy=delete: set it to compact"):
        check({"cleanup.policy": "delete"})


def test_a_log_whose_settings_cannot_be_read_is_used_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    _warn.cache_clear()
    check(api_exception(codes.TOPIC_AUTHORIZATION_FAILED, "grant DESCRIBE_CONFIGS"))
    (record,) = caplog.records
    said = record.getMessage()
    assert record.levelname == "WARNING"
    assert "if cleanup.policy of topic log is not compact, which could not be checked" in said
    assert said.endswith("grant DESCRIBE_CONFIGS")


def test_micro_batches_share_a_check_of_the_log_and_jobs_check_it_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked: list[str] = []

    def need_log(_: SinkOptions, log_topic: str) -> None:
        checked.append(log_topic)

    results: CheckCache[object, float] = CheckCache()
    monkeypatch.setattr(run_plan, "_need_log", need_log)
    monkeypatch.setattr(run_plan, "_found", results)
    options = sink_options({"kafka.bootstrap.servers": "b:1", "topic": "t"})
    logs = [f"log{number}" for number in range(150)]
    for log in logs:
        _check_log(options, ExactlyOnce(Mode.TWO_PHASE, log_topic=log, version=1))
    assert checked == logs
    assert len(results) == 0, "each job may have a delegation token of its own"
    for log in logs:
        of_stream = ExactlyOnce(Mode.TWO_PHASE, log_topic=log)
        _check_log(options, of_stream)
        _check_log(options, of_stream)
    assert checked == logs * 2
    assert len(results) == 100


OPTIONS = sink_options({"kafka.bootstrap.servers": "b:1", "topic": "t"})
COMPACT = ("cleanup.policy", "compact")


def need_log(
    monkeypatch: pytest.MonkeyPatch, *refusals: ApiException, brokers: int = 1, replication: int = 1
) -> Admin:
    """Plan with a log that is to be created; return the admin client."""
    admin = Admin({"cleanup.policy": "compact"}, refusals, brokers, replication)
    monkeypatch.setattr(run_plan, "KafkaAdmin", lambda *_, **__: admin)
    try:
        run_plan._need_log(OPTIONS, "log")
    finally:
        assert all(COMPACT in configs for configs in admin.created)
    return admin


@pytest.mark.parametrize("code", [codes.INVALID_CONFIG, codes.POLICY_VIOLATION])
def test_a_log_whose_settings_are_refused_is_created_without_them(
    code: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _warn.cache_clear()
    refusal = api_exception(code, "segment.bytes must be 52428800 or more")
    for _ in range(2):
        admin = need_log(monkeypatch, refusal, refusal)
        every, safe, plain = admin.created
        assert {name for name, _ in every} - {name for name, _ in safe} == {
            "max.message.bytes", "segment.bytes",
        }  # fmt: skip
        assert plain == (COMPACT,)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "topic log is created with cleanup.policy=compact alone" in record.getMessage()
    assert "segment.bytes must be 52428800 or more" in record.getMessage()


def test_a_log_whose_sizes_are_refused_keeps_the_settings_that_it_needs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _warn.cache_clear()
    admin = need_log(monkeypatch, api_exception(codes.POLICY_VIOLATION, "at most 8 MiB"))
    assert ("message.timestamp.type", "CreateTime") in admin.created[1]
    assert ("unclean.leader.election.enable", "false") in admin.created[1]
    (record,) = caplog.records
    assert "message.timestamp.type=CreateTime alone, because the brokers refuse" in (
        record.getMessage()
    )


@pytest.mark.parametrize(
    "refusals",
    [
        [(codes.TOPIC_AUTHORIZATION_FAILED, "not allowed")],
        # Some services forbid names that begin with two underscores.
        [(codes.INVALID_TOPIC_EXCEPTION, "the name is not allowed")],
        [(codes.POLICY_VIOLATION, "no")] * 2 + [(codes.POLICY_VIOLATION, "not allowed")],
    ],
)
def test_a_log_that_cannot_be_created_is_an_error_with_the_command_and_the_option(
    refusals: list[tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = [api_exception(code, said) for code, said in refusals]
    with pytest.raises(ApiException, match=r"option commitLogTopic=log: .*not allowed") as failed:
        need_log(monkeypatch, *errors)
    assert failed.value.code == refusals[-1][0]
    command = "kafka-topics.sh --create --topic log --partitions 1 --replication-factor"
    assert f"{command} 1 --config cleanup.policy=compact, or " in str(failed.value)
    assert "--config cleanup.policy=compact, or set commitLogTopic to" in str(failed.value)


def test_a_cluster_that_does_not_answer_is_no_reason_to_create_a_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(TimeoutException, match=r"^nobody answers$"):
        need_log(monkeypatch, TimeoutException("nobody answers"))


@pytest.mark.parametrize(
    ("brokers", "replication", "is_warned"), [(3, 1, True), (3, 2, False), (2, 1, False)]
)
def test_a_log_of_one_replica_is_warned_of_on_a_cluster_that_could_have_more(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    brokers: int,
    replication: int,
    *,
    is_warned: bool,
) -> None:
    _warn.cache_clear()
    need_log(monkeypatch, brokers=brokers, replication=replication)
    assert [record.getMessage() for record in caplog.records] == is_warned * [
        "commit log: topic log has one replica, so the log is lost with one broker, although the "
        "cluster has 3: give the topic 3 replicas by kafka-reassign-partitions.sh, because without "
        "the log, versions are written again"
    ]


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize(
    ("batch_id", "said"), [(4, "older than micro-batch 5"), (5, "has already written")]
)
def test_a_save_that_is_refused_after_its_plan_leaves_no_transaction_open(
    monkeypatch: pytest.MonkeyPatch, batch_id: int, said: str, level: int
) -> None:
    record = DECIDED.done().after_batch(StreamMark("q", 5, 1, "r"))
    planned = replace(PLAN, run=replace(PLAN.run, level=level), record=record)
    ended: list[Plan] = []
    monkeypatch.setattr(run_plan, "plan_micro_batch", lambda _: planned)
    monkeypatch.setattr(single_commit, "end_unused", lambda _, plan: ended.append(plan))
    given = sink_options({"kafka.bootstrap.servers": "b:1", "topic": "t"})
    options = replace(given, exactly_once=ExactlyOnce(Mode.SINGLE))
    with pytest.raises(KafkaException, match=said):
        datasource._planned_save(options, MicroBatch("q", batch_id, "r"))
    # At level 2, a transaction begins with its first row.
    assert ended == ([planned] if level == 1 else [])


def test_brokers_that_are_too_old_get_no_commit_log(monkeypatch: pytest.MonkeyPatch) -> None:
    class TooOld:
        def now(self) -> float:
            return 0.0

        def check_brokers(self, _: float) -> None:
            raise api_exception(codes.UNSUPPORTED_VERSION, "exactlyOnce needs EndTxn")

    @contextmanager
    def lent(*_: object) -> Iterator[TooOld]:
        yield TooOld()

    admin: Any = Admin({})
    monkeypatch.setattr(run_plan, "commit_client", lent)
    monkeypatch.setattr(run_plan, "KafkaAdmin", lambda *_, **__: admin)
    with pytest.raises(UnsupportedVersionException, match="needs EndTxn"):
        run_plan.plan_run(OPTIONS, ExactlyOnce(Mode.TWO_PHASE, log_topic="log", version=1))
    assert admin.created == []
