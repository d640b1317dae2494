"""Jars are complete or absent, and a broker leaves nothing behind: what a user sees of both."""

from __future__ import annotations

import contextlib
import functools
import http.server
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from conftest import need_kafka
from job import broker, children, kafka_jars
from support.brokers.fetch_kafka import put_empty_jars
from support.brokers.processes import listened_to, marked_processes, press_ctrl_c, wait_for_line
from support.brokers.topic_settings import nodes, setting
from support.spark.job_server import ROOT, TIMEOUT_S

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.admin import KafkaAdmin, NewTopic
from spark_kafka_sink.config import producer_config

JARS = kafka_jars.SPARK_KAFKA
FETCH = "from job import kafka_jars\nprint(kafka_jars.fetch(kafka_jars.SPARK_KAFKA))"


class Mirror(http.server.ThreadingHTTPServer):
    """A Maven repository on loopback with the jars of Spark's Kafka sink."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sent: Counter[str] = Counter()
        self.may_send = threading.Event()
        self.may_send.set()
        self.is_asked = threading.Event()
        super().__init__(("127.0.0.1", 0), functools.partial(_Handler, directory=str(folder)))
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        """The value of KAFKA_JARS_MIRROR."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def file(self, coordinates: str) -> Path:
        """Return the place of a jar in the repository."""
        group, artifact, version = coordinates.split(":")
        folder = self.folder / group.replace(".", "/") / artifact / version
        return folder / f"{artifact}-{version}.jar"


class _Handler(http.server.SimpleHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self._wait()
        super().do_HEAD()

    def do_GET(self) -> None:
        self._wait().sent[self.path.rpartition("/")[2]] += 1
        super().do_GET()

    def _wait(self) -> Mirror:
        assert isinstance(self.server, Mirror)
        self.server.is_asked.set()
        self.server.may_send.wait(TIMEOUT_S)
        return self.server

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[Mirror]:
    """A repository of its own for each test, of links to the jars in the user's cache."""
    need_kafka()
    with Mirror(tmp_path / "repository") as server:
        for coordinates in kafka_jars._checksums(JARS):
            file = server.file(coordinates)
            file.parent.mkdir(parents=True)
            file.symlink_to(JARS.path / file.name)
        yield server
        server.may_send.set()
        server.shutdown()


# As `make broker` runs it.
BROKER = ("-m", "job.broker")


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Return the environment of a process whose cache is in `folder`."""
    return os.environ | {"PYTHONPATH": "jobs", "XDG_CACHE_HOME": str(folder / "cache")} | more


def fetching(env: dict[str, str]) -> subprocess.Popen[str]:
    """Start to fetch the jars of Spark's Kafka sink."""
    return subprocess.Popen(
        [sys.executable, "-c", FETCH],
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run_broker(env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `job.broker`, which must end by itself."""
    return subprocess.run(
        [sys.executable, *BROKER, *arguments],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )


@pytest.mark.kafka
def test_two_that_fetch_at_once_both_have_the_jars_and_each_is_sent_once(
    mirror: Mirror, tmp_path: Path
) -> None:
    env = environment(tmp_path, KAFKA_JARS_MIRROR=mirror.address)
    mirror.may_send.clear()
    first = fetching(env)
    mirror.is_asked.wait(TIMEOUT_S)
    second = fetching(env)
    assert second.stdout is not None
    waiting = second.stdout.readline()
    mirror.may_send.set()
    said = [process.communicate(timeout=TIMEOUT_S)[0] for process in (first, second)]
    folder = tmp_path / "cache" / "spark-kafka-sink" / JARS.folder
    assert waiting.startswith("waiting for another process that fetches Spark's Kafka sink 4.2.0")
    assert f"fetching {JARS.name} (4 jars) from {mirror.address}/" in said[0]
    assert f"{JARS.name}: 4 of 4 jars in " in said[0]
    assert [text.splitlines()[-1] for text in said] == [str(folder)] * 2
    assert [process.returncode for process in (first, second)] == [0, 0]
    assert len(list(folder.iterdir())) == 4
    assert set(mirror.sent.values()) == {1}


@pytest.mark.kafka
def test_a_download_that_was_killed_leaves_nothing_that_the_next_one_would_use(
    mirror: Mirror, tmp_path: Path
) -> None:
    env = environment(tmp_path, KAFKA_JARS_MIRROR=mirror.address)
    mirror.may_send.clear()
    killed = fetching(env)
    mirror.is_asked.wait(TIMEOUT_S)
    killed.kill()
    killed.communicate()
    cache = tmp_path / "cache" / "spark-kafka-sink"
    assert [path.name[:8] for path in cache.iterdir() if path.is_dir()] == ["partial-"]
    mirror.may_send.set()
    said, _ = fetching(env).communicate(timeout=TIMEOUT_S)
    assert said.splitlines()[-1] == str(cache / JARS.folder)
    assert [path.name for path in cache.iterdir() if path.is_dir()] == [JARS.folder]


@pytest.mark.kafka
def test_jars_that_were_removed_from_the_cache_are_fetched_again(
    mirror: Mirror, tmp_path: Path
) -> None:
    folder = tmp_path / "cache" / "spark-kafka-sink" / JARS.folder
    folder.mkdir(parents=True)
    (folder / "commons-pool2-2.12.1.jar").touch()
    env = environment(tmp_path, KAFKA_JARS_MIRROR=mirror.address)
    said, _ = fetching(env).communicate(timeout=TIMEOUT_S)
    assert said.splitlines()[-1] == str(folder)
    assert len(list(folder.iterdir())) == 4
    assert all(each.stat().st_size for each in folder.iterdir())
    assert [path.name for path in folder.parent.iterdir() if path.is_dir()] == [JARS.folder]
    # The jars are there now.
    mirror.shutdown()
    said, _ = fetching(env).communicate(timeout=TIMEOUT_S)
    assert said.splitlines() == [str(folder)]


def test_without_a_home_folder_the_settings_that_name_one_are_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def has_none() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", has_none)
    with pytest.raises(
        kafka_jars.JarsError, match=r"^there is no cache folder, because HOME is "
    ) as e:
        kafka_jars.fetch(JARS)
    assert str(e.value).endswith(
        "set HOME, or name a folder by the environment variable XDG_CACHE_HOME"
    )


@pytest.mark.kafka
def test_a_jar_with_another_checksum_is_named_and_nothing_is_kept(
    mirror: Mirror, tmp_path: Path
) -> None:
    changed = mirror.file("org.apache.commons:commons-pool2:2.12.1")
    content = changed.read_bytes()
    changed.unlink()
    changed.write_bytes(content[:-1] + b"?")
    env = environment(tmp_path, KAFKA_JARS_MIRROR=mirror.address)
    said, _ = fetching(env).communicate(timeout=TIMEOUT_S)
    assert "JarsError: Spark's Kafka sink 4.2.0 could not be fetched from " in said
    assert "commons-pool2-2.12.1.jar has the SHA-256 " in said
    cache = tmp_path / "cache" / "spark-kafka-sink"
    assert [path.name for path in cache.iterdir() if path.is_dir()] == []


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            {"KAFKA_JARS_MIRROR": "http://127.0.0.1:1/maven2"},
            "Apache Kafka 4.3.1 could not be fetched from http://127.0.0.1:1/maven2/: Connection ",
        ),
        ({"KAFKA_JARS_MIRROR": "http://me:hunter2@host/"}, "KAFKA_JARS_MIRROR has a user name or "),
        (
            {"XDG_CACHE_HOME": "/dev/null"},
            "the cache folder /dev/null/spark-kafka-sink cannot be w",
        ),
        ({"PATH": "java 11"}, "Java is too old for Spark and Kafka: "),
        ({"PATH": "nowhere"}, "Java is missing: there is none on the PATH; install a JDK or JRE"),
        (
            {"PATH": "no room"},
            "the cache folder {cache} cannot be written: No space left on device",
        ),
        (
            {"PATH": "no name"},
            "Apache Kafka 4.3.1 could not be fetched from Maven Central: the name repo.example "
            "does not resolve; check the network, or name another Maven repository by the ",
        ),
        (
            {"PATH": "no jar"},
            "Apache Kafka 4.3.1 could not be fetched from Maven Central: a-1.jar: File not found; ",
        ),
        (
            {"KAFKA_JARS_MIRROR": "mirror"},
            "KAFKA_JARS_MIRROR is 'mirror': expected the address of ",
        ),
    ],
    ids=[
        *("no network", "a password", "no folder", "Java 11", "no Java", "no room"),
        *("no name", "no jar", "no address"),
    ],
)
def test_what_stands_against_a_broker_is_one_sentence(
    tmp_path: Path, more: dict[str, str], said: str
) -> None:
    java_21, a_jar = (
        "echo 'openjdk version \"21.0.1\"' >&2; echo ",
        "url=http://repo.example/a-1.jar",
    )
    scripts = {
        "java 11": "echo 'openjdk version \"11.0.2\"' >&2",
        "no room": f"{java_21} No space left on device",
        "no name": f"{java_21} Host repo.example not found. {a_jar}",
        "no jar": f"{java_21} CLIENT ERROR: File not found {a_jar}",
    }
    for name, script in scripts.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "java").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name / "java").chmod(0o755)
    if "PATH" in more:
        more = more | {"PATH": str(tmp_path / more["PATH"])}
    env = environment(tmp_path, **more)
    for name in {"JAVA_HOME", "KAFKA_JARS_MIRROR"} - more.keys():
        env.pop(name, None)
    ended = run_broker(env, "--port", "0")
    assert ended.returncode == 2
    expected = said.format(cache=tmp_path / "cache" / "spark-kafka-sink")
    assert ended.stderr.startswith(f"make broker: {expected}")
    assert ended.stderr.count("\n") == 1
    assert "hunter2" not in ended.stdout + ended.stderr


@pytest.mark.kafka
def test_ivy_is_taken_from_spark_home_where_there_is_no_pyspark(
    mirror: Mirror, tmp_path: Path
) -> None:
    env = environment(tmp_path, KAFKA_JARS_MIRROR=mirror.address)
    env.pop("SPARK_HOME", None)
    command = [sys.executable, "-S", "-c", FETCH]  # it has no installed packages
    without = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    env["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    found = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    (reason,) = (line for line in without.stderr.splitlines() if "JarsError: " in line)
    assert "has no pyspark: run 'pip install pyspark', or name a Spark by the " in reason
    folder = tmp_path / "cache" / "spark-kafka-sink" / JARS.folder
    assert found.stdout.splitlines()[-1] == str(folder)


def test_a_port_that_is_in_use_is_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = run_broker(environment(tmp_path), "--port", port)
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"make broker: port {port} of 127.0.0.1 ")
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize("port", ["abc", "70000", "-1", "9092 9093", "\u0669"])
def test_a_port_that_is_none_is_one_sentence(tmp_path: Path, port: str) -> None:
    ended = run_broker(environment(tmp_path), f"--port={port}")
    assert ended.returncode == 2
    assert ended.stderr == (
        f"make broker: the port is {port!r}, expected a number from 1 to 65535: "
        "make broker PORT=9092\n"
    )


@pytest.mark.kafka
@pytest.mark.skipif(sys.platform != "linux", reason="processes are counted in /proc")
def test_ctrl_c_ends_a_broker_and_what_a_killed_one_left_is_removed(tmp_path: Path) -> None:
    need_kafka()
    mark = uuid.uuid4().hex
    env = os.environ | {"BROKER_TEST": mark, "TMPDIR": str(tmp_path), "PYTHONPATH": "jobs"}
    command = [sys.executable, *BROKER, "--port", "0"]
    with listened_to(command, cwd=ROOT, env=env) as killed:
        wait_for_line(killed, "It keeps")
        killed.send_signal(signal.SIGKILL)
        killed.communicate()
    (left,) = tmp_path.glob("spark-kafka-sink-broker-*")
    with listened_to(command, cwd=ROOT, env=env) as running:
        said = wait_for_line(running, "It keeps")
        address = _address_in(said)
        (own,) = tmp_path.glob("spark-kafka-sink-broker-*")
        assert own != left
        _create_topic(address, "compressed", 1)
        with KafkaProducer({"bootstrap.servers": address, "compression.type": "lz4"}) as producer:
            producer.send("compressed", value=b"v" * 1000)
        assert list(own.glob("liblz4-java-*.so"))  # not in the system's folder, where it would stay
        press_ctrl_c(running, TIMEOUT_S)
    assert 'option("kafka.bootstrap.servers", "127.0.0.1:' in said
    assert running.returncode == 0
    assert marked_processes(f"BROKER_TEST={mark}") == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(shutil.which("ps") is None, reason="the command ps is missing")
def test_where_a_broker_outlives_its_killed_program_its_folder_is_kept_until_it_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "END_WITH_PARENT", False)
    left = tmp_path / "spark-kafka-sink-broker-killed"
    left.mkdir()
    command = [sys.executable, "-c", "import sys; sys.stdin.read()", str(left / "a.properties")]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE),
        broker.scratch_folder("broker", str(tmp_path)),
    ):
        assert left.exists()
    with broker.scratch_folder("broker", str(tmp_path)):
        assert not left.exists()


@pytest.mark.kafka
@pytest.mark.parametrize(
    "command", [(*BROKER, "--port", "0"), ("-m", "support.brokers.fetch_kafka")]
)
def test_ctrl_c_while_jars_come_is_no_traceback(
    mirror: Mirror, tmp_path: Path, command: tuple[str, ...]
) -> None:
    mirror.may_send.clear()
    env = environment(tmp_path, KAFKA_JARS_MIRROR=mirror.address)
    env |= {"PYTHONPATH": "tests:jobs", "TMPDIR": str(tmp_path)}
    with listened_to([sys.executable, *command], cwd=ROOT, env=env) as fetching:
        assert mirror.is_asked.wait(TIMEOUT_S)
        said = press_ctrl_c(fetching, TIMEOUT_S)
    assert fetching.returncode in (128 + signal.SIGINT, -signal.SIGINT)
    assert "Traceback" not in said


def test_ctrl_c_while_a_broker_starts_is_no_traceback_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "temporary").mkdir()
    os.mkfifo(tmp_path / "started")
    java = tmp_path / "bin" / "java"
    java.write_text(
        "#!/bin/sh\n[ $1 = -version ] && { echo 'openjdk version \"21.0.1\"' >&2; exit; }\n"
        f"echo started > {tmp_path}/started; exec sleep {TIMEOUT_S}\n"
    )
    java.chmod(0o755)
    put_empty_jars(tmp_path / "cache", kafka_jars.KAFKA)
    env = environment(tmp_path, PATH=f"{java.parent}:{os.environ['PATH']}")
    env["TMPDIR"] = str(tmp_path / "temporary")
    env.pop("JAVA_HOME", None)
    command = [sys.executable, *BROKER, "--port", "0"]
    with listened_to(command, cwd=ROOT, env=env) as starting:
        (tmp_path / "started").read_text()
        said = press_ctrl_c(starting, TIMEOUT_S)
    assert starting.returncode == 128 + signal.SIGINT
    assert said.split() == ["stopped", "by", "SIGINT"]
    assert list((tmp_path / "temporary").iterdir()) == []


# As make is: it starts the program, and waits for it.
STARTER = "import subprocess, sys; subprocess.run([sys.executable, *sys.argv[1:]])"


@pytest.mark.kafka
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's help is Linux's")
def test_a_broker_ends_when_the_program_that_started_it_is_killed(tmp_path: Path) -> None:
    need_kafka()
    mark = uuid.uuid4().hex
    env = os.environ | {"BROKER_TEST": mark, "TMPDIR": str(tmp_path), "PYTHONPATH": "jobs"}
    command = [sys.executable, "-c", STARTER, *BROKER, "--port", "0"]
    with listened_to(command, cwd=ROOT, env=env) as starter:
        wait_for_line(starter, "It keeps")
        starter.kill()
        try:
            starter.communicate(timeout=TIMEOUT_S)  # until the broker's program has ended, too
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(starter.pid, signal.SIGKILL)
    assert marked_processes(f"BROKER_TEST={mark}") == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long(reason="a broker takes its time to make 200 partitions, and nothing else does")
@pytest.mark.kafka
def test_a_broker_keeps_less_of_each_partition_when_it_has_many(tmp_path: Path) -> None:
    need_kafka()
    with running_broker(tmp_path) as (address, said):
        few = _kept(address, "few", 12)
        many = _kept(address, "many", 188, smaller_than=few // 10)
    assert "up to 400 partitions take less than 1 GB on disk" in said
    assert few == 32 << 20
    assert many < few // 10  # the program counts again while the topic is made


@pytest.mark.long(reason="each case writes 3 GB")
@pytest.mark.kafka
@pytest.mark.timeout(900)
@pytest.mark.parametrize("partitions", [12, 40, 400])
def test_topics_stay_below_a_gigabyte_at_full_speed(tmp_path: Path, partitions: int) -> None:
    need_kafka()
    batch = pa.record_batch({"value": pa.array([os.urandom(1000)] * 10_000)})
    largest = 0
    with running_broker(tmp_path) as (address, _):
        _create_topic(address, "full-speed", partitions)
        with KafkaProducer({"bootstrap.servers": address, "linger.ms": 50}) as producer:
            for _ in range(300):
                producer.append("full-speed", batch)
                largest = max(largest, _allocated_bytes(tmp_path))
    print(f"the largest that was seen: {largest / 1e6:.0f} MB")
    assert largest < 1e9


@contextlib.contextmanager
def running_broker(folder: Path) -> Iterator[tuple[str, str]]:
    """Run `job.broker` for a `with` block; yield its address and its output."""
    command = [sys.executable, *BROKER, "--port", "0"]
    env = os.environ | {"TMPDIR": str(folder), "PYTHONPATH": "jobs"}
    with listened_to(command, cwd=ROOT, env=env) as program:
        said = wait_for_line(program, "It keeps")
        yield _address_in(said), said


def _address_in(said: str) -> str:
    return said.partition(" listens on ")[2].partition(". ")[0]


def _kept(address: str, topic: str, partitions: int, smaller_than: int = 1 << 40) -> int:
    """Create a topic, and return what the broker keeps of a partition once it is so small."""
    _create_topic(address, topic, partitions)
    (node,) = nodes(address)
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        kept = int(setting(node, topic, "retention.bytes") or -1)
        if kept < smaller_than or time.monotonic() > deadline:
            return kept


def _create_topic(address: str, topic: str, partitions: int) -> None:
    """Create a topic as users do, which has no limits of its own."""
    with KafkaAdmin(producer_config({"bootstrap.servers": address})) as admin:
        admin.topics([topic], NewTopic(partitions=partitions))


def _allocated_bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_blocks * 512
        except FileNotFoundError:  # the broker has just deleted it
            continue
    return total
