"""Jobs that write to a secured cluster: driver and tasks log in, and no secret is kept anywhere."""

from __future__ import annotations

import pickle
import traceback
import uuid
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from support.brokers.kdc import Kdc, read_by_kerberos
from support.brokers.secured_kafka import PASSWORD, USER, SecuredKafka, quoted
from support.brokers.token_server import CLIENT_ID, CLIENT_SECRET, TokenServer
from support.oracles.readers import create_topic, read_with_confluent
from support.spark.sink import save

from spark_kafka_sink.errors import ConfigException
from spark_kafka_sink.spark.planning.datasource import KafkaDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

ROWS = 3000


@pytest.fixture
def topic(secured_kafka: SecuredKafka) -> str:
    """A topic of three partitions."""
    name = f"topic-{uuid.uuid4().hex[:12]}"
    create_topic(secured_kafka.bootstrap, name, 3)
    return name


def options(kafka: SecuredKafka, password: str = PASSWORD) -> dict[str, str]:
    """Return the options of a write that logs in over TLS, `save`'s way to write them."""
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    return {
        "kafka_security_protocol": "SASL_SSL",
        "kafka_sasl_mechanism": "SCRAM-SHA-512",
        "kafka_sasl_jaas_config": (
            f"{module} required username={quoted(USER)} password={quoted(password)};"
        ),
        "kafka_ssl_truststore_location": str(kafka.ca),
    }


def test_tasks_write_every_row_once(
    spark: SparkSession, secured_kafka: SecuredKafka, topic: str
) -> None:
    frame = spark.range(0, ROWS, numPartitions=3).selectExpr("CAST(id AS STRING) AS value")
    save(frame, secured_kafka.address("SASL_SSL"), topic, **options(secured_kafka))
    found = [
        int(record.value or b"") for record in read_with_confluent(secured_kafka.bootstrap, topic)
    ]
    assert sorted(found) == list(range(ROWS))


def test_tasks_log_in_by_a_keytab_that_was_shipped_and_kafka_python_reads_every_row_once(
    spark: SparkSession, secured_kafka: SecuredKafka, realm: Kdc, topic: str
) -> None:
    keytab = realm.keytab(USER)
    spark.sparkContext.addFile(str(keytab))
    given = {
        "kafka_security_protocol": "SASL_SSL",
        "kafka_sasl_kerberos_service_name": "kafka",
        "kafka_sasl_kerberos_principal": USER,
        "kafka_sasl_kerberos_keytab": keytab.name,
        "kafka_ssl_truststore_location": str(secured_kafka.ca),
    }
    address = secured_kafka.address("SASL_SSL")
    frame = spark.range(0, ROWS, numPartitions=3).selectExpr("CAST(id AS STRING) AS value")
    save(frame, address, topic, **given)
    cache = realm.tickets(USER, keytab)
    with read_by_kerberos(address, secured_kafka.ca, topic, cache) as consumer:
        found = [int(next(consumer).value) for _ in range(ROWS)]
    assert sorted(found) == list(range(ROWS))
    group = f"refused-{topic}"
    spark.sparkContext.setJobGroup(group, "a write that is refused")
    given["kafka_sasl_kerberos_principal"] = "nobody"
    with pytest.raises(PySparkException, match="no ticket for principal 'nobody'"):
        save(frame, address, topic, **given)
    assert spark.sparkContext.statusTracker().getJobIdsForGroup(group) == []
    assert len(read_with_confluent(secured_kafka.bootstrap, topic)) == ROWS


def test_the_driver_and_each_worker_fetch_one_token(
    spark: SparkSession, secured_kafka: SecuredKafka, topic: str
) -> None:
    client = "kafka_sasl_oauthbearer_client_credentials_client"
    with TokenServer(secured_kafka.jwt_key.read_text()) as server:
        given = {
            "kafka_security_protocol": "SASL_SSL",
            "kafka_sasl_mechanism": "OAUTHBEARER",
            "kafka_sasl_oauthbearer_token_endpoint_url": server.url,
            f"{client}_id": CLIENT_ID,
            f"{client}_secret": CLIENT_SECRET,
            "kafka_ssl_truststore_location": str(secured_kafka.ca),
        }
        address = secured_kafka.address("JWT")
        for begin in (0, ROWS):
            frame = spark.range(begin, begin + ROWS, numPartitions=3)
            save(frame.selectExpr("CAST(id AS STRING) AS value"), address, topic, **given)
        # Spark's workers are three at most, and none asks twice.
        assert 2 <= len(server.asked) <= 1 + 3
        group = f"refused-{topic}"
        spark.sparkContext.setJobGroup(group, "a write that is refused")
        given[f"{client}_secret"] = "WRONG-SECRET"
        with pytest.raises(PySparkException, match="returned no token: it answered 401") as caught:
            save(spark.sql("SELECT 'v' AS value"), address, topic, **given)
        assert "WRONG-SECRET" not in "".join(traceback.format_exception(caught.value))
        assert spark.sparkContext.statusTracker().getJobIdsForGroup(group) == []
    found = [
        int(record.value or b"") for record in read_with_confluent(secured_kafka.bootstrap, topic)
    ]
    assert sorted(found) == list(range(2 * ROWS))


def test_a_file_that_was_shipped_goes_by_its_name(
    spark: SparkSession, secured_kafka: SecuredKafka, topic: str
) -> None:
    spark.sparkContext.addFile(str(secured_kafka.ca))
    given = options(secured_kafka) | {"kafka_ssl_truststore_location": secured_kafka.ca.name}
    save(spark.sql("SELECT 'v' AS value"), secured_kafka.address("SASL_SSL"), topic, **given)
    assert [r.value for r in read_with_confluent(secured_kafka.bootstrap, topic)] == [b"v"]


def test_what_the_brokers_refuse_is_known_before_a_task_starts(
    spark: SparkSession, secured_kafka: SecuredKafka, topic: str
) -> None:
    group = f"refused-{topic}"
    spark.sparkContext.setJobGroup(group, "a write that is refused")
    frame = spark.sql("SELECT 'v' AS value")
    for given, sentence in (
        (options(secured_kafka, "WRONG-SECRET"), "refused the login of user 'alice'"),
        (
            options(secured_kafka) | {"kafka_ssl_truststore_location": str(secured_kafka.other_ca)},
            "SslAuthenticationException",
        ),
    ):
        with pytest.raises(PySparkException, match=sentence) as caught:
            save(frame, secured_kafka.address("SASL_SSL"), topic, **given)
        shown = "".join(traceback.format_exception(caught.value))
        assert "WRONG-SECRET" not in shown
        assert PASSWORD not in shown
    assert spark.sparkContext.statusTracker().getJobIdsForGroup(group) == []
    assert read_with_confluent(secured_kafka.bootstrap, topic) == []


def test_a_missing_permission_is_known_before_a_task_starts_with_the_command_that_grants_it(
    spark: SparkSession, secured_kafka: SecuredKafka, topic: str
) -> None:
    # A user who is not in the ACLs of a topic is denied.
    secured_kafka.run_acls_script(
        "--bootstrap-server", secured_kafka.bootstrap, "--add", "--allow-principal", "User:other",
        "--operation", "DESCRIBE", "--topic", topic,
    )  # fmt: skip
    group = f"refused-{topic}"
    spark.sparkContext.setJobGroup(group, "a write that is refused")
    frame = spark.sql("SELECT 'v' AS value")
    with pytest.raises(PySparkException) as caught:
        save(frame, secured_kafka.address("SASL_SSL"), topic, **options(secured_kafka))
    said = str(caught.value)
    assert f"topic {topic}: TOPIC_AUTHORIZATION_FAILED (29)" in said
    command = "--allow-principal User:alice --operation WRITE --operation DESCRIBE --topic"
    assert f"{command} {topic}" in said
    assert spark.sparkContext.statusTracker().getJobIdsForGroup(group) == []


def test_what_goes_to_tasks_has_the_reference_and_not_the_secret(
    spark: SparkSession, secured_kafka: SecuredKafka, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD_OF_TEST", PASSWORD)
    given = {
        "kafka.bootstrap.servers": secured_kafka.address("SASL_SSL"),
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.username": USER,
        "kafka.sasl.password": "${env:KAFKA_PASSWORD_OF_TEST}",
        "kafka.ssl.truststore.location": str(secured_kafka.ca),
        "topic": topic,
    }
    frame = spark.sql("SELECT 'v' AS value")
    writer = KafkaDataSource(given).writer(frame.schema, overwrite=False)
    pickled = pickle.dumps(writer)
    assert b"KAFKA_PASSWORD_OF_TEST" in pickled
    assert PASSWORD.encode() not in pickled
    given["kafka.sasl.password"] = "${env:NOT_SET_OF_TEST}"
    with pytest.raises(ConfigException, match="'NOT_SET_OF_TEST' is not set on the driver"):
        KafkaDataSource(given).writer(frame.schema, overwrite=False)
