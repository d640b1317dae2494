"""CommitClient: puts the questions of exactly once to brokers, and returns their replies.

The machines of `commit` decide what to ask, when, and what a reply means. This package knows which
broker to ask: the coordinator of a transactional id, the leader of a partition, or every broker.
Neither numpy nor Arrow is imported, because the processes in which Spark plans and commits have no
use for them.
"""

from spark_kafka_sink.commit_client.client import CommitClient
from spark_kafka_sink.network.security import login_identity

__all__ = ["CommitClient", "login_identity"]
