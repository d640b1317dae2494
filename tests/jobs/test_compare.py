"""verify.py's and the demo's comparison of a topic, without a broker and without Spark."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import demo
import pytest
import verify
from confluent_kafka import KafkaError
from job import digest

SOURCE = digest.Digest(records=5, total=0xABC)
TOPIC = verify.Topic(digest.Digest(records=5, total=0xABC), Counter({0: 3, 2: 2}))
OTHER = verify.Topic(digest.Digest(records=5, total=0xABD), Counter({0: 3, 2: 2}))


@pytest.mark.parametrize(
    ("topic", "reported", "said"),
    [
        (TOPIC, None, None),
        (TOPIC, {0: 3, 2: 2}, None),
        (OTHER, None, "but not the same"),
        (OTHER, {0: 3, 2: 2}, "but not the same"),
        (TOPIC, {0: 2, 2: 3}, "3 records in partition 0, where the sink's report says 2"),
        (TOPIC, {0: 3, 1: 2}, "0 records in partition 1, where the sink's report says 2"),
        (TOPIC, {0: 3}, "2 records in partition 2, where the sink's report says 0"),
    ],
)
def test_a_topic_and_a_report_have_to_agree_with_the_source(
    topic: verify.Topic, reported: dict[int, int] | None, said: str | None
) -> None:
    found = verify.compare(SOURCE, topic, None if reported is None else Counter(reported))
    if said is None:
        assert found is None
    else:
        assert found is not None
        assert said in found


@pytest.mark.parametrize("differs", [None, "a", "b", "c"])
def test_the_demo_agrees_only_if_every_topic_does(
    differs: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def submit(_: demo.Demo, job: str, topic: str, *arguments: str, **_more: Path) -> int:
        return int(job == "verify.py" and topic == differs)

    monkeypatch.setattr(demo.Demo, "_submit", submit)
    monkeypatch.setattr(demo, "split_flights", lambda *_: None)
    steps = demo.Steps(time.monotonic(), count=7)
    agreed = demo.Demo(Mock(), tmp_path, "host:1", steps).run(["a", "b", "c"])
    assert agreed is (differs is None)


def end_of(partition: int) -> SimpleNamespace:
    """Return the message that a consumer gets at the end of a partition."""
    error = SimpleNamespace(code=lambda: KafkaError._PARTITION_EOF)
    return SimpleNamespace(error=lambda: error, partition=lambda: partition)


def test_the_end_of_one_partition_is_not_that_of_the_others() -> None:
    unread = {0, 1, 2}
    verify._take([end_of(1)], verify.Topic(), unread)  # type: ignore[list-item] # as a Message
    assert unread == {0, 2}
