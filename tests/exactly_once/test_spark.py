"""Both modes in Spark's own processes: the jobs and streams of one application are the cases."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import NamedTuple

import pytest
from support.brokers.kafka_cluster import KafkaCluster
from support.spark import exactly_once_cases, holding_commits

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.exactly_once]

_LEVELS = pytest.mark.parametrize("level", ["level 2", "level 1"])


class Application(NamedTuple):
    """What an application came to: rows and errors by cluster and case, and its stderr."""

    mode: str
    found: dict[str, dict[str, list[object]]]
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
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return Application(mode, json.loads(done.stdout.splitlines()[-1]), done.stderr)


@pytest.fixture(scope="module", params=["single", "two-phase"])
def application(
    request: pytest.FixtureRequest,
    kafka: KafkaCluster,
    old_kafka: KafkaCluster,
    tmp_path_factory: pytest.TempPathFactory,
) -> Application:
    """The application of a mode, which has run on both clusters."""
    folder = str(tmp_path_factory.mktemp(request.param))
    clusters = {"level 2": kafka.bootstrap, "level 1": old_kafka.bootstrap}
    return run(request.param, folder, **clusters)


@_LEVELS
def test_jobs_write_each_version_once(application: Application, level: str) -> None:
    found = application.found[level]
    jobs = {name: found[name][0] for name in list(found)[:9]}
    assert jobs == {
        "200 rows of 8 tasks": 200,
        "again": 200,
        "one task": 201,
        "some empty tasks": 203,
        "no rows": 203,
        "rows for the version without rows": 203,
        "a task fails": 203,
        "and the job runs again": 403,
        "an attempt fails": 603,
    }, found
    failed = {name: found[name][1] for name in jobs if found[name][1] is not None}
    assert set(failed) == {"a task fails"}, failed
    for line in (
        "skipped: version 1 of application cases was written",
        "skipped: version 3 of application cases was written",
        "nothing of it is visible",
        f"committed version 4 of application cases, exactlyOnce={application.mode}",
    ):
        assert line in application.said


@pytest.mark.parametrize("application", ["single"], indirect=True)
@_LEVELS
def test_a_layout_that_was_undone_fails_the_job_and_nothing_is_visible(
    application: Application, level: str
) -> None:
    found = application.found[level]
    for case in ("a union", "another layout"):
        rows, error = found[case]
        assert rows == 603, found
        assert "lay the rows out by atomic_layout" in str(error) or "another attempt" in str(error)


@_LEVELS
def test_a_stream_writes_each_micro_batch_once_also_if_it_is_stopped(
    application: Application, level: str
) -> None:
    found = application.found[level]
    assert {name: found[name] for name in found if name in STREAM} == STREAM, found
    assert "skipped: micro-batch 1 of query" in application.said


# A deleted checkpoint begins another query, which has written nothing.
STREAM: dict[str, list[object]] = {
    "two micro-batches": [20, None],
    "the last one again": [20, None],
    "another one": [30, None],
    "it is stopped in a task": [30, None],
    "and starts again": [40, None],
    "it is stopped in its commit": [50, None],
    "and starts again after its commit": [50, None],
    "its checkpoint is deleted": [100, None],
}


@_LEVELS
def test_a_function_writes_each_micro_batch_once_to_each_of_its_topics(
    application: Application, level: str
) -> None:
    found = application.found[level]
    written = {name: rows for name, rows in found.items() if name in FUNCTIONS}
    assert {name: rows[:2] for name, rows in written.items()} == FUNCTIONS, found
    errors = {name: rows[2] for name, rows in written.items() if rows[2] is not None}
    assert list(errors) == ["one application and one topic twice"], errors
    assert "two saves of one micro-batch need different topics" in str(errors)


FUNCTIONS = {
    "by a function": [50, 0],
    "the last one by it again": [50, 0],
    "one application and two topics": [100, 50],
    "the last one of both again": [100, 50],
    "one application and one topic twice": [110, 50],
    "by both options": [160, 50],
    "the last one by both options again": [160, 50],
}
