"""Delegation tokens on three nodes whose tokens live for seconds: executors, streams, and ends."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import need_kafka, need_kdc, running_secured
from support.brokers import class_archives, fetch_kafka
from support.brokers.kdc import Kdc
from support.brokers.logins import LOGINS, ROWS, Login, new_topic, numbers, options
from support.brokers.secured_kafka import PASSWORD, USER, SecuredKafka
from support.spark.spark_processes import environment, standalone_cluster, submit

from spark_kafka_sink.admin import KafkaAdmin
from spark_kafka_sink.config import producer_config

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.long(reason="three nodes, a standalone cluster, and tokens that have to end"),
    pytest.mark.timeout(900),
]

# When a write is planned, its token has at least a quarter of its time to expiry left: on a busy
# machine, tasks begin seconds after their micro-batch was planned.
EXPIRY_MS, MAX_LIFE_MS = 40_000, 80_000
# Only the driver has it in its environment.
VARIABLE = "KAFKA_PASSWORD_OF_THE_DRIVER"


@pytest.fixture(scope="module")
def cluster(
    shared_kdc: Kdc | None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SecuredKafka]:
    """Three nodes of the newest Kafka, whose delegation tokens live for seconds."""
    need_kafka()
    libs = fetch_kafka.libs(fetch_kafka.NEWEST)
    java = class_archives.kafka_options(fetch_kafka.NEWEST)
    more = {
        "delegation.token.expiry.time.ms": EXPIRY_MS,
        "delegation.token.max.lifetime.ms": MAX_LIFE_MS,
    }
    folder = tmp_path_factory.mktemp("tokens") / "kafka"
    with running_secured(SecuredKafka(libs, folder, java, shared_kdc, nodes=3, more=more)) as made:
        yield made


@pytest.fixture(scope="module")
def old_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    """One node of the last Kafka 3, without delegation tokens."""
    need_kafka()
    libs, java = fetch_kafka.libs(fetch_kafka.OLD), class_archives.kafka_options(fetch_kafka.OLD)
    folder = tmp_path_factory.mktemp("old") / "kafka"
    with running_secured(SecuredKafka(libs, folder, java, has_tokens=False)) as made:
        yield made


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A standalone cluster of two workers, which do not have the driver's environment."""
    folder = tmp_path_factory.mktemp("standalone")
    with standalone_cluster(folder, Path(environment()["PYSPARK_PYTHON"])) as address:
        yield address


def of_driver(kafka: SecuredKafka, login: Login, folder: Path) -> dict[str, str]:
    """Return the options by which only the driver can log in, if it has a password."""
    given = options(kafka, login, folder)
    # The values of references are not sent unencrypted.
    if "sasl.password" in given and login != Login("PLAIN", "SASL_PLAINTEXT"):
        given["sasl.password"] = f"${{env:{VARIABLE}}}"
    return given


JOB = '''
import json, logging, sys, traceback
from itertools import chain
logging.basicConfig(level=logging.DEBUG)


def keep(kind, error, trace):
    """Keep an error in a file: spark-submit may end before it has printed the last lines."""
    with open("failure", "w") as file:
        traceback.print_exception(error, file=file)
    sys.__excepthook__(kind, error, trace)


sys.excepthook = keep
from pyspark.sql import SparkSession
from spark_kafka_sink import register, write_batch

spark = SparkSession.builder.getOrCreate()
given = json.load(open(sys.argv[1]))
if all(write.get("registers", True) for write in chain(*given.values())):
    register(spark)


def kafka(write):
    options = {"kafka." + name: value for name, value in write["options"].items()}
    return {**options, "topic": write["topic"], "delegationToken": "true", **write.get("more", {})}


for write in given["jobs"]:
    frame = spark.range(0, write["rows"], numPartitions=4).selectExpr("CAST(id AS STRING) AS value")
    frame.write.format("pykafka").mode("append").options(**kafka(write)).save()
for write in given["streams"]:
    rates = spark.readStream.format("rate").option("rowsPerSecond", 50).load()
    rates = rates.selectExpr("CAST(value AS STRING) AS value")
    query = (
        rates.writeStream.format("pykafka").options(**kafka(write))
        .option("checkpointLocation", write["checkpoint"])
        .trigger(processingTime="1 second").start()
    )
    query.awaitTermination(write["seconds"])
    query.stop()
    assert query.exception() is None
for write in given["long"]:
    def late(batches):
        yield from batches
        import time
        time.sleep(write["seconds"])
    frame = spark.range(0, 2, numPartitions=1).selectExpr("CAST(id AS STRING) AS value")
    more = spark.range(2, 4, numPartitions=1).selectExpr("CAST(id AS STRING) AS value")
    rows = frame.mapInArrow(late, frame.schema).unionAll(more).coalesce(1)
    rows.write.format("pykafka").mode("append").options(**kafka(write)).save()
'''


def run(
    master: str, folder: Path, timeout_s: float = 600, **given: list[dict[str, Any]]
) -> subprocess.CompletedProcess[str]:
    """Run the program with jobs, streams and long jobs.

    Its events are in the folder, and its error is in the file `failure` there.
    """
    (folder / "given.json").write_text(json.dumps({"jobs": [], "streams": [], "long": []} | given))
    (folder / "job.py").write_text(JOB)
    (folder / "events").mkdir()
    settings = {
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": (folder / "events").as_uri(),
        "spark.eventLog.enabled": "true",
        "spark.local.dir": str(folder / "local"),
        "spark.task.maxFailures": "1",
    }
    arguments: list[str | Path] = ["--master", master]
    for name, value in settings.items():
        arguments += ["--conf", f"{name}={value}"]
    arguments += [folder / "job.py", folder / "given.json"]
    env = environment() | {VARIABLE: PASSWORD}
    return submit(arguments, cwd=folder, env=env, timeout_s=timeout_s)


def test_executors_write_every_row_once_with_the_token_alone(
    cluster: SecuredKafka, master: str, tmp_path: Path
) -> None:
    need_kdc()
    jobs = [
        {
            "topic": new_topic(cluster),
            "options": of_driver(cluster, login, tmp_path),
            "rows": ROWS,
            "more": {"delegationToken.mechanism": f"SCRAM-SHA-{bits}"},
        }
        for login, bits in zip(LOGINS, (256, 512) * len(LOGINS), strict=False)
    ]
    done = run(master, tmp_path, jobs=jobs)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    for each, login in zip(jobs, LOGINS, strict=True):
        assert numbers(cluster, str(each["topic"])) == list(range(ROWS)), login


def test_a_stream_goes_on_over_the_ends_of_several_tokens(
    cluster: SecuredKafka, master: str, tmp_path: Path
) -> None:
    seconds = 150
    topic = new_topic(cluster)
    given = of_driver(cluster, Login("SCRAM-SHA-512", "SASL_SSL"), tmp_path)
    before = tokens(given)
    stream = {
        "topic": topic,
        "options": given,
        "seconds": seconds,
        "checkpoint": str(tmp_path / "checkpoint"),
        "more": {"reportPath": str(tmp_path / "reports.jsonl")},
    }
    done = run(master, tmp_path, streams=[stream])
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    batches = (tmp_path / "reports.jsonl").read_text().splitlines()
    rows = sum(json.loads(line)["rows"] for line in batches)
    assert rows > seconds * 50 / 3
    # The last micro-batch may have been stopped after a part of its rows was written.
    found = numbers(cluster, topic)
    assert found[:rows] == list(range(rows))
    assert len(set(found)) == len(found)
    made = {name: hmac for name, hmac in tokens(given).items() if name not in before}
    # The next one is created after 75 % of the life of each.
    assert 2 <= len(made) <= 1 + seconds * 1000 / (0.75 * MAX_LIFE_MS) + 1
    assert len(batches) > 3 * len(made)
    shown = done.stdout + done.stderr
    for path in [*(tmp_path / "events").rglob("*"), tmp_path / "reports.jsonl"]:
        shown += path.read_text() if path.is_file() else ""
    assert topic in shown, "what is searched has the options of the stream"
    for secret in (PASSWORD, *made.values()):
        assert secret not in shown


def tokens(given: dict[str, str]) -> dict[str, str]:
    """Return the HMACs of the tokens that brokers have, by id; they keep expired ones for long."""
    config = producer_config(given | {"sasl.password": PASSWORD})
    with KafkaAdmin(config) as admin:
        found = admin.describe_delegation_token([f"User:{USER}"])
    return {each.token_id: each.hmac.value for each in found}


def long_job(kafka: SecuredKafka, folder: Path, seconds: float, **more: bool) -> dict[str, Any]:
    """Return a job of four rows, whose task waits before the last two."""
    given = of_driver(kafka, Login("PLAIN", "SASL_SSL"), folder)
    given |= {"delivery.timeout.ms": "15000", "request.timeout.ms": "5000", "linger.ms": "0"}
    return {"topic": new_topic(kafka), "options": given, "seconds": seconds, **more}


def test_the_token_of_a_task_that_takes_long_is_renewed(
    cluster: SecuredKafka, master: str, tmp_path: Path
) -> None:
    long = long_job(cluster, tmp_path, 1.25 * EXPIRY_MS / 1000)
    done = run(master, tmp_path, long=[long])
    assert done.returncode == 0, done.stderr[-4000:]
    assert numbers(cluster, long["topic"]) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("most_ms", "registers", "sentence", "advice"),
    [
        (EXPIRY_MS, False, "; the token expired at", "after register(spark): use one of these"),
        (
            MAX_LIFE_MS,
            True,
            "; the token's life ended at",
            "raise delegation.token.max.lifetime.ms",
        ),
    ],
    ids=["no register", "the maximum life"],
)
def test_a_task_that_outlives_its_token_fails_with_what_to_do(
    cluster: SecuredKafka,
    master: str,
    tmp_path: Path,
    most_ms: int,
    sentence: str,
    advice: str,
    *,
    registers: bool,
) -> None:
    long = long_job(cluster, tmp_path, 1.25 * most_ms / 1000, registers=registers)
    done = run(master, tmp_path, long=[long])
    assert done.returncode != 0
    said = (tmp_path / "failure").read_text()
    assert f"the delegation token has expired (58){sentence}" in said, said[-4000:]
    assert advice in said
    assert PASSWORD not in said + done.stdout + done.stderr


def test_brokers_without_tokens_are_known_before_a_job_starts(
    old_cluster: SecuredKafka, master: str, tmp_path: Path
) -> None:
    topic = new_topic(old_cluster, replicas=1)
    given = of_driver(old_cluster, Login("PLAIN", "SASL_SSL"), tmp_path)
    job = {"topic": topic, "options": given, "rows": 10}
    done = run(master, tmp_path, jobs=[job])
    assert done.returncode != 0
    said = (tmp_path / "failure").read_text()
    sentence = "DELEGATION_TOKEN_AUTH_DISABLED (61); set delegation.token.secret.key on each"
    assert sentence in said, said[-4000:]
    assert numbers(old_cluster, topic) == []
    assert "SparkListenerJobStart" not in "".join(
        path.read_text() for path in (tmp_path / "events").rglob("*") if path.is_file()
    )
