"""A connection's life: every state with every event, and what goes out then."""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import IllegalStateException
from spark_kafka_sink.network.connection import Connection
from spark_kafka_sink.network.connection_state import (
    EVENTS,
    ConnectionAction,
    ConnectionEvent,
    ConnectionState,
)

_S, _E = ConnectionState, ConnectionEvent
_TO_LOGIN = [_E.CONNECT, _E.LEARN_VERSIONS_SASL]
_TO_RENEWAL = [*_TO_LOGIN, _E.ACCEPT_MECHANISM, _E.COMPLETE_LOGIN, _E.RENEW]
PATHS = {
    _S.CONNECTING: [],
    _S.TLS_HANDSHAKE: [_E.CONNECT_TLS],
    _S.CHECKING_API_VERSIONS: [_E.CONNECT_TLS, _E.SECURE],
    _S.SASL_HANDSHAKE: _TO_LOGIN,
    _S.SASL_TOKENS: [*_TO_LOGIN, _E.ACCEPT_MECHANISM],
    _S.READY: [_E.CONNECT, _E.LEARN_VERSIONS],
    _S.RENEWAL_HANDSHAKE: _TO_RENEWAL,
    _S.RENEWAL_TOKENS: [*_TO_RENEWAL, _E.ACCEPT_MECHANISM],
    _S.CLOSED: [_E.CONNECT, _E.CLOSE],
}


@pytest.mark.parametrize("event", ConnectionEvent)
@pytest.mark.parametrize("state", ConnectionState)
def test_an_event_leads_where_the_table_says_or_changes_nothing(
    state: ConnectionState, event: ConnectionEvent
) -> None:
    connection = Connection(1, "client", 30.0)
    for step in PATHS[state]:
        connection._handle(step)
    assert connection.state is state
    transition = EVENTS[state].get(event)
    if transition is None:
        with pytest.raises(IllegalStateException, match=event.name):
            connection._handle(event)
        assert connection.state is state
    else:
        assert connection._handle(event) is transition.action
        assert connection.state is transition.state


def test_every_state_is_reached_and_all_but_the_last_can_be_closed() -> None:
    reached = {_S.CONNECTING}
    while more := {t.state for state in reached for t in EVENTS[state].values()} - reached:
        reached |= more
    assert reached == set(EVENTS) == set(ConnectionState)
    for state, events in EVENTS.items():
        assert (_E.CLOSE in events) is (state is not _S.CLOSED)
    assert EVENTS[_S.CLOSED] == {}


def test_a_node_is_reported_ready_once() -> None:
    report, ready = ConnectionAction.REPORT_READY, {_S.READY}
    reports = {s for s, events in EVENTS.items() for t in events.values() if t.action is report}
    assert reports == {_S.CHECKING_API_VERSIONS, _S.SASL_TOKENS}
    after = set(ready)
    while more := {t.state for state in after for t in EVENTS[state].values()} - after:
        after |= more
    assert not after & reports
