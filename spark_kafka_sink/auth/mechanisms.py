"""SASL mechanisms: their names, the interface of a login exchange, and PLAIN (RFC 4616)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Protocol

from spark_kafka_sink.config import reference_hint
from spark_kafka_sink.errors import ConfigException, one_line
from spark_kafka_sink.logs import shown_value

PLAIN: Final = "PLAIN"
SCRAM_SHA_256: Final = "SCRAM-SHA-256"
SCRAM_SHA_512: Final = "SCRAM-SHA-512"
OAUTHBEARER: Final = "OAUTHBEARER"
GSSAPI: Final = "GSSAPI"
AWS_MSK_IAM: Final = "AWS_MSK_IAM"
MECHANISMS: Final = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, OAUTHBEARER, GSSAPI, AWS_MSK_IAM)

OTHER_USER: Final = "a client cannot change its user, so create a new client"
"""The end of a message about credentials that belong to a different user than before."""
_MAX_SHOWN: Final = 200
# Secrets up to this length are masked only as separate words, because longer words may contain them
# by chance.
_LONGEST_WORD: Final = 3


class SaslExchange(Protocol):
    """One login on one connection.

    The caller sends the token of `first` to the broker. It passes each response of the broker to
    `step`, and sends the token that `step` returns. `is_complete` is true once the client has
    verified everything that it must verify.
    """

    @property
    def mechanism(self) -> str:
        """The name of the mechanism in the SASL handshake."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """The secrets of the login. If a broker's error text contains one, messages mask it."""

    @property
    def is_complete(self) -> bool:
        """Whether the client has nothing more to verify."""

    def first(self) -> bytes:
        """Return the first token to send."""

    def step(self, challenge: bytes) -> bytes | None:
        """Return the response to the broker's token, or None if there is nothing more to send.

        Raise SaslAuthenticationException if the broker rejects the login or violates the protocol.
        """


def checked_mechanism(name: str) -> str:
    """Return the name of a SASL mechanism. Raise ConfigException if it is unknown."""
    if name in MECHANISMS:
        return name
    right = next((each for each in MECHANISMS if each.lower() == name.strip().lower()), None)
    if right is not None:
        raise ConfigException(f"sasl.mechanism is {name!r}: write it {right}")
    raise ConfigException(
        f"sasl.mechanism is {shown_value(name)}: expected one of {', '.join(MECHANISMS)}"
        f"{reference_hint(name)}"
    )


class PlainExchange:
    """A PLAIN login: the client sends one token, and has nothing to verify in the response."""

    mechanism: Final = PLAIN

    def __init__(self, user: str, password: str) -> None:
        self._parts = (utf8(user, "the user name"), utf8(password, "the password"))
        if not all(self._parts):
            raise ConfigException("PLAIN needs a user name and a password that are not empty")
        if any(b"\0" in part for part in self._parts):
            raise ConfigException(
                "PLAIN does not allow the character NUL in a user name or password"
            )
        self.secrets = (password,)
        self.is_complete = False

    def first(self) -> bytes:
        """Return the only token."""
        return b"\0".join((b"", *self._parts))

    def step(self, challenge: bytes) -> None:
        """Record that the broker accepted the token.

        The content of the response is ignored, as in Java.
        """
        del challenge
        self.is_complete = True


def utf8(text: str, what: str) -> bytes:
    """Return `text` as UTF-8. Raise ConfigException if it cannot be encoded.

    what: the name of the text in error messages, which do not show the text itself.
    """
    try:
        return text.encode()
    except UnicodeEncodeError:
        pass
    # Raised outside the handler, because the caught exception contains the text.
    raise ConfigException(f"{what} has an invalid character (an unpaired surrogate)")


def printable(text: str, secrets: Iterable[str] = ()) -> str:
    """Return a string from a peer as one line of limited length, for error messages.

    secrets: the secrets that this client sent to the peer. They are replaced with ``***``.
    """
    # Replace the longest secrets first, because a long secret may contain a short one.
    for each in sorted(filter(None, secrets), key=len, reverse=True):
        is_word = len(each) <= _LONGEST_WORD
        found = re.escape(each)
        text = re.sub(rf"(?<!\w){found}(?!\w)" if is_word else found, "***", text)
    return one_line(text, _MAX_SHOWN)
