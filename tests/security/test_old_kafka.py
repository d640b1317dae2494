"""The last Kafka 3: logins by password, also by raw tokens, and client certificates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import need_kafka, running_secured
from support.brokers import class_archives, fetch_kafka
from support.brokers.logins import BY_PASSWORD, MUTUAL, ROWS, Login, new_topic, options, write
from support.brokers.secured_kafka import LISTENERS, SecuredKafka

from spark_kafka_sink.errors import KafkaException, SaslAuthenticationException
from spark_kafka_sink.network.connection import Connection

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.long(reason="another version of Kafka, whose refusals take their time"),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def old_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    """One node of the last Kafka 3."""
    need_kafka()
    libs, java = fetch_kafka.libs(fetch_kafka.OLD), class_archives.kafka_options(fetch_kafka.OLD)
    folder = tmp_path_factory.mktemp("old")
    with running_secured(SecuredKafka(libs, folder / "kafka", java, has_tokens=False)) as cluster:
        yield cluster


@pytest.fixture
def topic(old_cluster: SecuredKafka) -> str:
    """A topic of three partitions."""
    return new_topic(old_cluster, replicas=1)


@pytest.mark.parametrize("is_bare", [False, True], ids=["SaslAuthenticate", "raw tokens"])
@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize("mechanism", BY_PASSWORD)
def test_logins_may_also_be_by_raw_tokens(
    old_cluster: SecuredKafka,
    topic: str,
    mechanism: str,
    listener: str,
    is_bare: bool,  # noqa: FBT001 - a parameter of the test
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if is_bare:
        # As with a broker that has no SaslAuthenticate.
        monkeypatch.setattr(Connection, "_has_authenticate", False)
    given = options(old_cluster, Login(mechanism, listener), tmp_path)
    write(given, topic)
    old_cluster.check_rows(topic, ROWS)
    with pytest.raises(KafkaException) as refused:
        write(given | {"sasl.password": "WRONG-SECRET", "max.block.ms": "5000"}, topic, 1)
    assert isinstance(refused.value, SaslAuthenticationException) or is_bare
    assert "during the SASL login" in str(refused.value) or not is_bare
    assert "WRONG-SECRET" not in str(refused.value)
    old_cluster.check_rows(topic, ROWS)


def test_clients_show_their_certificates(
    old_cluster: SecuredKafka, topic: str, tmp_path: Path
) -> None:
    write(options(old_cluster, MUTUAL, tmp_path), topic)
    old_cluster.check_rows(topic, ROWS)
