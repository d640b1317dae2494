"""The results of helper threads: taken once, with errors raised, and the client woken."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import count
from types import SimpleNamespace

import pytest
from support.pure.interrupts import interrupted

from spark_kafka_sink.errors import KafkaException, NetworkException
from spark_kafka_sink.network import helper_thread
from spark_kafka_sink.network.helper_thread import MadeAhead


class Maker:
    """Makes upper case once `go` is set; `woken` is set with each."""

    def __init__(self) -> None:
        self.go, self.woken = threading.Event(), threading.Event()
        self.error: BaseException | None = None
        self.made: list[str] = []
        self.ahead = MadeAhead(self._make, self.woken.set)

    def _make(self, key: str) -> str:
        assert self.go.wait(20)
        self.made.append(key)
        if self.error is not None:
            raise self.error
        return key.upper()

    def wait(self) -> None:
        """Wait until one more was made."""
        assert self.woken.wait(20)
        self.woken.clear()


def wait_for_end(ahead: MadeAhead[str]) -> None:
    """Wait until all threads have ended."""
    ends_at = time.monotonic() + 20
    while ahead._threads._since:
        assert time.monotonic() < ends_at
        time.sleep(0.001)


def test_what_is_made_is_taken_once() -> None:
    maker = Maker()
    assert not maker.ahead.is_there("a")
    assert maker.ahead.take("a") is None
    maker.go.set()
    maker.wait()
    assert maker.ahead.is_there("a")
    assert maker.ahead.take("a") == "A"
    assert maker.made == ["a"]
    assert maker.ahead.take("a") is None, "another one is begun"
    maker.wait()
    assert maker.ahead.take("a") == "A"


@pytest.mark.parametrize("error", [NetworkException("why"), RuntimeError("a secret")])
def test_why_there_is_none_is_raised_once(error: Exception) -> None:
    maker = Maker()
    maker.go.set()
    maker.error = error
    maker.ahead.is_there("a")
    maker.wait()
    expected = "why" if isinstance(error, KafkaException) else "cannot be made: RuntimeError"
    with pytest.raises(KafkaException, match=expected) as raised:
        maker.ahead.take("a")
    assert "secret" not in str(raised.value)
    maker.error = None
    assert maker.ahead.take("a") is None
    maker.wait()
    assert maker.ahead.take("a") == "A"


def test_what_was_made_long_ago_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    maker = Maker()
    maker.go.set()
    maker.ahead.is_there("a")
    maker.wait()
    monkeypatch.setattr(helper_thread, "_STALE_S", -1.0)
    assert maker.ahead.take("a") is None
    maker.wait()
    assert maker.made == ["a", "a"]


@pytest.mark.parametrize("error", [SystemExit("bye"), KeyboardInterrupt()])
def test_what_is_no_exception_ends_no_thread(error: BaseException) -> None:
    maker = Maker()
    maker.go.set()
    maker.error = error
    maker.ahead.is_there("a")
    maker.wait()
    with pytest.raises(KafkaException, match=f"cannot be made: {type(error).__name__}"):
        maker.ahead.take("a")
    maker.error = None
    assert maker.ahead.take("b") is None
    maker.wait()
    assert maker.ahead.take("b") == "B"


def test_without_a_thread_it_is_an_error_and_the_next_try_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    maker = Maker()
    maker.go.set()

    def fail(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(helper_thread, "_thread", SimpleNamespace(start_new_thread=fail))
        with pytest.raises(KafkaException, match="no thread can be started to log in"):
            maker.ahead.take("a")
    assert maker.ahead.take("a") is None
    maker.wait()
    assert maker.ahead.take("a") == "A"


def test_keys_are_made_one_after_the_other_by_a_thread_that_ends() -> None:
    maker = Maker()
    for key in ("a", "b", "c"):
        assert not maker.ahead.is_there(key)
    assert len(maker.ahead._threads._since) == 1
    maker.go.set()
    wait_for_end(maker.ahead)
    assert [maker.ahead.take(key) for key in ("a", "b", "c")] == ["A", "B", "C"]


class Gates:
    """Makes upper case, numbered; keys that begin with "stuck" wait for `open`."""

    def __init__(self) -> None:
        self.open, self.woken = threading.Event(), threading.Event()
        self.begun: list[str] = []
        self.ahead = MadeAhead(self._make, self.woken.set)

    def _make(self, key: str) -> str:
        self.begun.append(key)
        number = len(self.begun)
        if key.startswith("stuck"):
            assert self.open.wait(20)
        return f"{key.upper()} {number}"

    def taken(self, key: str) -> str | None:
        """Return what is made of a key."""
        while not self.ahead.is_there(key):
            assert self.woken.wait(20)
            self.woken.clear()
        return self.ahead.take(key)


@pytest.fixture
def gates(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gates]:
    """Calls that count as slow at once; in the end, all return, and their threads end."""
    monkeypatch.setattr(helper_thread, "_SLOW_S", 0.0)
    monkeypatch.setattr(helper_thread, "_MOST_THREADS", 3)
    made = Gates()
    yield made
    made.open.set()
    wait_for_end(made.ahead)


def test_a_call_that_never_returns_holds_up_no_other(gates: Gates) -> None:
    assert not gates.ahead.is_there("stuck")
    assert gates.taken("b") == "B 2"
    assert gates.taken("c") == "C 3"
    assert not gates.ahead.is_there("stuck")


def test_what_is_given_up_is_made_from_the_start_and_comes_too_late(gates: Gates) -> None:
    assert not gates.ahead.is_there("stuck")
    assert gates.taken("b") == "B 2"
    gates.ahead.give_up("stuck")
    assert not gates.ahead.is_there("stuck"), "another one is begun"
    gates.open.set()
    assert gates.taken("stuck") == "STUCK 3"


def test_threads_are_few_and_what_waits_for_one_is_made_later(gates: Gates) -> None:
    keys = [f"stuck {number}" for number in range(5)]
    for _ in range(2):
        assert not any(gates.ahead.is_there(key) for key in keys)
    assert len(gates.ahead._threads._since) == 3
    gates.ahead.give_up(keys[3])
    gates.ahead.give_up(keys[3])
    gates.open.set()
    assert (gates.taken(keys[4]) or "").startswith("STUCK 4")
    assert sorted(gates.begun) == [*keys[:3], keys[4]]


def test_without_another_thread_a_slow_call_is_waited_for(
    gates: Gates, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not gates.ahead.is_there("stuck")

    def fail(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(helper_thread, "_thread", SimpleNamespace(start_new_thread=fail))
        assert not gates.ahead.is_there("b")
        assert not gates.ahead.is_there("b")
    gates.open.set()
    assert (gates.taken("b") or "").startswith("B")


def test_what_is_made_can_be_had_wherever_a_call_was_interrupted() -> None:
    for moment in count(1):
        maker = Maker()
        maker.go.set()
        where = interrupted(lambda: maker.ahead.is_there("a"), moment)  # noqa: B023 - called at once
        taken = maker.ahead.take("a")
        while taken is None:
            maker.wait()
            taken = maker.ahead.take("a")
        assert taken == "A", where
        wait_for_end(maker.ahead)
        if where is None:
            break
