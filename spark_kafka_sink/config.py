"""Producer configuration: the Java client's names, from strings to one checked, frozen struct.

Owns names, types, ranges, defaults and the rules between options (ProducerConfig). It reads no
environment and no file. Names that are not known are refused with the nearest one that is; names
that the Java client has and this one has not yet are refused with a sentence that says so.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, field

from spark_kafka_sink.errors import ConfigException
from spark_kafka_sink.model import Node

logger = logging.getLogger(__name__)

NonNegative = Annotated[int, Meta(ge=0, le=2**31 - 1)]
NonNegativeLong = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Positive = Annotated[int, Meta(ge=1, le=2**31 - 1)]
BufferSize = Annotated[int, Meta(ge=-1, le=2**31 - 1)]
GzipLevel = Annotated[int, Meta(ge=-1, le=9)]
Lz4Level = Annotated[int, Meta(ge=1, le=17)]
ZstdLevel = Annotated[int, Meta(ge=-131072, le=22)]

_MAX_IN_FLIGHT_OF_IDEMPOTENCE: Final = 5
_DEFAULT_PORT_HINT: Final = "write host:port, several separated by commas"


class ProducerConfig(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A producer's configuration; the defaults are the Java client's (Kafka 4.x)."""

    bootstrap_servers: str = field(name="bootstrap.servers")
    client_id: str = field(name="client.id", default="")
    acks: Literal["all", "-1", "0", "1"] = "all"
    enable_idempotence: bool = field(name="enable.idempotence", default=True)
    retries: NonNegative = 2**31 - 1
    delivery_timeout_ms: NonNegative = field(name="delivery.timeout.ms", default=120_000)
    request_timeout_ms: NonNegative = field(name="request.timeout.ms", default=30_000)
    linger_ms: NonNegativeLong = field(name="linger.ms", default=5)
    batch_size: NonNegative = field(name="batch.size", default=16_384)
    buffer_memory: NonNegativeLong = field(name="buffer.memory", default=33_554_432)
    max_request_size: NonNegative = field(name="max.request.size", default=1_048_576)
    max_block_ms: NonNegativeLong = field(name="max.block.ms", default=60_000)
    max_in_flight_requests_per_connection: Positive = field(
        name="max.in.flight.requests.per.connection", default=5
    )
    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"] = field(
        name="compression.type", default="none"
    )
    compression_gzip_level: GzipLevel = field(name="compression.gzip.level", default=-1)
    compression_lz4_level: Lz4Level = field(name="compression.lz4.level", default=9)
    compression_zstd_level: ZstdLevel = field(name="compression.zstd.level", default=3)
    metadata_max_age_ms: NonNegativeLong = field(name="metadata.max.age.ms", default=300_000)
    reconnect_backoff_ms: NonNegativeLong = field(name="reconnect.backoff.ms", default=50)
    reconnect_backoff_max_ms: NonNegativeLong = field(name="reconnect.backoff.max.ms", default=1000)
    retry_backoff_ms: NonNegativeLong = field(name="retry.backoff.ms", default=100)
    retry_backoff_max_ms: NonNegativeLong = field(name="retry.backoff.max.ms", default=1000)
    socket_connection_setup_timeout_ms: NonNegativeLong = field(
        name="socket.connection.setup.timeout.ms", default=10_000
    )
    socket_connection_setup_timeout_max_ms: NonNegativeLong = field(
        name="socket.connection.setup.timeout.max.ms", default=30_000
    )
    connections_max_idle_ms: NonNegativeLong = field(
        name="connections.max.idle.ms", default=540_000
    )
    send_buffer_bytes: BufferSize = field(name="send.buffer.bytes", default=131_072)
    receive_buffer_bytes: BufferSize = field(name="receive.buffer.bytes", default=32_768)
    transactional_id: Annotated[str, Meta(min_length=1)] | None = field(
        name="transactional.id", default=None
    )
    transaction_timeout_ms: Positive = field(name="transaction.timeout.ms", default=60_000)
    security_protocol: Literal["PLAINTEXT"] = field(name="security.protocol", default="PLAINTEXT")

    @property
    def compression_level(self) -> int | None:
        """The level of the codec in use, None for one that has no levels."""
        levels = {
            "gzip": self.compression_gzip_level,
            "lz4": self.compression_lz4_level,
            "zstd": self.compression_zstd_level,
        }
        return levels.get(self.compression_type)

    @property
    def acks_number(self) -> int:
        """The acks as they travel: -1 for all."""
        return -1 if self.acks == "all" else int(self.acks)

    @property
    def bootstrap_nodes(self) -> list[Node]:
        """The bootstrap addresses as nodes with the ids -1, -2 and so on."""
        entries = [e.strip() for e in self.bootstrap_servers.split(",") if e.strip()]
        return [_node(-1 - number, entry) for number, entry in enumerate(entries)]


def producer_config(
    options: Mapping[str, Any],
    *,
    defaults: Mapping[str, Any] | None = None,
    prefix: str = "",
    lenient: bool = False,
) -> ProducerConfig:
    """Check options and give them typed.

    options: Java names to strings or values. defaults: values in place of the Java client's.
    prefix: what the user writes before a name, for error messages. lenient: ignore names that no
    Kafka producer has, with a warning. Raises ConfigException.
    """
    known = {f.encode_name for f in msgspec.structs.fields(ProducerConfig)}
    for name in options:
        if name not in known:
            message = _unknown(name, known, prefix)
            if not lenient or name in NOT_YET:
                raise ConfigException(message)
            logger.warning(message)
    options = {name: value for name, value in options.items() if name in known}
    if not options.get("bootstrap.servers"):
        message = f"{prefix}bootstrap.servers is not set; {_DEFAULT_PORT_HINT}"
        raise ConfigException(message)
    settings = {**(defaults or {}), **options}
    given = {name: _normal(name, value) for name, value in settings.items()}
    try:
        config = msgspec.convert(given, ProducerConfig, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigException(_invalid(error, given, prefix)) from None
    config = _settle_idempotence(config, options, prefix)
    config = _settle_delivery_timeout(config, options, prefix)
    _ = config.bootstrap_nodes
    return config


def _normal(name: str, value: Any) -> Any:
    """Bring letter case and blanks to the form the struct expects."""
    if not isinstance(value, str):
        return str(value) if name in ("acks", "bootstrap.servers") else value
    value = value.strip()
    if name in ("acks", "compression.type") or value.lower() in ("true", "false"):
        return value.lower()
    return value.upper() if name == "security.protocol" else value


def _unknown(name: str, known: set[str], prefix: str) -> str:
    if name in NOT_YET:
        return (
            f"{prefix}{name} is an option of the Java producer that this one does not have yet; "
            "remove it"
        )
    close = get_close_matches(name, known | NOT_YET, n=1, cutoff=0.6)
    hint = f"; did you mean {prefix}{close[0]}?" if close else ""
    return f"{prefix}{name} is not an option of the Kafka producer{hint}"


def _invalid(error: msgspec.ValidationError, given: Mapping[str, Any], prefix: str) -> str:
    text = str(error)
    expected, _, path = text.partition(" - at `$.")
    name = path.rstrip("`")
    if name not in given:
        return f"the producer configuration is not valid: {text}"
    expected = expected.replace("Expected", "expected").replace("Invalid enum value", "not one of")
    allowed = _ALLOWED.get(name)
    if allowed:
        expected = f"expected one of {', '.join(allowed)}"
    return f"{prefix}{name} is {given[name]!r}: {expected}"


_ALLOWED: Final = {
    "acks": ("all", "-1", "0", "1"),
    "compression.type": ("none", "gzip", "snappy", "lz4", "zstd"),
    "security.protocol": ("PLAINTEXT (TLS and SASL are not supported yet)",),
}


def _settle_idempotence(
    config: ProducerConfig, options: Mapping[str, Any], prefix: str
) -> ProducerConfig:
    """Apply the rules of ProducerConfig.postProcessAndValidateIdempotenceConfigs.

    Idempotence that was asked for conflicts with what it needs otherwise: an error. Idempotence by
    default gives way to acks and retries, but never to too many requests in flight.
    """
    if config.transactional_id is not None:
        _check_transactional(config, prefix)
    if not config.enable_idempotence:
        return config
    if config.max_in_flight_requests_per_connection > _MAX_IN_FLIGHT_OF_IDEMPOTENCE:
        message = (
            f"{prefix}max.in.flight.requests.per.connection is "
            f"{config.max_in_flight_requests_per_connection}: the idempotent producer allows at "
            f"most {_MAX_IN_FLIGHT_OF_IDEMPOTENCE}; lower it, or set "
            f"{prefix}enable.idempotence to false"
        )
        raise ConfigException(message)
    conflicts = []
    if config.acks_number != -1:
        conflicts.append(f"{prefix}acks is {config.acks}, it needs all")
    if config.retries == 0:
        conflicts.append(f"{prefix}retries is 0, it needs more")
    if not conflicts:
        return config
    if "enable.idempotence" in options:
        message = f"{prefix}enable.idempotence is true, but {' and '.join(conflicts)}"
        raise ConfigException(message)
    return msgspec.structs.replace(config, enable_idempotence=False)


def _check_transactional(config: ProducerConfig, prefix: str) -> None:
    """Refuse what a transactional producer cannot do without: idempotence and what that needs."""
    conflicts = []
    if not config.enable_idempotence:
        conflicts.append(f"{prefix}enable.idempotence is false, it needs true")
    if config.acks_number != -1:
        conflicts.append(f"{prefix}acks is {config.acks}, it needs all")
    if config.retries == 0:
        conflicts.append(f"{prefix}retries is 0, it needs more")
    if conflicts:
        message = f"{prefix}transactional.id is set, but {' and '.join(conflicts)}"
        raise ConfigException(message)


def _settle_delivery_timeout(
    config: ProducerConfig, options: Mapping[str, Any], prefix: str
) -> ProducerConfig:
    """Hold delivery.timeout.ms to at least linger.ms + request.timeout.ms, as the Java client."""
    least = min(config.linger_ms + config.request_timeout_ms, 2**31 - 1)
    if config.delivery_timeout_ms >= least:
        return config
    if "delivery.timeout.ms" in options:
        message = (
            f"{prefix}delivery.timeout.ms is {config.delivery_timeout_ms}: expected at least "
            f"linger.ms + request.timeout.ms, which is {least}"
        )
        raise ConfigException(message)
    return msgspec.structs.replace(config, delivery_timeout_ms=least)


def _node(node_id: int, entry: str) -> Node:
    # A protocol name before the address is allowed and ignored, as the Java client does.
    address = entry.rpartition("://")[2]
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        message = f"bootstrap.servers has {entry!r}, which is not an address: {_DEFAULT_PORT_HINT}"
        raise ConfigException(message)
    return Node(id=node_id, host=host.strip("[]"), port=int(port))


# Options of the Java producer (ProducerConfig, SslConfigs, SaslConfigs) that are not here yet.
NOT_YET: Final = frozenset(
    {
        "client.dns.lookup",
        "config.providers",
        "enable.metrics.push",
        "interceptor.classes",
        "key.serializer",
        "metadata.max.idle.ms",
        "metadata.recovery.rebootstrap.trigger.ms",
        "metadata.recovery.strategy",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "partitioner.adaptive.partitioning.enable",
        "partitioner.availability.timeout.ms",
        "partitioner.class",
        "partitioner.ignore.keys",
        "sasl.client.callback.handler.class",
        "sasl.jaas.config",
        "sasl.kerberos.kinit.cmd",
        "sasl.kerberos.min.time.before.relogin",
        "sasl.kerberos.service.name",
        "sasl.kerberos.ticket.renew.jitter",
        "sasl.kerberos.ticket.renew.window.factor",
        "sasl.login.callback.handler.class",
        "sasl.login.class",
        "sasl.login.connect.timeout.ms",
        "sasl.login.read.timeout.ms",
        "sasl.login.refresh.buffer.seconds",
        "sasl.login.refresh.min.period.seconds",
        "sasl.login.refresh.window.factor",
        "sasl.login.refresh.window.jitter",
        "sasl.login.retry.backoff.max.ms",
        "sasl.login.retry.backoff.ms",
        "sasl.mechanism",
        "sasl.oauthbearer.clock.skew.seconds",
        "sasl.oauthbearer.expected.audience",
        "sasl.oauthbearer.expected.issuer",
        "sasl.oauthbearer.scope.claim.name",
        "sasl.oauthbearer.sub.claim.name",
        "sasl.oauthbearer.token.endpoint.url",
        "security.providers",
        "ssl.cipher.suites",
        "ssl.enabled.protocols",
        "ssl.endpoint.identification.algorithm",
        "ssl.engine.factory.class",
        "ssl.key.password",
        "ssl.keymanager.algorithm",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.keystore.type",
        "ssl.protocol",
        "ssl.provider",
        "ssl.secure.random.implementation",
        "ssl.trustmanager.algorithm",
        "ssl.truststore.certificates",
        "ssl.truststore.location",
        "ssl.truststore.password",
        "ssl.truststore.type",
        "transaction.two.phase.commit.enable",
        "value.serializer",
    }
)
