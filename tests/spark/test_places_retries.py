"""Tasks that Spark runs again on local-cluster: every row is there at least once.

docs/explanation/guarantees.md describes each case for a reader of the topic; here the rows are
counted.
"""

from __future__ import annotations

import pytest
from conftest import topic_maker
from support.brokers.kafka_cluster import KafkaCluster
from support.spark.spark_processes import environment, without_work_left
from support.spark.unlucky import Outcome, run_unlucky_job
from support.spark.unlucky_job import ROWS, TASKS

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.long(reason="executors die and are replaced; it is Spark that runs tasks again"),
]

CASES = ("exception", "workers", "executor", "stage", "barrier")
CONF = {
    "spark.master": "local-cluster[2,1,1024]",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.executor.memory": "900m",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
}
TASK_ROWS = ROWS // TASKS


@pytest.fixture(scope="module")
def outcomes(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """The results of all cases, one after another in one application."""
    folder = tmp_path_factory.mktemp("retries")
    topics = {case: topic_maker(kafka)(TASKS) for case in CASES}
    with without_work_left():
        return run_unlucky_job(CONF, kafka.bootstrap, topics, folder, environment())


@pytest.mark.parametrize("case", ["exception", "workers", "executor"])
def test_a_task_that_runs_again_writes_its_rows_again(
    outcomes: dict[str, Outcome], case: str
) -> None:
    outcome = outcomes[case]
    (again,) = {mark for mark in outcome.attempts if not mark.endswith("-0")}
    assert again.endswith("-1")
    assert (outcome.stages, outcome.failed) == (1, "")
    assert 0 < outcome.duplicates <= TASK_ROWS


def test_a_stage_that_runs_again_writes_rows_of_its_tasks_again(
    outcomes: dict[str, Outcome],
) -> None:
    outcome = outcomes["stage"]
    assert outcome.stages > 1, "no stage was run again"
    assert outcome.failed == ""
    assert 0 < outcome.duplicates <= ROWS


def test_a_barrier_stage_is_not_run_again_and_the_job_fails(outcomes: dict[str, Outcome]) -> None:
    outcome = outcomes["barrier"]
    assert "Could not recover from a failed barrier ResultStage" in outcome.failed
    assert 0 < outcome.duplicates <= ROWS
