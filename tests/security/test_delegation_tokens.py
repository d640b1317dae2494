"""Delegation tokens on three nodes whose tokens live for seconds: executors, streams, and ends."""

from __future__ import annotations

import base64
import json
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import NO_KDC, need_kafka
from support.brokers import class_archives, fetch_kafka
from support.brokers.kdc import variables
from support.brokers.secured_kafka import PASSWORD, USER, SecuredKafka
from support.oracles.readers import create_topic, read_with_confluent
from support.spark.spark_processes import environment, standalone_cluster, submit

from spark_kafka_sink.admin import KafkaAdmin
from spark_kafka_sink.config import producer_config

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.long(reason="three nodes, a standalone cluster, and tokens that have to end"),
    pytest.mark.timeout(900),
]

EXPIRY_MS, MAX_LIFE_MS = 8_000, 30_000
ROWS, PARTITIONS, REPLICAS = 2_000, 3, 3
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")
LISTENERS = ("SASL_PLAINTEXT", "SASL_SSL")
# Only the driver has it in its environment.
VARIABLE = "KAFKA_PASSWORD_OF_THE_DRIVER"


def running(cluster: SecuredKafka) -> Iterator[SecuredKafka]:
    """Run a cluster for a fixture."""
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    """Three nodes of the newest Kafka; sessions last five seconds, and tokens little longer."""
    need_kafka()
    folder = tmp_path_factory.mktemp("tokens")
    kerberos = folder / "kerberos" if NO_KDC is None else None
    libs = fetch_kafka.libs(fetch_kafka.NEWEST)
    options = class_archives.kafka_options(fetch_kafka.NEWEST)
    more: dict[str, object] = {
        f"listener.name.{listener}.scram-sha-{bits}.connections.max.reauth.ms".lower(): 5_000
        for listener in LISTENERS
        for bits in (256, 512)
    }
    more |= {
        "delegation.token.expiry.time.ms": EXPIRY_MS,
        "delegation.token.max.lifetime.ms": MAX_LIFE_MS,
    }
    made = SecuredKafka(libs, folder / "kafka", options, kerberos, nodes=3, more=more)
    with pytest.MonkeyPatch.context() as patch:
        if kerberos is not None:
            for name, value in variables(kerberos).items():
                patch.setenv(name, value)
        yield from running(made)


@pytest.fixture(scope="module")
def old_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    """One node of the last Kafka 3, without delegation tokens."""
    need_kafka()
    libs, options = fetch_kafka.libs(fetch_kafka.OLD), class_archives.kafka_options(fetch_kafka.OLD)
    folder = tmp_path_factory.mktemp("old")
    yield from running(SecuredKafka(libs, folder / "kafka", options, has_tokens=False))


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A standalone cluster of two workers, which do not have the driver's environment."""
    folder = tmp_path_factory.mktemp("standalone")
    with standalone_cluster(folder, Path(environment()["PYSPARK_PYTHON"])) as address:
        yield address


def new_topic(kafka: SecuredKafka, replicas: int = REPLICAS) -> str:
    """Make a topic."""
    name = f"topic-{uuid.uuid4().hex[:12]}"
    create_topic(kafka.bootstrap, name, PARTITIONS, None, replicas)
    return name


def unsigned_token(folder: Path) -> Path:
    """Write a token that the tests' brokers take, and return its file."""
    now = time.time()
    parts = ({"alg": "none"}, {"sub": USER, "iat": now, "exp": now + 3600})
    coded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode() for part in parts]
    file = folder / "token"
    file.write_text(".".join(part.rstrip("=") for part in coded) + ".")
    return file


def login(kafka: SecuredKafka, mechanism: str, listener: str, folder: Path) -> dict[str, str]:
    """Return the options by which the driver logs in."""
    found = {
        "bootstrap.servers": kafka.address(listener),
        "security.protocol": listener,
        "sasl.mechanism": mechanism,
    }
    if listener != "SASL_PLAINTEXT":
        found["ssl.truststore.location"] = str(kafka.ca)
    if mechanism == "OAUTHBEARER":
        found["sasl.oauthbearer.token.endpoint.url"] = unsigned_token(folder).as_uri()
    elif mechanism == "GSSAPI":
        assert kafka.kdc is not None
        found["sasl.kerberos.service.name"] = "kafka"
        found["sasl.kerberos.principal"] = USER
        found["sasl.kerberos.keytab"] = str(kafka.kdc.keytab(USER))
    else:
        # A process refuses to send the value of a reference unencrypted.
        is_clear = mechanism == "PLAIN" and listener == "SASL_PLAINTEXT"
        found["sasl.username"] = USER
        found["sasl.password"] = PASSWORD if is_clear else f"${{env:{VARIABLE}}}"
    return found


def numbers(kafka: SecuredKafka, topic: str) -> list[int]:
    """Return the numbers in a topic, sorted, read past all security."""
    return sorted(int(each.value or b"-1") for each in read_with_confluent(kafka.bootstrap, topic))


JOB = """
import functools, json, logging, sys, time
logging.basicConfig(level=logging.DEBUG)
from pyspark.sql import SparkSession
from spark_kafka_sink import register, write_batch

spark = SparkSession.builder.getOrCreate()
register(spark)
given = json.load(open(sys.argv[1]))


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
"""


def run(
    master: str, folder: Path, timeout_s: float = 600, **given: list[dict[str, Any]]
) -> subprocess.CompletedProcess[str]:
    """Run the program with jobs, streams and long jobs; its events are in the folder."""
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
    mechanisms = [each for each in MECHANISMS if each != "GSSAPI" or cluster.kdc is not None]
    logins = [(each, listener) for each in mechanisms for listener in LISTENERS]
    jobs = [
        {
            "topic": new_topic(cluster),
            "options": login(cluster, mechanism, listener, tmp_path),
            "rows": ROWS,
            "more": {"delegationToken.mechanism": f"SCRAM-SHA-{bits}"},
        }
        for (mechanism, listener), bits in zip(logins, (256, 512) * len(logins), strict=False)
    ]
    done = run(master, tmp_path, jobs=jobs)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    for each, by in zip(jobs, logins, strict=True):
        assert numbers(cluster, str(each["topic"])) == list(range(ROWS)), by


def test_a_stream_goes_on_over_the_ends_of_several_tokens(
    cluster: SecuredKafka, master: str, tmp_path: Path
) -> None:
    seconds = 75
    topic, options = new_topic(cluster), login(cluster, "SCRAM-SHA-512", "SASL_SSL", tmp_path)
    before = tokens(cluster, options)
    stream = {
        "topic": topic,
        "options": options,
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
    made = {name: hmac for name, hmac in tokens(cluster, options).items() if name not in before}
    # Each lives for 30 s, and the next one is created after 75 % of that.
    assert 2 <= len(made) <= 1 + seconds * 1000 / (0.75 * MAX_LIFE_MS) + 1
    assert len(batches) > 3 * len(made)
    shown = done.stdout + done.stderr
    for path in [*(tmp_path / "events").rglob("*"), tmp_path / "reports.jsonl"]:
        shown += path.read_text() if path.is_file() else ""
    assert all(name in shown for name in list(made)[:1])
    for secret in (PASSWORD, *made.values()):
        assert secret not in shown


def tokens(kafka: SecuredKafka, options: dict[str, str]) -> dict[str, str]:
    """Return the HMACs of the tokens that brokers have, by id; they keep expired ones for long."""
    config = producer_config(options | {"sasl.password": PASSWORD})
    with KafkaAdmin(config) as admin:
        found = admin.describe_delegation_token([f"User:{USER}"])
    return {each.token_id: each.hmac.value for each in found}


def test_a_task_that_outlives_its_token_fails_with_the_brokers_setting(
    cluster: SecuredKafka, master: str, tmp_path: Path
) -> None:
    topic, options = new_topic(cluster), login(cluster, "PLAIN", "SASL_SSL", tmp_path)
    options |= {"delivery.timeout.ms": "15000", "request.timeout.ms": "5000", "linger.ms": "0"}
    long = {"topic": topic, "options": options, "seconds": 40}
    done = run(master, tmp_path, long=[long])
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert "the delegation token has expired (58); the token's life ended at" in said
    assert "raise delegation.token.max.lifetime.ms of the brokers" in said
    assert PASSWORD not in said


def test_brokers_without_tokens_are_known_before_a_job_starts(
    old_cluster: SecuredKafka, master: str, tmp_path: Path
) -> None:
    topic, options = new_topic(old_cluster, 1), login(old_cluster, "PLAIN", "SASL_SSL", tmp_path)
    job = {"topic": topic, "options": options, "rows": 10}
    done = run(master, tmp_path, jobs=[job])
    assert done.returncode != 0
    said = done.stderr
    assert "DELEGATION_TOKEN_AUTH_DISABLED (61); set delegation.token.secret.key on each" in said
    assert numbers(old_cluster, topic) == []
    assert "SparkListenerJobStart" not in "".join(
        path.read_text() for path in (tmp_path / "events").rglob("*") if path.is_file()
    )
