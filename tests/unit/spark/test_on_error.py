"""onError, deadLetterTopic and deadLetterPath: rejected on the driver if they make no sense."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_kafka_sink.errors import ConfigException
from spark_kafka_sink.spark.on_error import BadRowPolicy, OnError
from spark_kafka_sink.spark.options import sink_options

NAMES = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"}


@pytest.mark.parametrize(
    ("options", "policy"),
    [
        ({}, BadRowPolicy(OnError.FAIL)),
        ({"onError": "fail"}, BadRowPolicy(OnError.FAIL)),
        ({"onError": "Skip"}, BadRowPolicy(OnError.SKIP)),
        (
            {"onError": "deadletter", "deadLetterTopic": " d "},
            BadRowPolicy(OnError.DEAD_LETTER, topic="d"),
        ),
        (
            {"onError": "deadLetter", "deadLetterPath": "file:///shared/d"},
            BadRowPolicy(OnError.DEAD_LETTER, path=Path("/shared/d")),
        ),
    ],
)
def test_what_is_done_with_bad_rows(options: dict[str, str], policy: BadRowPolicy) -> None:
    assert sink_options(NAMES | options).bad_rows == policy


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"onError": "ignore"}, "onError is 'ignore': expected one of fail, skip, deadLetter"),
        ({"onEror": "skip"}, "not an option of the pykafka sink; did you mean onError"),
        ({"deadLetterTopic": "d"}, "deadLetterTopic has no effect with onError=fail: set onError"),
        (
            {"onError": "skip", "deadLetterPath": "/d"},
            "deadLetterPath has no effect with onError=skip",
        ),
        ({"onError": "deadLetter"}, "needs one of the options .* found neither"),
        (
            {"onError": "deadLetter", "deadLetterTopic": "d", "deadLetterPath": "/d"},
            "needs one of the options .* found both",
        ),
        ({"onError": "deadLetter", "deadLetterTopic": ""}, "deadLetterTopic is '': expected a top"),
        ({"onError": "deadLetter", "deadLetterTopic": "a b"}, "deadLetterTopic is 'a b': expected"),
        (
            {"onError": "deadLetter", "deadLetterTopic": " t "},
            "is t, which is also the topic of good rows",
        ),
        ({"onError": "deadLetter", "deadLetterPath": " "}, "deadLetterPath is empty: expected a f"),
        ({"onError": "deadLetter", "deadLetterPath": "a/b"}, "is a/b, not an absolute path"),
        (
            {"onError": "deadLetter", "deadLetterPath": "s3a://b/c"},
            "'s3a://b/c', which is not a mounted filesystem: expected a folder",
        ),
        (
            {"onError": "skip", "kafka.acks": "0"},
            "onError=skip needs responses .* set kafka.acks to",
        ),
        (
            {"onError": "deadLetter", "deadLetterTopic": "d", "kafka.acks": " 0 "},
            "onError=deadLetter needs responses of the brokers, but kafka.acks is 0",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigException, match=message):
        sink_options(NAMES | options)
