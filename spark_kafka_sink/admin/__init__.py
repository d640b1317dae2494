"""KafkaAdmin: the driver's client to describe and create topics, and for delegation tokens.

`spark` also imports some names of `network` from here: the files and processes that logins use.
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
