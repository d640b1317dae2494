"""Producer configuration: check options by the Java client's names, and return a frozen struct.

`ProducerConfig` defines the name, type, range and default of each option. Functions check rules
about several options. The module reads no environment variables and no files. Every option of the
Java producer is a field of `ProducerConfig`, or is in a table at the end of this module, and is
then rejected or ignored. An unknown name is rejected, and the message suggests the nearest name.

The string after a field describes the option. docs/reference/configuration.md is generated from
these strings.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from difflib import get_close_matches
from numbers import Real
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta, field

from spark_kafka_sink.errors import ConfigException, Option, listed
from spark_kafka_sink.logs import masked, may_be_key, shown_value, warn_once
from spark_kafka_sink.model import Node, Secret, is_utf8

logger = logging.getLogger(__name__)

NonNegative = Annotated[int, Meta(ge=0, le=2**31 - 1)]
NonNegativeLong = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Positive = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Long = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
IdleMs = Annotated[int, Meta(ge=5000, le=2**63 - 1)]
BufferSize = Annotated[int, Meta(ge=-1, le=2**31 - 1)]
WindowFactor = Annotated[float, Meta(ge=0.5, le=1.0)]
WindowJitter = Annotated[float, Meta(ge=0.0, le=0.25)]
MinPeriod = Annotated[int, Meta(ge=0, le=900)]
BufferTime = Annotated[int, Meta(ge=0, le=3600)]
AssertionLife = Annotated[int, Meta(ge=0, le=86_400)]
AssertionAge = Annotated[int, Meta(ge=0, le=3600)]
GzipLevel = Literal[-1, 1, 2, 3, 4, 5, 6, 7, 8, 9]
Lz4Level = Annotated[int, Meta(ge=1, le=17)]
ZstdLevel = Annotated[int, Meta(ge=-131072, le=22)]
PartitionerName = Annotated[str, Meta(pattern=r"^(roundrobin|uniformsticky|.+\..+)$")]

StoreType = Literal["JKS", "PKCS12", "PEM"]

# TLSv1.2, TLSv1.3 or both. Older versions may be listed, too, but have no effect.
_TLS_VERSION: Final = r"(TLSv1(\.[123])?|SSLv2Hello|SSLv3)"
_TLS_VERSIONS: Final = rf"^(?=.*TLSv1\.[23](,|$)){_TLS_VERSION}(,{_TLS_VERSION})*$"
_MAX_IN_FLIGHT_OF_IDEMPOTENCE: Final = 5
_ADDRESS: Final = re.compile(
    r"(?:[\w\-%.]*://)?(?:\[(?P<six>[0-9a-fA-F:.%\w]+)\]|(?P<host>[\w\-%.:]+)):(?P<port>\d{1,5})"
)
_DEFAULT_PORT_HINT: Final = "write host:port, several separated by commas"


class ConfigProvider(msgspec.Struct, frozen=True):
    """A config provider that is listed in the option `config.providers`.

    options: the names and values of the provider's options. The names are without the prefix
    ``config.providers.NAME.``: for example, ``class``.
    """

    name: str
    options: tuple[tuple[str, str], ...] = ()


class ProducerConfig(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A producer's configuration. The defaults are the same as in the Java client (Kafka 4.x)."""

    bootstrap_servers: str = field(name="bootstrap.servers")
    """Brokers as `host:port`, separated by commas. One reachable broker is enough."""
    client_id: str = field(name="client.id", default="")
    """The name of this client in the logs and quotas of brokers."""

    acks: Literal["all", "-1", "0", "1"] = "all"
    """When a record counts as acknowledged. `all`: when all in-sync replicas have written it; 1:
    when the leader has written it; 0: when it has been sent.
    """
    enable_idempotence: bool = field(name="enable.idempotence", default=True)
    """Whether retries neither duplicate nor reorder records. If you set it to true, acks must be
    all. If you do not set it, acks=1, acks=0 or retries=0 turns it off. At most 5 requests may be
    in flight. Retries may duplicate and reorder records whose timestamps are older than
    producer.id.expiration.ms of the brokers (a day), because a broker forgets their producer.
    Transactions and topics with message.timestamp.type=LogAppendTime are not affected; for others,
    raise producer.id.expiration.ms."""
    retries: NonNegative = 2**31 - 1
    """How many times a failed batch is sent again; delivery.timeout.ms is the better limit."""
    delivery_timeout_ms: NonNegative = field(name="delivery.timeout.ms", default=120_000)
    """The longest time from appending a record to its acknowledgement. After this time, the
    delivery of the record fails. In a Spark task, it may take longer, as long as the leader of the
    partition acknowledges other records within this time, and no attempt to send it has failed.
    """
    request_timeout_ms: Positive = field(name="request.timeout.ms", default=30_000)
    """How long to wait for a response, or for a connection to take more bytes of a request. After
    this time, the connection is closed and its requests are retried.
    """
    max_in_flight_requests_per_connection: Positive = field(
        name="max.in.flight.requests.per.connection", default=5
    )
    """The maximum number of Produce requests in flight to one broker."""

    linger_ms: NonNegativeLong = field(name="linger.ms", default=5)
    """How long a batch that is not full waits for more records; a flush ends the wait."""
    batch_size: NonNegative = field(name="batch.size", default=16_384)
    """The maximum size of a batch as it is sent (compressed), in bytes."""
    buffer_memory: NonNegativeLong = field(name="buffer.memory", default=33_554_432)
    """Memory for records that are not acknowledged yet, in bytes; appending waits while it is
    full."""
    max_request_size: NonNegative = field(name="max.request.size", default=1_048_576)
    """The largest request and the largest record, in bytes."""
    max_block_ms: NonNegativeLong = field(name="max.block.ms", default=60_000)
    """How long appending waits for memory or for metadata. `append` of a large Arrow batch, which
    is cut into slices, may wait this long for the memory of each slice. In a Spark task, the wait
    for memory may take longer, as long as brokers acknowledge records within this time.
    """
    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"] = field(
        name="compression.type", default="none"
    )
    """`none`, `gzip`, `snappy`, `lz4` or `zstd`."""
    compression_gzip_level: GzipLevel = field(name="compression.gzip.level", default=-1)
    """1 to 9, or -1 for the codec's own default (KIP-390)."""
    compression_lz4_level: Lz4Level = field(name="compression.lz4.level", default=9)
    """1 to 17; 9 selects the fast compressor, as in the Java client."""
    compression_zstd_level: ZstdLevel = field(name="compression.zstd.level", default=3)
    """-131072 to 22."""

    partitioner_class: PartitionerName | None = field(name="partitioner.class", default=None)
    """The partitioner of rows without a partition: unset for the built-in one, `roundrobin`, or
    `uniformsticky` (ignores keys); the names of the Java classes work as well. Or `module.Name` of
    a Python callable that chooses the partitions of a whole Arrow batch."""
    partitioner_adaptive_partitioning_enable: bool = field(
        name="partitioner.adaptive.partitioning.enable", default=True
    )
    """Whether slow brokers get fewer of the rows without key (KIP-794)."""
    partitioner_availability_timeout_ms: NonNegativeLong = field(
        name="partitioner.availability.timeout.ms", default=0
    )
    """If a broker makes no progress for this time, rows without key do not go to its partitions.
    0: rows go to all partitions.
    """
    partitioner_ignore_keys: bool = field(name="partitioner.ignore.keys", default=False)
    """Whether to partition rows with a key in the same way as rows without a key."""
    partitioner_rack_aware: bool = field(name="partitioner.rack.aware", default=False)
    """Whether rows without key go to partitions whose leader is in the rack `client.rack`, while
    there are any (KIP-1123)."""
    client_rack: str = field(name="client.rack", default="")
    """The rack of this producer, for example an availability zone. It is compared with the
    brokers' `broker.rack`. `${env:NAME}` is resolved where the producer runs, on each executor."""

    client_dns_lookup: Literal["use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"] = (
        field(name="client.dns.lookup", default="use_all_dns_ips")
    )
    """Whether to try every address of a host (KIP-602), or to resolve bootstrap hosts to their
    canonical names."""
    metadata_max_age_ms: NonNegativeLong = field(name="metadata.max.age.ms", default=300_000)
    """The age at which metadata of topics and brokers is refreshed."""
    metadata_max_idle_ms: IdleMs = field(name="metadata.max.idle.ms", default=300_000)
    """After this time without writes to a topic, the metadata of the topic is dropped (KIP-526)."""
    metadata_recovery_strategy: Literal["rebootstrap", "none"] = field(
        name="metadata.recovery.strategy", default="rebootstrap"
    )
    """Whether to use the bootstrap servers again when no broker can be reached (KIP-899)."""
    metadata_recovery_rebootstrap_trigger_ms: NonNegativeLong = field(
        name="metadata.recovery.rebootstrap.trigger.ms", default=300_000
    )
    """After this time without metadata, all connections are closed and the bootstrap servers are
    used again (KIP-1102)."""
    reconnect_backoff_ms: NonNegativeLong = field(name="reconnect.backoff.ms", default=50)
    """The pause before reconnecting to a broker; it doubles up to reconnect.backoff.max.ms."""
    reconnect_backoff_max_ms: NonNegativeLong = field(name="reconnect.backoff.max.ms", default=1000)
    """The longest pause before reconnecting. If only reconnect.backoff.ms is set, its value is
    also used for this option.
    """
    retry_backoff_ms: NonNegativeLong = field(name="retry.backoff.ms", default=100)
    """The pause before a retry; it doubles up to retry.backoff.max.ms (KIP-580)."""
    retry_backoff_max_ms: NonNegativeLong = field(name="retry.backoff.max.ms", default=1000)
    """The longest pause before a retry. If it is less than retry.backoff.ms, every pause is this
    long.
    """
    socket_connection_setup_timeout_ms: NonNegativeLong = field(
        name="socket.connection.setup.timeout.ms", default=10_000
    )
    """How long connecting may take; this doubles after each failure, up to a maximum (KIP-601)."""
    socket_connection_setup_timeout_max_ms: NonNegativeLong = field(
        name="socket.connection.setup.timeout.max.ms", default=30_000
    )
    """The maximum to which socket.connection.setup.timeout.ms doubles."""
    connections_max_idle_ms: Long = field(name="connections.max.idle.ms", default=540_000)
    """After this time without use, a connection is closed; negative: never."""
    send_buffer_bytes: BufferSize = field(name="send.buffer.bytes", default=131_072)
    """The socket's send buffer (SO_SNDBUF); -1: the system's default."""
    receive_buffer_bytes: BufferSize = field(name="receive.buffer.bytes", default=32_768)
    """The socket's receive buffer (SO_RCVBUF); -1: the system's default."""
    transactional_id: Annotated[str, Meta(min_length=1)] | None = field(
        name="transactional.id", default=None
    )
    """The name that identifies a transactional producer across restarts; needs idempotence. It
    cannot be set for Spark writes, because all tasks would use the same name.
    """
    transaction_timeout_ms: Positive = field(name="transaction.timeout.ms", default=60_000)
    """After this time, the coordinator aborts an open transaction."""
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = field(
        name="security.protocol", default="PLAINTEXT"
    )
    """The protocol of the brokers' listener: `PLAINTEXT`, `SSL` (TLS), `SASL_PLAINTEXT` (SASL
    authentication) or `SASL_SSL` (TLS and SASL authentication)."""
    sasl_mechanism: str = field(name="sasl.mechanism", default="GSSAPI")
    """How clients authenticate: `PLAIN`, `SCRAM-SHA-256`, `SCRAM-SHA-512`, `OAUTHBEARER`, `GSSAPI`
    (Kerberos) or `AWS_MSK_IAM`."""
    sasl_oauthbearer_token_endpoint_url: str | None = field(
        name="sasl.oauthbearer.token.endpoint.url", default=None
    )
    """Where OAUTHBEARER gets its token: a token endpoint, `https://…` or `http://…`, or a file,
    `file:///path`. The file is read at each login; another program must keep it up to date.
    """
    sasl_oauthbearer_scope: str | None = field(name="sasl.oauthbearer.scope", default=None)
    """The scope to request from the token endpoint; replaces `scope` in sasl.jaas.config."""
    sasl_oauthbearer_client_credentials_client_id: str | None = field(
        name="sasl.oauthbearer.client.credentials.client.id", default=None
    )
    """The client's name at the token endpoint; replaces `clientId` in sasl.jaas.config."""
    sasl_oauthbearer_client_credentials_client_secret: Secret | None = field(
        name="sasl.oauthbearer.client.credentials.client.secret", default=None
    )
    """The client's secret at the token endpoint; replaces `clientSecret` in sasl.jaas.config."""
    sasl_oauthbearer_header_urlencode: bool = field(
        name="sasl.oauthbearer.header.urlencode", default=False
    )
    """Whether the client's name and secret are URL-encoded in the Authorization header. RFC 6749
    requires it, but few endpoints expect it.
    """
    sasl_oauthbearer_jwt_retriever_class: Annotated[str, Meta(min_length=1)] = field(
        name="sasl.oauthbearer.jwt.retriever.class",
        default="org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever",
    )
    """How tokens are fetched: Java's `DefaultJwtRetriever`, `ClientCredentialsJwtRetriever`,
    `FileJwtRetriever` or `JwtBearerJwtRetriever`, with the package or without; or `module.Name` of
    a Python callable that returns a token and its expiry time."""
    sasl_oauthbearer_assertion_file: str | None = field(
        name="sasl.oauthbearer.assertion.file", default=None
    )
    """A file with an assertion. The file is read each time a token is requested; another program
    must keep it up to date.
    """
    sasl_oauthbearer_sub_claim_name: Annotated[str, Meta(min_length=1)] = field(
        name="sasl.oauthbearer.sub.claim.name", default="sub"
    )
    """The claim of a token that contains the user name. If the option of this name on the brokers
    is set to a different claim, set it here to the same claim.
    """
    sasl_oauthbearer_assertion_private_key_file: str | None = field(
        name="sasl.oauthbearer.assertion.private.key.file", default=None
    )
    """A PEM file with the private key to sign assertions with; needs the extra `[pkcs12]`."""
    sasl_oauthbearer_assertion_private_key_passphrase: Secret | None = field(
        name="sasl.oauthbearer.assertion.private.key.passphrase", default=None
    )
    """The password of an encrypted sasl.oauthbearer.assertion.private.key.file."""
    sasl_oauthbearer_assertion_algorithm: Literal["RS256", "ES256"] = field(
        name="sasl.oauthbearer.assertion.algorithm", default="RS256"
    )
    """How assertions are signed: `RS256` or `ES256`."""
    sasl_oauthbearer_assertion_template_file: str | None = field(
        name="sasl.oauthbearer.assertion.template.file", default=None
    )
    """A JSON file with further fields of assertions: `{"header": {…}, "payload": {…}}`."""
    sasl_oauthbearer_assertion_claim_aud: str | None = field(
        name="sasl.oauthbearer.assertion.claim.aud", default=None
    )
    """The claim `aud` of assertions, usually the token endpoint's URL."""
    sasl_oauthbearer_assertion_claim_iss: str | None = field(
        name="sasl.oauthbearer.assertion.claim.iss", default=None
    )
    """The claim `iss` of assertions. If it is set, clients send an assertion instead of a
    secret."""
    sasl_oauthbearer_assertion_claim_sub: str | None = field(
        name="sasl.oauthbearer.assertion.claim.sub", default=None
    )
    """The claim `sub` of assertions."""
    sasl_oauthbearer_assertion_claim_exp_seconds: AssertionLife = field(
        name="sasl.oauthbearer.assertion.claim.exp.seconds", default=300
    )
    """How long an assertion is valid."""
    sasl_oauthbearer_assertion_claim_nbf_seconds: AssertionAge = field(
        name="sasl.oauthbearer.assertion.claim.nbf.seconds", default=60
    )
    """How long before its creation an assertion becomes valid, in case clocks differ."""
    sasl_oauthbearer_assertion_claim_jti_include: bool = field(
        name="sasl.oauthbearer.assertion.claim.jti.include", default=False
    )
    """Whether each assertion contains a unique id, the claim `jti`."""
    sasl_login_refresh_window_factor: WindowFactor = field(
        name="sasl.login.refresh.window.factor", default=0.8
    )
    """The fraction of its lifetime after which a token is refreshed."""
    sasl_login_refresh_window_jitter: WindowJitter = field(
        name="sasl.login.refresh.window.jitter", default=0.05
    )
    """The largest random fraction of a token's lifetime to add to the window factor."""
    sasl_login_refresh_min_period_seconds: MinPeriod = field(
        name="sasl.login.refresh.min.period.seconds", default=60
    )
    """The minimum time before a token is refreshed; ignored if the token expires too soon."""
    sasl_login_refresh_buffer_seconds: BufferTime = field(
        name="sasl.login.refresh.buffer.seconds", default=300
    )
    """The minimum time between a token's refresh and its expiry; ignored if the token expires too
    soon."""
    sasl_login_connect_timeout_ms: NonNegative | None = field(
        name="sasl.login.connect.timeout.ms", default=None
    )
    """The time limit for a connection to the token endpoint; unset or 0: 10 s."""
    sasl_login_read_timeout_ms: NonNegative | None = field(
        name="sasl.login.read.timeout.ms", default=None
    )
    """The time limit for the token endpoint's complete response; unset or 0: 10 s."""
    sasl_login_retry_backoff_ms: NonNegativeLong = field(
        name="sasl.login.retry.backoff.ms", default=100
    )
    """The pause before a retry at the token endpoint; it doubles after each attempt."""
    sasl_login_retry_backoff_max_ms: NonNegativeLong = field(
        name="sasl.login.retry.backoff.max.ms", default=10_000
    )
    """The longest pause before a retry at the token endpoint, and the pause after a rejection."""
    sasl_login_callback_handler_class: str | None = field(
        name="sasl.login.callback.handler.class", default=None
    )
    """Only the Java class names of two handlers are accepted: Kafka's handler for OAUTHBEARER, and
    Amazon MSK's handler, which signs tokens with AWS credentials.
    """
    sasl_client_callback_handler_class: str | None = field(
        name="sasl.client.callback.handler.class", default=None
    )
    """Only the Java class name of Amazon MSK's handler for AWS_MSK_IAM is accepted."""
    sasl_jaas_config: Secret | None = field(name="sasl.jaas.config", default=None)
    """The credentials, in Java's form: a login module and its options."""
    sasl_username: str | None = field(name="sasl.username", default=None)
    """The user name of the client, instead of sasl.jaas.config; Java does not have this option."""
    sasl_password: Secret | None = field(name="sasl.password", default=None)
    """The password of sasl.username; Java does not have this option."""
    sasl_kerberos_service_name: str | None = field(name="sasl.kerberos.service.name", default=None)
    """The first part of the brokers' Kerberos principals, usually `kafka`."""
    sasl_kerberos_principal: str | None = field(name="sasl.kerberos.principal", default=None)
    """The client's Kerberos principal, instead of sasl.jaas.config; Java does not have this
    option. Without a keytab, the tickets in the process's ticket cache are used.
    """
    sasl_kerberos_keytab: str | None = field(name="sasl.kerberos.keytab", default=None)
    """The keytab file of sasl.kerberos.principal; Java does not have this option. A name without a
    folder is a file shipped with `--files`.
    """
    ssl_truststore_location: str | None = field(name="ssl.truststore.location", default=None)
    """A file with the certificates to trust, in PEM or PKCS12; unset: the system's certificates.
    The file is read for each connection. A name without a folder is a file shipped with `--files`.
    """
    ssl_truststore_certificates: Secret | None = field(
        name="ssl.truststore.certificates", default=None
    )
    """The certificates to trust, as PEM text, in place of a file."""
    ssl_truststore_type: StoreType = field(name="ssl.truststore.type", default="JKS")
    """Accepted, but has no effect, because the type of a file is detected from its first bytes."""
    ssl_truststore_password: Secret | None = field(name="ssl.truststore.password", default=None)
    """The password of a PKCS12 file; PEM files have none."""
    ssl_keystore_location: str | None = field(name="ssl.keystore.location", default=None)
    """A file with the client's private key and certificate chain, in PEM or PKCS12, for brokers
    that require a client certificate.
    """
    ssl_keystore_key: Secret | None = field(name="ssl.keystore.key", default=None)
    """The private key, as PEM text, in place of a file."""
    ssl_keystore_certificate_chain: Secret | None = field(
        name="ssl.keystore.certificate.chain", default=None
    )
    """The certificates of ssl.keystore.key, the client's own first."""
    ssl_keystore_type: StoreType = field(name="ssl.keystore.type", default="JKS")
    """Accepted, but has no effect, because the type of a file is detected from its first bytes."""
    ssl_keystore_password: Secret | None = field(name="ssl.keystore.password", default=None)
    """The password of a PKCS12 file. For an encrypted key in a PEM file, set ssl.key.password."""
    ssl_key_password: Secret | None = field(name="ssl.key.password", default=None)
    """The password of an encrypted private key."""
    ssl_endpoint_identification_algorithm: Literal["https", ""] = field(
        name="ssl.endpoint.identification.algorithm", default="https"
    )
    """`https`: a broker's certificate must contain the host name that the client connects to;
    empty: any host name is accepted, with a warning.
    """
    ssl_protocol: Literal["TLSv1.3", "TLSv1.2", "TLS"] = field(
        name="ssl.protocol", default="TLSv1.3"
    )
    """The newest TLS version to use. With `TLSv1.2`, TLS 1.3 is not used."""
    ssl_enabled_protocols: Annotated[str, Meta(pattern=_TLS_VERSIONS)] = field(
        name="ssl.enabled.protocols", default="TLSv1.2,TLSv1.3"
    )
    """`TLSv1.2`, `TLSv1.3`, or both. Older versions may be listed, too, but have no effect; a
    warning lists them."""
    ssl_cipher_suites: str = field(name="ssl.cipher.suites", default="")
    """Suites by Java's names or OpenSSL's; empty: the default of Python's module ssl. If only TLS
    1.2 suites are listed, TLS 1.3 is disabled."""

    metrics_num_samples: Positive = field(name="metrics.num.samples", default=2)
    """The number of samples that rates and averages are computed over."""
    metrics_sample_window_ms: NonNegativeLong = field(
        name="metrics.sample.window.ms", default=30_000
    )
    """The length of one sample."""

    config_providers: tuple[ConfigProvider, ...] = field(name="config.providers", default=())
    """The names of config providers that `${NAME:…}` in option values may use, besides env, file
    and directory. The options of each are config.providers.NAME.class, and
    config.providers.NAME.param.allowed.paths or .allowlist.pattern.
    """

    @property
    def has_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.security_protocol in ("SSL", "SASL_SSL")

    @property
    def has_aws_tokens(self) -> bool:
        """Whether clients authenticate with tokens that are signed with AWS credentials."""
        if self.sasl_mechanism == "OAUTHBEARER":
            return self.sasl_login_callback_handler_class == _AWS_OAUTH_HANDLER
        return self.sasl_mechanism == "AWS_MSK_IAM"

    @property
    def has_sasl(self) -> bool:
        """Whether connections begin with SASL authentication."""
        return self.security_protocol in ("SASL_PLAINTEXT", "SASL_SSL")

    @property
    def compression_level(self) -> int | None:
        """The compression level of compression.type, None if the codec has no levels."""
        levels = {
            "gzip": self.compression_gzip_level,
            "lz4": self.compression_lz4_level,
            "zstd": self.compression_zstd_level,
        }
        return levels.get(self.compression_type)

    @property
    def acks_number(self) -> int:
        """The acks as the number in a Produce request, -1 for all."""
        return -1 if self.acks == "all" else int(self.acks)

    @property
    def rebootstraps(self) -> bool:
        """Whether to use the bootstrap addresses again when no broker can be reached."""
        return self.metadata_recovery_strategy == "rebootstrap"

    @property
    def bootstrap_nodes(self) -> list[Node]:
        """The bootstrap addresses as nodes with the ids -1, -2 and so on."""
        # A password with a comma may be before an @. It is masked, and `_node` rejects the entry.
        servers = masked(self.bootstrap_servers)
        entries = dict.fromkeys(e.strip() for e in servers.split(",") if e.strip())
        return [_node(-1 - number, entry) for number, entry in enumerate(entries)]


_PROVIDERS: Final = "config.providers"
_PROVIDER_OPTIONS: Final = f"{_PROVIDERS}."


@functools.cache
def option_fields() -> tuple[msgspec.structs.FieldInfo, ...]:
    """Return msgspec's descriptions of the fields of `ProducerConfig`, one per option."""
    return msgspec.structs.fields(ProducerConfig)


def producer_config(
    options: Mapping[str, Any],
    *,
    defaults: Mapping[str, Any] | None = None,
    lenient: bool = False,
    of_caller: Collection[str] = (),
) -> ProducerConfig:
    """Check options, and return the configuration. Raise ConfigException if one is invalid.

    options: values by Java option name; a value may be a string. defaults: values to use instead of
    the Java client's defaults. lenient: ignore unknown names with a warning. of_caller: as in
    `check_names`.
    """
    check_options(options)
    without_effect = check_names(options, lenient=lenient, of_caller=of_caller)
    known = {each.encode_name for each in option_fields()} - without_effect
    for name, value in options.items():
        if name in known or name.startswith(_PROVIDER_OPTIONS):
            check_unicode(str(Option(name)), value)
    providers = _config_providers(options)
    options = {name: value for name, value in options.items() if name in known}
    settings = {
        name: _secret(name, value) if name in SECRETS and value is not None else value
        for name, value in {**(defaults or {}), **options}.items()
    }
    given = {name: _normal(name, value) for name, value in settings.items()}
    given[_PROVIDERS] = providers
    if not given.get("bootstrap.servers"):
        message = f"{Option('bootstrap.servers')} is not set; {_DEFAULT_PORT_HINT}"
        raise ConfigException(message)
    try:
        config = msgspec.convert(given, ProducerConfig)
    except msgspec.ValidationError as error:
        raise ConfigException(invalid(error, ProducerConfig, settings)) from None
    config = _settle_idempotence(config, options)
    config = _settle_delivery_timeout(config, options)
    config = _settle_backoffs(config, options)
    if config.partitioner_rack_aware and not config.client_rack.strip():
        message = (
            f"{Option('partitioner.rack.aware')} is true, but {Option('client.rack')} is not set: "
            "set it to the rack of the producer, for example ${env:ZONE}"
        )
        raise ConfigException(message)
    _check_secured(config)
    _check_handlers(config)
    _check_text(config)
    if not config.bootstrap_nodes:
        message = f"{Option('bootstrap.servers')} has no address in it; {_DEFAULT_PORT_HINT}"
        raise ConfigException(message)
    return config


def _secret(name: str, value: object) -> Secret:
    """Return a secret option's value. Raise ConfigException if it is neither text nor a number."""
    if not isinstance(value, str | Secret | Real):
        kind = type(value).__name__
        raise ConfigException(f"{Option(name)} is of type {kind}: expected a str")
    return Secret(trimmed(Secret.of(value).value))


def _config_providers(options: Mapping[str, Any]) -> tuple[ConfigProvider, ...]:
    """Return the config providers that `config.providers` lists, with their options.

    Raise ConfigException for an option of a provider that is not in the list.
    """
    unread = {
        name: str(value) for name, value in options.items() if name.startswith(_PROVIDER_OPTIONS)
    }
    found = []
    for each in _entries(options.get(_PROVIDERS) or ""):
        prefix = f"{_PROVIDER_OPTIONS}{each}."
        # Spark converts option names to lower case, but not option values.
        own = sorted(name for name in unread if name.startswith((prefix, prefix.lower())))
        of_it = tuple((name[len(prefix) :], unread.pop(name)) for name in own)
        found.append(ConfigProvider(each, of_it))
    if unread:
        raise ConfigException(
            f"{Option(min(unread))} is an option of a provider that {Option(_PROVIDERS)} does not "
            "name"
        )
    return tuple(found)


def check_options(options: object) -> Mapping[str, object]:
    """Return `options`. Raise ConfigException unless it is a mapping whose keys are valid text."""
    if not isinstance(options, Mapping):
        kind = type(options).__name__
        message = f"the configuration is a {kind}: expected a mapping from option names to values"
        raise ConfigException(message)
    for name in options:
        if not isinstance(name, str):
            message = f"{name!r} is not an option name: expected a str"
            raise ConfigException(message)
        if not is_utf8(name):
            message = f"{name!r} is not an option name: it cannot be encoded as UTF-8"
            raise ConfigException(message)
    return options


def check_unicode(option: str, value: object) -> None:
    """Raise ConfigException if a string, or a string in a list, contains an unpaired surrogate.

    The message does not show the value, which may be a secret. option: the name in the message.
    """
    for each in value if isinstance(value, list | tuple) else (value,):
        text = each.value if isinstance(each, Secret) else each
        if isinstance(text, str) and not is_utf8(text):
            message = (
                f"{option} cannot be encoded as UTF-8, because it has an unpaired surrogate: "
                "remove that character"
            )
            raise ConfigException(message)


def check_names(
    options: Mapping[str, Any], *, lenient: bool = False, of_caller: Collection[str] = ()
) -> frozenset[str]:
    """Check option names. Return the options that have no effect with the security.protocol.

    of_caller: options that only the caller reads, such as key.serializer. If an unknown name is
    similar to one of them, the message suggests it. Raise ConfigException for an unknown name. With
    `lenient`, only log a warning for names that the tables of this module do not reject.
    """
    known = {each.encode_name for each in option_fields()}
    without_effect = _check_security(options, lenient=lenient)
    for name in options:
        if name in without_effect or name.startswith(_PROVIDER_OPTIONS):
            continue
        if name in NO_EFFECT:
            warn_once(logger, f"{Option(name)} has no effect: {NO_EFFECT[name]}")
        elif name in OFF_ONLY:
            _check_off(name, options[name])
        elif name not in known:
            message = _unknown(name, of_caller)
            if not lenient or name in NOT_YET or name in REFUSED or name in OTHER_CLIENTS:
                raise ConfigException(message)
            warn_once(logger, message)
    return without_effect


def _check_security(options: Mapping[str, Any], *, lenient: bool) -> frozenset[str]:
    """Return the TLS and SASL options that have no effect with the security.protocol.

    Log a warning if there are such options. Raise ConfigException instead, unless `lenient`, if
    there are SASL options, or TLS options without security.protocol: the user surely expects a
    login, or encryption.
    """
    given = options.get("security.protocol")
    protocol = str(given or "PLAINTEXT").strip().upper()
    unused = _UNUSED.get(protocol)
    if unused is None:
        return frozenset()
    families, why = unused
    known = {each.encode_name for each in option_fields()} | NOT_YET
    found = [name for name in options if name.startswith(families) and name in known]
    refused = [] if lenient else [n for n in found if not (given and n.startswith("ssl."))]
    if shown := refused or found:
        have, it = ("has", "it") if len(shown) == 1 else ("have", "them")
        message = (
            f"{listed(str(Option(name)) for name in shown)} {have} no effect with "
            f"{Option('security.protocol')}={protocol} ({why}); remove {it}, or set "
            f"{Option('security.protocol')} to the protocol of the brokers' listener"
        )
        if refused:
            raise ConfigException(message)
        warn_once(logger, message)
    return frozenset(found)


def _check_handlers(config: ProducerConfig) -> None:
    """Raise ConfigException for callback handler classes that this package does not support."""
    mechanism = config.sasl_mechanism.strip().upper()
    handlers = {
        "sasl.login.callback.handler.class": config.sasl_login_callback_handler_class,
        "sasl.client.callback.handler.class": config.sasl_client_callback_handler_class,
    }
    for name, given in handlers.items():
        its_mechanism, known = _HANDLERS_OF[name]
        if given is not None and not (mechanism == its_mechanism and given in known):
            raise ConfigException(
                f"{Option(name)} is {shown_value(given)}, a Java class: expected "
                f"{' or '.join(known)} with {Option('sasl.mechanism', its_mechanism)}. For a token "
                "endpoint, as with Strimzi's handler, set "
                f"{Option('sasl.oauthbearer.token.endpoint.url')}, "
                f"{Option('sasl.oauthbearer.client.credentials.client.id')} and "
                f"{Option('sasl.oauthbearer.client.credentials.client.secret')}; for a "
                "Python callable that returns tokens, set "
                f"{Option('sasl.oauthbearer.jwt.retriever.class')}"
            )


def _check_secured(config: ProducerConfig) -> None:
    """Raise ConfigException for key stores and credentials that are set twice or incompletely."""
    user, password, jaas = config.sasl_username, config.sasl_password, config.sasl_jaas_config
    if (user is None) != (password is None):
        raise ConfigException(
            f"{Option('sasl.username')} and {Option('sasl.password')} go together: one of them is "
            "not set"
        )
    if user is not None and jaas is not None:
        raise ConfigException(
            f"{Option('sasl.username')} and {Option('sasl.jaas.config')} both name a user: "
            "remove one of the two"
        )
    kerberos = {
        "sasl.kerberos.principal": config.sasl_kerberos_principal,
        "sasl.kerberos.keytab": config.sasl_kerberos_keytab,
    }
    for name in (name for name, value in kerberos.items() if value is not None):
        others = {"sasl.jaas.config": jaas, "sasl.username": user}
        for other in (other for other, value in others.items() if value is not None):
            raise ConfigException(
                f"{Option(name)} and {Option(other)} both set the user that logs in: remove one of "
                "the two"
            )
    key, chain = config.ssl_keystore_key, config.ssl_keystore_certificate_chain
    for name, location, texts in (
        ("truststore", config.ssl_truststore_location, (config.ssl_truststore_certificates,)),
        ("keystore", config.ssl_keystore_location, (key, chain)),
    ):
        if location is not None and any(text is not None for text in texts):
            raise ConfigException(
                f"{Option(f'ssl.{name}.location')} and options with its contents are both set: "
                "remove the location or these options"
            )
    if (key is None) != (chain is None):
        found, missing = (
            ("key", "certificate.chain") if chain is None else ("certificate.chain", "key")
        )
        raise ConfigException(
            f"{Option(f'ssl.keystore.{found}')} is set without "
            f"{Option(f'ssl.keystore.{missing}')}: a private key and its certificates go together"
        )


def _check_text(config: ProducerConfig) -> None:
    """Raise ConfigException if client.id or transactional.id is too long."""
    names = {"client.id": config.client_id, "transactional.id": config.transactional_id or ""}
    for option, name in names.items():
        size = len(name.encode())
        if size > _LONGEST_NAME_BYTES:
            message = (
                f"{Option(option)} has {size} bytes: expected at most "
                f"{_LONGEST_NAME_BYTES}, since no request can carry more"
            )
            raise ConfigException(message)


def _normal(name: str, value: Any) -> Any:
    """Convert the value of an option to the form that `ProducerConfig` expects.

    The conversion concerns letter case, blanks, lists and numbers.
    """
    if name in _options_of(int) or name in _UNSET_NUMBERS:
        return integer(value)
    if name in _options_of(float):
        return _number(value)
    if name in _LISTS and value is not None:
        return ",".join(_entries(value))
    if name == "ssl.cipher.suites" and isinstance(value, list | tuple):
        value = ",".join(map(str, value))
    if not isinstance(value, str):
        return str(value) if name == "acks" else value
    return _normal_text(name, trimmed(value))


# The characters that String.trim of Java removes.
_BLANKS: Final = "".join(map(chr, range(ord(" ") + 1)))


def trimmed(text: str) -> str:
    """Return a text without blanks and control characters at its ends, as the Java client does."""
    return text.strip(_BLANKS)


def _entries(value: Any) -> list[str]:
    """Return the entries of a list or of a comma-separated text, without surrounding blanks."""
    entries = value if isinstance(value, list | tuple) else str(value).split(",")
    return [entry for each in entries if (entry := str(each).strip())]


def _normal_text(name: str, value: str) -> Any:
    if name == "partitioner.class":
        return PARTITIONERS.get(value.lower(), value if "." in value else value.lower())
    if name in _HANDLERS_OF:
        return _without_shading(value)
    if name in _options_of(bool):
        return {"true": True, "false": False}.get(value.lower(), value)
    if name in _LOWER_CASE:
        return value.lower()
    return value.upper() if name in _UPPER_CASE else value


def _without_shading(name: str) -> str:
    """Return the name of a Java class without the prefix that shaded JARs add, as on Databricks."""
    known = (each for of_mechanism in _HANDLERS_OF.values() for each in of_mechanism[1])
    return next((each for each in known if name.endswith(f".{each}")), name)


def integer(value: Any) -> Any:
    """Convert text (as Java does) and integral floats to int. Return other values unchanged."""
    is_text = isinstance(value, str) and _INTEGER.fullmatch(value.strip())
    is_integral = isinstance(value, float) and value.is_integer()
    return int(value) if is_text or is_integral else value


def _number(value: Any) -> Any:
    """Convert text to float. Return other values unchanged."""
    is_text = isinstance(value, str) and _DECIMAL.fullmatch(value.strip())
    return float(value) if is_text else value


@functools.cache
def _options_of(kind: type) -> frozenset[str]:
    """Return the names of the options whose default value has the type `kind`."""
    return frozenset(each.encode_name for each in option_fields() if type(each.default) is kind)


def _check_off(name: str, value: Any) -> None:
    """Raise ConfigException if an option that must be off is on."""
    if str(value).strip().lower() != "false":
        message = f"{Option(name)} is {shown_value(value)}: expected false, since {OFF_ONLY[name]}"
        raise ConfigException(message)


def _unknown(name: str, of_caller: Collection[str]) -> str:
    if (reason := refusal(name)) is not None:
        return reason
    if (reason := of_other_client(name)) is not None:
        return f"{Option(name)} {reason}"
    close = nearest(name, java_names())
    if close and close not in of_caller and (reason := refusal(close)) is not None:
        return f"{Option(name)} is not an option of the Kafka producer, and {reason}"
    hint = f"; did you mean {Option(close)}?" if close else ""
    return f"{Option(name)} is not an option of the Kafka producer{hint}"


def refusal(name: str) -> str | None:
    """Return why an option of the Java producer is not supported. Return None for other names."""
    if name in REFUSED:
        return f"{Option(name)} is not supported: {REFUSED[name]}; remove it"
    if name in NOT_YET:
        return (
            f"{Option(name)} is an option of the Java producer that is not supported yet; remove it"
        )
    return None


def of_other_client(name: str) -> str | None:
    """Return what to do instead of setting another client's option. Return None for other names."""
    if name in OTHER_CLIENTS:
        return f"is an option of other clients: {OTHER_CLIENTS[name].sentence()}"
    if name in LIBRDKAFKA_ONLY:
        return "is an option of librdkafka that this producer does not have; remove it"
    return None


@functools.cache
def java_names() -> frozenset[str]:
    """Return the names of all options of the Java producer, including unsupported options."""
    known = {each.encode_name for each in option_fields()}
    return frozenset(known | NOT_YET | REFUSED.keys() | NO_EFFECT.keys() | OFF_ONLY.keys())


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the name in `names` that is most similar to `name`, None if no name is similar."""
    close = get_close_matches(name, sorted(names), n=1, cutoff=_ALIKE)
    return close[0] if close else None


def invalid(error: msgspec.ValidationError, struct: type, given: Mapping[str, Any]) -> str:
    """Return the message about an option value that msgspec rejects for a field of `struct`."""
    text = str(error)
    name = text.partition(" - at `$.")[2].rstrip("`")
    if name not in given:
        return f"the options are not valid: {text}"
    (kind,) = (
        each.type
        for each in msgspec.inspect.type_info(struct).fields  # type: ignore[attr-defined]
        if each.encode_name == name
    )
    hint = reference_hint(str(given[name]))
    if name == "partitioner.class" and may_be_java_class(given[name]):
        hint = ". If it is a Java class: Java classes cannot run here; use one of these"
    return f"{Option(name)} is {shown_value(given[name])}: expected {_expected(name, kind)}{hint}"


def reference_hint(value: str) -> str:
    """Return a hint for an error message: references (``${…}``) cannot be used here.

    Return "" if `value` contains no reference. In Kafka's documentation, references are called
    config provider variables.
    """
    found = next(written_references(value), None)
    if found is None:
        return ""
    begin, end = found
    example = "${…}" if may_be_key(value[begin:end]) else value[begin:end]
    return f"; a reference such as {example} cannot be used here"


def written_references(text: str) -> Iterator[tuple[int, int]]:
    """Yield where each reference (``${provider:…}``) in a text begins and ends.

    These are the matches of ConfigTransformer.DEFAULT_PATTERN of the Java client. A regular
    expression would need quadratic time for some texts, such as many ``${`` and no ``}``.
    """
    at = 0
    while (begin := text.find("${", at)) >= 0 and (end := text.find("}", begin)) >= 0:
        at = end + 1
        if text.find(":", begin, end) >= 0:
            yield begin, at


def _expected(name: str, kind: msgspec.inspect.Type) -> str:
    if name in _ALLOWED:
        return f"one of {', '.join(_ALLOWED[name])}"
    if isinstance(kind, msgspec.inspect.BoolType):
        return "true or false"
    if name in _UNSET_NUMBERS and isinstance(kind, msgspec.inspect.UnionType):
        kind = next(each for each in kind.types if isinstance(each, msgspec.inspect.IntType))
    if isinstance(kind, msgspec.inspect.FloatType):
        return f"a number from {kind.ge:g} to {kind.le:g}"
    if isinstance(kind, msgspec.inspect.IntType):
        return f"an integer from {kind.ge} to {kind.le}"
    kinds = kind.types if isinstance(kind, msgspec.inspect.UnionType) else (kind,)
    has_minimum = any(
        each.min_length for each in kinds if isinstance(each, msgspec.inspect.StrType)
    )
    return "non-empty text" if has_minimum else "text"


_OAUTH_HANDLERS: Final = (
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler",
    "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerLoginCallbackHandler",
)
_AWS_OAUTH_HANDLER: Final = "software.amazon.msk.auth.iam.IAMOAuthBearerLoginCallbackHandler"
# The mechanism and the supported classes of each option for a callback handler.
_HANDLERS_OF: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "sasl.login.callback.handler.class": ("OAUTHBEARER", (*_OAUTH_HANDLERS, _AWS_OAUTH_HANDLER)),
    "sasl.client.callback.handler.class": (
        "AWS_MSK_IAM",
        ("software.amazon.msk.auth.iam.IAMClientCallbackHandler",),
    ),
}
# By security.protocol: the prefixes of the options that have no effect, and the reason.
_UNUSED: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "PLAINTEXT": (("ssl.", "sasl."), "nothing is encrypted and the client does not log in"),
    "SSL": (("sasl.",), "the client does not log in by SASL"),
    "SASL_PLAINTEXT": (("ssl.",), "nothing is encrypted"),
}
# The smallest similarity at which a name is suggested for an unknown name.
_ALIKE: Final = 0.76
# No option needs more digits, and int() rejects very long numbers.
_INTEGER: Final = re.compile(r"[+-]?\d{1,100}")
_DECIMAL: Final = re.compile(r"[+-]?(\d{1,100}(\.\d{0,100})?|\.\d{1,100})")
# Numeric options without a default.
_UNSET_NUMBERS: Final = ("sasl.login.connect.timeout.ms", "sasl.login.read.timeout.ms")
# Strings in requests have a 16-bit length. A transactional.id is also part of a client.id, after
# "producer-".
_LONGEST_NAME_BYTES: Final = 32_767 - len("producer-")
_LOWER_CASE: Final = (
    "ssl.endpoint.identification.algorithm",
    "acks",
    "compression.type",
    "client.dns.lookup",
    "metadata.recovery.strategy",
)
_UPPER_CASE: Final = (
    "sasl.oauthbearer.assertion.algorithm",
    "security.protocol",
    "ssl.keystore.type",
    "ssl.truststore.type",
)
_LISTS: Final = ("bootstrap.servers", "ssl.enabled.protocols")
# Options whose values must not be shown.
SECRETS: Final = frozenset(
    {
        "sasl.jaas.config",
        "sasl.oauthbearer.assertion.private.key.passphrase",
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.password",
        "ssl.key.password",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.keystore.password",
        "ssl.truststore.certificates",
        "ssl.truststore.password",
    }
)
# The names of Java's partitioner classes in lower case, with and without the package.
PARTITIONERS: Final = {
    "": None,
    "defaultpartitioner": None,
    "org.apache.kafka.clients.producer.internals.defaultpartitioner": None,
    "roundrobinpartitioner": "roundrobin",
    "org.apache.kafka.clients.producer.roundrobinpartitioner": "roundrobin",
    "uniformstickypartitioner": "uniformsticky",
    "org.apache.kafka.clients.producer.uniformstickypartitioner": "uniformsticky",
}


# A class in a package that begins with a reversed domain name, as usual in Java, or a nested class.
# No name in Python contains a dollar sign.
_JAVA_CLASS: Final = re.compile(
    r"([a-z]{2}|app|com|dev|edu|gov|net|org)(\.\w+)+\.[A-Z]\w*|(\w+\.)*\w+\$[\w$]*"
)
_ANY_CLASS: Final = re.compile(r"(\w+\.)*[A-Z]\w*")


def is_java_class(given: object) -> bool:
    """Return whether the value of an option looks like the name of a Java class."""
    return isinstance(given, str) and _JAVA_CLASS.fullmatch(given.strip()) is not None


def may_be_java_class(given: object) -> bool:
    """Return whether the value of an option may be the name of a Java class in any package.

    A Python class may have such a name, too.
    """
    if is_java_class(given):
        return True
    return isinstance(given, str) and _ANY_CLASS.fullmatch(given.strip()) is not None


def names_own_partitioner(given: object) -> bool:
    """Return whether partitioner.class is the user's own partitioner, or the name of one."""
    if isinstance(given, str):
        return "." in given and given.strip().lower() not in PARTITIONERS
    return given is not None


_ALLOWED: Final = {
    "acks": ("all", "-1", "0", "1"),
    "client.dns.lookup": ("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"),
    "compression.gzip.level": ("-1", "1 to 9"),
    "compression.type": ("none", "gzip", "snappy", "lz4", "zstd"),
    "metadata.recovery.strategy": ("rebootstrap", "none"),
    "partitioner.class": (
        "roundrobin",
        "uniformsticky",
        "module.Name of a Python callable",
        "or empty for the built-in one",
    ),
    "sasl.oauthbearer.assertion.algorithm": ("RS256", "ES256"),
    "security.protocol": ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    "ssl.enabled.protocols": ("TLSv1.2", "TLSv1.3", "or both"),
    "ssl.endpoint.identification.algorithm": ("https", "or empty to skip the check of host names"),
    "ssl.keystore.type": ("JKS", "PKCS12", "PEM"),
    "ssl.protocol": ("TLSv1.3", "TLSv1.2", "TLS"),
    "ssl.truststore.type": ("JKS", "PKCS12", "PEM"),
}


def _settle_idempotence(config: ProducerConfig, options: Mapping[str, Any]) -> ProducerConfig:
    """Apply the rules of ProducerConfig.postProcessAndValidateIdempotenceConfigs.

    Raise ConfigException if more requests may be in flight than idempotence allows. If acks or
    retries contradict idempotence, disable it, or raise ConfigException if the user has enabled it.
    """
    if config.transactional_id is not None:
        _check_transactional(config)
    if not config.enable_idempotence:
        return config
    if config.max_in_flight_requests_per_connection > _MAX_IN_FLIGHT_OF_IDEMPOTENCE:
        message = (
            f"{Option('max.in.flight.requests.per.connection')} is "
            f"{config.max_in_flight_requests_per_connection}: the idempotent producer allows at "
            f"most {_MAX_IN_FLIGHT_OF_IDEMPOTENCE}; lower it, or set "
            f"{Option('enable.idempotence')} to false"
        )
        raise ConfigException(message)
    conflicts = []
    if config.acks_number != -1:
        conflicts.append(f"{Option('acks')} is {config.acks} and must be all")
    if config.retries == 0:
        conflicts.append(f"{Option('retries')} is 0 and must be positive")
    if not conflicts:
        return config
    if "enable.idempotence" in options:
        message = f"{Option('enable.idempotence')} is true, but {' and '.join(conflicts)}"
        raise ConfigException(message)
    return msgspec.structs.replace(config, enable_idempotence=False)


def _check_transactional(config: ProducerConfig) -> None:
    """Raise ConfigException if transactional.id is set and idempotence is disabled."""
    conflicts = []
    if not config.enable_idempotence:
        conflicts.append(f"{Option('enable.idempotence')} is false and must be true")
    if config.acks_number != -1:
        conflicts.append(f"{Option('acks')} is {config.acks} and must be all")
    if config.retries == 0:
        conflicts.append(f"{Option('retries')} is 0 and must be positive")
    if conflicts:
        message = f"{Option('transactional.id')} is set, but {' and '.join(conflicts)}"
        raise ConfigException(message)


def _settle_delivery_timeout(config: ProducerConfig, options: Mapping[str, Any]) -> ProducerConfig:
    """Increase delivery.timeout.ms to at least linger.ms + request.timeout.ms.

    Raise ConfigException if the user has set it to less. The Java client has the same rules.
    """
    least = min(config.linger_ms + config.request_timeout_ms, 2**31 - 1)
    if config.delivery_timeout_ms >= least:
        return config
    if "delivery.timeout.ms" in options:
        message = (
            f"{Option('delivery.timeout.ms')} is {config.delivery_timeout_ms}: expected at least "
            f"{Option('linger.ms')} + {Option('request.timeout.ms')}, which is {least}"
        )
        raise ConfigException(message)
    return msgspec.structs.replace(config, delivery_timeout_ms=least)


def _settle_backoffs(config: ProducerConfig, options: Mapping[str, Any]) -> ProducerConfig:
    """Apply the rules of CommonClientConfigs for back-offs and their maximums.

    If only reconnect.backoff.ms is set, reconnect.backoff.max.ms gets the same value.
    Log a warning if a back-off is longer than its maximum, because then only the maximum is used.
    """
    if "reconnect.backoff.ms" in options and "reconnect.backoff.max.ms" not in options:
        config = msgspec.structs.replace(
            config, reconnect_backoff_max_ms=config.reconnect_backoff_ms
        )
    pairs = (
        ("retry.backoff", config.retry_backoff_ms, config.retry_backoff_max_ms),
        ("reconnect.backoff", config.reconnect_backoff_ms, config.reconnect_backoff_max_ms),
        (
            "socket.connection.setup.timeout",
            config.socket_connection_setup_timeout_ms,
            config.socket_connection_setup_timeout_max_ms,
        ),
    )
    for name, base, most in pairs:
        if base > most:
            message = (
                f"{Option(f'{name}.ms')}={base} is more than {Option(f'{name}.max.ms')}={most}: "
                f"using {most} ms"
            )
            warn_once(logger, message)
    return config


def _node(node_id: int, entry: str) -> Node:
    # A protocol name before the address is ignored, as in the Java client.
    found = _ADDRESS.fullmatch(entry)
    if found is None or not 0 < int(found["port"]) < 65536:
        message = (
            f"{Option('bootstrap.servers')} has {shown_value(entry)}, which is not an address: "
            f"{_DEFAULT_PORT_HINT}"
        )
        raise ConfigException(message)
    return Node(id=node_id, host=found["six"] or found["host"], port=int(found["port"]))


# Options of the Java producer that have no effect, and the reason.
NO_EFFECT: Final[Mapping[str, str]] = {
    "auto.include.jmx.reporter": "it applies only to the Java runtime",
    "metric.reporters": "it names Java classes",
    "metrics.recording.level": "all metrics are always recorded",
    **dict.fromkeys(
        (
            "sasl.oauthbearer.allow.unverified.audience",
            "sasl.oauthbearer.allow.unverified.issuer",
            "sasl.oauthbearer.clock.skew.seconds",
            "sasl.oauthbearer.expected.audience",
            "sasl.oauthbearer.expected.issuer",
            "sasl.oauthbearer.jwks.endpoint.refresh.ms",
            "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
            "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
            "sasl.oauthbearer.jwks.endpoint.url",
            "sasl.oauthbearer.jwt.validator.class",
            "sasl.oauthbearer.scope.claim.name",
        ),
        "brokers check tokens",
    ),
    "sasl.kerberos.kinit.cmd": "no command is run: tickets of a keytab are kept in memory",
    "sasl.kerberos.min.time.before.relogin": "the Kerberos library renews tickets of a keytab",
    "sasl.kerberos.ticket.renew.jitter": "the Kerberos library renews tickets of a keytab",
    "sasl.kerberos.ticket.renew.window.factor": "the Kerberos library renews tickets of a keytab",
}
# Options of the Java producer that must be off, and the reason.
OFF_ONLY: Final[Mapping[str, str]] = {
    "enable.metrics.push": "this producer does not push metrics to brokers (KIP-714)",
    "transaction.two.phase.commit.enable": "brokers do not offer it by default (KIP-939)",
}
# Options of the Java producer that are rejected, and the reason.
REFUSED: Final[Mapping[str, str]] = {
    "buffer.memory.allocation.strategy": "memory is allocated as it is used",
    "interceptor.classes": "only KafkaProducer.send calls interceptors, one row at a time",
    "key.serializer": "only KafkaProducer.send uses serializers: keys here are bytes already",
    "sasl.login.class": "it names a Java class",
    "security.providers": "it names Java classes",
    "ssl.engine.factory.class": "it names a Java class",
    "ssl.keymanager.algorithm": "it applies only to the Java runtime",
    "ssl.provider": "it applies only to the Java runtime",
    "ssl.secure.random.implementation": "it applies only to the Java runtime",
    "ssl.trustmanager.algorithm": "it applies only to the Java runtime",
    "value.serializer": "only KafkaProducer.send uses serializers: values here are bytes already",
}


class _Javas(NamedTuple):
    """The Java options that correspond to another client's option. advice: what else to do."""

    names: tuple[str, ...] = ()
    advice: str = ""

    def sentence(self) -> str:
        """Return the advice to set the Java options instead."""
        names = f"set {' or '.join(str(Option(name)) for name in self.names)}" if self.names else ""
        return "; ".join(part for part in (names, self.advice) if part)


_IN_PLACE_OF_JAAS: Final = "or sasl.jaas.config in place of both"
_KEY_FILE: Final = "the file of the key store has the key and the key's certificates"
_OF_CODEC: Final = "each codec has its own option"
# Options of librdkafka and confluent-kafka, and TLS and SASL options of kafka-python and aiokafka,
# with Java's options for them.
OTHER_CLIENTS: Final[Mapping[str, _Javas]] = {
    "api.version.request.timeout.ms": _Javas(("request.timeout.ms",)),
    "batch.num.messages": _Javas(("batch.size",), "it is in bytes"),
    "compression.codec": _Javas(("compression.type",)),
    "compression.level": _Javas(
        ("compression.gzip.level", "compression.lz4.level", "compression.zstd.level"), _OF_CODEC
    ),
    "max.in.flight": _Javas(("max.in.flight.requests.per.connection",)),
    "message.max.bytes": _Javas(("max.request.size",)),
    "message.send.max.retries": _Javas(("retries",)),
    "message.timeout.ms": _Javas(("delivery.timeout.ms",)),
    "metadata.broker.list": _Javas(("bootstrap.servers",)),
    "partitioner": _Javas(("partitioner.class",), "the default is librdkafka's murmur2_random"),
    "partitioner_cb": _Javas(("partitioner.class",)),
    "queue.buffering.max.kbytes": _Javas(("buffer.memory",), "it is in bytes"),
    "queue.buffering.max.messages": _Javas(("buffer.memory",), "it is in bytes"),
    "queue.buffering.max.ms": _Javas(("linger.ms",)),
    "request.required.acks": _Javas(("acks",)),
    "socket.receive.buffer.bytes": _Javas(("receive.buffer.bytes",)),
    "socket.send.buffer.bytes": _Javas(("send.buffer.bytes",)),
    "socket.timeout.ms": _Javas(("request.timeout.ms",)),
    "topic.metadata.refresh.fast.interval.ms": _Javas(("retry.backoff.ms",)),
    "topic.metadata.refresh.interval.ms": _Javas(("metadata.max.age.ms",)),
    "https.ca.location": _Javas(("ssl.truststore.location",)),
    "https.ca.pem": _Javas(("ssl.truststore.certificates",)),
    "oauth_cb": _Javas(("sasl.oauthbearer.jwt.retriever.class",)),
    "oauthbearer_token_refresh_cb": _Javas(("sasl.oauthbearer.jwt.retriever.class",)),
    "sasl.oauthbearer.assertion.jwt.template.file": _Javas(
        ("sasl.oauthbearer.assertion.template.file",)
    ),
    "sasl.oauthbearer.assertion.private.key.pem": _Javas(
        ("sasl.oauthbearer.assertion.private.key.file",)
    ),
    "sasl.oauthbearer.grant.type": _Javas(("sasl.oauthbearer.jwt.retriever.class",)),
    "ssl_ca": _Javas(("ssl.truststore.certificates",)),
    "ssl_certificate": _Javas(("ssl.keystore.certificate.chain",)),
    "ssl_key": _Javas(("ssl.keystore.key",)),
    "enable.ssl.certificate.verification": _Javas(
        ("ssl.truststore.location",), "certificates are always checked"
    ),
    "sasl.mechanisms": _Javas(("sasl.mechanism",)),
    "sasl.oauthbearer.client.id": _Javas(("sasl.oauthbearer.client.credentials.client.id",)),
    "sasl.oauthbearer.client.secret": _Javas(
        ("sasl.oauthbearer.client.credentials.client.secret",)
    ),
    "sasl.oauthbearer.config": _Javas(("sasl.jaas.config",)),
    "sasl.oauthbearer.extensions": _Javas(
        ("sasl.jaas.config",), "its options extension_NAME are the extensions"
    ),
    "sasl.oauthbearer.method": _Javas(("sasl.oauthbearer.token.endpoint.url",)),
    "sasl_kerberos_domain_name": _Javas(
        ("sasl.kerberos.service.name",), "for each broker, its own host name is used"
    ),
    "sasl_kerberos_name": _Javas(("sasl.kerberos.service.name",)),
    "sasl_kerberos_service_name": _Javas(("sasl.kerberos.service.name",)),
    "sasl_mechanism": _Javas(("sasl.mechanism",)),
    "sasl_oauth_token_provider": _Javas(("sasl.oauthbearer.jwt.retriever.class",)),
    "sasl_plain_password": _Javas(("sasl.password",), _IN_PLACE_OF_JAAS),
    "sasl_plain_username": _Javas(("sasl.username",), _IN_PLACE_OF_JAAS),
    "security_protocol": _Javas(("security.protocol",)),
    "ssl.ca.location": _Javas(("ssl.truststore.location",)),
    "ssl.ca.pem": _Javas(("ssl.truststore.certificates",)),
    "ssl.certificate.location": _Javas(("ssl.keystore.location",), _KEY_FILE),
    "ssl.certificate.pem": _Javas(("ssl.keystore.certificate.chain",)),
    "ssl.key.location": _Javas(("ssl.keystore.location",), _KEY_FILE),
    "ssl.key.pem": _Javas(("ssl.keystore.key",)),
    "ssl_cafile": _Javas(("ssl.truststore.location",)),
    "ssl_certfile": _Javas(("ssl.keystore.location",), _KEY_FILE),
    "ssl_check_hostname": _Javas(
        ("ssl.endpoint.identification.algorithm",), "an empty value skips the check of host names"
    ),
    "ssl_ciphers": _Javas(("ssl.cipher.suites",), "with Java's names of the suites"),
    "ssl_context": _Javas(("ssl.truststore.location", "ssl.keystore.location")),
    "ssl_crlfile": _Javas(
        ("ssl.truststore.location",), "lists of revoked certificates are not supported"
    ),
    "ssl_keyfile": _Javas(("ssl.keystore.location",), _KEY_FILE),
    "ssl_password": _Javas(("ssl.key.password",)),
}
# Options of librdkafka and confluent-kafka without a counterpart in this producer or in Java's.
LIBRDKAFKA_ONLY: Final = frozenset(
    (
        "allow.auto.create.topics", "api.version.fallback.ms", "api.version.request",
        "background_event_cb",
        "broker.address.family", "broker.address.ttl", "broker.version.fallback",
        "builtin.features", "closesocket_cb", "connect_cb", "debug", "default_topic_conf",
        "delivery.report.only.error", "dr_cb", "dr_msg_cb", "enable.gapless.guarantee",
        "enable.random.seed", "enable.sasl.oauthbearer.unsecure.jwt", "enabled_events", "error_cb",
        "interceptors", "internal.termination.signal", "log.connection.close", "log.queue",
        "log.thread.name", "log_cb", "log_level", "logger", "message.copy.max.bytes",
        "msg_order_cmp", "on_delivery", "opaque", "open_cb", "plugin.library.paths",
        "produce.offset.report", "queue.buffering.backpressure.threshold", "queuing.strategy",
        "receive.message.max.bytes",
        "reconnect.backoff.jitter.ms", "resolve_cb",
        "sasl.oauthbearer.metadata.authentication.type", "socket.blocking.max.ms",
        "socket.keepalive.enable", "socket.max.fails", "socket.nagle.disable", "socket_cb",
        "ssl.ca.certificate.stores",
        "ssl.certificate.verify_cb", "ssl.crl.location", "ssl.curves.list", "ssl.engine.id",
        "ssl.engine.location", "ssl.providers", "ssl.sigalgs.list", "ssl_engine_callback_data",
        "statistics.interval.ms", "stats_cb", "sticky.partitioning.linger.ms", "throttle_cb",
        "topic.blacklist", "topic.metadata.propagation.max.ms", "topic.metadata.refresh.fast.cnt",
        "topic.metadata.refresh.sparse",
    )
)  # fmt: skip
# Options of the Java producer (ProducerConfig, SslConfigs, SaslConfigs) that are not supported yet.
NOT_YET: Final = frozenset(
    {
        "bootstrap.resolve.timeout.ms",
        "metadata.cluster.check.enable",
    }
)
