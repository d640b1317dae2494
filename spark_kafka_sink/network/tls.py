"""The TLS of one connection, separate from its socket; TLS contexts made from PEM.

A `TlsLayer` decrypts the received bytes that are passed to it, and encrypts the data to send. Data
is encrypted in pieces of up to 256 KiB. One call encrypts a piece without holding the GIL, and one
system call sends it.

This is the only module that imports ssl.
"""

from __future__ import annotations

import importlib
import os
import re
import ssl
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final, NoReturn, TypeAlias

from spark_kafka_sink.auth.pem import certificates, private_key
from spark_kafka_sink.errors import ConfigException, Option, SslAuthenticationException
from spark_kafka_sink.logs import shown_value, without_path

Buffer: TypeAlias = bytes | bytearray | memoryview
SSLContext: TypeAlias = ssl.SSLContext
"""The type for the modules that do not import ssl."""

PIECE_BYTES: Final = 256 * 1024
# The largest payload of one TLS record in bytes.
_RECORD_BYTES: Final = 16 * 1024
# OpenSSL answers each key update that requests one, with 27 bytes. A broker that limits the use of
# its keys (jdk.tls.keyLimits) requests one every few MiB.
_MOST_UNSENT_BYTES: Final = 64 * 1024
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
PROTOCOLS: Final = frozenset(_VERSIONS)
# The certificate files of common systems, in case Python was built for a different system.
SYSTEM_FILES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
_FILE_VARIABLE: Final = "SSL_CERT_FILE"
_FOLDERS_VARIABLE: Final = "SSL_CERT_DIR"
# The names of files that OpenSSL reads in a folder: the hash of a subject, and a number.
_HASH_NAME: Final = re.compile(r"[0-9a-f]{8}\.[0-9]+")
_MAX_CONTEXTS: Final = 16


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The values of the ``ssl.*`` options, with the contents of their files.

    truststore: None for the system's certificates. key: the private key, or None. chain: the
    certificates of the key, or None if they are in the same text as the key. truststore_origin,
    key_origin: where truststore and key come from, for error messages.
    """

    truststore: str | None = field(default=None, repr=False)
    key: str | None = field(default=None, repr=False)
    chain: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    truststore_origin: str = "ssl.truststore.certificates"
    key_origin: str = "ssl.keystore.key"
    protocols: frozenset[str] = PROTOCOLS
    # OpenSSL's names of TLS 1.2 suites, separated by colons; None for OpenSSL's default suites.
    ciphers: str | None = None
    checks_host: bool = True


@dataclass(frozen=True, slots=True)
class TlsContext:
    """The TLS context that all connections of one configuration share.

    subject: the subject of the client's certificate, or None if there is no certificate.
    """

    context: ssl.SSLContext
    subject: bytes | None

    @property
    def has_certificate(self) -> bool:
        """Whether the client has a certificate."""
        return self.subject is not None

    def layer(self, host: str, peer: str) -> TlsLayer:
        """Return the TLS layer of a new connection; see `TlsLayer`."""
        return TlsLayer(self.context, host, peer, has_certificate=self.has_certificate)


def client_context(settings: TlsSettings) -> TlsContext:
    """Return the TLS context for settings; equal settings share one context.

    When the system's certificates are replaced, settings that use them get a new context. Raise
    ConfigException if a certificate or the key cannot be read.
    """
    versions = _system_versions() if settings.truststore is None else ()
    return _kept_context(settings, versions)


@lru_cache(maxsize=_MAX_CONTEXTS)
def _kept_context(settings: TlsSettings, _system_versions: tuple[object, ...]) -> TlsContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    versions = [_VERSIONS[name] for name in settings.protocols]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    context.options |= ssl.OP_NO_RENEGOTIATION
    # Every certificate in the truststore is a trust anchor, as in Java.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.check_hostname = settings.checks_host
    if settings.ciphers is not None:
        _set_ciphers(context, settings.ciphers)
    if settings.truststore is None:
        _trust_system_certificates(context)
    else:
        _load_truststore(context, settings.truststore, settings.truststore_origin)
    subject = None
    if settings.key is not None:
        subject = _load_key(context, settings, settings.key)
    return TlsContext(context, subject)


# The settings contain private keys, so a forked child does not keep them.
os.register_at_fork(after_in_child=_kept_context.cache_clear)


def _set_ciphers(context: ssl.SSLContext, ciphers: str) -> None:
    try:
        context.set_ciphers(ciphers)
    except ssl.SSLError:
        raise ConfigException(
            f"{Option('ssl.cipher.suites')} has no suite that this machine's OpenSSL supports: "
            f"{ciphers}"
        ) from None


def _load_truststore(context: ssl.SSLContext, text: str, origin: str) -> None:
    for number, certificate in enumerate(certificates(text, origin), 1):
        try:
            context.load_verify_locations(cadata=certificate.text)
        except ssl.SSLError as error:
            why = _reason(error)
        else:
            continue
        # Raised outside the handler, here and below, so that the SSLError is not chained.
        raise ConfigException(f"{origin}: certificate {number} cannot be read: {why}")


def _trust_system_certificates(context: ssl.SSLContext) -> None:
    """Trust the certificates in OpenSSL's file and folders.

    If there are none, trust those in a file where other operating systems usually keep them.

    Raise ConfigException if no certificate is found, or if the file that SSL_CERT_FILE names
    contains none. OpenSSL would ignore such a file: the client would reject every broker, or trust
    the system's certificates. To use only SSL_CERT_FILE, set SSL_CERT_DIR to an empty folder.
    """
    file, folders, is_named = _openssl_places()
    why = _why_not_loaded(context, file)
    if why and is_named:
        raise ConfigException(
            f"no certificate can be loaded from the file {shown_value(file)} that the environment "
            f"variable {_FILE_VARIABLE} names ({why}): correct or unset the variable, or set "
            f"{Option('ssl.truststore.location')} or {Option('ssl.truststore.certificates')}"
        )
    # OpenSSL reads the certificates of a folder only during handshakes.
    filled = [each for each in folders if _has_certificates(each)]
    for each in filled:
        with suppress(ssl.SSLError):  # then OpenSSL cannot use the folder
            context.load_verify_locations(capath=each)
    if filled or not why:
        return
    if any(not _why_not_loaded(context, each) for each in SYSTEM_FILES):
        return
    certifi = _certifi_file()
    if certifi is not None and not _why_not_loaded(context, certifi):
        return
    raise ConfigException(
        "Python finds no trusted certificates on this machine: set "
        f"{Option('ssl.truststore.location')} or {Option('ssl.truststore.certificates')}, or "
        "install the package certifi"
    )


def _openssl_places() -> tuple[str, list[str], bool]:
    """Return the file and the folders where OpenSSL looks for the system's certificates.

    The last value is True if SSL_CERT_FILE names the file.
    """
    default = ssl.get_default_verify_paths()
    file = os.environ.get(_FILE_VARIABLE)
    folders = os.environ.get(_FOLDERS_VARIABLE) or default.openssl_capath
    named = [folder for folder in folders.split(os.pathsep) if folder]
    return file or default.openssl_cafile, named, bool(file)


def _certifi_file() -> str | None:
    """Return the file of the package certifi, or None if there is none."""
    with suppress(ImportError, AttributeError):
        return str(importlib.import_module("certifi").where())
    return None


def _why_not_loaded(context: ssl.SSLContext, path: str) -> str:
    """Load the certificates of a file. Return why this failed, or an empty string."""
    try:
        context.load_verify_locations(path)
    except ssl.SSLError:
        return "it has no certificate, or a broken one"
    except OSError as error:
        return without_path(error)
    # The file may contain only revocation lists, which load without an error.
    return "" if context.cert_store_stats()["x509"] else "it has only revocation lists"


def _has_certificates(folder: str) -> bool:
    """Return whether a folder contains a file with a name that OpenSSL looks for."""
    with suppress(OSError):
        return any(
            _HASH_NAME.fullmatch(each.name) and each.is_file() for each in Path(folder).iterdir()
        )
    return False


def _system_versions() -> tuple[object, ...]:
    """Return a value that changes when the system's certificates, or their places, change."""
    file, folders, is_named = _openssl_places()
    found = [_version(each) for each in (file, *SYSTEM_FILES)]
    if not any(len(each) > 1 for each in found) and (certifi := _certifi_file()) is not None:
        found.append(_version(certifi))
    return is_named, *found, *(_version(each) for each in folders)


def _version(path: str) -> tuple[object, ...]:
    """Return path, time, size and inode of a file or a folder; only the path if it is missing."""
    try:
        found = Path(path).stat()
    except OSError:
        return (path,)
    return path, found.st_mtime_ns, found.st_size, found.st_ino


def _load_key(context: ssl.SSLContext, settings: TlsSettings, key_text: str) -> bytes:
    """Load the client's key and certificates, for brokers that request a certificate.

    Return the subject of the client's certificate.
    """
    origin = settings.key_origin
    key = private_key(key_text, origin)
    if settings.chain is None:
        chain = certificates(key_text, origin)
    else:
        chain = certificates(settings.chain, str(Option("ssl.keystore.certificate.chain")))
    if key.is_encrypted and settings.key_password is None:
        raise ConfigException(f"the key of {origin} is encrypted: set {Option('ssl.key.password')}")
    password = settings.key_password

    def given() -> str:
        # Without this function OpenSSL would prompt on the terminal.
        return password or ""

    try:
        with _key_file("".join(each.text for each in (key, *chain)), origin) as path:
            context.load_cert_chain(path, password=given)
    except (ssl.SSLError, ValueError) as error:
        why = _reason(error)
        if why == "KEY_VALUES_MISMATCH":
            why = (
                "its first certificate does not match the key: the chain must begin with the "
                "client's certificate"
            )
        elif why in _TOO_WEAK_REASONS:
            why = f"{_words(why)}: {_ISSUE_AGAIN}"
        elif key.is_encrypted:
            why = (
                f"{Option('ssl.key.password')} does not decrypt the key, or the key is encrypted "
                f"with RC4 or DES, which this OpenSSL does not support ({why}). A key with RC4 or "
                "DES can be encrypted again with: "
                "openssl pkcs8 -topk8 -v2 aes256 -provider legacy -provider default"
            )
    else:
        from spark_kafka_sink.auth import x500_names  # noqa: PLC0415 - most clients have no key

        return x500_names.certificate_subject(chain[0].data)
    raise ConfigException(f"{origin} cannot be used: {why}")


@contextmanager
def _key_file(text: str, origin: str) -> Iterator[str]:
    """Yield the path of a file from which OpenSSL can read a key: in memory, or else on a disk.

    Raise ConfigException if neither is possible.
    """
    number = _memory_file()
    if number is not None:
        try:
            path = f"/proc/self/fd/{number}"
            if Path(path).exists():
                with os.fdopen(number, "w", closefd=False) as file:
                    file.write(text)
                yield path
                return
        finally:
            os.close(number)
    with ExitStack() as at_end:
        try:
            # Only the current user may read the file. It is deleted when the block ends, even if
            # the disk is full.
            number, path = tempfile.mkstemp(".pem")
            at_end.callback(Path(path).unlink, missing_ok=True)
            with os.fdopen(number, "w") as file:
                file.write(text)
        except OSError as error:
            raise ConfigException(
                f"{origin}: OpenSSL cannot read the key, because neither a file in memory nor a "
                f"temporary file can be made ({error.strerror}): check the limit of open files, "
                "and TMPDIR"
            ) from None
        yield path


def _memory_file() -> int | None:
    """Return the file descriptor of a new file in memory, or None if it cannot be created."""
    if hasattr(os, "memfd_create"):
        with suppress(OSError):
            return os.memfd_create("key")
    return None


class TlsLayer:
    """The TLS of one connection, including its handshake.

    host: the name that the broker's certificate must have. peer: the broker's name in error
    messages. After each call, even one that raised, the caller must send the bytes that `outgoing`
    returns: handshake messages, alerts and responses to key updates.
    """

    def __init__(
        self, context: ssl.SSLContext, host: str, peer: str, *, has_certificate: bool
    ) -> None:
        self.is_secured = False
        # Whether the broker announced the end of its data (close_notify), and whether it has sent
        # anything.
        self.is_ended = False
        self.has_received = False
        self._host = host
        self._peer = peer
        self._has_certificate = has_certificate
        self._has_answer = False
        self._failure: ssl.SSLError | None = None
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        try:
            self._ssl = context.wrap_bio(
                self._incoming, self._outgoing, server_hostname=_checked_name(host)
            )
        except (ValueError, TypeError):  # TypeError: the name contains NUL
            raise SslAuthenticationException(
                f"{peer} is at {host!r}, which cannot be a name in a certificate"
            ) from None
        self._do_handshake()

    def received(self, data: Buffer) -> bytes:
        """Process received bytes and return the decrypted data.

        Raise SslAuthenticationException if one side rejects the other, and ConnectionError if the
        connection broke for a different reason, or if too many responses to key updates are unsent.
        """
        self.has_received = True
        if self.is_secured and self._outgoing.pending > _MOST_UNSENT_BYTES:
            raise ConnectionError(
                "TLS: the broker requests key updates again and again, and reads no responses"
            )
        self._incoming.write(data)
        if not self.is_secured and not self._do_handshake():
            return b""
        pieces: list[bytes] = []
        try:
            # Checking `pending` is cheaper than the exception that a read without data raises. Each
            # read returns at most one record, so an incomplete record stays in the buffer.
            while self._incoming.pending:
                piece = self._ssl.read(_RECORD_BYTES)
                if not piece:
                    self.is_ended = True
                    break
                pieces.append(piece)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.is_ended = True
        except ssl.SSLError as error:
            if not pieces:
                self._raise(error)
            # First return the data before the error; `check` raises the error later.
            self._failure = error
        self._has_answer = self._has_answer or bool(pieces)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def check(self) -> None:
        """Raise the error that came after the data of the last call of `received`, if any."""
        if self._failure is not None:
            self._raise(self._failure)

    def encrypt(self, piece: Buffer) -> bytes:
        """Return the encrypted bytes of a piece. Raise the same exceptions as `received`."""
        try:
            self._ssl.write(piece)
        except ssl.SSLError as error:
            self._raise(error)
        return self._outgoing.read()

    def outgoing(self) -> bytes:
        """Return the pending TLS bytes that are not application data. Each is returned once."""
        return self._outgoing.read()

    def end(self) -> bytes:
        """Return the bytes that announce the end of the client's data (close_notify)."""
        if self.is_secured:
            with suppress(ssl.SSLError):
                self._ssl.unwrap()
        return self._outgoing.read()

    def _do_handshake(self) -> bool:
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLZeroReturnError:
            # A close_notify is not a rejection. For example, the broker may be shutting down, or
            # may have too many clients.
            self.is_ended = True
            return False
        except ssl.SSLError as error:
            self._raise(error)
        self.is_secured = True
        return True

    def _raise(self, error: ssl.SSLError) -> NoReturn:
        reason = _reason(error)
        # In TLS 1.3 a broker may reject the client's certificate only after the handshake.
        is_refusal = not self.is_secured or (not self._has_answer and _ALERT.search(reason))
        if not is_refusal:
            raise ConnectionError(f"TLS: {_words(reason)}") from None
        raise SslAuthenticationException(
            f"the TLS handshake with {self._peer} failed: {self._why(error, reason)}"
        ) from error

    def _why(self, error: ssl.SSLError, reason: str) -> str:
        if isinstance(error, ssl.SSLCertVerificationError):
            return _certificate_advice(error, self._host)
        alert = _ALERT.search(reason)
        if alert is not None:
            return self._alert_advice(alert[1])
        if reason in _NOT_TLS:
            return (
                "what the broker sent is not TLS: compare the port and "
                f"{Option('security.protocol')} with the broker's listeners"
            )
        if reason in _NO_COMMON_SUITE:
            return _nothing_in_common(reason)
        return _words(reason)

    def _alert_advice(self, alert: str) -> str:
        said = f"the broker says {_words(alert)!r}: "
        if alert in _CERTIFICATE_ALERTS and self._has_certificate:
            return (
                f"{said}it rejects the client's certificate, which has expired, is not valid yet, "
                f"or is of a CA that the broker does not trust; see {Option('ssl.keystore.*')}"
            )
        if alert in _CERTIFICATE_ALERTS:
            return (
                f"{said}it requires a client certificate: set {Option('ssl.keystore.location')}, "
                f"or {Option('ssl.keystore.key')} and {Option('ssl.keystore.certificate.chain')}"
            )
        if alert not in _COMMON_ALERTS:
            return f"{said}check the broker's log"
        asked = (
            ""
            if self._has_certificate
            else (
                ", or the broker requires a client certificate: set "
                f"{Option('ssl.keystore.location')}, or {Option('ssl.keystore.key')} and "
                f"{Option('ssl.keystore.certificate.chain')}"
            )
        )
        return f"{said}{_nothing_in_common(alert)}{asked}"


def take_piece(buffers: deque[memoryview]) -> tuple[Buffer, int]:
    """Remove up to 256 KiB from the front of `buffers`.

    Return these bytes, and the number of buffers that are now completely removed. A large buffer is
    split, and small buffers are combined.
    """
    parts: list[memoryview] = []
    size = finished = 0
    while buffers and size < PIECE_BYTES:
        first = buffers[0]
        room = PIECE_BYTES - size
        if len(first) > room:
            parts.append(first[:room])
            buffers[0] = first[room:]
            size += room
        else:
            parts.append(buffers.popleft())
            size += len(first)
            finished += 1
    return (parts[0] if len(parts) == 1 else b"".join(parts)), finished


_ALERT: Final = re.compile(r"ALERT_(\w+)")
_CERTIFICATE_ALERTS: Final = frozenset(
    {
        "BAD_CERTIFICATE", "CERTIFICATE_REQUIRED", "CERTIFICATE_UNKNOWN", "CERTIFICATE_EXPIRED",
        "CERTIFICATE_REVOKED", "UNSUPPORTED_CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED",
    }
)  # fmt: skip
_COMMON_ALERTS: Final = frozenset(
    {"HANDSHAKE_FAILURE", "PROTOCOL_VERSION", "INSUFFICIENT_SECURITY", "ILLEGAL_PARAMETER"}
)
_NO_COMMON_SUITE: Final = frozenset(
    {"UNSUPPORTED_PROTOCOL", "WRONG_SSL_VERSION", "NO_PROTOCOLS_AVAILABLE", "WRONG_CIPHER_RETURNED"}
)
_NOT_TLS: Final = frozenset(
    {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "PACKET_LENGTH_TOO_LONG",
     "RECORD_LAYER_FAILURE", "UNEXPECTED_MESSAGE"}
)  # fmt: skip
# OpenSSL's error numbers X509_V_ERR_….
_UNKNOWN_ISSUER: Final = frozenset({2, 20, 21})
_SELF_SIGNED: Final = frozenset({18, 19})
_TOO_WEAK_REASONS: Final = frozenset({"EE_KEY_TOO_SMALL", "CA_KEY_TOO_SMALL", "CA_MD_TOO_WEAK"})
_ISSUE_AGAIN: Final = (
    "OpenSSL accepts RSA keys of 2048 bits or more, and signatures with SHA-256 or stronger "
    "hashes; issue such a certificate"
)
_ADVICE: Final[Mapping[int, str]] = {
    9: "compare the clocks of this machine and of the broker",
    10: (
        "this certificate has expired, or the certificate of a CA in its chain or in the "
        "truststore: replace the expired one"
    ),
    **dict.fromkeys((66, 67, 68), _ISSUE_AGAIN),  # a key or a signature that is too weak
}
_WRONG_NAME: Final = frozenset({62, 64})


def _certificate_advice(error: ssl.SSLCertVerificationError, host: str) -> str:
    code, words = error.verify_code, error.verify_message.rstrip(".")
    said = f"the broker's certificate is not accepted ({words}): "
    if code in _UNKNOWN_ISSUER:
        return (
            f"{said}set {Option('ssl.truststore.location')} or "
            f"{Option('ssl.truststore.certificates')} to the certificate of the CA that signed it; "
            "if the truststore has that certificate, the broker probably does not send the "
            "intermediate certificates: add those to the truststore"
        )
    if code in _SELF_SIGNED:
        return (
            f"{said}set {Option('ssl.truststore.location')} or "
            f"{Option('ssl.truststore.certificates')} to the certificate of the broker's CA, or to "
            "the broker's own; if it is already set, its certificate may belong to another CA"
        )
    if code in _ADVICE:
        return f"{said}{_ADVICE[code]}"
    if code in _WRONG_NAME:
        return (
            f"{said}the host name {host!r} comes from the broker's advertised.listeners or from "
            f"{Option('bootstrap.servers')}; the certificate must have it among its subject "
            "alternative names"
        )
    return (
        f"{said}see {Option('ssl.truststore.location')} or {Option('ssl.truststore.certificates')}"
    )


def _nothing_in_common(reason: str) -> str:
    return (
        f"client and broker share no protocol or cipher suite ({_words(reason)}): see "
        f"{Option('ssl.enabled.protocols')} and {Option('ssl.cipher.suites')}"
    )


def _reason(error: ssl.SSLError | ValueError) -> str:
    return getattr(error, "reason", None) or str(error)


def _words(reason: str) -> str:
    return reason.lower().replace("_", " ")


def _checked_name(host: str) -> str:
    """Return the name to expect in the certificate, without a trailing dot or an IPv6 zone."""
    return host.strip("[]").partition("%")[0].removesuffix(".")
