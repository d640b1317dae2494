"""The configuration of a TopicReader, and the arguments of `TopicReader.read`.

Names, types and defaults of options are the same as in the Java client's ConsumerConfig, except for
the default of client.id. fetch.max.bytes and max.partition.fetch.bytes must be from 1 byte to 64
MiB, while the Java client accepts any number. buffer.memory is named as in KIP-81; the Java
consumer does not have this option. The connection options are the same as for producers and are
checked by `config`. Options that only producers have are rejected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta, field

from spark_kafka_sink.config import (
    NonNegative,
    Positive,
    ProducerConfig,
    check_options,
    check_unicode,
    integer,
    invalid,
    nearest,
    producer_config,
)
from spark_kafka_sink.errors import ConfigException
from spark_kafka_sink.model import LARGEST_INT32, as_int
from spark_kafka_sink.wire.fetch_messages import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    READ_COMMITTED,
    READ_UNCOMMITTED,
)

# A response may exceed this limit by one batch. Even then, it is well below the size limit for
# responses on a connection.
FetchBytes = Annotated[int, Meta(ge=1, le=64 * 1024 * 1024)]
# Offsets in an Arrow binary array are signed 32-bit integers. One array takes at most a quarter of
# buffer.memory, unless it contains only one record.
BufferBytes = Annotated[int, Meta(ge=1, le=2**31 - 1)]

_CLIENT_OPTIONS: Final = frozenset(
    {
        "bootstrap.servers",
        "client.dns.lookup",
        "client.id",
        "connections.max.idle.ms",
        "metadata.max.age.ms",
        "metadata.recovery.rebootstrap.trigger.ms",
        "metadata.recovery.strategy",
        "receive.buffer.bytes",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "request.timeout.ms",
        "retry.backoff.max.ms",
        "retry.backoff.ms",
        "security.protocol",
        "send.buffer.bytes",
        "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
    }
)
_SECURITY: Final = ("sasl.", "ssl.", "config.providers")
# Defaults that differ from the producer's. The first one is the Java consumer's default.
_DEFAULTS: Final = {"receive.buffer.bytes": 65_536, "client.id": "topic-reader"}


class ReaderConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of a reader.

    client: the options that readers and producers have in common. buffer_memory: a limit for
    decoded records, in bytes. It does not include the decompressed bytes of the batch that is being
    decoded.
    """

    client: ProducerConfig
    buffer_memory: BufferBytes = field(name="buffer.memory", default=67_108_864)
    default_api_timeout_ms: Positive = field(name="default.api.timeout.ms", default=60_000)
    fetch_max_bytes: FetchBytes = field(name="fetch.max.bytes", default=52_428_800)
    fetch_max_wait_ms: NonNegative = field(name="fetch.max.wait.ms", default=500)
    fetch_min_bytes: NonNegative = field(name="fetch.min.bytes", default=1)
    max_partition_fetch_bytes: FetchBytes = field(
        name="max.partition.fetch.bytes", default=1_048_576
    )


def reader_config(options: Mapping[str, Any]) -> ReaderConfig:
    """Return the checked configuration. Raise ConfigException if an option is invalid.

    options: values by Java option name; a value may be a string.
    """
    check_options(options)
    own = {f.encode_name for f in msgspec.structs.fields(ReaderConfig)} - {"client"}
    for name in options:
        if name not in own | _CLIENT_OPTIONS and not name.startswith(_SECURITY):
            close = nearest(name, own | _CLIENT_OPTIONS)
            hint = f"; did you mean {close}?" if close else ""
            message = f"{name} is not an option of a topic reader{hint}"
            raise ConfigException(message)
    shared = {name: value for name, value in options.items() if name not in own}
    client = producer_config(shared, defaults=_DEFAULTS)
    given = {name: integer(value) for name, value in options.items() if name in own}
    for name, value in given.items():
        check_unicode(name, value)
    try:
        return msgspec.convert({"client": client, **given}, ReaderConfig)
    except msgspec.ValidationError as error:
        raise ConfigException(invalid(error, ReaderConfig, given)) from None


# -- the arguments of a read ----------------------------------------------------------------------

IsolationLevel: TypeAlias = Literal["read_uncommitted", "read_committed"]
Offsets: TypeAlias = Literal["earliest", "latest"] | Mapping[int, int]

TIMESTAMPS: Final = {"earliest": EARLIEST_TIMESTAMP, "latest": LATEST_TIMESTAMP}
ISOLATION_LEVELS: Final = {
    "read_uncommitted": READ_UNCOMMITTED,
    "read_committed": READ_COMMITTED,
}


class ReadArguments(NamedTuple):
    """The arguments of a call of `read`."""

    topic: str
    partitions: list[int] | None
    start: Offsets
    end: Offsets
    isolation_level: int


def partition_numbers(partitions: Iterable[int]) -> list[int]:
    """Return the partitions to read. Raise ConfigException for invalid and repeated numbers."""
    is_iterable = isinstance(partitions, Iterable) and not isinstance(partitions, str | bytes)
    if not is_iterable:
        message = f"partitions is {partitions!r}: expected partition numbers, or None for all"
        raise ConfigException(message)
    numbers = [_partition_number("partitions", number) for number in partitions]
    twice = [number for number, times in Counter(numbers).items() if times > 1]
    if twice:
        message = f"partitions has {twice[0]} twice: expected each partition once"
        raise ConfigException(message)
    return numbers


def _partition_number(name: str, number: object) -> int:
    value = as_int(number)
    if value is None or not 0 <= value <= LARGEST_INT32:
        largest = LARGEST_INT32
        message = f"{name} has {number!r}: expected a partition number from 0 to {largest}"
        raise ConfigException(message)
    return value


def checked_offsets(name: str, offsets: Offsets) -> Offsets:
    """Return offsets as they are, but with ints in place of numpy integers.

    Raise ConfigException for offsets that no partition can have.
    """
    if not isinstance(offsets, Mapping):
        if isinstance(offsets, str) and offsets in TIMESTAMPS:
            return offsets
        expected = "earliest, latest or an offset by partition"
        message = f"{name} is {offsets!r}: expected {expected}"
        raise ConfigException(message)
    by_partition = {}
    for partition, offset in offsets.items():
        number, value = _partition_number(name, partition), as_int(offset)
        if value is None or not 0 <= value < 2**63:
            expected = "an offset, 0 or more"
            message = f"{name} has {offset!r} for partition {number}: expected {expected}"
            raise ConfigException(message)
        by_partition[number] = value
    return by_partition
