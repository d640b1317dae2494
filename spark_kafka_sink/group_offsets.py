"""What offsets of a consumer group have to be for requests to carry them.

A request that cannot be written fails in the I/O thread, and some that can are refused in a way
that ends the producer: what is wrong already when it is given is found by the caller's thread.
Offsets and groups may be another client's, as long as they have the same attributes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Final

from spark_kafka_sink.argument_checks import (
    LARGEST_INT32,
    LARGEST_INT64,
    check_text,
    checked_number,
)
from spark_kafka_sink.errors import IllegalArgumentException
from spark_kafka_sink.model import ConsumerGroupMetadata, OffsetAndMetadata
from spark_kafka_sink.topic_names import check_topic_name

_NONE: Final = -1


def check_offsets(offsets: object) -> None:
    """Raise IllegalArgumentException for what cannot be committed as offsets of partitions.

    For what is no topic's name, raises DataException.
    """
    if not isinstance(offsets, Mapping):
        message = f"the offsets are {offsets!r}: expected a mapping from partitions"
        raise IllegalArgumentException(message)
    for key, value in offsets.items():
        if not isinstance(key, tuple) or len(key) != 2:
            message = f"offsets are given for {key!r}: expected a TopicPartition"
            raise IllegalArgumentException(message)
        topic, partition = key
        check_topic_name(topic)
        checked_number(f"the partition of topic {topic}", partition, 0, LARGEST_INT32)
        where = f"{topic}-{partition}"
        of_partition = _values(f"the offset of {where}", value, OffsetAndMetadata)
        checked_number(f"the offset of {where}", of_partition["offset"], 0, LARGEST_INT64)
        epoch = of_partition["leader_epoch"]
        checked_number(f"the leader epoch of {where}", epoch, _NONE, LARGEST_INT32)
        if of_partition["metadata"] is not None:
            check_text(f"the metadata of {where}", of_partition["metadata"])


def check_group(group: object) -> None:
    """Raise IllegalArgumentException for what no consumer group is."""
    of_group = _values("the group", group, ConsumerGroupMetadata)
    check_text("the group id", of_group["group_id"])
    if not of_group["group_id"]:
        message = "the group id is empty: expected the name of a consumer group"
        raise IllegalArgumentException(message)
    generation = checked_number(
        "the generation id", of_group["generation_id"], _NONE, LARGEST_INT32
    )
    check_text("the member id", of_group["member_id"])
    if of_group["group_instance_id"] is not None:
        check_text("the group instance id", of_group["group_instance_id"])
    if not of_group["member_id"] and generation > 0:
        message = (
            f"generation {generation} of group {of_group['group_id']} is given with no member id: "
            "expected both, as the group's consumer has them, or neither"
        )
        raise IllegalArgumentException(message)


def _values(what: str, thing: object, kind: type) -> dict[str, object]:
    """Give the attributes of `thing` that `kind` has."""
    try:
        return {field.name: getattr(thing, field.name) for field in fields(kind)}
    except AttributeError:
        article = "an" if kind is OffsetAndMetadata else "a"
        message = f"{what} is {thing!r}: expected {article} {kind.__name__}"
        raise IllegalArgumentException(message) from None
