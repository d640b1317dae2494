"""Applications of Spark that are killed at random moments, and run again until they end."""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

import pytest
from conftest import NewTopic
from support.brokers import processes
from support.brokers.kafka_cluster import KafkaCluster
from support.oracles.readers import committed_values
from support.pure.broker_replies import replies_to
from support.spark import killed_application
from support.spark.killed_application import BEGIN, DONE, STREAM

from spark_kafka_sink.commit.questions import Listed, ListTransactions
from spark_kafka_sink.commit_client import CommitClient
from spark_kafka_sink.config import producer_config

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.exactly_once]

_MARK = "PYKAFKA_TEST_APPLICATION"
# After so many kills, an application runs to its end.
_MOST_KILLS = int(os.environ.get("KILLS", "8"))
# How long after the begin of a step an application is killed, at most. A job takes less than a
# second once Spark is warm, the stream some seconds.
_LONGEST_S: Mapping[str, float] = {STREAM: 4.0}
_LONGEST_OF_JOB_S = 1.5


class Application:
    """The application, with topics of its own."""

    def __init__(self, cluster: KafkaCluster, mode: str, new_topic: NewTopic, folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        self.topics = new_topic(4), new_topic(4)
        self.log = new_topic(1, {"cleanup.policy": "compact"})
        killed_application.write_files(folder)
        self._arguments = [cluster.bootstrap, mode, *self.topics, self.log, str(folder)]
        self.begun: list[str] = []

    def run(self, kill_in: str | None = None, after_s: float = 0.0) -> bool:
        """Run it; return whether it ended by itself.

        kill_in: the step in which all of its processes are killed, and how long after its begin.
        """
        mark = uuid.uuid4().hex
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            _MARK: mark,
        }
        command = [sys.executable, str(killed_application.__file__), *self._arguments]
        said = []
        with processes.listened_to(command, cwd=self._folder, env=environment) as process:
            assert process.stdout is not None
            for line in process.stdout:
                said.append(line)
                if line.startswith(BEGIN):
                    self.begun.append(line.removeprefix(BEGIN).strip())
                    if self.begun[-1] == kill_in:
                        time.sleep(after_s)
                        break
            if kill_in is not None:
                processes.kill_marked(f"{_MARK}={mark}")
            process.wait(60)
        is_done = any(line.strip() == DONE for line in said)
        assert is_done or kill_in, "".join(said)[-3000:]
        return is_done

    def check(self) -> None:
        """Check that each row is there once, and that nothing is open."""
        jobs, stream = (committed_values(self._cluster.bootstrap, each) for each in self.topics)
        assert jobs == killed_application.values_of_jobs()
        assert stream == killed_application.values_of_stream()
        config = producer_config({"bootstrap.servers": self._cluster.bootstrap})
        with CommitClient(config, self.log) as client:
            (listed,) = replies_to(client, [ListTransactions("pykafka/")])
        assert isinstance(listed, Listed)
        names = [each.transactional_id for each in listed.transactions]
        assert [name for name in names if any(topic in name for topic in self.topics)] == []


def unfinished(begun: Sequence[str]) -> list[str]:
    """Return the steps that may still have work: the last one that was begun, and those after."""
    every = killed_application.steps()
    reached = max((every.index(step) for step in begun), default=0)
    return every[reached:]


@pytest.mark.long(reason="starts Spark about ten times for each mode and level")
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("mode", ["two-phase", "single"])
def test_an_application_that_is_killed_at_random_moments_writes_each_row_once(
    cluster: KafkaCluster, new_topic: NewTopic, tmp_path: Path, mode: str
) -> None:
    seed = int(os.environ.get("KILL_SEED") or Random().randrange(10**9))
    print(f"KILL_SEED={seed} repeats the choice of moments")
    random = Random(seed)
    application = Application(cluster, mode, new_topic, tmp_path)
    for number in range(_MOST_KILLS):
        step = random.choice(unfinished(application.begun))
        after_s = random.uniform(0.0, _LONGEST_S.get(step, _LONGEST_OF_JOB_S))
        if application.run(step, after_s):
            break
        print(f"kill {number + 1}: {after_s:.2f} s after the begin of {step}", flush=True)
    else:
        application.run()
    application.check()
    application.run()
    application.check()
