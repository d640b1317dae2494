"""The states of a connection: a table of the next state and the action for each state and event.

`Connection` translates what happens on the socket into events, and executes the actions. An event
that the current state does not accept is a bug. It raises IllegalStateException, and the state does
not change. The diagram in docs/contributing/states.md is generated from this table.

::

    CONNECTING ──connected──> CHECKING_API_VERSIONS ──answered──> READY
        │ with TLS                ^ secured       │ with SASL           ^ │ ^
        └─────────> TLS_HANDSHAKE ┘               v                     │ │ │
                              SASL_HANDSHAKE ──> SASL_TOKENS ──complete─┘ │ │
                                                           renewal is due v │ complete
                              RENEWAL_TOKENS <── RENEWAL_HANDSHAKE <──────┘ │
                                    └───────────────────────────────────────┘

A renewal is a re-authentication (KIP-368). Each state except CLOSED changes to CLOSED when the
connection is closed.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple


class ConnectionState(Enum):
    """The state of a connection."""

    CONNECTING = "waiting for TCP"
    TLS_HANDSHAKE = "in the TLS handshake"
    CHECKING_API_VERSIONS = "waiting for the broker's versions"
    SASL_HANDSHAKE = "waiting for the response to SaslHandshake"
    SASL_TOKENS = "in the SASL login"
    READY = "ready for requests"
    RENEWAL_HANDSHAKE = "re-authenticating with SaslHandshake"
    RENEWAL_TOKENS = "re-authenticating with SASL tokens"
    CLOSED = "gone"


class ConnectionEvent(Enum):
    """An event of a connection. Some events occur only on connections with TLS or SASL."""

    CONNECT = "TCP is up"
    CONNECT_TLS = "TCP is up, and the TLS handshake comes next"
    SECURE = "the TLS handshake is done"
    LEARN_VERSIONS = "the broker has returned its API versions"
    LEARN_VERSIONS_SASL = "the broker has returned its API versions, and a login comes next"
    ACCEPT_MECHANISM = "the broker accepts the SASL mechanism"
    COMPLETE_LOGIN = "both sides have accepted the login"
    RENEW = "a request is to be sent, and the session is about to end"
    CLOSE = "the connection is gone"


class ConnectionAction(Enum):
    """The action that a connection takes after an event."""

    WAIT = "wait for what comes"
    ASK_API_VERSIONS = "ask for the broker's versions"
    ASK_SASL_HANDSHAKE = "send SaslHandshake with the SASL mechanism"
    BEGIN_EXCHANGE = "send the first SASL token"
    REPORT_READY = "report that the node is ready for requests"
    SEND_HELD = "send the requests that were held during the re-authentication"
    RETURN_UNANSWERED = "return the requests that will get no response"


class Transition(NamedTuple):
    """The state after an event, and the action to take."""

    state: ConnectionState
    action: ConnectionAction


_S, _E, _A = ConnectionState, ConnectionEvent, ConnectionAction
_CLOSE: Final = {_E.CLOSE: Transition(_S.CLOSED, _A.RETURN_UNANSWERED)}
EVENTS: Final[Mapping[ConnectionState, Mapping[ConnectionEvent, Transition]]] = {
    _S.CONNECTING: {
        _E.CONNECT: Transition(_S.CHECKING_API_VERSIONS, _A.ASK_API_VERSIONS),
        _E.CONNECT_TLS: Transition(_S.TLS_HANDSHAKE, _A.WAIT),
        **_CLOSE,
    },
    _S.TLS_HANDSHAKE: {
        _E.SECURE: Transition(_S.CHECKING_API_VERSIONS, _A.ASK_API_VERSIONS),
        **_CLOSE,
    },
    _S.CHECKING_API_VERSIONS: {
        _E.LEARN_VERSIONS: Transition(_S.READY, _A.REPORT_READY),
        _E.LEARN_VERSIONS_SASL: Transition(_S.SASL_HANDSHAKE, _A.ASK_SASL_HANDSHAKE),
        **_CLOSE,
    },
    _S.SASL_HANDSHAKE: {
        _E.ACCEPT_MECHANISM: Transition(_S.SASL_TOKENS, _A.BEGIN_EXCHANGE),
        **_CLOSE,
    },
    _S.SASL_TOKENS: {
        _E.COMPLETE_LOGIN: Transition(_S.READY, _A.REPORT_READY),
        **_CLOSE,
    },
    _S.READY: {
        _E.RENEW: Transition(_S.RENEWAL_HANDSHAKE, _A.ASK_SASL_HANDSHAKE),
        **_CLOSE,
    },
    _S.RENEWAL_HANDSHAKE: {
        _E.ACCEPT_MECHANISM: Transition(_S.RENEWAL_TOKENS, _A.BEGIN_EXCHANGE),
        **_CLOSE,
    },
    _S.RENEWAL_TOKENS: {
        _E.COMPLETE_LOGIN: Transition(_S.READY, _A.SEND_HELD),
        **_CLOSE,
    },
    _S.CLOSED: {},
}
