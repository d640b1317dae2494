"""Unclosed producers: when they are garbage collected, their threads end without a wait."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import warnings

import pytest
from support.pure.unreachable import NOBODY

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.producer.sender import Sender, SenderPoll

TIMEOUT_S = 60


class Owner:
    """An object with a producer and itself: only the cyclic collector ends it."""

    def __init__(self) -> None:
        self.owner = self
        self.producer = KafkaProducer({"bootstrap.servers": NOBODY, "client.id": "forgotten"})


def test_a_producer_that_its_own_thread_collects_under_the_lock_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_forgotten, collected = threading.Event(), threading.Event()
    poll = Sender.poll

    def poll_and_collect(self: Sender, now: float) -> SenderPoll:
        if is_forgotten.is_set():
            gc.collect()
            collected.set()
        return poll(self, now)

    monkeypatch.setattr(Sender, "poll", poll_and_collect)
    gc.disable()
    try:
        owner = Owner()
        thread, name = owner.producer._thread, owner.producer._thread._name
        del owner
        is_forgotten.set()
        with warnings.catch_warnings(record=True, action="always") as warned:
            thread._client.wakeup()
            assert collected.wait(TIMEOUT_S), f"{name} waits for the lock that it has"
        assert "unclosed KafkaProducer forgotten" in [str(each.message) for each in warned]
    finally:
        gc.enable()
    thread._thread.join(TIMEOUT_S)
    assert not thread._thread.is_alive()


def test_its_thread_ends_also_where_warnings_are_errors() -> None:
    script = (
        "from spark_kafka_sink import KafkaProducer\n"
        f"producer = KafkaProducer({{'bootstrap.servers': '{NOBODY}'}})\n"
        "thread = producer._thread._thread\n"
        "del producer\n"
        f"thread.join({TIMEOUT_S})\n"
        "print('ended' if not thread.is_alive() else 'runs')\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * TIMEOUT_S,
    )
    assert done.stdout == "ended\n", done.stderr
    assert "unclosed KafkaProducer" in done.stderr
