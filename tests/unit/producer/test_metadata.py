"""The metadata of the cluster, and the time of the next request."""

from __future__ import annotations

from random import Random
from uuid import UUID

import pytest

from spark_kafka_sink.backoff import ExponentialBackoff
from spark_kafka_sink.errors import (
    InvalidTopicException,
    TopicAuthorizationException,
    UnsupportedVersionException,
)
from spark_kafka_sink.model import Node, TopicPartition
from spark_kafka_sink.producer.metadata import ClusterMetadata
from spark_kafka_sink.wire.messages import (
    LeaderIdAndEpoch,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

BACKOFF_S = 0.1


def metadata(max_idle: float = 300.0, rebootstrap_after: float | None = 300.0) -> ClusterMetadata:
    """Make metadata that goes stale after 300 s and backs off about 0.1 s."""
    return ClusterMetadata(
        300.0,
        ExponentialBackoff(BACKOFF_S, 1.0),
        Random(1),
        max_idle_s=max_idle,
        rebootstrap_after_s=rebootstrap_after,
    )


def ask(known: ClusterMetadata, now: float) -> list[str | None]:
    """Return the topics requested at `now`; empty if no request is due."""
    request = known.request(now)
    if request is None:
        return []
    assert isinstance(request, MetadataRequest)
    assert request.topics is not None
    return [each.name for each in request.topics]


def take_response(known: ClusterMetadata, now: float, *topics: MetadataResponseTopic) -> None:
    """Ask for what is due and answer with these topics."""
    assert ask(known, now)
    known.update(answer(*topics), now)


def answer(*topics: MetadataResponseTopic, brokers: tuple[int, ...] = (1, 2)) -> MetadataResponse:
    """Make an answer."""
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=n, host=f"host-{n}", port=9092) for n in brokers],
        topics=list(topics),
    )


def topic(
    name: str = "t", *leaders: int, code: int = 0, epoch: int = 0, number: int = 1
) -> MetadataResponseTopic:
    """Describe a topic by its partitions' leaders."""
    return MetadataResponseTopic(
        error_code=code,
        name=name,
        topic_id=UUID(int=number),
        partitions=[
            MetadataResponsePartition(
                error_code=0,
                partition_index=index,
                leader_id=leader,
                leader_epoch=epoch,
                replica_nodes=[],
                isr_nodes=[],
            )
            for index, leader in enumerate(leaders)
        ],
    )


def leaders_of(known: ClusterMetadata, name: str = "t") -> list[int | None]:
    """Return the leaders' ids as the sender would find them."""
    found = known.topic(name)
    assert found is not None
    nodes = (known.leader(TopicPartition(name, p)) for p in range(len(found.leaders)))
    return [None if node is None else node.id for node in nodes]


def test_nothing_is_asked_before_a_topic_is_of_interest() -> None:
    known = metadata()
    assert known.request(0.0) is None
    assert known.next_update_at() == float("inf")


def test_a_new_topic_is_asked_for_at_once_and_only_once() -> None:
    known = metadata()
    known.track("t", 0.0)
    request = known.request(0.0)
    assert request is not None
    assert request.topics is not None
    assert [t.name for t in request.topics] == ["t"]
    assert known.request(1.0) is None, "asked again while a request is under way"


def test_what_is_known_is_asked_again_after_max_age() -> None:
    known = metadata()
    known.track("t", 0.0)
    known.request(0.0)
    known.update(answer(topic("t", 1, 2)), 0.0)
    assert leaders_of(known) == [1, 2]
    assert known.request(299.0) is None
    assert known.request(300.0) is not None


def test_stale_metadata_is_asked_again_after_the_back_off() -> None:
    known = metadata()
    known.track("t", 0.0)
    known.request(0.0)
    known.update(answer(topic("t", 1)), 0.0)
    known.request_update()
    assert known.request(BACKOFF_S / 2) is None
    assert known.request(BACKOFF_S * 2) is not None


def test_an_incomplete_answer_is_asked_again_and_what_is_there_is_used() -> None:
    known = metadata()
    known.track("t", 0.0)
    known.request(0.0)
    known.update(answer(topic("t", 1, -1)), 0.0)
    assert leaders_of(known) == [1, None]
    found = known.topic("t")
    assert found is not None
    assert found.available == [0]
    assert known.request(10.0) is not None


def test_failures_back_off_further_each_time() -> None:
    known = metadata()
    known.track("t", 0.0)
    waits, now = [], 0.0
    for _ in range(6):
        assert known.request(now) is not None
        known.failed(now)
        waits.append(known.next_update_at() - now)
        now = known.next_update_at()
    assert waits[0] < waits[1] < waits[2] < waits[3]
    assert max(waits) <= 1.2


def test_an_answer_without_brokers_counts_as_none() -> None:
    known = metadata()
    known.track("t", 0.0)
    known.request(0.0)
    known.update(answer(brokers=()), 0.0)
    assert known.last_request_about("t") == 0
    assert known.request(10.0) is not None


@pytest.mark.parametrize("node_id", [-1, -2, -(2**31)])
def test_a_broker_with_the_id_of_a_bootstrap_address_is_ignored(node_id: int) -> None:
    known = metadata()
    known.track("t", 0.0)
    assert ask(known, 0.0)
    known.update(answer(topic("t", 1, node_id), brokers=(1, node_id)), 0.0)
    assert list(known.nodes) == [1]
    assert known.leader(TopicPartition("t", 1)) is None
    alone = metadata()
    alone.track("t", 0.0)
    alone.request(0.0)
    alone.update(answer(brokers=(node_id,)), 0.0)
    assert alone.nodes == {}
    assert alone.last_request_about("t") == 0, "a response without brokers counts as none"


def test_an_older_leader_epoch_does_not_undo_a_newer_one_unless_the_topic_is_new() -> None:
    known = metadata()
    known.track("t", 0.0)
    known.update(answer(topic("t", 2, epoch=7)), 0.0)
    known.update(answer(topic("t", 1, epoch=6)), 1.0)
    assert leaders_of(known) == [2]
    known.update(answer(topic("t", 1, epoch=0, number=2)), 2.0)
    assert leaders_of(known) == [1]


@pytest.mark.parametrize("code", [3, 5, 29])
def test_an_error_of_a_topic_in_between_makes_an_older_leader_epoch_no_newer(code: int) -> None:
    known = metadata()
    known.track("t", 0.0)
    known.update(answer(topic("t", 2, epoch=7)), 0.0)
    known.update(answer(topic("t", code=code)), 1.0)
    known.update(answer(topic("t", code=code)), 2.0)
    assert known.topic("t") is None
    known.update(answer(topic("t", 1, epoch=6)), 3.0)
    assert leaders_of(known) == [2]
    assert known.leader_epoch(TopicPartition("t", 0)) == 7
    known.update(answer(topic("t", code=code)), 4.0)
    known.update(answer(topic("t", 1, epoch=8)), 5.0)
    assert leaders_of(known) == [1]


def test_a_topic_that_was_deleted_and_made_anew_begins_its_epochs_anew() -> None:
    for before, after in ((1, 2), (0, 0)):  # the ids; a broker without ids sends 0
        known = metadata()
        known.track("t", 0.0)
        known.update(answer(topic("t", 2, epoch=7, number=before)), 0.0)
        known.update(answer(topic("t", code=3, number=0)), 1.0)
        known.update(answer(topic("t", 1, epoch=0, number=after)), 2.0)
        assert leaders_of(known) == [1]
        assert known.leader_epoch(TopicPartition("t", 0)) == 0


@pytest.mark.parametrize("forget_all", [True, False])
def test_epochs_are_forgotten_with_their_topic(*, forget_all: bool) -> None:
    known = metadata(max_idle=5.0)
    known.track("t", 0.0)
    take_response(known, 0.0, topic("t", 2, epoch=7))
    known.request_update()
    take_response(known, 1.0, topic("t", code=5))
    if forget_all:
        known.forget_topics()
    else:
        take_response(known, 10.0, topic("t", code=5))  # unused for more than 5 s
    known.track("t", 11.0)
    take_response(known, 11.0, topic("t", 1, epoch=6))
    assert leaders_of(known) == [1]


@pytest.mark.parametrize("allowed", [True, False])
def test_a_client_that_lets_no_broker_create_topics_asks_so_and_gives_no_such_hint(
    *, allowed: bool
) -> None:
    known = ClusterMetadata(
        300.0, ExponentialBackoff(BACKOFF_S, 1.0), Random(1), allow_auto_topic_creation=allowed
    )
    for name in ("t", "__consumer_offsets"):
        known.track(name, 0.0)
    request = known.request(0.0)
    assert isinstance(request, MetadataRequest)
    assert request.allow_auto_topic_creation is allowed
    topics = [topic(name, code=3) for name in ("t", "__consumer_offsets")]
    known.update(answer(*topics), 0.0)
    assert ("auto.create.topics.enable" in str(known.topic_error("t"))) is allowed
    assert "auto.create.topics.enable" not in str(known.topic_error("__consumer_offsets"))


def test_a_topic_that_may_yet_come_is_waited_for_and_one_that_cannot_is_an_error() -> None:
    known = metadata()
    known.track("t", 0.0)
    known.request(0.0)
    known.update(answer(topic("t", code=3)), 0.0)
    assert known.topic("t") is None
    assert known.request(10.0) is not None
    known.update(answer(topic("t", code=17)), 10.0)
    assert isinstance(known.topic_error("t"), InvalidTopicException)
    known.update(answer(topic("t", 1)), 20.0)
    assert known.topic_error("t") is None


def test_a_leader_that_is_not_among_the_brokers_is_no_leader() -> None:
    known = metadata()
    known.track("t", 0.0)
    known.update(answer(topic("t", 9)), 0.0)
    assert leaders_of(known) == [None]


def test_partition_numbers_beyond_reason_are_left_out() -> None:
    known = metadata()
    wild = topic("t", 1, 2)
    wild.partitions[1].partition_index = 2**31 - 1
    known.track("t", 0.0)
    known.update(answer(wild), 0.0)
    assert leaders_of(known) == [1, None]


# -- one topic more (KIP-526) ------------------------------------------------------------------


def test_only_a_new_topic_is_asked_for_while_the_rest_is_fresh() -> None:
    known = metadata()
    known.track("a", 0.0)
    take_response(known, 0.0, topic("a", 1))
    known.track("b", 0.01)
    assert ask(known, 0.01) == ["b"], "a new topic waits for no back-off, and comes alone"
    known.update(answer(topic("b", 2)), 0.02)
    assert (leaders_of(known, "a"), leaders_of(known, "b")) == ([1], [2])
    assert ask(known, 299.9) == []
    assert ask(known, 300.0) == ["a", "b"], "a partial answer does not make the rest any younger"


def test_a_new_topic_comes_with_all_others_when_these_are_stale() -> None:
    known = metadata()
    known.track("a", 0.0)
    take_response(known, 0.0, topic("a", 1))
    known.request_update()
    known.track("b", 0.01)
    assert ask(known, 0.01) == ["a", "b"]


def test_a_topic_that_comes_up_while_a_request_is_under_way_is_asked_for_next() -> None:
    known = metadata()
    known.track("a", 0.0)
    assert ask(known, 0.0) == ["a"]
    known.track("b", 0.0)
    assert ask(known, 0.0) == []
    known.update(answer(topic("a", 1)), 0.01)
    assert ask(known, 0.01) == ["b"]


def test_a_new_topic_whose_request_fails_is_asked_for_again_alone() -> None:
    known = metadata()
    known.track("a", 0.0)
    take_response(known, 0.0, topic("a", 1))
    known.track("b", 1.0)
    assert ask(known, 1.0) == ["b"]
    known.failed(1.0)
    assert ask(known, 1.0) == []
    assert ask(known, 2.0) == ["b"]


def test_a_topic_that_an_answer_leaves_out_is_asked_for_again_after_the_back_off() -> None:
    known = metadata()
    known.track("a", 0.0)
    take_response(known, 0.0)
    assert ask(known, BACKOFF_S / 2) == []
    assert ask(known, BACKOFF_S * 2) == ["a"]


def test_a_topic_that_nobody_uses_is_forgotten_and_asked_for_when_it_is_used_again() -> None:
    known = metadata(max_idle=500.0)
    known.track("idle", 0.0)
    known.track("used", 0.0)
    take_response(known, 0.0, topic("idle", 1), topic("used", 1))
    known.track("used", 400.0)
    take_response(known, 400.0, topic("idle", 1), topic("used", 1))
    assert known.topic("idle") is not None, "idle since 400 s, of 500"
    known.track("used", 800.0)
    take_response(known, 800.0, topic("idle", 1), topic("used", 1))
    assert known.topic("idle") is None
    assert known.topic("used") is not None
    assert ask(known, 1200.0) == ["used"]
    known.update(answer(topic("used", 1)), 1200.0)
    known.track("idle", 1201.0)
    assert ask(known, 1201.0) == ["idle"]


def test_topics_are_forgotten_at_once_where_new_work_begins_and_brokers_are_not() -> None:
    known = metadata()
    known.track("t", 0.0)
    known.track("bad", 0.0)
    take_response(known, 0.0, topic("t", 1), topic("bad", code=29))
    known.forget_topics()
    assert known.topic("t") is None
    assert known.topic_error("bad") is None
    assert set(known.nodes) == {1, 2}
    assert ask(known, 1000.0) == [], "a topic that nobody uses is asked for"
    known.track("t", 1.0)
    assert ask(known, 1.0) == ["t"]
    known.update(answer(topic("t", 1, 2, number=2)), 1.0)
    found = known.topic("t")
    assert found is not None
    assert found.leaders == [1, 2]


@pytest.mark.parametrize("first", [topic("t", 1), topic("t", code=29), topic("u", 1)])
def test_what_was_asked_before_topics_were_forgotten_is_no_response_to_what_is_asked_later(
    first: MetadataResponseTopic,
) -> None:
    known = metadata()
    known.track("t", 0.0)
    assert ask(known, 0.0) == ["t"]
    known.forget_topics()
    known.track("t", 1.0)
    assert ask(known, 1.0) == [], "two requests are under way"
    known.update(answer(first, brokers=(1, 2, 3)), 2.0)
    assert known.topic("t") is None, "the topic may have been deleted or have grown since"
    assert known.take_error("t") is None
    assert set(known.nodes) == {1, 2, 3}
    assert ask(known, 2.0) == ["t"]
    known.update(answer(topic("t", 1, 2, number=2)), 3.0)
    assert leaders_of(known) == [1, 2]


def test_an_error_of_what_was_asked_before_topics_were_forgotten_is_nobody_s() -> None:
    for fails_first in (True, False):
        known = metadata()
        known.track("t", 0.0)
        ask(known, 0.0)
        if fails_first:
            known.failed(1.0, UnsupportedVersionException("too old"))
        known.forget_topics()
        known.track("t", 2.0)
        if not fails_first:
            known.failed(3.0, UnsupportedVersionException("too old"))
        assert known.take_error("t") is None
        assert ask(known, 10.0) == ["t"]


def test_a_topic_that_was_never_asked_for_is_not_forgotten_before_it_is() -> None:
    known = metadata(max_idle=5.0)
    known.track("a", 0.0)
    assert ask(known, 0.0) == ["a"]
    known.track("b", 0.0)
    known.update(answer(topic("a", 1)), 10.0)
    assert ask(known, 10.0) == ["b"]


# -- errors of topics --------------------------------------------------------------------------


def test_a_topic_that_is_denied_is_told_once_and_asked_for_again_by_the_next_caller() -> None:
    known = metadata()
    known.track("t", 0.0)
    take_response(known, 0.0, topic("t", code=29))
    assert ask(known, 100.0) == [], "nobody asked for it again"
    assert isinstance(known.take_error("t"), TopicAuthorizationException)
    assert known.take_error("t") is None
    known.track("t", 101.0)
    take_response(known, 101.0, topic("t", 1))
    assert leaders_of(known) == [1]


def test_a_name_that_cannot_be_a_topic_is_refused_each_time_without_asking() -> None:
    known = metadata()
    known.track("t", 0.0)
    take_response(known, 0.0, topic("t", code=17))
    for now in (1.0, 2.0):
        known.track("t", now)
        assert isinstance(known.take_error("t"), InvalidTopicException)
        assert ask(known, now) == []


@pytest.mark.parametrize("code", [3, 5])
def test_a_topic_that_may_come_ends_no_wait_and_is_asked_for_until_it_is_there(code: int) -> None:
    known = metadata()
    known.track("t", 0.0)
    take_response(known, 0.0, topic("t", code=code))
    assert known.take_error("t") is None
    error = known.topic_error("t")
    assert error is not None
    assert error.code == code
    take_response(known, 1.0, topic("t", 1))
    assert (leaders_of(known), known.topic_error("t")) == ([1], None)


def test_a_topic_that_is_gone_is_no_longer_known() -> None:
    known = metadata()
    known.track("t", 0.0)
    take_response(known, 0.0, topic("t", 1))
    known.request_update()
    take_response(known, 1.0, topic("t", code=3))
    assert known.topic("t") is None


def test_a_broker_that_speaks_no_usable_metadata_ends_one_wait_with_that_error() -> None:
    known = metadata()
    known.track("t", 0.0)
    assert ask(known, 0.0)
    known.failed(0.0, UnsupportedVersionException("too old"))
    assert isinstance(known.take_error("t"), UnsupportedVersionException)
    assert known.take_error("t") is None
    assert ask(known, 1.0) == ["t"]


# -- leaders -----------------------------------------------------------------------------------


def test_an_answer_without_an_id_or_an_epoch_is_taken_as_it_is() -> None:
    known = metadata()
    known.track("t", 0.0)
    take_response(known, 0.0, topic("t", 2, epoch=7))
    known.update(answer(topic("t", 1, epoch=6, number=0)), 1.0)
    assert leaders_of(known) == [2], "an answer without an id says nothing of a new topic"
    known.update(answer(topic("t", 1, epoch=-1)), 2.0)
    assert leaders_of(known) == [1]


def test_epochs_of_old_brokers_are_not_relied_on() -> None:
    known = metadata()
    known.track("t", 0.0)
    take_response(known, 0.0, topic("t", 2, epoch=7))
    known.update(answer(topic("t", 1, epoch=6)), 1.0, reliable_epochs=False)
    assert leaders_of(known) == [1]
    assert known.leader_epoch(TopicPartition("t", 0)) == -1


def test_a_leader_that_a_produce_answer_names_is_taken_in_place() -> None:
    known = metadata()
    known.track("t", 0.0)
    take_response(known, 0.0, topic("t", 1, 1, epoch=5))
    before = known.topic("t")
    moved = {TopicPartition("t", 1): LeaderIdAndEpoch(leader_id=9, leader_epoch=6)}
    assert known.update_leaders(moved, [Node(id=9, host="new", port=1)])
    assert leaders_of(known) == [1, 9]
    assert known.leader_epoch(TopicPartition("t", 1)) == 6
    assert known.leader(TopicPartition("t", 0)) == Node(id=1, host="host-1", port=9092)
    assert before is not None
    assert before.leaders == [1, 1], "a caller may be reading what it was given"


@pytest.mark.parametrize(
    ("name", "partition", "leader", "epoch"),
    [
        ("t", 0, 2, 5),  # not newer
        ("t", 0, 2, 4),  # older
        ("t", 0, 2, -1),  # no epoch
        ("t", 0, -1, 6),  # no leader
        ("t", 0, 77, 6),  # an unknown node
        ("t", 1, 2, 6),  # a partition that is not known
        ("other", 0, 2, 6),
    ],
)
def test_a_leader_that_is_not_news_or_not_usable_is_left_out(
    name: str, partition: int, leader: int, epoch: int
) -> None:
    known = metadata()
    known.track("t", 0.0)
    take_response(known, 0.0, topic("t", 1, epoch=5))
    hint = LeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch)
    assert not known.update_leaders({TopicPartition(name, partition): hint}, [])
    assert leaders_of(known) == [1]


def test_a_leader_that_was_unknown_is_available_once_it_is_named() -> None:
    known = metadata()
    known.track("t", 0.0)
    take_response(known, 0.0, topic("t", -1, 1, epoch=5))
    hint = LeaderIdAndEpoch(leader_id=2, leader_epoch=6)
    assert known.update_leaders({TopicPartition("t", 0): hint}, [])
    found = known.topic("t")
    assert found is not None
    assert found.available == [0, 1]


# -- back-off and rebootstrap ------------------------------------------------------------------


def test_answers_that_bring_nothing_new_are_asked_for_ever_more_slowly_until_one_does() -> None:
    known = metadata()
    known.track("t", 0.0)
    take_response(known, 0.0, topic("t", 1, epoch=1))
    now, waits = 0.0, []
    for _ in range(6):
        known.request_update()
        waits.append(known.next_update_at() - now)
        now = known.next_update_at()
        take_response(known, now, topic("t", 1, epoch=1))
    assert waits[0] < 0.13
    assert waits[2] < waits[3] < waits[4]
    known.request_update()
    now = known.next_update_at()
    take_response(known, now, topic("t", 2, epoch=2))
    known.request_update()
    assert known.next_update_at() - now < 0.13


def test_an_update_by_age_begins_the_back_off_anew() -> None:
    known = metadata(max_idle=1e9)
    known.track("t", 0.0)
    for _ in range(6):
        known.request_update()
        take_response(known, known.next_update_at(), topic("t", 1, epoch=1))
    now = known.next_update_at()
    assert now > 300.0
    take_response(known, now, topic("t", 1, epoch=1))
    known.request_update()
    assert known.next_update_at() - now < 0.13


def test_an_update_that_was_wanted_while_another_was_under_way_is_not_lost() -> None:
    known = metadata()
    known.track("t", 0.0)
    assert ask(known, 0.0)
    last = known.request_update()
    known.update(answer(topic("t", 1)), 0.0)
    assert known.last_request_about("t") == last
    take_response(known, 1.0, topic("t", 1))
    assert known.last_request_about("t") > last


def test_an_answer_about_another_topic_tells_nothing_of_this_one() -> None:
    known = metadata()
    known.track("t", 0.0)
    take_response(known, 0.0, topic("t", 1))
    known.track("new", 1.0)
    assert ask(known, 1.0) == ["new"]
    known.update(answer(topic("new", 1)), 1.0)
    assert known.last_request_about("t") < known.last_request_about("new")


def test_after_the_trigger_the_brokers_known_are_forgotten_and_the_topics_kept() -> None:
    known = metadata(rebootstrap_after=60.0)
    known.track("t", 0.0)
    take_response(known, 0.0, topic("t", 1))
    known.request_update()
    for now in (10.0, 40.0, 69.0):
        assert ask(known, now) == ["t"]
        known.failed(now)
        assert known.nodes, f"forgotten at {now}"
    assert ask(known, 70.0 + 1.2) == ["t"]
    known.failed(75.0)
    assert known.nodes == {}
    assert leaders_of(known) == [None]
    take_response(known, 80.0, topic("t", 2))
    assert leaders_of(known) == [2]
    known.request_update()
    assert ask(known, 200.0) == ["t"]
    known.failed(200.0)
    assert known.nodes, "an answer ends the count"


def test_the_bootstrap_servers_have_as_long_as_the_brokers_before_they_are_asked_anew() -> None:
    known = metadata(rebootstrap_after=60.0)
    known.track("t", 0.0)
    restarted: list[float] = []
    for now in range(0, 200, 10):
        assert ask(known, now) == ["t"]
        known.failed(now)
        if known.rebootstraps > len(restarted):
            restarted.append(now)
    assert restarted == [60, 120, 180]


def test_a_broker_that_says_so_has_the_client_begin_anew_at_once() -> None:
    known = metadata()
    known.track("t", 0.0)
    take_response(known, 0.0, topic("t", 1))
    known.request_update()
    assert ask(known, 1.0)
    refusal = answer(topic("t", 1))
    refusal.error_code = 129
    known.update(refusal, 1.0)
    assert known.nodes == {}
    assert ask(known, 1.0) == [], "asked again without a pause"
    take_response(known, 2.0, topic("t", 1))
    assert leaders_of(known) == [1]


def test_without_rebootstrap_the_brokers_known_are_kept_whatever_happens() -> None:
    known = metadata(rebootstrap_after=None)
    known.track("t", 0.0)
    take_response(known, 0.0, topic("t", 1))
    refusal = answer()
    refusal.error_code = 129
    for now in (1000.0, 2000.0):
        known.request_update()
        assert ask(known, now)
        known.update(refusal, now)
        assert ask(known, now + 10)
        known.failed(now + 10)
    assert known.nodes


def test_a_topic_without_partitions_is_requested_again_until_it_has_some() -> None:
    known = metadata()
    known.track("t", 0.0)
    known.request(0.0)
    known.update(answer(topic("t")), 0.0)
    assert known.topic("t") is None
    assert "LEADER_NOT_AVAILABLE" in str(known.topic_error("t"))
    assert known.take_error("t") is None
    assert known.request(known.next_update_at()) is not None
    known.update(answer(topic("t", 1)), 1.0)
    assert leaders_of(known) == [1]


@pytest.mark.parametrize("partition", [-1, -3, 2])
def test_a_leader_of_a_partition_that_the_topic_does_not_have_is_ignored(partition: int) -> None:
    known = metadata()
    known.track("t", 0.0)
    known.request(0.0)
    known.update(answer(topic("t", 1, 1)), 0.0)
    named = {TopicPartition("t", partition): LeaderIdAndEpoch(leader_id=2, leader_epoch=9)}
    assert not known.update_leaders(named, [])
    assert leaders_of(known) == [1, 1]
