"""Logins that a network client awaits: a test says when there is one."""

from __future__ import annotations

from collections.abc import Callable

from spark_kafka_sink.errors import AuthenticationException
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.sasl_authenticator import Login

ENDPOINT = "the token endpoint returned no token: it answered 503"


class Logins:
    """What a client asks of `Security`: there is a login when a test says so, or there never is."""

    def __init__(self) -> None:
        self.is_there = False
        self.refusal: AuthenticationException | None = None
        self.made: Login | None = None
        self.problem = ENDPOINT
        self.wake: Callable[[], None] = lambda: None
        self.is_closed = False
        self.given_up: list[Node] = []
        self.may_be_accepted_later = False

    def has_login(self, node: Node) -> bool:
        """Return whether there is a login."""
        return self.is_there

    def give_up(self, node: Node) -> None:
        """Note it."""
        self.given_up.append(node)

    def layer(self, node: Node) -> None:
        """Return no TLS."""

    def login(self, node: Node, chance: float) -> Login | None:
        """Return no login, which in-memory brokers want none of, unless the test has made one."""
        if self.refusal is not None:
            raise self.refusal
        return self.made

    def close(self) -> None:
        """Note it."""
        self.is_closed = True
