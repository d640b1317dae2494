"""Sessions that end: logins are renewed in a simulated cluster, and broken renewals are detected.

`tests/security/test_simulated_sessions.py` runs more seeds.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from unittest import mock

import pytest

from simulation.__main__ import draw, failure, replay_command
from simulation.simulation import Simulation
from spark_kafka_sink.network import sasl_authenticator
from spark_kafka_sink.network.connection import Connection, UnansweredRequests
from spark_kafka_sink.wire.exchange import ClientRequest, NodeReady

SEEDS = 300
CHUNK = 100


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """The producers of all these runs log every kind of fault."""
    caplog.set_level(logging.ERROR, "spark_kafka_sink")


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_promise_is_kept_while_sessions_are_renewed(first: int) -> None:
    for seed in range(first, first + CHUNK):
        found = failure(seed, sessions=True)
        assert found is None, f"seed {seed}: {found}\n{replay_command(seed, sessions=True)}"


def test_sessions_are_renewed_again_and_again() -> None:
    renewals = []
    for seed in range(30):
        run = Simulation(draw(seed, sessions=True))
        run.run()
        assert run.cluster.logins is not None
        renewals.append(run.cluster.logins.renewals)
    assert sum(renewals) > len(renewals)
    assert max(renewals) > 5


# -- each way to break a renewal is found ---------------------------------------------------------


@contextmanager
def _sent_between_the_handshake_and_the_end() -> Iterator[None]:
    send = Connection.send

    def at_once(broken: Connection, request: ClientRequest, now: float) -> None:
        send(broken, request, now)
        while broken._held:
            sent, frame = broken._held.popleft()
            broken.in_flight.add(sent)
            broken._outgoing.append(frame)

    with mock.patch.object(Connection, "send", at_once):
        yield


@contextmanager
def _held_and_lost_after_the_login() -> Iterator[None]:
    end = Connection._token_came

    def lose(broken: Connection, token: bytes, lifetime_ms: int, now: float) -> Iterator[NodeReady]:
        if broken._held:
            broken._held.pop()
        yield from end(broken, token, lifetime_ms, now)

    with mock.patch.object(Connection, "_token_came", lose):
        yield


@contextmanager
def _held_and_lost_with_the_connection() -> Iterator[None]:
    closed = Connection.closed

    def lose(broken: Connection) -> UnansweredRequests:
        broken._held.clear()
        return closed(broken)

    with mock.patch.object(Connection, "closed", lose):
        yield


@contextmanager
def _renewed_without_a_pause() -> Iterator[None]:
    with mock.patch.object(sasl_authenticator, "_RENEWAL_PAUSE_S", 0.0):
        yield


@pytest.mark.parametrize(
    ("broken", "found"),
    [
        (_sent_between_the_handshake_and_the_end, "between SaslHandshake and the end"),
        (_held_and_lost_after_the_login, "all was well|has not ended|after its deadline|memory"),
        (_held_and_lost_with_the_connection, "all was well|has not ended|after its deadline"),
        (_renewed_without_a_pause, "was renewed again"),
    ],
)
def test_what_is_broken_is_found(
    broken: Callable[[], AbstractContextManager[None]], found: str
) -> None:
    with broken():
        for seed in range(SEEDS):
            sentence = failure(seed, sessions=True)
            if sentence is not None:
                print(f"found by seed {seed}: {sentence}")
                assert re.search(found, sentence)
                return
    pytest.fail(f"not found by {SEEDS} seeds")
