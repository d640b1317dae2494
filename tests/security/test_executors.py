"""Executors of a standalone cluster log in in each way; others read by the same credentials."""

from __future__ import annotations

import base64
import json
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import confluent_kafka
import kafka as kafka_python
import pytest
from conftest import need_kdc
from kafka.net.sasl.oauth import AbstractTokenProvider
from support.brokers.logins import (
    BY_PASSWORD,
    LOGINS,
    MUTUAL,
    ROWS,
    SIGNED_LOGINS,
    Login,
    new_topic,
    numbers,
    options,
)
from support.brokers.secured_kafka import PASSWORD, USER, SecuredKafka
from support.brokers.token_server import CLIENT_ID, CLIENT_SECRET, TokenServer
from support.spark.spark_processes import environment, standalone_cluster, submit

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.long(reason="three nodes and a standalone cluster"),
    pytest.mark.timeout(900),
]

JOB = """
import json, sys
from pyspark.sql import SparkSession
from spark_kafka_sink import register

spark = SparkSession.builder.getOrCreate()
register(spark)
rows = int(sys.argv[2])
for write in json.load(open(sys.argv[1])):
    frame = spark.range(0, rows, numPartitions=4).selectExpr("CAST(id AS STRING) AS value")
    writer = frame.write.format("pykafka").mode("append").option("topic", write["topic"])
    for name, value in write["options"].items():
        writer = writer.option("kafka." + name, value)
    writer.save()
"""


@pytest.mark.parametrize("by_kerberos", [False, True], ids=["others", "gssapi"])
def test_executors_write_every_row_once_and_others_read_it_by_the_same_credentials(
    guarded_cluster: SecuredKafka,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    by_kerberos: bool,
) -> None:
    if by_kerberos:
        need_kdc()
    logins = [
        each
        for each in (*LOGINS, *SIGNED_LOGINS, MUTUAL)
        if (each.mechanism == "GSSAPI") == by_kerberos
    ]
    topics = [new_topic(guarded_cluster) for _ in logins]
    with TokenServer(guarded_cluster.jwt_key.read_text()) as server:
        given = [options(guarded_cluster, login, tmp_path, server) for login in logins]
        run_job(
            tmp_path,
            [{"topic": topic, "options": each} for topic, each in zip(topics, given, strict=True)],
        )
        kdc = guarded_cluster.kdc
        if kdc is not None:
            # For kafka-python's logins by Kerberos.
            monkeypatch.setenv("KRB5CCNAME", str(kdc.tickets(USER, kdc.keytab(USER))))
        for login, topic, each in zip(logins, topics, given, strict=True):
            assert numbers(guarded_cluster, topic) == list(range(ROWS)), login
            if login.mechanism != "GSSAPI":
                assert read_by_confluent(login, each, topic) == list(range(ROWS)), login
            assert read_by_kafka_python(login, each, topic) == list(range(ROWS)), login


def run_job(folder: Path, writes: list[dict[str, object]]) -> None:
    """Run a job that writes to each topic, on a cluster of its own."""
    (folder / "writes.json").write_text(json.dumps(writes))
    (folder / "job.py").write_text(JOB)
    place = folder / "standalone"
    place.mkdir()
    with standalone_cluster(place, Path(environment()["PYSPARK_PYTHON"])) as master:
        done = submit(
            ["--master", master, folder / "job.py", folder / "writes.json", str(ROWS)],
            cwd=folder,
            env=environment(),
            timeout_s=600,
        )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def token_of(given: Mapping[str, str]) -> str:
    """Return the token of the file, or of the endpoint, that the options name."""
    url = given["sasl.oauthbearer.token.endpoint.url"]
    if url.startswith("file://"):
        return Path(url.removeprefix("file://")).read_text()
    client = base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()
    asked = urllib.request.Request(
        url, b"grant_type=client_credentials", {"Authorization": f"Basic {client}"}
    )
    with urllib.request.urlopen(asked, timeout=20) as answer:
        found = json.load(answer)["access_token"]
    assert isinstance(found, str)
    return found


def read_by_confluent(login: Login, given: Mapping[str, str], topic: str) -> list[int]:
    """Read a topic by confluent-kafka, with the same credentials."""
    names = {"ssl.truststore.location": "ssl.ca.location", "sasl.mechanism": "sasl.mechanisms"}
    config: dict[str, Any] = {
        names.get(name, name): value
        for name, value in given.items()
        if not name.startswith("sasl.oauthbearer.")
    }
    pem = config.pop("ssl.keystore.location", None)
    if pem is not None:
        config |= {"ssl.certificate.location": pem, "ssl.key.location": pem}
    elif login in SIGNED_LOGINS:
        config |= {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.token.endpoint.url": given["sasl.oauthbearer.token.endpoint.url"],
            "sasl.oauthbearer.client.id": CLIENT_ID,
            "sasl.oauthbearer.client.secret": CLIENT_SECRET,
        }
    elif login.mechanism == "OAUTHBEARER":
        config["oauth_cb"] = lambda _: (token_of(given), time.time() + 3600)
    consumer = confluent_kafka.Consumer(
        config | {"group.id": f"g-{topic}", "auto.offset.reset": "earliest", "log_level": 0}
    )
    consumer.subscribe([topic])
    try:
        return sorted(
            int(record.value() or b"-1")
            for record in consumer.consume(ROWS, timeout=60)
            if record.error() is None
        )
    finally:
        consumer.close()


def read_by_kafka_python(login: Login, given: Mapping[str, str], topic: str) -> list[int]:
    """Read a topic by kafka-python, with the same credentials; by Kerberos those of the cache."""
    config: dict[str, Any] = {
        "bootstrap_servers": given["bootstrap.servers"].split(","),
        "security_protocol": given["security.protocol"],
        "ssl_cafile": given.get("ssl.truststore.location"),
        "sasl_mechanism": login.mechanism or None,
        "auto_offset_reset": "earliest",
        "consumer_timeout_ms": 30_000,
    }
    if login == MUTUAL:
        pem = given["ssl.keystore.location"]
        config |= {"ssl_certfile": pem, "ssl_keyfile": pem}
    elif login.mechanism == "GSSAPI":
        config["sasl_kerberos_service_name"] = "kafka"
    elif login.mechanism == "OAUTHBEARER":

        class Provider(AbstractTokenProvider):  # type: ignore[misc] # is Any
            def token(self) -> str:
                return token_of(given)

        config["sasl_oauth_token_provider"] = Provider()
    else:
        assert login.mechanism in BY_PASSWORD
        config |= {"sasl_plain_username": USER, "sasl_plain_password": PASSWORD}
    consumer = kafka_python.KafkaConsumer(topic, **config)
    try:
        # The consumer comes last: asked for one more, it would wait for it.
        return sorted(int(record.value) for _, record in zip(range(ROWS), consumer, strict=False))
    finally:
        consumer.close()
