"""Both modes in Spark's own processes: the jobs and streams of one application are the cases."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from typing import NamedTuple

import pytest
from support.brokers.kafka_cluster import KafkaCluster
from support.spark import exactly_once_cases, holding_commits

from exactly_once.moments import IS_ALL, SPARK_LEVELS

# The application of a mode runs its cases on two clusters: on a machine that does something else,
# too, it takes longer than other tests.
_LIMIT_S = 900
pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.exactly_once,
    pytest.mark.timeout(_LIMIT_S),
]

_LEVELS = pytest.mark.parametrize("level", ["level 2", "level 1"])


class Result(NamedTuple):
    """What a case came to: how often readers see each value of each topic, and the error."""

    values: tuple[Counter[str], ...]
    error: str | None


class Application(NamedTuple):
    """What an application came to: a result by cluster and case, and its stderr."""

    mode: str
    found: dict[str, dict[str, Result]]
    said: str


def run(mode: str, folder: str, **clusters: str) -> Application:
    """Run the application of a mode."""
    paths = [str(holding_commits.__path__[0]), *sys.path]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    named = [word for name, bootstrap in clusters.items() for word in (name, bootstrap)]
    done = subprocess.run(
        [sys.executable, str(exactly_once_cases.__file__), mode, folder, *named],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=_LIMIT_S - 60,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    found = {
        cluster: {
            case: Result(tuple(map(Counter, values)), error)
            for case, (*values, error) in cases.items()
        }
        for cluster, cases in json.loads(done.stdout.splitlines()[-1]).items()
    }
    return Application(mode, found, done.stderr)


@pytest.fixture(scope="module", params=["single", "two-phase"])
def application(
    request: pytest.FixtureRequest,
    kafka: KafkaCluster,
    old_kafka: KafkaCluster,
    tmp_path_factory: pytest.TempPathFactory,
) -> Application:
    """The application of a mode, which has run on the clusters whose tests are not left out."""
    folder = str(tmp_path_factory.mktemp(request.param))
    clusters = {"level 2": kafka.bootstrap, "level 1": old_kafka.bootstrap}
    if not IS_ALL:
        clusters = {level: clusters[level] for level in (SPARK_LEVELS[request.param],)}
    return run(request.param, folder, **clusters)


def lines(*files: int) -> Counter[str]:
    """Return the values of files."""
    return Counter(f"{file}.{line}" for file in files for line in range(10))


# What readers see after each case of a job.
_ROWS = Counter(map(str, range(200)))
_ONE_TASK = _ROWS + Counter(["0"])
_SOME_TASKS = _ONE_TASK + Counter(["1", "2"])
JOBS = {
    "200 rows of 8 tasks": _ROWS,
    "again": _ROWS,
    "one task": _ONE_TASK,
    "some empty tasks": _SOME_TASKS,
    "no rows": _SOME_TASKS,
    "rows for the version without rows": _SOME_TASKS,
    "a task fails": _SOME_TASKS,
    "and the job runs again": _SOME_TASKS + _ROWS,
    "an attempt fails": _SOME_TASKS + _ROWS + _ROWS,
}


@_LEVELS
def test_jobs_write_each_version_once(application: Application, level: str) -> None:
    found = application.found[level]
    jobs = {name: found[name].values[0] for name in JOBS}
    assert jobs == JOBS
    failed = {name for name in jobs if found[name].error is not None}
    assert failed == {"a task fails"}, failed
    for line in (
        "skipped: version 1 of txnAppId 'cases' was written",
        "skipped: version 3 of txnAppId 'cases' was written",
        "no row is visible",
        f"committed version 4 of txnAppId 'cases', exactlyOnce={application.mode}",
    ):
        assert line in application.said


@pytest.mark.parametrize("application", ["single"], indirect=True)
@_LEVELS
def test_a_layout_that_was_undone_fails_the_job_and_nothing_is_visible(
    application: Application, level: str
) -> None:
    for case in ("a union", "another layout"):
        (values,), error = application.found[level][case]
        assert values == JOBS["an attempt fails"]
        assert "call atomic_layout on the rows" in str(error) or "another attempt" in str(error)


# A deleted checkpoint begins another query, which has written nothing.
STREAM = {
    "two micro-batches": lines(1, 2),
    "the last one again": lines(1, 2),
    "another one": lines(1, 2, 3),
    "it is stopped in a task": lines(1, 2, 3),
    "and starts again": lines(1, 2, 3, 4),
    "it is stopped in its commit": lines(1, 2, 3, 4, 5),
    "and starts again after its commit": lines(1, 2, 3, 4, 5),
    "its checkpoint is deleted": lines(1, 2, 3, 4, 5) + lines(1, 2, 3, 4, 5),
}


@_LEVELS
def test_a_stream_writes_each_micro_batch_once_also_if_it_is_stopped(
    application: Application, level: str
) -> None:
    found = application.found[level]
    assert {name: found[name] for name in STREAM} == {
        name: Result((values,), None) for name, values in STREAM.items()
    }
    assert "skipped: micro-batch 1 of query" in application.said
    # At each level, its checkpoint is deleted.
    assert application.said.count("is written as a new stream of") >= len(application.found)


_FILES = lines(1, 2, 3, 4, 5)
_NOTHING: Counter[str] = Counter()
# The rows whose topic column names the first topic.
_FIRST = Counter(value for value in _FILES if value.endswith(".0"))
_ALL_THREE = (_FILES + _FILES + _FIRST, _FILES + _FILES - _FIRST)
FUNCTIONS = {
    "by a function": (_FILES, _NOTHING),
    "the last one by it again": (_FILES, _NOTHING),
    "one application, two topics and a topic column": _ALL_THREE,
    "the last one of all three again": _ALL_THREE,
}
TWICE = "one application and one topic twice"
BY_BOTH_OPTIONS = ("by both options", "the last one by both options again")
BY_BOTH_TWICE = "by both options twice, with another checkpoint"


@_LEVELS
def test_a_function_writes_each_micro_batch_once_to_each_of_its_topics(
    application: Application, level: str
) -> None:
    found = application.found[level]
    assert {name: found[name] for name in FUNCTIONS} == {
        name: Result(values, None) for name, values in FUNCTIONS.items()
    }
    (before, others), after = _ALL_THREE, found[TWICE].values[0]
    # Spark takes the files in the order of their times, which may be the same.
    assert before <= after
    assert after - before in [lines(file) for file in (1, 2, 3, 4, 5)]
    assert found[TWICE].values[1] == others
    assert "two saves of one micro-batch need different topics" in str(found[TWICE].error)
    for name in BY_BOTH_OPTIONS:
        assert found[name] == Result((after + _FILES, others), None)


@_LEVELS
def test_save_in_a_function_refuses_a_second_save_and_writes_a_new_query_s_micro_batch(
    application: Application, level: str
) -> None:
    found = application.found[level]
    before, after = (found[name].values for name in (BY_BOTH_OPTIONS[-1], BY_BOTH_TWICE))
    # Micro-batch 0 is the first of another query, and not the one that was written before.
    assert after[0] - before[0] in [lines(file) for file in (1, 2, 3, 4, 5)]
    assert (before[0] <= after[0], before[1]) == (True, after[1])
    error = str(found[BY_BOTH_TWICE].error)
    assert (
        "save(): this process has already saved micro-batch 0 with txnAppId 'by version'" in error
    )
    assert "two saves of one micro-batch need different topics" in error
