"""KafkaAdmin: the driver's client for topics and delegation tokens.

The import rules in pyproject.toml forbid `spark` to import `network`. So this package also exports
the functions of `network` that `spark` needs.
"""

from spark_kafka_sink.admin.kafka_admin import KafkaAdmin
from spark_kafka_sink.admin.topic_descriptions import NewTopic, TopicDescription
from spark_kafka_sink.network.option_values import (
    allowed_content,
    find_shipped_files,
    name_process,
)
from spark_kafka_sink.network.security import login_identity, resolved_login

__all__ = [
    "KafkaAdmin",
    "NewTopic",
    "TopicDescription",
    "allowed_content",
    "find_shipped_files",
    "login_identity",
    "name_process",
    "resolved_login",
]
