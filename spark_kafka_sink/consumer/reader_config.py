"""What a TopicReader is configured with: the Java consumer's names, and those of every client.

Names, types and defaults are ConsumerConfig's; fetch.max.bytes and max.partition.fetch.bytes are 1
to 64 MiB, where Java takes any number. buffer.memory has the name that KIP-81 has for it, which the
Java consumer does not offer. The settings of connections are the producer's own and
checked by `config`; those of producers alone are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, field

from spark_kafka_sink.config import (
    NonNegative,
    ProducerConfig,
    check_options,
    integer,
    invalid,
    nearest,
    producer_config,
)
from spark_kafka_sink.errors import ConfigException

# With the one batch by which an answer may exceed it, well below what a connection takes.
FetchBytes = Annotated[int, Meta(ge=1, le=64 * 1024 * 1024)]
# Half of it is one Arrow array at most, whose offsets have 31 bits.
BufferBytes = Annotated[int, Meta(ge=1, le=2**31 - 1)]

_OF_EVERY_CLIENT: Final = frozenset(
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
_SECURITY: Final = ("sasl.", "ssl.")
# The Java consumer's, where they differ from the producer's.
_DEFAULTS: Final = {"receive.buffer.bytes": 65_536, "client.id": "topic-reader"}


class ReaderConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A reader's own configuration, and what it shares with producers in `client`."""

    client: ProducerConfig
    buffer_memory: BufferBytes = field(name="buffer.memory", default=67_108_864)
    default_api_timeout_ms: NonNegative = field(name="default.api.timeout.ms", default=60_000)
    fetch_max_bytes: FetchBytes = field(name="fetch.max.bytes", default=52_428_800)
    fetch_max_wait_ms: NonNegative = field(name="fetch.max.wait.ms", default=500)
    fetch_min_bytes: NonNegative = field(name="fetch.min.bytes", default=1)
    max_partition_fetch_bytes: FetchBytes = field(
        name="max.partition.fetch.bytes", default=1_048_576
    )


def reader_config(options: Mapping[str, Any]) -> ReaderConfig:
    """Check options, by Java names, strings or values; raises ConfigException."""
    check_options(options)
    own = {f.encode_name for f in msgspec.structs.fields(ReaderConfig)} - {"client"}
    for name in options:
        if name not in own | _OF_EVERY_CLIENT and not name.startswith(_SECURITY):
            close = nearest(name, own | _OF_EVERY_CLIENT)
            hint = f"; did you mean {close}?" if close else ""
            message = f"{name} is not an option of a topic reader{hint}"
            raise ConfigException(message)
    shared = {name: value for name, value in options.items() if name not in own}
    client = producer_config(shared, defaults=_DEFAULTS)
    given = {name: integer(value) for name, value in options.items() if name in own}
    try:
        return msgspec.convert({"client": client, **given}, ReaderConfig)
    except msgspec.ValidationError as error:
        raise ConfigException(invalid(error, ReaderConfig, given)) from None
