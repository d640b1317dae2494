"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677) as Kafka's brokers implement them.

User names must be ASCII, because brokers reject other names. Names and passwords are sent without
SASLprep. A delegation token uses the same exchange: the token id is the user name, the base64 HMAC
is the password, and the first message has `tokenauth=true` (KIP-48). Logins with a password do not
send `tokenauth`, because some brokers reject it.

Deriving the keys of a password takes many hash iterations. `KeyCache` caches the keys by mechanism,
user, password, salt and number of iterations. All five are in the cache key. If one of them were
missing, a wrong password or a different user of the same process could log in with cached keys.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, TypeAlias

from spark_kafka_sink.auth.mechanisms import SCRAM_SHA_256, SCRAM_SHA_512, printable, utf8
from spark_kafka_sink.errors import ConfigException, SaslAuthenticationException

# RFC 7677 forbids fewer than MIN_ITERATIONS. More than MAX_ITERATIONS take over a second.
MIN_ITERATIONS: Final = 4_096
MAX_ITERATIONS: Final = 1_000_000
KEPT: Final = 64

_HASHES: Final = {SCRAM_SHA_256: "sha256", SCRAM_SHA_512: "sha512"}
# The header for "no channel binding", and the same header in base64 for the last message.
_HEADER: Final = "n,,"
_HEADER_AGAIN: Final = "c=biws"
_SERVER_FIRST: Final = re.compile(
    r"r=(?P<nonce>[\x21-\x2B\x2D-\x7E]+),s=(?P<salt>[A-Za-z0-9/+=]+),i=(?P<iterations>[1-9]\d*)"
    r"(?:,.*)?",
    re.ASCII | re.DOTALL,
)
_SERVER_FINAL: Final = re.compile(r"v=(?P<signature>[A-Za-z0-9/+=]+)(?:,.*)?", re.ASCII | re.DOTALL)
_ERROR: Final = re.compile(r"e=(?P<error>[^,]*)")


@dataclass(frozen=True, slots=True)
class ScramKeys:
    """The keys derived from a password: one authenticates the client, the other the broker."""

    client: bytes = field(repr=False)
    server: bytes = field(repr=False)


# The arguments are mechanism, user, password, salt and iterations.
KeyFunction: TypeAlias = Callable[[str, str, str, bytes, int], ScramKeys]


def scram_keys(mechanism: str, user: str, password: str, salt: bytes, iterations: int) -> ScramKeys:
    """Return the keys derived from a password. `user` has no effect on the keys."""
    del user
    name = _HASHES[mechanism]
    salted = hashlib.pbkdf2_hmac(name, password.encode(), salt, iterations)
    return ScramKeys(
        hmac.digest(salted, b"Client Key", name), hmac.digest(salted, b"Server Key", name)
    )


class KeyCache:
    """Calls `scram_keys` and caches the last 64 results; any thread may call it."""

    def __init__(self) -> None:
        self._kept = lru_cache(maxsize=KEPT)(scram_keys)

    def __call__(
        self, mechanism: str, user: str, password: str, salt: bytes, iterations: int
    ) -> ScramKeys:
        """Return the keys, from the cache if possible."""
        return self._kept(mechanism, user, password, salt, iterations)

    def __len__(self) -> int:
        return self._kept.cache_info().currsize

    def forget(self) -> None:
        """Clear the cache, for example in a forked child."""
        self._kept.cache_clear()


class ScramExchange:
    """One SCRAM login.

    nonce: a new random string for this login, printable and without commas. is_token: whether user
    and password are the id and the HMAC of a delegation token. name: what error messages show as
    the user, or None to show `user`.
    """

    def __init__(
        self,
        mechanism: str,
        user: str,
        password: str,
        *,
        nonce: str,
        keys: KeyFunction = scram_keys,
        is_token: bool = False,
        name: str | None = None,
    ) -> None:
        utf8(password, "the password")
        if not (user and password):
            raise ConfigException(
                f"{mechanism} needs a user name and a password that are not empty"
            )
        if not user.isascii() or "\0" in user:
            raise ConfigException(
                f"the user name cannot be used with {mechanism}: Kafka's brokers accept ASCII "
                "names only"
            )
        self.mechanism: Final = mechanism
        self.is_complete = False
        self._hash = _HASHES[mechanism]
        self._user = user
        self._password = password
        self.secrets = (password,)
        self._nonce = nonce
        self._keys = keys
        self._name = printable(user if name is None else name)
        escaped = user.replace("=", "=3D").replace(",", "=2C")
        self._first_bare = f"n={escaped},r={nonce}" + (",tokenauth=true" if is_token else "")
        # The signature that the broker's last message must contain; None until the client's last
        # message is made.
        self._signature: bytes | None = None

    def first(self) -> bytes:
        """Return the client's first message."""
        return f"{_HEADER}{self._first_bare}".encode()

    def step(self, challenge: bytes) -> bytes | None:
        """In the first call, return the client's last message.

        In the second call, verify the broker's signature and return None.
        """
        if self.is_complete:
            raise self._failed("the broker sent another message after its final SCRAM message")
        try:
            message = challenge.decode()
        except UnicodeDecodeError:
            raise self._failed("the broker's message is not UTF-8") from None
        error = _ERROR.match(message)
        if error is not None:
            raise self._failed(f"the broker says: {printable(error['error'], self.secrets)}")
        if self._signature is None:
            return self._last(message)
        self._verify(message, self._signature)
        self.is_complete = True
        return None

    def _last(self, server_first: str) -> bytes:
        found = _SERVER_FIRST.fullmatch(server_first)
        if found is None:
            raise self._failed(
                "the broker's first message is not a SCRAM message"
                if not server_first.startswith("m=")
                else "the broker asks for an extension of SCRAM that does not exist"
            )
        if not found["nonce"].startswith(self._nonce):
            raise self._failed("the broker's nonce does not begin with the client's nonce")
        # Check the number of digits first: parsing a number with a million digits would take
        # minutes.
        digits = found["iterations"]
        iterations = int(digits) if len(digits) <= len(str(MAX_ITERATIONS)) else None
        if iterations is None or not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
            raise self._failed(
                f"the broker asks for {printable(digits)} iterations: expected "
                f"{MIN_ITERATIONS} to {MAX_ITERATIONS}; create the user's credentials again with "
                "kafka-configs.sh"
            )
        salt = self._decoded(found["salt"], "salt")
        keys = self._keys(self.mechanism, self._user, self._password, salt, iterations)
        last = f"{_HEADER_AGAIN},r={found['nonce']}"
        signed = f"{self._first_bare},{server_first},{last}".encode()
        stored = hashlib.new(self._hash, keys.client).digest()
        signature = hmac.digest(stored, signed, self._hash)
        proof = bytes(a ^ b for a, b in zip(keys.client, signature, strict=True))
        self._signature = hmac.digest(keys.server, signed, self._hash)
        return f"{last},p={base64.b64encode(proof).decode()}".encode()

    def _verify(self, server_final: str, expected: bytes) -> None:
        found = _SERVER_FINAL.fullmatch(server_final)
        if found is None:
            raise self._failed("the broker's last message is not a SCRAM message")
        if not hmac.compare_digest(self._decoded(found["signature"], "signature"), expected):
            raise self._failed(
                "the broker's signature is wrong: the broker does not have this user's "
                "credentials, and may not be the broker that it claims to be"
            )

    def _decoded(self, text: str, what: str) -> bytes:
        try:
            return base64.b64decode(text, validate=True)
        except binascii.Error:
            raise self._failed(f"the broker's {what} is not base64") from None

    def _failed(self, why: str) -> SaslAuthenticationException:
        return SaslAuthenticationException(
            f"the login of {self._name!r} by {self.mechanism} failed: {why}"
        )
