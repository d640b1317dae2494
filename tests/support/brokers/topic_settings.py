"""Change a topic's configuration so that no node reports the old value afterwards.

The controller answers before the other nodes know the new value, and a client may ask any node.
Therefore each node is asked, which only this project's admin client can do.
"""

from __future__ import annotations

import time

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType

from spark_kafka_sink.admin import KafkaAdmin
from spark_kafka_sink.config import producer_config
from spark_kafka_sink.model import Node


def set_config(bootstrap: str, topic: str, name: str, value: str) -> None:
    """Change a configuration entry of a topic, and wait until every node knows it."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    change = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([change]).values():
        future.result()
    for node in nodes(bootstrap):
        while setting(node, topic, name) != value:
            time.sleep(0.01)


def nodes(bootstrap: str) -> list[Node]:
    """Return the nodes of a cluster."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    found = admin.describe_cluster().result().nodes
    return [Node(id=each.id, host=each.host, port=each.port) for each in found]


def setting(node: Node, topic: str, name: str) -> str | None:
    """Return the value that a node reports for a topic's configuration entry."""
    config = producer_config({"bootstrap.servers": f"{node.host}:{node.port}"})
    with KafkaAdmin(config, brokers=[node]) as admin:
        return admin.topic_configs(topic, [name]).get(name)
