"""A second save of one micro-batch by `write_batch` with exactly once, as the client sees it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest

from spark_kafka_sink.errors import ConfigException
from spark_kafka_sink.spark.driver import saves
from spark_kafka_sink.spark.driver.saves import only_save
from spark_kafka_sink.spark.micro_batch import MicroBatch

GIVEN = {
    "kafka.bootstrap.servers": "b:1", "topic": "t", "exactlyonce": "true", "txnappid": "app",
}  # fmt: skip
QUERY = MicroBatch("q", 7, "run")


@pytest.fixture(autouse=True)
def nothing_was_saved() -> Iterator[None]:
    """A process that has saved nothing."""
    saves._saves.clear()
    yield
    saves._saves.clear()


def save(
    batch_id: int = 7, query: MicroBatch | None = None, without: str | None = None, **more: str
) -> None:
    """Save a micro-batch."""
    given = {name: text for name, text in GIVEN.items() if name != without}
    with only_save(given | more, batch_id, query):
        pass


@pytest.mark.parametrize("query", [None, QUERY], ids=["unknown", "known"])
def test_a_second_save_of_a_micro_batch_is_refused(query: MicroBatch | None) -> None:
    save(7, query)
    with pytest.raises(ConfigException, match="saved micro-batch 7 of application app to topic t"):
        save(7, query)
    save(7, query, topic="another")
    save(7, query, txnappid="another")
    save(7, query, commitlogtopic="another")
    save(8, query)
    save(9, query, without="topic")
    with pytest.raises(ConfigException, match="to the topics of a topic column before"):
        save(9, query, without="topic")


def test_the_message_says_what_to_do_where_the_query_is_not_known() -> None:
    save()
    with pytest.raises(ConfigException, match=r"or in a pyspark\.InheritableThread"):
        save()
    save(query=QUERY)
    with pytest.raises(ConfigException, match=r"different values of txnAppId$"):
        save(query=QUERY)


def test_the_query_is_the_application_if_none_is_named() -> None:
    save(query=QUERY, without="txnappid")
    with pytest.raises(ConfigException, match="micro-batch 7 of application q"):
        save(query=QUERY, without="txnappid")


def test_another_run_of_the_query_may_save_the_micro_batch_again() -> None:
    save(query=QUERY)
    save(query=QUERY._replace(run_id="the next run"))
    assert list(saves._saves.values()) == [saves._Save("q", "the next run", 7)]


def test_a_save_that_fails_may_be_tried_again() -> None:
    are_retries = []
    for error in (OSError("lost"), KeyboardInterrupt()):
        with suppress(type(error)), only_save(GIVEN, 7, QUERY) as is_retry:
            are_retries.append(is_retry)
            raise error
    with only_save(GIVEN, 7, QUERY) as is_retry:
        are_retries.append(is_retry)
    assert are_retries == [False, True, True]
    with pytest.raises(ConfigException, match="two saves"):
        save(7, QUERY)


def test_only_the_same_micro_batch_of_the_same_run_is_a_retry() -> None:
    for query, batch_id in ((QUERY._replace(run_id="the next run"), 7), (QUERY, 8)):
        with pytest.raises(OSError, match="lost"), only_save(GIVEN, 7, QUERY):
            raise OSError("lost")
        with only_save(GIVEN, batch_id, query) as is_retry:
            assert not is_retry


def test_a_save_while_the_first_one_goes_on_is_refused() -> None:
    with only_save(GIVEN, 7, None), pytest.raises(ConfigException, match="two saves"):
        save()


def test_at_least_once_saves_whatever_it_is_given() -> None:
    for _ in range(2):
        save(without="txnappid", exactlyonce="false")
        save(query=QUERY._replace(run_id=""), without="txnappid", exactlyonce="false")
    assert not saves._saves


def test_a_micro_batch_whose_run_is_unknown_is_refused() -> None:
    with pytest.raises(ConfigException, match="call write_batch before setJobGroup"):
        save(query=QUERY._replace(run_id=""))


def test_only_the_newest_owners_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saves, "_MOST_OWNERS", 2)
    for name in ("a", "b", "c"):
        save(txnappid=name)
    save(txnappid="a")
    with pytest.raises(ConfigException, match="application c"):
        save(txnappid="c")
