"""Transactional ids: no owner's id can be read as another's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.commit.names import (
    ANY_TOPIC,
    Owner,
    TaskSlot,
    app_id_of_checkpoint,
    checked_owner,
    read_id,
)
from spark_kafka_sink.errors import ConfigException

# Letters that have a part in ids, besides any others.
_TRICKY = st.text(st.sampled_from("a1.%/25F*_-é\n "), min_size=1, max_size=6)
PREFIXES = st.text(st.sampled_from("ab1._-"), min_size=1, max_size=5)
APP_IDS = _TRICKY | st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)
TOPICS = st.text(st.sampled_from("ab1._-0"), min_size=1, max_size=5).filter(
    lambda name: name not in (".", "..")
)
OWNERS = st.builds(checked_owner, PREFIXES, APP_IDS, TOPICS | st.just(ANY_TOPIC))
SLOTS = st.builds(TaskSlot, st.integers(0, 2**31 - 1), st.integers(0, 20))


@given(OWNERS, SLOTS)
def test_an_id_is_read_as_what_it_was_built_from(owner: Owner, slot: TaskSlot) -> None:
    assert read_id(owner.driver_id) == (owner, None)
    assert read_id(owner.task_id(slot)) == (owner, slot)
    assert owner.slot_of(owner.task_id(slot)) == slot
    assert owner.slot_of(owner.driver_id) is None
    assert owner.owns(owner.driver_id)
    assert owner.owns(owner.task_id(slot))


@given(OWNERS, OWNERS, SLOTS, SLOTS)
def test_no_id_of_one_owner_is_an_id_of_another(
    one: Owner, other: Owner, slot: TaskSlot, other_slot: TaskSlot
) -> None:
    if one != other:
        theirs = {other.driver_id, other.task_id(slot), other.task_id(other_slot)}
        assert theirs.isdisjoint({one.driver_id, one.task_id(slot), one.task_id(other_slot)})
        assert not any(one.owns(each) for each in theirs)


@given(OWNERS, OWNERS)
def test_a_task_id_is_never_a_driver_id_and_no_owner_begins_another(
    one: Owner, other: Owner
) -> None:
    # Otherwise, a listing that matches only the beginning of an id would find both.
    assert one == other or not other.driver_id.startswith(f"{one.driver_id}/")


@given(st.text(st.sampled_from("ab1./%25F*0"), max_size=20))
def test_an_id_that_is_read_is_built_in_the_same_way(transactional_id: str) -> None:
    found = read_id(transactional_id)
    if found is not None:
        owner, slot = found
        built = owner.driver_id if slot is None else owner.task_id(slot)
        assert built == transactional_id
        assert checked_owner(*owner) == owner


@pytest.mark.parametrize(
    "transactional_id",
    [
        "", "pykafka", "pykafka/a", "pykafka//t", "pykafka/a/", "/a/t", "pykafka/a/t/", "p/a/t/0",
        "p/a/t/0.0/0.0", "p/a/t/00.0", "p/a/t/0.-1", "p/a/t/0.01", "p/a/t/0.0\n", "p/a/t/٣.0",
        "p/a/t/2147483648.0", "p/%41/t", "p/%2f/t", "p/%/t", "p p/a/t", "p/a/t t", "p/a/..",
        "p/a/t\n", f"p/{'a' * 201}/t", f"{'p' * 101}/a/t",
    ],
)  # fmt: skip
def test_an_id_of_another_form_is_read_as_nobodys(transactional_id: str) -> None:
    assert read_id(transactional_id) is None


def test_the_driver_and_the_tasks_have_the_ids_that_acls_and_operators_see() -> None:
    owner = checked_owner("pykafka", "flights/2013 100%", "flights.v1")
    assert owner.driver_id == "pykafka/flights%2F2013 100%25/flights.v1"
    assert owner.task_id(TaskSlot(12, 3)) == "pykafka/flights%2F2013 100%25/flights.v1/12.3"


@pytest.mark.parametrize(
    ("prefix", "app_id", "target", "said"),
    [
        ("", "a", "t", "txnIdPrefix is '': expected 1 to 100 of the characters"),
        ("a/b", "a", "t", "txnIdPrefix is 'a/b'"),
        ("p\n", "a", "t", "txnIdPrefix is"),
        ("p" * 101, "a", "t", "expected 1 to 100"),
        ("p", "", "t", "txnAppId has 0 bytes of UTF-8: expected 1 to 200"),
        ("p", "é" * 101, "t", "txnAppId has 202 bytes of UTF-8: expected 1 to 200"),
        ("p", "\ud800", "t", "cannot be encoded as UTF-8"),
        ("p", "a", "b/c", "the target is 'b/c': expected the name of a topic, or *"),
    ],
)
def test_what_no_owner_can_have_is_refused(
    prefix: str, app_id: str, target: str, said: str
) -> None:
    with pytest.raises(ConfigException) as raised:
        checked_owner(prefix, app_id, target)
    assert said in str(raised.value)


def test_the_longest_names_are_taken() -> None:
    owner = checked_owner("p" * 100, "%" * 200, "t" * 249)
    assert read_id(owner.task_id(TaskSlot(2**31 - 1, 0))) is not None


def test_messages_name_the_options_that_an_owner_comes_from() -> None:
    assert str(checked_owner("pykafka", "a", "t")) == "txnAppId 'a' (topic t)"
    assert str(checked_owner("p", "a", ANY_TOPIC)) == (
        "txnAppId 'a' (topics of the topic column, txnIdPrefix 'p')"
    )


@pytest.mark.parametrize(
    "same",
    ["/data/c", "/data//c/", "file:/data/c", "file:///data/c", "/data/./b/../c", "FILE:/data/c"],
)
def test_spellings_of_one_checkpoint_are_one_application(same: str) -> None:
    assert app_id_of_checkpoint(same) == app_id_of_checkpoint("/data/c")


def test_a_slash_after_a_bucket_makes_no_other_application() -> None:
    assert app_id_of_checkpoint("s3a://bucket") == app_id_of_checkpoint("s3a://bucket/")


def test_other_checkpoints_are_other_applications() -> None:
    others = [
        "/data/c", "/data/d", "hdfs://one/data/c", "hdfs://two/data/c", "s3a://one/data/c",
        "data/c", "/data/c?x", "/data/c#x", "/data/c:x", "dbfs:/data/c",
    ]  # fmt: skip
    ids = {app_id_of_checkpoint(each) for each in others}
    assert len(ids) == len(others)
    assert all(read_id(f"p/{each}/t") is not None for each in ids)
