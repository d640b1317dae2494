"""partitioner.class: whether it names a partitioner of the user's own, and which one.

What such a one is called with, and what becomes of its answer, is in `batch_partitioner`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from spark_kafka_sink.config import PARTITIONERS
from spark_kafka_sink.errors import ConfigException
from spark_kafka_sink.plugins import instance

if TYPE_CHECKING:
    import pyarrow as pa

BatchPartitioner: TypeAlias = "Callable[[str, pa.RecordBatch, int], Any]"

OPTION: Final = "partitioner.class"


def is_users_own(given: object) -> bool:
    """Whether partitioner.class names a partitioner that is not one of the producer's own."""
    if isinstance(given, str):
        return "." in given and given.strip().lower() not in PARTITIONERS
    return given is not None


def load_partitioner(given: object, prefix: str = "") -> BatchPartitioner | None:
    """Give the callable that partitioner.class names, None for one of the producer's own.

    prefix: what the user writes before the option's name. Raises ConfigException.
    """
    option = f"{prefix}{OPTION}"
    if not is_users_own(given):
        return None
    partitioner, _ = instance(option, given)
    if not callable(partitioner):
        message = (
            f"{option} is {given!r}, which cannot be called: expected a callable that takes "
            "topic, record batch and partition count"
        )
        raise ConfigException(message)
    return partitioner
