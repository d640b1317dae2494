"""What offsets of a consumer group have to be for requests to carry them.

A request that cannot be written fails in the I/O thread, and some that can are refused in a way
that ends the producer: what is wrong already when it is given is found by the caller's thread.
Offsets and groups may be another client's, as long as they have the same attributes.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import fields
from typing import Final, SupportsIndex

from spark_kafka_sink.errors import IllegalArgumentException
from spark_kafka_sink.model import ConsumerGroupMetadata, OffsetAndMetadata
from spark_kafka_sink.topic_names import check_topic_name

_LARGEST_INT32: Final = 2**31 - 1
_LARGEST_INT64: Final = 2**63 - 1
# What Kafka's strings may have, in UTF-8.
_LONGEST_TEXT_BYTES: Final = 32_767
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
        _checked_number(f"the partition of topic {topic}", partition, 0, _LARGEST_INT32)
        where = f"{topic}-{partition}"
        of_partition = _values(f"the offset of {where}", value, OffsetAndMetadata)
        _checked_number(f"the offset of {where}", of_partition["offset"], 0, _LARGEST_INT64)
        epoch = of_partition["leader_epoch"]
        _checked_number(f"the leader epoch of {where}", epoch, _NONE, _LARGEST_INT32)
        if of_partition["metadata"] is not None:
            _check_text(f"the metadata of {where}", of_partition["metadata"])


def check_group(group: object) -> None:
    """Raise IllegalArgumentException for what no consumer group is."""
    of_group = _values("the group", group, ConsumerGroupMetadata)
    _check_text("the group id", of_group["group_id"])
    if not of_group["group_id"]:
        message = "the group id is empty: expected the name of a consumer group"
        raise IllegalArgumentException(message)
    generation = _checked_number(
        "the generation id", of_group["generation_id"], _NONE, _LARGEST_INT32
    )
    _check_text("the member id", of_group["member_id"])
    if of_group["group_instance_id"] is not None:
        _check_text("the group instance id", of_group["group_instance_id"])
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


def _checked_number(what: str, number: object, smallest: int, largest: int) -> int:
    if isinstance(number, SupportsIndex) and not isinstance(number, bool):
        value = operator.index(number)
        if smallest <= value <= largest:
            return value
    message = f"{what} is {number!r}: expected an int from {smallest} to {largest}"
    raise IllegalArgumentException(message)


def _check_text(what: str, text: object) -> None:
    if not isinstance(text, str):
        message = f"{what} is {text!r}: expected a str"
        raise IllegalArgumentException(message)
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError as error:
        message = f"{what} cannot be written as UTF-8 ({error.reason})"
        raise IllegalArgumentException(message) from None
    if size_bytes > _LONGEST_TEXT_BYTES:
        message = f"{what} has {size_bytes} bytes: expected at most {_LONGEST_TEXT_BYTES}"
        raise IllegalArgumentException(message)
