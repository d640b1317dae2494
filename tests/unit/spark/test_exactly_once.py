"""The options of exactly once, and what a task knows of its micro-batch."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from spark_kafka_sink.commit.attempts import Plan, Run
from spark_kafka_sink.commit.log_record import CommitRecord, RecordState, StreamMark
from spark_kafka_sink.commit.names import checked_owner
from spark_kafka_sink.errors import ConfigException, KafkaException
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.spark import kept_plans
from spark_kafka_sink.spark.driver.hooks.session_settings import (
    options_of_session,
    refuse_speculation,
)
from spark_kafka_sink.spark.exactly_once import (
    APPLICATION_OPTION,
    CHECKPOINT_OPTION,
    ExactlyOnce,
    Mode,
)
from spark_kafka_sink.spark.layout_mark import as_metadata
from spark_kafka_sink.spark.micro_batch import (
    BATCH_ID,
    DESCRIPTION,
    JOB_GROUP,
    QUERY_ID,
    MicroBatch,
    batch_id_option,
    micro_batch_in,
    micro_batch_of,
    query_option,
)
from spark_kafka_sink.spark.options import SinkOptions, sink_options
from spark_kafka_sink.spark.planning.datasource import (
    check_options_and_columns,
    check_options_and_columns_of_stream,
)
from spark_kafka_sink.spark.planning.single_checks import check_layout
from spark_kafka_sink.spark.replays import is_written

RUN_ID = "0b8d9a1e-1d58-4b5b-9d3d-1f9a5a3f7c11"


def options(**given: str) -> SinkOptions:
    """Return checked options."""
    return sink_options({"kafka.bootstrap.servers": "b:1", "topic": "t", **given})


def selected(**given: str) -> ExactlyOnce:
    """Return the checked options of exactly once."""
    found = options(**given).exactly_once
    assert found is not None
    return found


def test_without_it_nothing_changes() -> None:
    assert options().exactly_once is None
    off = options(exactlyOnce="false", txnAppId="a")
    assert off.exactly_once is None
    assert off.producer.transaction_timeout_ms == 60_000


def test_the_values_and_their_defaults() -> None:
    assert selected(exactlyOnce="true").mode is Mode.TWO_PHASE
    found = selected(exactlyOnce=" Single ", txnAppId="a/b", txnVersion=" 7 ")
    assert found == ExactlyOnce(Mode.SINGLE, app_id="a/b", version=7)
    assert found.owner("t").driver_id == "pykafka/a%2Fb/t"
    assert found.owner(None).driver_id == "pykafka/a%2Fb/*"
    assert options(exactlyOnce="single").producer.transaction_timeout_ms == 900_000
    given = {"kafka.transaction.timeout.ms": "1000"}
    assert options(exactlyOnce="single", **given).producer.transaction_timeout_ms == 1000
    named = selected(exactlyOnce="single", txnIdPrefix="team", commitLogTopic="log")
    assert (named.id_prefix, named.log_topic) == ("team", "log")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"exactlyOnce": "maybe"}, "exactlyOnce is 'maybe': expected one of false, true, two-ph"),
        ({"txnAppId": "a"}, "txnAppId has no effect without exactlyOnce"),
        ({"txnVersion": "-1"}, "txnVersion is '-1': expected a number from 0"),
        ({"txnVersion": "9223372036854775808"}, "expected a number from 0 to 9223372036854775807"),
        ({"txnIdPrefix": "a/b"}, "txnIdPrefix is 'a/b'"),
        ({"txnAppId": ""}, "txnAppId has 0 bytes"),
        (
            {"txnAppId": "flights\n"},
            r"txnAppId is 'flights\\n': expected no white space at its",
        ),
        ({"commitLogTopic": "no topic"}, "commitLogTopic is 'no topic': expected a topic name"),
        (
            {"commitLogTopic": "__transaction_state"},
            "commitLogTopic is '__transaction_state', which is internal to Kafka: expected a topic",
        ),
        ({"kafka.acks": "1", "kafka.enable.idempotence": "false"}, r"with kafka\.acks=1: set it"),
        ({"kafka.enable.idempotence": "false"}, r"with kafka\.enable\.idempotence=false"),
        (
            {"onError": "deadLetter", "deadLetterTopic": "letters"},
            "deadLetterTopic=letters, which every task would write to",
        ),
        (
            {"asyncProgressTrackingEnabled": "true"},
            "asyncProgressTrackingEnabled cannot be combined",
        ),
        ({"topic": "__pykafka_commits"}, "with topic=__pykafka_commits, the topic of the commit"),
        (
            {"onError": "deadLetter", "deadLetterTopic": "log", "commitLogTopic": "log"},
            "with deadLetterTopic=log, the topic of the commit log",
        ),
    ],
)
def test_what_is_wrong_is_refused(given: dict[str, str], sentence: str) -> None:
    mode = {} if given == {"txnAppId": "a"} else {"exactlyOnce": "single"}
    with pytest.raises(ConfigException, match=sentence):
        options(**{**mode, **given})


def test_a_batch_names_its_application_and_its_version() -> None:
    selected(exactlyOnce="single", txnAppId="a", txnVersion="1").of_batch(None, None)
    for given, missing in (
        ({"txnAppId": "a"}, "no txnVersion"),
        ({"txnVersion": "1"}, "no txnAppId"),
        ({}, "no txnAppId and no txnVersion"),
    ):
        with pytest.raises(ConfigException, match=f"found {missing}:"):
            selected(exactlyOnce="single", **given).of_batch(None, None)


def test_a_micro_batch_is_named_by_its_query_or_by_its_number() -> None:
    plain = selected(exactlyOnce="single")
    assert plain.of_batch(7, "query") == ExactlyOnce(Mode.SINGLE, app_id="query")
    named = selected(exactlyOnce="single", txnAppId="a")
    assert named.of_batch(7, "query") == ExactlyOnce(Mode.SINGLE, app_id="a")
    assert named.of_batch(7, None) == ExactlyOnce(Mode.SINGLE, app_id="a", version=7)
    with pytest.raises(ConfigException, match="needs the option txnAppId: with Spark"):
        plain.of_batch(7, None)
    versioned = selected(exactlyOnce="single", txnAppId="a", txnVersion="1")
    with pytest.raises(ConfigException, match="txnVersion does not go with write_batch"):
        versioned.of_batch(7, "query")


def test_a_stream_is_named_by_its_checkpoint_if_by_nothing_else() -> None:
    plain = selected(exactlyOnce="single")
    by_path = plain.of_stream("file:///checkpoints//a/").app_id
    assert by_path == plain.of_stream("/checkpoints/a").app_id
    assert by_path != plain.of_stream("/checkpoints/b").app_id
    assert selected(exactlyOnce="single", txnAppId="a").of_stream("/c").app_id == "a"


def test_a_stream_is_checked_as_a_stream_before_it_starts() -> None:
    counts = {"t": 4}
    schema = StructType(
        [
            StructField("value", StringType()),
            StructField("partition", IntegerType(), metadata=as_metadata(counts)),
        ]
    )
    given = {"kafka.bootstrap.servers": "b:1", "topic": "t", "exactlyOnce": "single"}
    check_options_and_columns_of_stream(schema, given | {"checkpointLocation": "/c"})
    with pytest.raises(ConfigException, match="set the option txnAppId, or check") as refused:
        check_options_and_columns_of_stream(schema, given)
    hint = "Spark Connect may hide the session's setting because of spark.redaction.regex"
    assert hint in str(refused.value)
    with pytest.raises(ConfigException, match="found no txnAppId and no txnVersion"):
        check_options_and_columns(schema, given | {"checkpointLocation": "/c"})


def test_rows_that_were_not_laid_out_are_refused() -> None:
    unmarked: tuple[dict[str, int] | None, ...] = (None, {})
    for laid_out in unmarked:
        with pytest.raises(ConfigException, match="call atomic_layout"):
            check_layout(options(exactlyOnce="single"), laid_out)
    check_layout(options(exactlyOnce="single"), {"t": 1})
    check_layout(options(exactlyOnce="two-phase"), None)
    check_layout(options(), None)


def test_a_layout_without_rows_names_no_topic_and_is_not_refused() -> None:
    schema = StructType(
        [
            StructField("value", StringType()),
            StructField("topic", StringType()),
            StructField("partition", IntegerType(), metadata=as_metadata({})),
        ]
    )
    given = {"kafka.bootstrap.servers": "b:1", "exactlyOnce": "single"}
    check_options_and_columns(schema, given | {"txnAppId": "a", "txnVersion": "1"})
    with pytest.raises(ConfigException, match="call atomic_layout"):
        check_options_and_columns(StructType(schema.fields[:2]), given)


def test_a_micro_batch_is_known_by_the_local_properties() -> None:
    properties = {
        QUERY_ID: "q",
        BATCH_ID: "7",
        DESCRIPTION: f"name<br/>id = q<br/>runId = {RUN_ID}<br/>batch = 7",
    }
    assert micro_batch_of(properties.get) == MicroBatch("q", 7, RUN_ID, "name")
    in_lines = {**properties, DESCRIPTION: f"name\nid = q\nrunId = {RUN_ID}\nbatch = 7"}
    assert micro_batch_of(in_lines.get) == MicroBatch("q", 7, RUN_ID, "name")
    for nameless in ("", "\n"):
        described = f"{nameless}id = q\nrunId = {RUN_ID}\nbatch = 7"
        assert micro_batch_of({**properties, DESCRIPTION: described}.get) == MicroBatch(
            "q", 7, RUN_ID
        )
    unnamed = {**properties, DESCRIPTION: f"id = q<br/>runId = {RUN_ID}<br/>batch = 7"}
    assert micro_batch_of(unnamed.get) == MicroBatch("q", 7, RUN_ID)
    assert micro_batch_of({**properties, DESCRIPTION: "mine"}.get) == MicroBatch("q", 7, "")
    # The function of foreachBatch may describe its jobs itself, and name a group of its own.
    mine = {**properties, DESCRIPTION: "mine", JOB_GROUP: RUN_ID}
    assert micro_batch_of(mine.get) == MicroBatch("q", 7, RUN_ID)
    assert micro_batch_of({**mine, JOB_GROUP: "mine"}.get) == MicroBatch("q", 7, "")
    other = "00000000-0000-0000-0000-000000000000"
    assert micro_batch_of(mine.get, {"q": RUN_ID}.get) == MicroBatch("q", 7, RUN_ID)
    assert micro_batch_of(mine.get, {"q": other}.get) == MicroBatch("q", 7, "")
    assert micro_batch_of(mine.get, {"another": other}.get) == MicroBatch("q", 7, RUN_ID)
    assert micro_batch_of({**properties, JOB_GROUP: other}.get) == MicroBatch(
        "q", 7, RUN_ID, "name"
    )
    nothing: dict[str, str] = {}
    assert micro_batch_of(nothing.get) is None


@pytest.mark.parametrize("is_retry", [False, True])
@pytest.mark.parametrize("run_id", [RUN_ID, ""])
def test_a_micro_batch_is_handed_on_by_options(run_id: str, *, is_retry: bool) -> None:
    micro_batch = MicroBatch("q", 7, run_id, "a name", is_retry)
    given = {**batch_id_option(7), **query_option(micro_batch)}
    assert micro_batch_in(given) == micro_batch
    assert micro_batch_in(batch_id_option(7)) is None
    assert micro_batch_in(query_option(micro_batch)) is None


def session_with(settings: Mapping[str, str]) -> SparkSession:
    """Return what stands for a session with settings."""
    return cast("SparkSession", SimpleNamespace(conf=SimpleNamespace(get=settings.get)))


CHECKPOINTS = {"spark.sql.streaming.checkpointLocation": "/checkpoints/", "spark.app.name": "app"}
NAMED = {APPLICATION_OPTION: "app"}
FOUND = NAMED | {CHECKPOINT_OPTION: "/checkpoints/query"}


@pytest.mark.parametrize(
    ("options", "query_name", "found"),
    [
        ({}, "query", {}),
        ({"exactlyonce": "false"}, "query", {}),
        ({"exactlyonce": "true"}, None, NAMED),
        ({"exactlyonce": "true"}, "query", FOUND),
        ({"exactlyonce": "true", "queryname": "query"}, None, FOUND),
        ({"exactlyonce": "true", "queryname": "query"}, "query", FOUND),
        ({"exactlyonce": "true", "queryname": "other"}, "query", NAMED),
        ({"exactlyonce": "true"}, "a/query", NAMED),
        ({"exactlyonce": "true", "checkpointlocation": "/c"}, "query", NAMED),
    ],
)
def test_the_checkpoint_of_the_session_is_handed_on_where_spark_would_use_it_again(
    options: dict[str, str], query_name: str | None, found: dict[str, str]
) -> None:
    session = session_with(CHECKPOINTS)
    given = options_of_session(session, options, is_stream=True, query_name=query_name)
    assert given == found
    assert CHECKPOINT_OPTION not in options_of_session(session, options, is_stream=False)


def test_a_write_works_if_the_platform_refuses_to_read_settings() -> None:
    def refuse(name: str, _default: str) -> str:
        message = f"[CONFIG_NOT_AVAILABLE] Configuration {name} is not available."
        raise PySparkException(message)

    session = cast("SparkSession", SimpleNamespace(conf=SimpleNamespace(get=refuse)))
    given = {"exactlyonce": "single"}
    assert options_of_session(session, given, is_stream=True, query_name="query") == {}
    refuse_speculation(session, given)


def test_speculative_copies_do_not_go_with_mode_single() -> None:
    speculating, calm = session_with({"spark.speculation": "true"}), session_with({})
    with pytest.raises(ConfigException, match=r"does not go with spark\.speculation=true"):
        refuse_speculation(speculating, {"exactlyonce": " Single"})
    refuse_speculation(calm, {"exactlyonce": "single"})
    refuse_speculation(speculating, {"exactlyonce": "two-phase"})
    refuse_speculation(speculating, {})


def test_the_name_of_the_application_is_for_operators_alone() -> None:
    named = selected(exactlyOnce="single", **NAMED).of_stream("/c")
    assert (named.application, named.checkpoint) == ("app", "/c")
    assert named.owner("t") == selected(exactlyOnce="single").of_stream("/c").owner("t")


def plan_after(*marks: StreamMark) -> Plan:
    """Return a plan of an owner that has written micro-batches."""
    owner = checked_owner("p", "app", "t")
    run = Run(owner, "run", TopicPartition("log", 0), level=2, timeout_ms=1000)
    record = CommitRecord(RecordState.DONE, "before", rows=3, written_at=0, streams=marks)
    return Plan(run, ProducerIdAndEpoch(1, 0), record if marks else None)


def test_a_task_knows_whether_its_micro_batch_was_written() -> None:
    plan = plan_after(StreamMark("q", 7, 3, "first"))
    assert is_written(plan, MicroBatch("q", 7, "second"))
    assert not is_written(plan, MicroBatch("q", 8, "second"))
    assert not is_written(plan, MicroBatch("other", 0, "second"))
    assert not is_written(plan_after(), MicroBatch("q", 7, "second"))
    with pytest.raises(KafkaException, match="two saves of one micro-batch need different topics"):
        is_written(plan, MicroBatch("q", 7, "first"))
    # A save that has failed may have been committed.
    assert is_written(plan, MicroBatch("q", 7, "first", is_retry=True))
    assert not is_written(plan, MicroBatch("q", 8, "first", is_retry=True))
    with pytest.raises(KafkaException, match="micro-batch 6 of query q is older than micro-b"):
        is_written(plan, MicroBatch("q", 6, "second"))


def test_a_plan_is_kept_for_its_owner_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_plans, "driver_folder", lambda: tmp_path)
    plan = plan_after()
    assert kept_plans.kept_plan(plan.run.owner) is None
    kept_plans.keep_plan(plan)
    assert kept_plans.kept_plan(plan.run.owner) == plan
    assert kept_plans.kept_plan(checked_owner("p", "app", "other")) is None
    (file,) = tmp_path.iterdir()
    file.write_bytes(b"half")
    assert kept_plans.kept_plan(plan.run.owner) is None
    monkeypatch.setattr(kept_plans, "driver_folder", lambda: None)
    kept_plans.keep_plan(plan)
    assert kept_plans.kept_plan(plan.run.owner) is None


def test_a_full_disk_keeps_no_plan_of_an_older_micro_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_plans, "driver_folder", lambda: tmp_path)
    older = plan_after()
    kept_plans.keep_plan(older)

    def full(_: Path, __: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    kept_plans.keep_plan(replace(older, run=replace(older.run, name="newer")))
    assert kept_plans.kept_plan(older.run.owner) is None
