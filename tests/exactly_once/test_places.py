"""Both modes where Spark runs tasks again: executors and workers die, copies run, stages repeat."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import NewTopic
from support.brokers.kafka_cluster import KafkaCluster
from support.spark import dying_tasks, dying_tasks_path
from support.spark.spark_processes import environment, standalone_cluster, without_work_left
from support.spark.unlucky import Outcome, run_unlucky_job
from support.spark.unlucky_job import AT_POINT, BEGINS, TASKS

from exactly_once.transactions import open_transactions, wait_for_end
from spark_kafka_sink.commit_client import CommitClient

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.exactly_once,
    pytest.mark.long(reason="executors die and are replaced; it is Spark that runs tasks again"),
]

CASES = ("exception", "workers", "executor", "stage", *AT_POINT)
# In these cases, the first attempt has sent nothing.
SENT_NOTHING = {case for case, (_, point) in AT_POINT.items() if point == BEGINS}
CONF = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.executor.memory": "900m",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
}
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.task.maxFailures": "1",
}


def run(
    conf: dict[str, str], topics: dict[str, str], cluster: KafkaCluster, options: dict[str, str],
    new_topic: NewTopic, folder: Path,
) -> dict[str, Outcome]:  # fmt: skip
    """Run cases of the unlucky job, each with its topic, and check that no row is there twice."""
    env = environment(sys.executable)
    paths = [dying_tasks_path.__path__[0], *sys.path]
    env["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    env[dying_tasks.VARIABLE] = str(folder)
    log = new_topic(1, {"cleanup.policy": "compact"})
    given = {**options, "commitLogTopic": log, "kafka.transaction.timeout.ms": "120000"}
    with without_work_left():
        outcomes = run_unlucky_job(conf, cluster.bootstrap, topics, folder, env, given)
    assert {case: each.duplicates for case, each in outcomes.items()} == dict.fromkeys(topics, 0)
    return outcomes


def test_a_task_that_runs_again_writes_each_row_once(
    cluster: KafkaCluster, mode: str, new_topic: NewTopic, client: CommitClient, tmp_path: Path
) -> None:
    conf = {**CONF, "spark.master": "local-cluster[2,1,1024]"}
    options = {"exactlyOnce": mode}
    if mode == "single":
        # So that rows are sent before the input has ended.
        options["kafka.buffer.memory"] = str(4 << 20)
    topics = {case: new_topic(TASKS) for case in CASES}
    outcomes = run(conf, topics, cluster, options, new_topic, tmp_path)
    for topic in topics.values():
        assert open_transactions(client, topic) == []
    again = {
        case
        for case, each in outcomes.items()
        if any(mark.endswith("-1") for mark in each.attempts)
    }
    assert again >= SENT_NOTHING, outcomes
    if mode == "single":
        # An attempt whose rows are in the job's transaction cannot be undone alone.
        said = "another attempt of this task has written to"
        conflicts = {case for case, each in outcomes.items() if said in each.failed}
        assert conflicts == set(CASES) - SENT_NOTHING, outcomes
        assert {outcomes[case].failed for case in SENT_NOTHING} == {""}, outcomes
        return
    assert [case for case, each in outcomes.items() if each.failed] == [], outcomes
    assert again >= set(CASES) - {"stage"}, outcomes
    assert outcomes["stage"].stages >= 2, outcomes


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A standalone cluster of two workers."""
    with standalone_cluster(tmp_path_factory.mktemp("standalone"), Path(sys.executable)) as found:
        yield found


def test_of_a_task_and_its_copy_one_counts(
    master: str, cluster: KafkaCluster, new_topic: NewTopic, client: CommitClient, tmp_path: Path
) -> None:
    conf = {**CONF, **SPECULATION, "spark.master": master}
    options = {"exactlyOnce": "two-phase"}
    topic = new_topic(TASKS)
    (outcome,) = run(conf, {"slow": topic}, cluster, options, new_topic, tmp_path).values()
    assert outcome.failed == ""
    copies = {mark for mark in outcome.attempts if not mark.endswith("-0")}
    assert len(copies) == 1, "no copy was made"
    (copy,) = copies
    task, _, _ = copy.partition("-")
    assert f"{task}-0" in outcome.attempts, "the task that is slow had written rows"
    owner = f"pykafka/slow/{topic}"
    ends = {slot: wait_for_end(client, f"{owner}/{task}.{slot}") for slot in (0, 1)}
    assert ends == {0: "CompleteAbort", 1: "CompleteCommit"}
    assert open_transactions(client, topic) == []
