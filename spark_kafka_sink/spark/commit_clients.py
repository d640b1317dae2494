"""The commit clients of this process, kept with their connections.

Spark uses its Python processes again: a stream plans and commits in the same two for each
micro-batch. One client is kept for each configuration, which includes the credentials. It is closed
after an error. A forked child starts with none: the connections are its parent's.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from spark_kafka_sink.commit_client import CommitClient, login_identity
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.model import Node

_kept: dict[tuple[ProducerConfig, str, str], CommitClient] = {}


@contextmanager
def commit_client(
    config: ProducerConfig, log_topic: str, brokers: Iterable[Node] = ()
) -> Iterator[CommitClient]:
    """Lend a client for the commit log `log_topic`.

    brokers: of the cluster, as they are known, for a new client.
    """
    identity = login_identity(config)
    key = (config, log_topic, identity)
    client = _kept.pop(key, None) or CommitClient(config, log_topic, brokers, identity=identity)
    try:
        yield client
    except BaseException:
        client.close()
        raise
    _kept[key] = client


def close_all() -> None:
    """Close all clients that are kept."""
    while _kept:
        _kept.popitem()[1].close()


os.register_at_fork(after_in_child=_kept.clear)
