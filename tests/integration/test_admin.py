"""KafkaAdmin on real brokers: topics described, created and rejected as other clients see them."""

from __future__ import annotations

import socket
import threading
import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from conftest import NewTopic as TopicMaker
from support.brokers.access import allow_only
from support.brokers.fault_proxy import METADATA, FaultProxy
from support.brokers.kafka_cluster import KafkaCluster
from support.oracles.readers import create_topic

from spark_kafka_sink.admin import KafkaAdmin, NewTopic, TopicDescription
from spark_kafka_sink.config import ProducerConfig, producer_config
from spark_kafka_sink.errors import (
    ApiException,
    InvalidTopicException,
    TimeoutException,
    TopicAuthorizationException,
)

pytestmark = pytest.mark.kafka

EVERYTHING = {
    "READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS",
}  # fmt: skip


@pytest.fixture(params=["kafka", "old_kafka"])
def cluster(request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    """Kafka 4 and Kafka 3."""
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]


def config(bootstrap: str, **options: str) -> ProducerConfig:
    """Make a configuration; options by their names with _ for the dot."""
    given = {name.replace("_", "."): value for name, value in options.items()}
    return producer_config({"bootstrap.servers": bootstrap, **given})


def new_name() -> str:
    """Return a name that no topic has."""
    return f"topic-{uuid.uuid4().hex[:12]}"


def seen_by_confluent(bootstrap: str, topic: str) -> tuple[int, int]:
    """Return partitions and replicas of a topic as librdkafka sees them."""
    found = AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic, timeout=30)
    partitions = found.topics[topic].partitions
    return len(partitions), len(partitions[0].replicas)


def setting_by_confluent(bootstrap: str, topic: str, name: str) -> str:
    """Return a configuration value of a topic as librdkafka sees it."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (future,) = admin.describe_configs([resource]).values()
    value: str = future.result()[name].value
    return value


def test_a_topic_is_described_with_what_may_be_done_with_it(cluster: KafkaCluster) -> None:
    name = new_name()
    create_topic(cluster.bootstrap, name, 3, {"max.message.bytes": "5000"})
    with KafkaAdmin(config(cluster.bootstrap)) as admin:
        _, replicas = seen_by_confluent(cluster.bootstrap, name)
        described = TopicDescription(name, 3, replicas, frozenset(EVERYTHING))
        assert admin.topics([name]) == {name: described}
        names = ["max.message.bytes", "message.timestamp.type"]
        assert admin.topic_configs(name, names) == {
            "max.message.bytes": "5000",
            "message.timestamp.type": "CreateTime",
        }


def test_a_missing_topic_is_created_as_it_is_asked_for(cluster: KafkaCluster) -> None:
    name = new_name()
    new = NewTopic(partitions=5, replication=1, configs=(("max.message.bytes", "7000"),))
    with KafkaAdmin(config(cluster.bootstrap)) as admin:
        assert admin.topics([name], new)[name].partitions == 5
    assert seen_by_confluent(cluster.bootstrap, name) == (5, 1)
    assert setting_by_confluent(cluster.bootstrap, name, "max.message.bytes") == "7000"


def test_what_is_not_asked_for_is_as_the_brokers_have_it(
    kafka: KafkaCluster, old_kafka: KafkaCluster
) -> None:
    for cluster, replicas in ((kafka, 3), (old_kafka, 1)):
        name = new_name()
        with KafkaAdmin(config(cluster.bootstrap)) as admin:
            admin.topics([name], NewTopic())
        assert seen_by_confluent(cluster.bootstrap, name) == (1, replicas)


def test_a_topic_that_exists_stays_as_it_is(kafka: KafkaCluster, new_topic: TopicMaker) -> None:
    there, missing = new_topic(2), new_name()
    new = NewTopic(partitions=5, configs=(("max.message.bytes", "7000"),))
    with KafkaAdmin(config(kafka.bootstrap)) as admin:
        found = admin.topics([there, missing], new)
    assert (found[there].partitions, found[missing].partitions) == (2, 5)
    assert (found[there].is_new, found[missing].is_new) == (False, True)
    assert setting_by_confluent(kafka.bootstrap, there, "max.message.bytes") == "1048588"


def test_brokers_that_create_topics_do_it_for_no_question_of_an_admin(
    guarded_kafka: KafkaCluster,
) -> None:
    name = new_name()
    with (
        KafkaAdmin(config(guarded_kafka.bootstrap, max_block_ms="500")) as admin,
        pytest.raises(TimeoutException, match=r"; create the topic$"),
    ):
        admin.topics([name])
    with KafkaAdmin(config(guarded_kafka.bootstrap)) as admin:
        assert admin.topics([name], NewTopic(partitions=5))[name].partitions == 5


def test_many_that_create_the_same_topic_at_once_all_find_it(kafka: KafkaCluster) -> None:
    name, found = new_name(), []

    def create() -> None:
        with KafkaAdmin(config(kafka.bootstrap)) as admin:
            found.append(admin.topics([name], NewTopic(partitions=4))[name].partitions)

    threads = [threading.Thread(target=create) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [4] * 8


@pytest.mark.parametrize(
    ("new", "said"),
    [
        (NewTopic(replication=9), r"INVALID_REPLICATION_FACTOR \(38\), .*9"),
        (NewTopic(configs=(("max.massage.bytes", "1"),)), r"INVALID_CONFIG \(40\), .*max\.massage"),
        (NewTopic(configs=(("max.message.bytes", "x"),)), r"INVALID_CONFIG \(40\), .*number"),
    ],
)
def test_what_the_brokers_have_against_a_new_topic_is_one_sentence(
    cluster: KafkaCluster, new: NewTopic, said: str
) -> None:
    name = new_name()
    with (
        KafkaAdmin(config(cluster.bootstrap)) as admin,
        pytest.raises(
            ApiException, match=rf"^topic {name} does not exist and cannot be created: {said}"
        ),
    ):
        admin.topics([name], new)


@pytest.mark.parametrize(
    ("new", "said"),
    [
        (NewTopic(replication=9), r"topic\.replication=9: INVALID_REPLICATION_FACTOR \(38\), .*9"),
        (
            NewTopic(partitions=2, configs=(("max.massage.bytes", "1"),)),
            r"topic\.partitions=2, topic\.config\.max\.massage\.bytes=1: "
            r"INVALID_CONFIG \(40\), .*max\.massage",
        ),
        (
            NewTopic(configs=(("max.message.bytes", "x"),)),
            r"topic\.config\.max\.message\.bytes=x: INVALID_CONFIG \(40\), .*number",
        ),
    ],
)
def test_settings_of_topics_that_have_no_name_yet_are_looked_at_and_nothing_is_made(
    cluster: KafkaCluster, new: NewTopic, said: str
) -> None:
    client = AdminClient({"bootstrap.servers": cluster.bootstrap})
    with KafkaAdmin(config(cluster.bootstrap, max_block_ms="5000")) as admin:
        admin.topics([])
        admin.check_creation(NewTopic(partitions=3, configs=(("retention.ms", "5000"),)))
        with pytest.raises(ApiException, match=rf"^topics cannot be created with {said}"):
            admin.check_creation(new)
    topics = client.list_topics(timeout=30).topics
    assert [each for each in topics if each.startswith("pykafka-")] == []


def test_a_name_that_no_topic_can_have_is_refused_at_once(cluster: KafkaCluster) -> None:
    for new in (None, NewTopic()):
        with (
            KafkaAdmin(config(cluster.bootstrap)) as admin,
            pytest.raises(
                InvalidTopicException, match=r"topic a b: INVALID_TOPIC_EXCEPTION \(17\)"
            ),
        ):
            admin.topics(["a b"], new)


def test_a_topic_that_does_not_come_is_waited_for_until_max_block_ms(kafka: KafkaCluster) -> None:
    name = new_name()
    with (
        KafkaAdmin(config(kafka.bootstrap, max_block_ms="3000")) as admin,
        pytest.raises(
            TimeoutException,
            match=rf"^Topic {name} not present in metadata after max\.block\.ms=3000: "
            r".*UNKNOWN_TOPIC_OR_PARTITION",
        ),
    ):
        admin.topics([name])


def test_where_no_broker_answers_all_addresses_are_named() -> None:
    with socket.socket() as one, socket.socket() as other:
        addresses = []
        for nobody in (one, other):
            nobody.bind(("127.0.0.1", 0))
            addresses.append(f"127.0.0.1:{nobody.getsockname()[1]}")
        with (
            KafkaAdmin(config(",".join(addresses), max_block_ms="500")) as admin,
            pytest.raises(TimeoutException) as failed,
        ):
            admin.topics([])
    text = str(failed.value)
    assert text.startswith("no broker has answered within max.block.ms=500; check ")
    assert f"bootstrap.servers={','.join(addresses)}" in text
    for address in addresses:
        assert f"({address}): Connection refused" in text


def test_a_broker_that_comes_up_meanwhile_is_waited_for(
    proxied_kafka: tuple[KafkaCluster, FaultProxy],
) -> None:
    _, proxy = proxied_kafka
    found: list[TopicDescription] = []
    name = new_name()

    def create() -> None:
        with KafkaAdmin(config(f"127.0.0.1:{proxy.port}")) as admin:
            found.append(admin.topics([name], NewTopic(partitions=2))[name])

    with proxy.refusing():
        thread = threading.Thread(target=create)
        thread.start()
    thread.join()
    assert [topic.partitions for topic in found] == [2]
    assert proxy.requests[METADATA] >= 2


def test_a_client_without_rights_is_told_which(guarded_kafka: KafkaCluster) -> None:
    name = new_name()
    create_topic(guarded_kafka.bootstrap, name, 1)
    allow_only(guarded_kafka.bootstrap, name, "DESCRIBE")
    with KafkaAdmin(config(guarded_kafka.bootstrap)) as admin:
        topic = admin.topics([name])[name]
        assert topic.allowed == frozenset({"DESCRIBE"})
        assert not topic.may_be_written
        with pytest.raises(
            TopicAuthorizationException,
            match=rf"settings of topic {name} cannot be read: TOPIC_AUTHORIZATION_FAILED \(29\)",
        ):
            admin.topic_configs(name, ["max.message.bytes"])
    allow_only(guarded_kafka.bootstrap, name, "ALTER_CONFIGS")
    with (
        KafkaAdmin(config(guarded_kafka.bootstrap)) as admin,
        pytest.raises(TopicAuthorizationException, match=rf"topic {name}: TOPIC_AUTHORIZATION_"),
    ):
        admin.topics([name])
