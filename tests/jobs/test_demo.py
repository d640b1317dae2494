"""The demo: it finds what it wrote, Ctrl-C leaves nothing, what is missing is one sentence."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import demo
import pytest
from job.children import kill
from support.brokers.kafka_cluster import KafkaCluster
from support.brokers.processes import listened_to, marked_processes, press_ctrl_c, wait_for_line
from support.spark.job_server import ROOT, TIMEOUT_S

from spark_kafka_sink.admin import KafkaAdmin
from spark_kafka_sink.config import producer_config

# Twice the documented limit, which is two minutes, and 30 s for each further round: other tests run
# beside these. Streams start Spark six times instead of two.
COMPLETE_DEMO_S, STREAMS_TOO_S = 360, 960
JAVA_8 = 'openjdk version "1.8.0_412"'


def run_demo(
    path: str, *arguments: str, timeout_s: float = TIMEOUT_S, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the demo with another PATH."""
    return subprocess.run(
        [sys.executable, "jobs/demo.py", *arguments],
        cwd=ROOT,
        env={"PATH": path, "HOME": os.environ["HOME"], **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )


def make_command(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


class Recording:
    """A writer that records the calls of its methods."""

    def __init__(self) -> None:
        self.write = self
        self.calls: list[tuple[str, ...]] = []

    def __getattr__(self, name: str) -> Callable[..., Recording]:
        def record(*arguments: str) -> Recording:
            self.calls.append((name, *arguments))
            return self

        return record


def test_the_code_that_is_shown_is_a_whole_statement(
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = r"C:\keys\a \"b\".pem"
    demo.show_code("host:9092", "flights", {"kafka.ssl.truststore.location": path})
    said, _, code = capsys.readouterr().out.partition("\n\n")
    assert "in a program, with the columns of the records in the DataFrame df" in said
    df = Recording()
    exec(code, {"df": df})  # as a user does who copies it
    assert df.calls == [
        ("format", "pykafka"),
        ("mode", "append"),
        ("option", "kafka.bootstrap.servers", "host:9092"),
        ("option", "topic", "flights"),
        ("option", "kafka.ssl.truststore.location", path),
        ("save",),
    ]


def test_missing_java_is_one_sentence(tmp_path: Path) -> None:
    ended = run_demo(str(tmp_path))
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr == (
        "demo.py: Java is missing: there is none on the PATH; "
        "install a JDK or JRE of version 17 or newer\n"
    )


def test_java_home_without_java_is_one_sentence(tmp_path: Path) -> None:
    ended = run_demo(os.environ["PATH"], JAVA_HOME=str(tmp_path))
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"demo.py: Java is missing: JAVA_HOME is {tmp_path}, which has ")
    assert ended.stderr.count("\n") == 1


def test_old_java_is_one_sentence(tmp_path: Path) -> None:
    make_command(tmp_path, "java", f"echo '{JAVA_8}' >&2")
    ended = run_demo(str(tmp_path))
    assert ended.returncode == 2
    assert ended.stderr.startswith("demo.py: Java is too old for Spark and Kafka: ")
    assert "is of version 8; install a JDK or JRE of version 17 or newer" in ended.stderr
    assert ended.stderr.count("\n") == 1


@pytest.fixture
def java_21(tmp_path: Path) -> Path:
    """A folder with a command that prints that it is Java 21, and does nothing else."""
    make_command(tmp_path / "bin", "java", "echo 'openjdk version \"21.0.1\"' >&2")
    return tmp_path / "bin"


def test_a_broker_that_does_not_answer_is_one_sentence(java_21: Path) -> None:
    ended = run_demo(str(java_21), "--bootstrap", "127.0.0.1:1")
    assert ended.returncode == 2
    assert ended.stderr.startswith("demo.py: no broker answered at 127.0.0.1:1 in 5 s")
    assert ended.stderr.count("\n") == 1


def test_jars_that_cannot_be_fetched_are_one_sentence(java_21: Path, tmp_path: Path) -> None:
    mirror, cache = "http://127.0.0.1:1/maven2", str(tmp_path / "cache")
    ended = run_demo(str(java_21), KAFKA_JARS_MIRROR=mirror, XDG_CACHE_HOME=cache)
    assert ended.returncode == 2
    assert ended.stderr.startswith(
        f"demo.py: Apache Kafka 4.3.1 could not be fetched from {mirror}"
    )
    assert ended.stderr.count("\n") == 1


@pytest.mark.kafka
def test_a_broker_that_dies_at_once_is_one_sentence(tmp_path: Path) -> None:
    make_command(
        tmp_path / "bin",
        "java",
        "[ $1 = -version ] && { echo 'openjdk version \"21.0.1\"' >&2; exit; }\n"
        "echo 'ERROR no such engine'; exit 3",
    )
    ended = run_demo(str(tmp_path / "bin"))
    assert ended.returncode == 2
    assert ended.stderr == "demo.py: Apache Kafka 4.3.1 cannot be set up: ERROR no such engine\n"


@pytest.mark.timeout(COMPLETE_DEMO_S + 60)
@pytest.mark.long(
    reason="it runs the demo to its end, as make demo does; the jobs have tests of their own"
)
@pytest.mark.spark
def test_the_demo_writes_every_flight_to_its_own_broker_and_shows_what_it_found(
    tmp_path: Path,
) -> None:
    ended = run_demo(os.environ["PATH"], "--all", timeout_s=COMPLETE_DEMO_S, TMPDIR=str(tmp_path))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r"^wrote 336,776 rows, .* rows/s, .* MB/s$", ended.stdout, re.MULTILINE)
    sample = ended.stdout.partition("\na record of partition ")[2]
    for shown in (
        "  key        ",
        "  value      {",
        "  header     origin = ",
        "  timestamp  2013-",
    ):
        assert f"\n{shown}" in sample
    killed = re.search(
        r"^killed: the topic has ([\d,]+) records, and a read_c", sample, re.MULTILINE
    )
    assert killed is not None
    assert int(killed[1].replace(",", "")) >= 336_776 // 2
    assert " and a read_committed reader sees 0\n" in sample
    for way in ("exactly-once", "tls"):
        assert re.search(
            rf"^topic flights-{way}-\w+: 336,776 records, digest ", sample, re.MULTILINE
        )
    once = re.compile(r"^each record is there once; this round took \d+ s$", re.MULTILINE)
    assert len(once.findall(sample)) == 2
    assert "\nAll topics hold exactly the source; " in sample
    assert "\nWhat to type next:\n" in sample
    assert demo.spark_archive().exists(), "for the next demo"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long(reason="it runs the demo to its end with six programs of Spark")
@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.timeout(STREAMS_TOO_S + 60)
def test_the_demo_streams_to_a_broker_of_the_users_and_deletes_its_topics_there(
    kafka: KafkaCluster, tmp_path: Path
) -> None:
    given = ("--bootstrap", kafka.bootstrap, "--stream", "--all")
    ended = run_demo(os.environ["PATH"], *given, timeout_s=STREAMS_TOO_S, TMPDIR=str(tmp_path))
    said = ended.stdout
    assert ended.returncode == 0, said + ended.stderr
    topics = re.findall(
        r"^topic (\S+) holds exactly the records of the source$", said, re.MULTILINE
    )
    ways = [topic.rpartition("-")[0] for topic in topics]
    assert ways == ["flights-batch", "flights-writeStream", "flights-foreachBatch"]
    assert "\nAll topics hold exactly the source; " in said
    assert "\nNot shown: exactly once and TLS. These rounds " in said
    assert deleted(said) == topics
    assert list(tmp_path.iterdir()) == []


# With another spark-submit, that of the folder which is named first.
WITH_SPARK_SUBMIT = """
import pathlib, sys
import demo
from job import running
sys.executable = str(pathlib.Path(sys.argv[1], "python"))
sys.exit(running.run(lambda: demo.main(sys.argv[2:]), "demo.py"))
"""


def run_without_spark(
    kafka: KafkaCluster, folder: Path, code: int, *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Run the demo on a broker of the user's; every job succeeds, and verify.py ends so."""
    script = f'case "$*" in *verify.py*) exit {code};; esac'
    make_command(folder / "bin", "spark-submit", script)
    command = [sys.executable, "-c", WITH_SPARK_SUBMIT, str(folder / "bin")]
    return subprocess.run(
        [*command, "--bootstrap", kafka.bootstrap, *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": "jobs:.", "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


def created(said: str) -> list[str]:
    """Return the topics that the demo created, by what it printed."""
    return re.findall(r"flights-\w+-\w{8}", said.partition("creating topics")[2].split("\n")[0])


def deleted(said: str) -> list[str]:
    """Return the topics that the demo deleted, by what it printed."""
    return re.findall(r"^topic (\S+) is deleted; KEEP=1 keeps it$", said, re.MULTILINE)


def existing(kafka: KafkaCluster, topics: list[str]) -> list[str]:
    """Return those of the topics that exist."""
    with KafkaAdmin(producer_config({"bootstrap.servers": kafka.bootstrap})) as admin:
        return list(admin.existing_topics(topics))


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("code", "demo_code", "said"),
    [
        (1, 1, "Something DIFFERS, see above; "),
        (2, 2, "could not be compared with its source: verify.py ended with exit code 2; its own "),
        (137, 2, "could not be compared with its source: verify.py ended with exit code 137; "),
    ],
)
def test_a_topic_that_could_not_be_compared_is_not_one_that_differs(
    kafka: KafkaCluster, tmp_path: Path, code: int, demo_code: int, said: str
) -> None:
    ended = run_without_spark(kafka, tmp_path, code)
    assert ended.returncode == demo_code
    assert said in ended.stdout + ended.stderr
    assert ("DIFFERS" in ended.stdout) == (code == 1)
    # A topic that differs is kept, so that a user can read it.
    topics = created(ended.stdout)
    assert len(topics) == 1
    assert deleted(ended.stdout) == ([] if code == 1 else topics)
    if code == 1:
        assert existing(kafka, topics) == topics


@pytest.mark.kafka
def test_topics_on_the_users_broker_are_deleted_at_the_end_or_stay_with_the_command_that_does_so(
    kafka: KafkaCluster, tmp_path: Path
) -> None:
    ended = run_without_spark(kafka, tmp_path, 0)
    assert ended.returncode == 0, ended.stderr
    assert len(created(ended.stdout)) == 1
    assert deleted(ended.stdout) == created(ended.stdout)
    assert "\n  make demo ALL=1     also a job that is killed half-way, " in ended.stdout
    ended = run_without_spark(kafka, tmp_path, 0, "--keep")
    topics = created(ended.stdout)
    assert existing(kafka, topics) == topics
    command = ended.stdout.partition("to delete them:\n\n  ")[2].split("\n")[0]
    command = command.replace(str(tmp_path / "bin" / "python"), sys.executable)
    said = subprocess.run(
        ["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert deleted(said) == topics


@pytest.mark.spark
def test_what_the_demo_says_to_type_next_works_in_a_shell_that_knows_no_environment(
    tmp_path: Path,
) -> None:
    make_command(tmp_path, "python3", "echo 'this Python has no pyspark' >&2; exit 1")
    env = {name: value for name, value in os.environ.items() if "PYSPARK" not in name}
    env["PATH"] = f"{tmp_path}:{env['PATH']}"
    (line,) = (each for each in demo.what_next().splitlines() if "spark-submit" in each)
    shell = ["sh", "-c", line]
    ended = subprocess.run(shell, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "usage: produce.py" in ended.stdout


@pytest.mark.long(reason="it starts Spark and Kafka to end them; test_broker.py ends a broker so")
@pytest.mark.spark
@pytest.mark.skipif(sys.platform != "linux", reason="processes are counted in /proc")
def test_ctrl_c_in_the_middle_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    mark = f"DEMO_TEST={uuid.uuid4().hex}"
    name, value = mark.split("=")
    env = os.environ | {name: value, "TMPDIR": str(tmp_path)}
    with listened_to([sys.executable, "jobs/demo.py"], cwd=ROOT, env=env) as demo:
        wait_for_line(demo, "writing: ")
        running = " ".join(marked_processes(mark))
        said = press_ctrl_c(demo, TIMEOUT_S)
    left = marked_processes(mark)
    files = list(tmp_path.iterdir())
    for part in ("kafka.Kafka", "SparkSubmit", "jobs/produce.py", "pyspark.daemon"):
        assert part in running
    assert left == []
    assert files == []
    assert demo.returncode == 128 + signal.SIGINT
    assert said.splitlines()[-1] == "stopped by SIGINT"
    assert "Traceback" not in said


SLEEPERS = """
import subprocess, sys
sys.path.insert(0, "jobs")
from job.children import Children

inner = "import os, signal; os.setsid(); print(os.getpid(), flush=True); signal.pause()"
outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
with Children() as children:
    children.start([sys.executable, "-c", outer])
    sys.stdin.readline()
"""


class Sleepers(NamedTuple):
    """A process that uses Children, its child, and the child's child in a session of its own."""

    parent: subprocess.Popen[str]
    outer: int
    inner: int


@pytest.fixture
def sleepers() -> Iterator[Sleepers]:
    """Three processes that wait; a line on the first one's stdin ends its `with` block."""
    parent = subprocess.Popen(
        [sys.executable, "-c", SLEEPERS],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    inner = int(parent.stdout.readline())
    status = Path(f"/proc/{inner}/status").read_text()
    outer = int(status.partition("PPid:")[2].split()[0])
    yield Sleepers(parent, outer, inner)
    parent.kill()
    for process in (outer, inner):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    parent.communicate()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's help is Linux's")
def test_children_of_children_are_ended_too(sleepers: Sleepers) -> None:
    sleepers.parent.communicate("\n", timeout=TIMEOUT_S)
    assert sleepers.parent.returncode == 0
    for process in (sleepers.outer, sleepers.inner):
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's help is Linux's")
def test_children_die_with_a_demo_that_is_killed(sleepers: Sleepers) -> None:
    ended = os.pidfd_open(sleepers.outer)
    sleepers.parent.kill()
    try:
        assert select.select([ended], [], [], TIMEOUT_S)[0] == [ended]
    finally:
        os.close(ended)


def test_a_child_is_killed_also_if_a_signal_came_when_a_wait_had_just_taken_its_lock() -> None:
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)

    def exit_in_wait(frame: FrameType, event: str, called: object) -> None:
        # As a signal's handler does whose signal comes when wait() has just locked its lock.
        if (event, frame.f_code.co_name) == ("c_return", "_wait") and "acquire" in str(called):
            raise SystemExit

    sys.setprofile(exit_in_wait)
    try:
        with pytest.raises(SystemExit):
            process.wait(TIMEOUT_S)
    finally:
        sys.setprofile(None)
        kill(process)
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
