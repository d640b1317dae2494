"""The rights of docs/reference/exactly-once.md are enough, where whatever has no ACL is denied."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from support.brokers.secured_kafka import SecuredKafka
from support.oracles.readers import create_topic
from support.spark.single_job import SingleJob, handed_over

from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.recover import main
from spark_kafka_sink.spark.report import SkippedMessage

pytestmark = [pytest.mark.kafka, pytest.mark.exactly_once]

_OF_IDS = ("WRITE", "DESCRIBE")
_OF_ROWS = ("WRITE", "READ", "DESCRIBE")
_OF_LOG = ("WRITE", "READ", "DESCRIBE", "DESCRIBE_CONFIGS", "CREATE")


def grant(kafka: SecuredKafka, user: str, topic: str, log: str, mode: str) -> None:
    """Grant a user the rights of the table, and nothing else."""
    of_rows = (*_OF_ROWS, "DESCRIBE_CONFIGS") if mode == "single" else _OF_ROWS
    rights = [
        (ResourceType.TRANSACTIONAL_ID, "pykafka/", ResourcePatternType.PREFIXED, _OF_IDS),
        (ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, of_rows),
        (ResourceType.TOPIC, log, ResourcePatternType.LITERAL, _OF_LOG),
    ]
    bindings = [
        AclBinding(
            kind, name, pattern, f"User:{user}", "*",
            AclOperation[operation], AclPermissionType.ALLOW,
        )
        for kind, name, pattern, operations in rights
        for operation in operations
    ]  # fmt: skip
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    for created in admin.create_acls(bindings).values():
        created.result()


@pytest.mark.long(reason="it needs three nodes that deny whatever has no ACL")
@pytest.mark.timeout(300)
def test_the_documented_rights_are_enough_for_jobs_and_for_recover(
    guarded_cluster: SecuredKafka, mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    user, topic = (f"{kind}-{uuid.uuid4().hex[:12]}" for kind in ("user", "topic"))
    log = f"{topic}-log"
    guarded_cluster.set_scram_user(user, "of this test")
    grant(guarded_cluster, user, topic, log, mode)
    create_topic(guarded_cluster.bootstrap, topic, 3, None, 3)
    login = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": user,
        "sasl.password": "of this test",
    }
    servers = guarded_cluster.address("SASL_PLAINTEXT")
    job = SingleJob(guarded_cluster, topic, 3, log, exactlyOnce=mode)
    job.options |= {f"kafka.{name}": value for name, value in login.items()}
    job.options["kafka.bootstrap.servers"] = servers
    # A broker that leads a partition of the topic knows the rights, which are older.
    assert job.committed == []

    job.run({0: ["a"], 2: ["b"]})
    assert isinstance(job.run({0: ["never"]})[0], SkippedMessage)
    failed = job.plan(txnVersion="2")
    handed_over(failed).abort(job.write(failed, {1: ["never"]}))
    abandoned = job.plan(txnVersion="2")
    messages = job.write(abandoned, {1: ["never"]})

    config = tmp_path / "client.properties"
    config.write_text("".join(f"{name}={value}\n" for name, value in login.items()))
    command = ["--bootstrap", servers, "--config", str(config), "--commit-log-topic", log]
    assert main([*command, "--topic", topic]) == 0
    said = capsys.readouterr().out
    assert "open: 1 transaction" in said
    assert main([*command, "--topic", topic, "--abort", "job"]) == 0
    assert "aborted: the open transactions of the owner are ended" in capsys.readouterr().out
    with pytest.raises(KafkaException):
        handed_over(abandoned).commit(messages)
    job.run({1: ["c"]}, txnVersion="2")
    assert job.committed == ["a", "b", "c"]
