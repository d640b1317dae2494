"""The demo: a Kafka broker, real flights, every job, and a check of every topic.

`make demo` runs it with the Python of the virtual environment. `make demo BOOTSTRAP=host:port` uses
an existing broker, and deletes the demo's topics there at the end; with KEEP=1, or if the records
differ, the topics stay. Exit code 0: all topics have exactly the source's records; 1: a topic has
other records; 2: the demo could not run.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import shlex
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyspark
import verify
from job import arguments, broker, class_archive, digest, java_version, kafka_jars, rows, running
from job.children import Children, end_with_parent, kill
from job.secured_listener import SecuredListener

_NAME: Final = "demo.py"
_ROOT: Final = Path(__file__).resolve().parent.parent
_CONFIG: Final = Path("conf/producer.properties")
_PARTITIONS: Final = 12
_FILES: Final = 4
_COLUMNS: Final = (
    "--key", "carrier,flight", "--headers", "origin,dest,tailnum", "--timestamp", "time_hour",
)  # fmt: skip
# Enough tasks for visible progress.
_SMALL_TASKS: Final = "spark.sql.files.maxPartitionBytes=4m"
_MODES: Final = ("writeStream", "foreachBatch")
# The timestamps of the flights are in 2013. With retention by time, a broker would delete the
# flights, and begin a segment for every week of that year. A partition has at most 10.1 MiB of
# flights, and twice as much if a job was killed and ran again. With these limits, the five topics
# of a demo take less than 1 GB.
_TOPIC_CONFIG: Final = {
    "retention.ms": "-1",
    "retention.bytes": str(23 << 19),
    "segment.bytes": str(2 << 20),
    "segment.ms": str(2**62),
}
_KILLED_CONFIG: Final = _TOPIC_CONFIG | {"retention.bytes": str(22 << 20)}
# The job of the exactly-once round is killed when the topic has so many of its 336,776 records.
_KILLED_ROUND: Final = "exactly-once"
_KILLED_AT: Final = 336_776 // 2
_ARCHIVE: Final = "demo-{}.jsa"
_POLL_S: Final = 0.05
_READ_TIMEOUT_S: Final = 30.0
_EXACTLY_ONCE: Final = {"exactlyOnce": "true", "txnAppId": "flights", "txnVersion": "1"}
_ANSWER_TIMEOUT_S: Final = 5.0
_CREATE_TIMEOUT_S: Final = 30.0
_DELETE_TIMEOUT_S: Final = 10.0
# The command sets PYSPARK_PYTHON, because spark-submit does not use the Python of its own folder.
_NEXT: Final = """
What to type next:

  make broker         Kafka on 127.0.0.1:9092 until Ctrl-C
  make demo STREAM=1  the same as a stream, in two ways
  make demo ALL=1     also a job that is killed half-way, exactly once, and a job over TLS

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
        "--keep",
        action="store_true",
        help="keep the topics on your own broker, so that you can look at them",
    )
    parser.add_argument(
        "--stream", action="store_true", help="run stream.py too, in both of its modes"
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="also write exactly once with a job that is killed, and over TLS with SCRAM; "
        "not with --bootstrap",
    )
    given = parser.parse_args(argv)
    has_rounds = given.all and given.bootstrap is None
    if (problem := java_version.problem()) is not None:
        raise running.JobError(problem)
    modes = _MODES if given.stream else ()
    steps = Steps(time.monotonic(), count=4 + 2 * len(modes) + 3 * has_rounds)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(broker.scratch_folder("demo"))
        removal = stack.enter_context(contextlib.ExitStack())
        processes = stack.enter_context(Children())
        end_with_parent()
        if given.bootstrap is None:
            steps.say(f"starting {kafka_jars.KAFKA.name}")
            node = stack.enter_context(_broker(processes, is_secured=has_rounds))
            address, secured = node.address, node.secured
            print(f"it answers at {address}", flush=True)
        else:
            address, secured = given.bootstrap, None
            steps.say(f"using the broker at {address}")
            check(address)
        more = (_KILLED_ROUND, "tls") if has_rounds else ()
        topics = make_topics(address, (*modes, *more), steps)
        if given.bootstrap is not None:
            removal.callback(delete_topics, address, topics)
        run = Demo(processes, folder, address, steps)
        agreed = run.run(topics[: 1 + len(modes)])
        if secured is not None:
            once, over_tls = topics[-2:]
            expected = run.digest_of(topics[0])
            agreed = run.exactly_once(once, expected) and agreed
            agreed = run.secured(over_tls, expected, secured) and agreed
        elif given.all:
            print(
                "\nNot shown: exactly once and TLS. These rounds kill a job and need a listener "
                "with a certificate, so they run on the demo's own broker: make demo ALL=1"
            )
        if given.bootstrap is not None and (given.keep or not agreed):
            removal.pop_all()
            say_how_to_delete(address, topics)
    print(
        f"\n{'All topics hold exactly the source' if agreed else 'Something DIFFERS, see above'}; "
        f"{time.monotonic() - steps.started:.0f} s in all."
    )
    if agreed:
        print(what_next())
    return 0 if agreed else 1


@contextlib.contextmanager
def _broker(processes: Children, *, is_secured: bool) -> Iterator[broker.Broker]:
    """Run the demo's own broker. Raise JobError if it cannot run."""
    with contextlib.ExitStack() as stack:
        try:
            yield stack.enter_context(
                broker.running(processes, java=class_archive.SHORT_LIVED, is_secured=is_secured)
            )
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
    new = [
        new_topic(
            topic,
            num_partitions=_PARTITIONS,
            config=_KILLED_CONFIG if _KILLED_ROUND in topic else _TOPIC_CONFIG,
        )
        for topic in topics
    ]
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
    return _NEXT.format(folder=shlex.quote(str(_folder())))


def _folder() -> Path:
    """Return the folder of this Python, from the clone if it is inside."""
    folder = Path(sys.executable).parent
    return folder.relative_to(_ROOT) if folder.is_relative_to(_ROOT) else folder


def delete_topics(address: str, topics: Sequence[str]) -> None:
    """Delete the demo's topics on the user's broker, and print that; print also what failed."""
    kafka, admin = _admin(address)
    asked = admin.delete_topics(list(topics), request_timeout=_DELETE_TIMEOUT_S)
    for topic, future in asked.items():
        try:
            future.result()
            print(f"topic {topic} is deleted; KEEP=1 keeps it")
        except kafka.KafkaException as error:
            print(f"topic {topic} could not be deleted at {address}: {error.args[0].str()}")


def say_how_to_delete(address: str, topics: Sequence[str]) -> None:
    """Print the command that deletes the demo's topics on the user's broker."""
    program = f"import demo; demo.delete_topics({address!r}, {list(topics)})"
    python = shlex.quote(str(_folder() / "python"))
    print("\nthe topics stay on your broker; to delete them:\n")
    print(f"  PYTHONPATH=jobs {python} -c {shlex.quote(program)}")


def spark_archive() -> Path:
    """Return the archive of the classes of this Spark and this Java, which may not exist yet.

    Its size is about 160 MB.
    """
    # A JVM compares the times of all jars with those in the archive.
    jars = Path(pyspark.__file__).parent / "jars"
    identity = (
        f"{pyspark.__version__}-{int(jars.stat().st_mtime):x}-{class_archive.java_identity()}"
    )
    return Path(sys.prefix) / _ARCHIVE.format(identity)


class Demo:
    """Runs the jobs with spark-submit, one after another."""

    def __init__(self, processes: Children, folder: Path, address: str, steps: Steps) -> None:
        self._processes = processes
        self._folder = folder
        self._address = address
        self._steps = steps
        self._scratch = folder / "tmp"
        self._scratch.mkdir()
        # The first job archives the classes of Spark for all later ones.
        self._archive = spark_archive()
        self._made_archive = folder / "classes.jsa"
        self._is_archiving = not self._archive.exists() and os.access(sys.prefix, os.W_OK)

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

    def exactly_once(self, topic: str, expected: digest.Digest) -> bool:
        """Kill a job half-way and run it again; return whether the topic has each record once.

        expected: the digest of the records.
        """
        options = [word for pair in _EXACTLY_ONCE.items() for word in ("--option", "=".join(pair))]
        started = time.monotonic()
        self._steps.say(f"exactly once: produce.py to {topic}, killed half-way")
        show_code(self._address, topic, _EXACTLY_ONCE)
        process = self._start("produce.py", topic, *_COLUMNS, *options)
        records = 0
        with counting(self._address, topic) as count_written:
            while process.poll() is None and records < _KILLED_AT:
                time.sleep(_POLL_S)
                records = count_written()
        end = "killed" if process.poll() is None else "the job ended before it could be killed"
        kill(process)
        print(
            f"\n{end}: the topic has {records:,} records, and a read_committed reader sees "
            f"{self.digest_of(topic).records:,}",
            flush=True,
        )
        self._steps.say("the same job again, with the same txnVersion")
        self._must("produce.py", topic, *_COLUMNS, *options)
        return self._same(topic, expected, started)

    def secured(self, topic: str, expected: digest.Digest, listener: SecuredListener) -> bool:
        """Write over TLS with SCRAM; return whether the topic has each record once.

        expected: the digest of the records.
        """
        started = time.monotonic()
        self._steps.say(f"over TLS with SCRAM: produce.py to {topic}")
        options = {f"kafka.{name}": each for name, each in listener.client_options.items()}
        options["kafka.sasl.password"] = "${directory:/run/secrets:kafka-password}"
        show_code(listener.address, topic, options)
        # Not on the command line, where every user of the machine could read the password.
        config = self._folder / "secured.properties"
        config.touch(mode=0o600)
        lines = ("bootstrap.servers", listener.address), *listener.client_options.items()
        config.write_text("".join(f"{name}={each}\n" for name, each in lines))
        self._must("produce.py", topic, *_COLUMNS, config=config)
        return self._same(topic, expected, started)

    def digest_of(self, topic: str) -> digest.Digest:
        """Return the digest of the records that a read_committed reader finds in a topic."""
        target = arguments.Target(bootstrap=self._address, topic=topic, options={})
        return verify.read_topic(verify.import_consumer(), target, _READ_TIMEOUT_S).digest

    def _same(self, topic: str, expected: digest.Digest, started: float) -> bool:
        found = self.digest_of(topic)
        print(f"topic {topic}: {found}\nexpected: {expected}")
        result = "each record is there once" if found == expected else "the records DIFFER"
        print(f"{result}; this round took {time.monotonic() - started:.0f} s")
        return found == expected

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

    def _must(self, job: str, topic: str, *arguments: str, config: Path = _CONFIG) -> None:
        code = self._submit(job, topic, *arguments, config=config)
        if code != 0:
            message = f"{job} ended with exit code {code}; its own message is above"
            raise running.JobError(message)

    def _submit(self, job: str, topic: str, *arguments: str, config: Path = _CONFIG) -> int:
        """Run a job as a user does; return its exit code."""
        if self._is_archiving:
            print("the first job archives the classes of Spark for the next ones", flush=True)
        code = self._start(job, topic, *arguments, config=config).wait()
        if self._is_archiving:
            self._is_archiving = False
            for outdated in self._archive.parent.glob(_ARCHIVE.format("*")):
                outdated.unlink(missing_ok=True)
            class_archive.keep(self._made_archive, self._archive)
        return code

    def _start(
        self, job: str, topic: str, *arguments: str, config: Path = _CONFIG
    ) -> subprocess.Popen[bytes]:
        """Start a job as a user does. `config` may name other brokers than the demo's address."""
        given = () if config is not _CONFIG else ("--bootstrap", self._address)
        java = [
            *(
                class_archive.making(self._made_archive)
                if self._is_archiving
                else class_archive.using(self._archive)
            ),
            f"-Djava.io.tmpdir={self._scratch}",
        ]
        command = [
            str(Path(sys.executable).with_name("spark-submit")),
            *("--master", "local[*]"),
            *("--properties-file", "conf/spark-defaults.conf"),
            *("--conf", _SMALL_TASKS),
            *(
                "--conf",
                "spark.driver.defaultJavaOptions=" + " ".join(f'"{each}"' for each in java),
            ),
            f"jobs/{job}",
            *("--config", str(config)),
            *given,
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
        return self._processes.start(command, env=environment, cwd=_ROOT)


def show_code(address: str, topic: str, options: Mapping[str, str]) -> None:
    """Print the statement of a program that writes a DataFrame to a topic with these options."""
    print("in a program, with the columns of the records in the DataFrame df:\n")
    print('(\n    df.write.format("pykafka")\n    .mode("append")')
    for name, value in {"kafka.bootstrap.servers": address, "topic": topic, **options}.items():
        print(f"    .option({json.dumps(name)}, {json.dumps(value)})")
    print("    .save()\n)\n", flush=True)


@contextlib.contextmanager
def counting(address: str, topic: str) -> Iterator[Callable[[], int]]:
    """Yield a function that counts the offsets in a topic, also those of open transactions."""
    kafka = importlib.import_module("confluent_kafka")
    consumer = kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": _NAME,
            "isolation.level": "read_uncommitted",
            "log_level": 0,
        }
    )
    partitions = [kafka.TopicPartition(topic, each) for each in range(_PARTITIONS)]
    try:
        yield lambda: sum(
            consumer.get_watermark_offsets(each, _READ_TIMEOUT_S)[1] for each in partitions
        )
    finally:
        consumer.close()


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
