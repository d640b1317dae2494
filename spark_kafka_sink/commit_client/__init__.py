"""CommitClient: sends the requests of the exactly-once state machines to brokers.

The state machines of the package `commit` decide what to request, when to send a request, and what
a reply means. This package finds the broker for a request: the coordinator of a transactional id,
the leader of a partition, or every broker. It imports neither numpy nor Arrow, because the
processes in which Spark plans and commits do not need them.
"""

from spark_kafka_sink.commit_client.commit_client import CommitClient
from spark_kafka_sink.network.security import login_identity

__all__ = ["CommitClient", "login_identity"]
