"""The mechanisms of SASL: their names, what a login by any of them is, and PLAIN (RFC 4616)."""

from __future__ import annotations

from typing import Final, Protocol

from spark_kafka_sink.errors import ConfigException

PLAIN: Final = "PLAIN"
SCRAM_SHA_256: Final = "SCRAM-SHA-256"
SCRAM_SHA_512: Final = "SCRAM-SHA-512"
OAUTHBEARER: Final = "OAUTHBEARER"
GSSAPI: Final = "GSSAPI"
AWS_MSK_IAM: Final = "AWS_MSK_IAM"
MECHANISMS: Final = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, OAUTHBEARER, GSSAPI, AWS_MSK_IAM)

_MOST_SHOWN: Final = 200


class SaslExchange(Protocol):
    """One login on one connection.

    What `first` returns goes to the broker first; each answer goes to `step`, and what that
    returns to the broker. `is_complete` is true once all is verified that the client must verify.
    """

    @property
    def mechanism(self) -> str:
        """The name that the handshake of SASL has."""

    @property
    def is_complete(self) -> bool:
        """Whether the client has nothing more to verify."""

    def first(self) -> bytes:
        """Return the first token."""

    def step(self, challenge: bytes) -> bytes | None:
        """Return the token that answers the broker's, None where there is nothing more to say.

        Raise SaslAuthenticationException if the broker refuses the login, or breaks the rules.
        """


def checked_mechanism(name: str) -> str:
    """Return the name of a mechanism. Raise ConfigException if there is none of that name."""
    if name in MECHANISMS:
        return name
    right = next((each for each in MECHANISMS if each.lower() == name.strip().lower()), None)
    if right is not None:
        raise ConfigException(f"sasl.mechanism is {name!r}: write it {right}")
    raise ConfigException(f"sasl.mechanism is {name!r}: expected one of {', '.join(MECHANISMS)}")


class PlainExchange:
    """The login by PLAIN: one token, and an answer in which there is nothing to verify."""

    mechanism: Final = PLAIN

    def __init__(self, user: str, password: str) -> None:
        self._parts = (utf8(user, "the user name"), utf8(password, "the password"))
        if not all(self._parts):
            raise ConfigException("PLAIN needs a user name and a password that are not empty")
        if any(b"\0" in part for part in self._parts):
            raise ConfigException("PLAIN takes no user name or password with the character NUL")
        self.is_complete = False

    def first(self) -> bytes:
        """Return the one token."""
        return b"\0".join((b"", *self._parts))

    def step(self, challenge: bytes) -> None:
        """Note that the broker took the token; what it says besides has no meaning (as in Java)."""
        del challenge
        self.is_complete = True


def utf8(text: str, what: str) -> bytes:
    """Return `text` as UTF-8. Raise ConfigException, which does not show it, if that cannot be.

    what: how messages call it.
    """
    try:
        return text.encode()
    except UnicodeEncodeError:
        pass
    # Outside of the handler: the other exception has the text.
    raise ConfigException(f"{what} has a character that is none (half of a surrogate pair)")


def shown(text: str) -> str:
    """Return words of a broker as a message may have them: one line, not too long."""
    line = "".join(each if each.isprintable() else " " for each in text[:_MOST_SHOWN])
    return line + ("…" if len(text) > _MOST_SHOWN else "")
