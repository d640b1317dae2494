"""The demo: a Kafka broker, real flights, every job, and a check of every topic.

`make demo` runs it with the Python of the virtual environment. `make demo BOOTSTRAP=host:port` uses
an existing broker. Exit code 0: all topics have exactly the source's records; 1: a topic has other
records; 2: the demo could not run.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import shlex
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import verify
from job import broker, java_version, kafka_jars, rows, running
from job.children import Children, end_with_parent

_NAME: Final = "demo.py"
_ROOT: Final = Path(__file__).resolve().parent.parent
_PARTITIONS: Final = 12
_FILES: Final = 4
_COLUMNS: Final = (
    "--key", "carrier,flight", "--headers", "origin,dest,tailnum", "--timestamp", "time_hour",
)  # fmt: skip
# A JVM that lives for seconds needs little JIT compilation and garbage collection; these options
# save a fifth of its CPU time.
_JAVA: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
# Enough tasks for visible progress.
_SMALL_TASKS: Final = "spark.sql.files.maxPartitionBytes=4m"
_MODES: Final = ("writeStream", "foreachBatch")
# The timestamps of the flights are in 2013. With retention by time, a broker would delete the
# flights, and begin a segment for every week of that year. A partition has about 10 MB of flights:
# twice that is kept, and the 36 partitions of three topics take less than 1 GB.
_TOPIC_CONFIG: Final = {
    "retention.ms": "-1",
    "retention.bytes": str(20 << 20),
    "segment.bytes": str(4 << 20),
    "segment.ms": str(2**62),
}
_ANSWER_TIMEOUT_S: Final = 5.0
_CREATE_TIMEOUT_S: Final = 30.0
# The command sets PYSPARK_PYTHON, because spark-submit does not use the Python of its own folder.
_NEXT: Final = """
What to type next:

  make broker         Kafka on 127.0.0.1:9092 until Ctrl-C
  make demo STREAM=1  the same as a stream, in two ways

To write your own files to a topic, begin with

  PYSPARK_PYTHON={folder}/python {folder}/spark-submit jobs/produce.py --help

README.md has a quick start of a few lines in Python; docs/README.md lists the pages."""


@dataclass(slots=True)
class Steps:
    """Prints the numbered steps of the demo."""

    started: float
    count: int
    number: int = 0

    def say(self, text: str) -> None:
        """Begin a step."""
        self.number += 1
        elapsed = time.monotonic() - self.started
        print(f"\n[{self.number}/{self.count}, {elapsed:.0f} s] {text}", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; return the exit code."""
    parser = argparse.ArgumentParser(prog=_NAME, description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--bootstrap", metavar="HOST:PORT", help="use your own broker instead of starting one"
    )
    parser.add_argument(
        "--stream", action="store_true", help="run stream.py too, in both of its modes"
    )
    given = parser.parse_args(argv)
    if (problem := java_version.problem()) is not None:
        raise running.JobError(problem)
    modes = _MODES if given.stream else ()
    steps = Steps(time.monotonic(), count=4 + 2 * len(modes))
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(broker.scratch_folder("demo"))
        processes = stack.enter_context(Children())
        end_with_parent()
        if given.bootstrap is None:
            steps.say(f"starting {kafka_jars.KAFKA.name}")
            address = stack.enter_context(_broker(processes)).address
            print(f"it answers at {address}", flush=True)
        else:
            address = given.bootstrap
            steps.say(f"using the broker at {address}")
            check(address)
        topics = make_topics(address, modes, steps)
        if given.bootstrap is not None:
            say_how_to_delete(address, topics)
        agreed = Demo(processes, folder, address, steps).run(topics)
    print(
        f"\n{'All topics hold exactly the source' if agreed else 'Something DIFFERS, see above'}; "
        f"{time.monotonic() - steps.started:.0f} s in all."
    )
    if agreed:
        print(what_next())
    return 0 if agreed else 1


@contextlib.contextmanager
def _broker(processes: Children) -> Iterator[broker.Broker]:
    """Run the demo's own broker. Raise JobError if it cannot run."""
    with contextlib.ExitStack() as stack:
        try:
            yield stack.enter_context(broker.running(processes, java=_JAVA))
        except (broker.BrokerError, kafka_jars.JarsError) as error:
            raise running.JobError(str(error)) from None


def check(address: str) -> None:
    """Raise JobError if no broker responds at this address."""
    kafka, admin = _admin(address)
    try:
        admin.list_topics(timeout=_ANSWER_TIMEOUT_S)
    except kafka.KafkaException:
        message = (
            f"no broker answered at {address} in {_ANSWER_TIMEOUT_S:g} s: is the address right?"
        )
        raise running.JobError(message) from None


def make_topics(address: str, modes: Sequence[str], steps: Steps) -> list[str]:
    """Create a topic for each way of writing, and return the names of the topics.

    Raise JobError if a topic cannot be created.
    """
    unique = uuid.uuid4().hex[:8]
    topics = [f"flights-{way}-{unique}" for way in ("batch", *modes)]
    steps.say(f"creating topics of {_PARTITIONS} partitions: {', '.join(topics)}")
    kafka, admin = _admin(address)
    new_topic = importlib.import_module("confluent_kafka.admin").NewTopic
    new = [new_topic(topic, num_partitions=_PARTITIONS, config=_TOPIC_CONFIG) for topic in topics]
    for topic, future in admin.create_topics(new, request_timeout=_CREATE_TIMEOUT_S).items():
        try:
            future.result()
        except kafka.KafkaException as error:
            message = f"topic {topic} could not be created at {address}: {error.args[0].str()}"
            raise running.JobError(message) from None
    return topics


def _admin(address: str) -> tuple[Any, Any]:
    """Return the module confluent_kafka and an admin client.

    Raise JobError if confluent-kafka is not installed.
    """
    try:
        kafka = importlib.import_module("confluent_kafka")
    except ImportError:
        message = (
            "the demo creates topics with confluent-kafka, which is not installed: "
            "run pip install '.[demo]' in your clone"
        )
        raise running.JobError(message) from None
    admin = importlib.import_module("confluent_kafka.admin")
    return kafka, admin.AdminClient({"bootstrap.servers": address, "log_level": 0})


def what_next() -> str:
    """Return a text with commands to try after the demo, which work in a new shell."""
    folder = Path(sys.executable).parent
    inside = folder.is_relative_to(_ROOT)
    return _NEXT.format(folder=shlex.quote(str(folder.relative_to(_ROOT) if inside else folder)))


def say_how_to_delete(address: str, topics: Sequence[str]) -> None:
    """Print the commands that delete the demo's topics on the user's broker."""
    print("the topics stay on your broker; to delete them when the demo has ended:")
    for topic in topics:
        print(f"  kafka-topics.sh --bootstrap-server {address} --delete --topic {topic}")


class Demo:
    """Runs the jobs with spark-submit, one after another."""

    def __init__(self, processes: Children, folder: Path, address: str, steps: Steps) -> None:
        self._processes = processes
        self._folder = folder
        self._address = address
        self._steps = steps
        self._scratch = folder / "tmp"
        self._scratch.mkdir()

    def run(self, topics: Sequence[str]) -> bool:
        """Run all jobs; return whether every topic has exactly the records of its source.

        Raise JobError if a job cannot do its work.
        """
        batch, *streams = topics
        agreed = self._batch(batch)
        if streams:
            split_flights(self._folder / "incoming", self._folder)
        for mode, topic in zip(_MODES, streams, strict=False):
            agreed = self._stream(mode, topic) and agreed
        return agreed

    def _batch(self, topic: str) -> bool:
        report = str(self._folder / "report.json")
        self._steps.say(f"produce.py: 336,776 flights to {topic}")
        self._must("produce.py", topic, *_COLUMNS, "--option", f"reportPath={report}")
        return self._agrees(topic, *_COLUMNS, "--report", report)

    def _stream(self, mode: str, topic: str) -> bool:
        incoming = ("--source", str(self._folder / "incoming"), "--format", "csv")
        arguments = (*incoming, "--read-option", "nullValue=NA", *_COLUMNS)
        checkpoint = str(self._folder / f"checkpoint-{mode}")
        stream = ("--mode", mode, "--checkpoint", checkpoint, "--files-per-batch", "2")
        self._steps.say(f"stream.py --mode {mode}: the flights as {_FILES} files to {topic}")
        self._must("stream.py", topic, *arguments, *stream)
        return self._agrees(topic, *arguments)

    def _agrees(self, topic: str, *arguments: str) -> bool:
        """Return whether a topic has exactly the records of its source.

        Raise JobError if verify.py could not compare them.
        """
        self._steps.say(f"verify.py: {topic}, read back by confluent-kafka")
        code = self._submit("verify.py", topic, *arguments)
        if code in (0, verify.DIFFER):
            return code == 0
        message = (
            f"topic {topic} could not be compared with its source: verify.py ended with exit code "
            f"{code}; its own message is above"
        )
        raise running.JobError(message)

    def _must(self, job: str, topic: str, *arguments: str) -> None:
        code = self._submit(job, topic, *arguments)
        if code != 0:
            message = f"{job} ended with exit code {code}; its own message is above"
            raise running.JobError(message)

    def _submit(self, job: str, topic: str, *arguments: str) -> int:
        """Run a job as a user does; return its exit code."""
        temporary = f'-Djava.io.tmpdir="{self._scratch}"'
        command = [
            str(Path(sys.executable).with_name("spark-submit")),
            *("--master", "local[*]"),
            *("--properties-file", "conf/spark-defaults.conf"),
            *("--conf", _SMALL_TASKS),
            *("--conf", f"spark.driver.defaultJavaOptions={' '.join(_JAVA)} {temporary}"),
            f"jobs/{job}",
            *("--config", "conf/producer.properties"),
            *("--bootstrap", self._address),
            *("--topic", topic),
            *arguments,
        ]
        environment = dict(os.environ)
        # Ignore the home and the settings of another Spark.
        for name in ("SPARK_HOME", "SPARK_CONF_DIR"):
            environment.pop(name, None)
        environment |= {
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            # Files of a killed job are removed with the demo's folder.
            "SPARK_LOCAL_DIRS": str(self._scratch),
            "TMPDIR": str(self._scratch),
        }
        return self._processes.start(command, env=environment, cwd=_ROOT).wait()


def split_flights(target: Path, scratch: Path) -> None:
    """Write the flights into `target` as a few CSV files, each with the header line."""
    target.mkdir()
    lines = rows.unpack_flights(scratch).read_bytes().splitlines(keepends=True)
    header, flights = lines[0], lines[1:]
    size = -(-len(flights) // _FILES)
    for number in range(_FILES):
        part = flights[number * size : (number + 1) * size]
        (target / f"flights-{number}.csv").write_bytes(header + b"".join(part))


if __name__ == "__main__":
    sys.exit(running.run(main, _NAME))
