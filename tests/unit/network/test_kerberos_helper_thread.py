"""The results of a helper thread: taken once, with errors raised, and the client woken."""

from __future__ import annotations

import threading

import pytest

from spark_kafka_sink.errors import KafkaException, NetworkException
from spark_kafka_sink.network import kerberos
from spark_kafka_sink.network.kerberos import MadeAhead


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
    monkeypatch.setattr(kerberos, "_STALE_S", -1.0)
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

    def fail(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        with pytest.raises(KafkaException, match="no thread can be started to log in"):
            maker.ahead.take("a")
    assert maker.ahead.take("a") is None
    maker.wait()
    assert maker.ahead.take("a") == "A"


def test_keys_are_made_one_after_the_other_by_a_thread_that_ends() -> None:
    maker = Maker()
    before = threading.enumerate()
    for key in ("a", "b", "c"):
        assert not maker.ahead.is_there(key)
    (thread,) = [each for each in threading.enumerate() if each not in before]
    maker.go.set()
    thread.join(20)
    assert not thread.is_alive()
    assert [maker.ahead.take(key) for key in ("a", "b", "c")] == ["A", "B", "C"]
