"""KafkaAdmin: the calls of a driver: describe and create topics, create and end delegation tokens.

`spark` also takes from here what it needs of `network`: files and processes that logins use.
"""

from spark_kafka_sink.admin.kafka_admin import KafkaAdmin
from spark_kafka_sink.admin.topics import NewTopic, TopicDescription
from spark_kafka_sink.network.option_values import find_shipped_files, name_process
from spark_kafka_sink.network.security import login_identity

__all__ = [
    "KafkaAdmin",
    "NewTopic",
    "TopicDescription",
    "find_shipped_files",
    "login_identity",
    "name_process",
]
