"""The transaction's state machine, with a test as sender, coordinator and clock."""

from __future__ import annotations

from collections.abc import Callable
from traceback import walk_tb

import pytest
from support.pure.pure_transactions import (
    EVERY_VERSION,
    GROUP,
    OFFSETS,
    PARTITION,
    PureTransactions,
)
from support.pure.transaction_answers import COORDINATOR, versions_of

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.errors import IllegalStateException, KafkaException
from spark_kafka_sink.model import ConsumerGroupMetadata, ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.producer.error_actions import Call
from spark_kafka_sink.producer.transactions.manager import TransactionManager
from spark_kafka_sink.producer.transactions.requests import Priority
from spark_kafka_sink.producer.transactions.state import TRANSITIONS, TransactionState
from spark_kafka_sink.wire.messages import InitProducerIdRequest
from spark_kafka_sink.wire.transaction_messages import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    TxnOffsetCommitRequest,
)

S = TransactionState

# What a call asks for: a state, or to send something in the state it needs.
ASKS: dict[str, tuple[Callable[[TransactionManager], object], TransactionState]] = {
    "initialize": (lambda m: m.initialize(), S.INITIALIZING),
    "begin": (lambda m: m.begin(), S.IN_TRANSACTION),
    "begin_commit": (lambda m: m.begin_commit(), S.COMMITTING),
    "begin_abort": (lambda m: m.begin_abort(), S.ABORTING),
}
SENDS: dict[str, Callable[[TransactionManager], object]] = {
    "append": lambda m: m.check_in_transaction("append"),
    "send_offsets": lambda m: m.send_offsets(OFFSETS, GROUP),
}


# -- the table ------------------------------------------------------------------------------------


@EVERY_VERSION
@pytest.mark.parametrize("call", ASKS)
@pytest.mark.parametrize("state", TransactionState)
def test_a_call_moves_the_state_as_the_table_says_or_raises_and_changes_nothing(
    state: TransactionState, call: str, version: int
) -> None:
    transactions = PureTransactions(version).in_state(state)
    ask, target = ASKS[call]
    if target is state and target in (S.INITIALIZING, S.COMMITTING, S.ABORTING):
        assert ask(transactions.manager) is ask(transactions.manager), "the call was not resumed"
    elif target in TRANSITIONS[state] and not _waits(state):
        ask(transactions.manager)
        assert transactions.state is target
        return
    else:
        before = transactions.manager.error
        with pytest.raises(KafkaException):
            ask(transactions.manager)
        assert transactions.manager.error is before
    assert transactions.state is state


def _waits(state: TransactionState) -> bool:
    """Whether a call is pending, so that another one is rejected."""
    return state in (S.INITIALIZING, S.COMMITTING, S.ABORTING)


@EVERY_VERSION
@pytest.mark.parametrize("send", SENDS)
@pytest.mark.parametrize("state", TransactionState)
def test_records_and_offsets_are_taken_in_a_transaction_only(
    state: TransactionState, send: str, version: int
) -> None:
    transactions = PureTransactions(version).in_state(state)
    if state is S.IN_TRANSACTION:
        SENDS[send](transactions.manager)
    else:
        with pytest.raises(KafkaException):
            SENDS[send](transactions.manager)
    assert transactions.state is state


@EVERY_VERSION
@pytest.mark.parametrize("state", [state for state in S if state is not S.INITIALIZING])
def test_records_that_fail_where_no_records_can_be_are_fatal(
    state: TransactionState, version: int
) -> None:
    transactions = PureTransactions(version).in_state(state)
    before = transactions.manager.error
    error = transactions.fail_a_batch(KafkaException("refused"))
    if state in (S.ABORTING, S.FATAL_ERROR):
        assert (transactions.state, transactions.manager.error) == (state, before)
    elif S.ABORTABLE_ERROR in TRANSITIONS[state]:
        assert transactions.state is S.ABORTABLE_ERROR
        assert transactions.manager.error is (before or error)
    else:
        assert transactions.state is S.FATAL_ERROR


@pytest.mark.parametrize("state", [S.READY, S.IN_TRANSACTION, S.COMMITTING])
def test_an_answer_that_the_table_does_not_allow_is_fatal(state: TransactionState) -> None:
    transactions = PureTransactions()
    result = transactions.manager.initialize()
    request = transactions.take_until(Call.INIT_PRODUCER_ID)
    transactions.manager._state = state
    transactions.answer(request)
    assert result.is_done
    if S.READY in TRANSITIONS[state]:
        assert transactions.state is S.READY
    else:
        assert transactions.state is S.FATAL_ERROR
        assert isinstance(result.error, IllegalStateException)


def test_after_a_fatal_error_every_call_raises_it_and_every_wait_has_ended() -> None:
    transactions = PureTransactions().writing()
    result = transactions.manager.begin_commit()
    error = KafkaException("it is over")
    transactions.manager.give_up(error)
    assert (result.is_done, result.error) == (True, error)
    result.is_acknowledged = True
    for ask, _ in [*ASKS.values()] * 20:
        with pytest.raises(KafkaException) as raised:
            ask(transactions.manager)
        assert raised.value is error
        assert len(list(walk_tb(error.__traceback__))) < 10, "it grows with each call"


# -- the way of a transaction ---------------------------------------------------------------------


@EVERY_VERSION
def test_a_producer_id_is_asked_of_the_transaction_s_coordinator(version: int) -> None:
    transactions = PureTransactions(version)
    result = transactions.manager.initialize()
    find, init = transactions.run()
    assert (find.call, transactions.manager.queue.node_id(find)) == (Call.FIND_COORDINATOR, None)
    assert (init.call, transactions.manager.queue.node_id(init)) == (
        Call.INIT_PRODUCER_ID,
        COORDINATOR,
    )
    assert init.message == InitProducerIdRequest(
        transactional_id="tid", transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
    )
    assert (result.is_done, result.error) == (True, None)
    assert transactions.sequences.producer == ProducerIdAndEpoch(4000, 0)
    assert transactions.manager.queue.coordinators.nodes[COORDINATOR].port == 9001


@pytest.mark.parametrize("version", [0, 1])
def test_in_version_1_partitions_are_added_first_and_the_epoch_stays(version: int) -> None:
    transactions = PureTransactions(version).begun()
    manager = transactions.manager
    partitions = [TopicPartition("t", 1), TopicPartition("s", 0), TopicPartition("t", 0)]
    assert not any(manager.may_send(each) for each in partitions)
    (add,) = transactions.run()
    assert isinstance(add.message, AddPartitionsToTxnRequest)
    topics = {t.name: t.partitions for t in add.message.v3_and_below_topics}
    assert topics == {"s": [0], "t": [0, 1]}
    assert all(manager.may_send(each) for each in partitions)
    assert manager.max_produce_version == 11
    result = manager.begin_commit()
    end = transactions.take()
    assert end.max_version == 4
    transactions.answer(end)
    assert transactions.finish(result) == []
    assert transactions.state is S.READY
    assert transactions.sequences.producer == ProducerIdAndEpoch(4000, 0)
    manager.begin()
    assert not manager.may_send(PARTITION), "a partition stayed from the transaction before"


def test_in_version_2_brokers_add_partitions_and_the_epoch_comes_with_the_end() -> None:
    transactions = PureTransactions(2).begun()
    assert transactions.manager.may_send(PARTITION)
    assert transactions.run() == []
    assert transactions.manager.max_produce_version is None
    result = transactions.manager.begin_commit()
    end = transactions.take()
    assert (end.call, end.max_version) == (Call.COMMIT, None)
    assert end.message == EndTxnRequest(
        transactional_id="tid", producer_id=4000, producer_epoch=0, committed=True
    )
    transactions.answer(end)
    assert transactions.finish(result) == []
    assert transactions.sequences.producer == ProducerIdAndEpoch(4000, 1)


@EVERY_VERSION
def test_a_transaction_in_which_nothing_was_sent_ends_without_a_request(version: int) -> None:
    transactions = PureTransactions(version).begun()
    assert transactions.finish(transactions.manager.begin_commit()) == []
    transactions.manager.begin()
    assert transactions.finish(transactions.manager.begin_abort()) == []
    assert transactions.state is S.READY
    assert transactions.coordinator.ended == []


@EVERY_VERSION
def test_the_end_waits_for_records_and_comes_after_what_they_need(version: int) -> None:
    transactions = PureTransactions(version).writing()
    manager = transactions.manager
    manager.begin_commit()
    assert manager.due(0.0, has_incomplete=True) is None
    # A last record may be for a partition that was not in the transaction yet.
    manager.may_send(TopicPartition("t", 1))
    calls = [request.call for request in transactions.run()]
    assert calls == ([Call.COMMIT] if version == 2 else [Call.ADD_PARTITIONS_TO_TXN, Call.COMMIT])


LOOSE = pytest.mark.parametrize(("loose", "some"), [("has_loose_rows", True), ("open_appends", 1)])


@EVERY_VERSION
@LOOSE
@pytest.mark.parametrize("end", ["begin_commit", "begin_abort"])
def test_the_end_waits_until_all_rows_are_in_batches(
    end: str, loose: str, some: int, version: int
) -> None:
    transactions = PureTransactions(version).writing()
    manager = transactions.manager
    result = getattr(manager, end)()
    setattr(manager, loose, some)
    assert manager.due(0.0, has_incomplete=False) is None
    setattr(manager, loose, type(some)())
    assert len(transactions.finish(result)) == 1


@LOOSE
def test_a_row_that_finds_no_place_in_a_batch_while_a_commit_begins_fails_it(
    loose: str, some: int
) -> None:
    transactions = PureTransactions().writing()
    manager = transactions.manager
    result = manager.begin_commit()
    setattr(manager, loose, some)
    error = KafkaException("the partitioner raised")
    manager.record_refused(error)
    setattr(manager, loose, type(some)())
    assert transactions.run() == []
    assert result.error is error
    result.is_acknowledged = True
    assert transactions.finish(manager.begin_abort()) == [Call.ABORT]


def test_partitions_are_added_by_their_own_answer_only() -> None:
    transactions = PureTransactions(1).begun()
    first, second, third = (TopicPartition("t", number) for number in range(3))
    transactions.manager.may_send(first)
    adding = transactions.take()
    transactions.manager.may_send(second)
    transactions.manager.may_send(third)
    transactions.answer(adding)
    assert transactions.manager.may_send(first)
    assert not transactions.manager.may_send(second)
    (request,) = transactions.run()
    assert isinstance(request.message, AddPartitionsToTxnRequest)
    assert request.message.v3_and_below_topics[0].partitions == [1, 2]
    assert transactions.manager.may_send(third)


@EVERY_VERSION
def test_offsets_go_to_the_group_s_coordinator(version: int) -> None:
    transactions = PureTransactions(version).begun()
    result = transactions.manager.send_offsets(OFFSETS, GROUP)
    requests = transactions.run()
    added = [] if version == 2 else [Call.ADD_OFFSETS_TO_TXN]
    calls = [*added, Call.FIND_COORDINATOR, Call.TXN_OFFSET_COMMIT]
    assert [request.call for request in requests] == calls
    commit = requests[-1]
    assert commit.max_version == (None if version == 2 else 4)
    assert commit.coordinator is not None
    assert tuple(commit.coordinator) == (0, "group")
    assert isinstance(commit.message, TxnOffsetCommitRequest)
    assert commit.min_version == 3
    assert (commit.message.generation_id, commit.message.member_id) == (3, "member")
    assert commit.message.group_instance_id == "instance"
    (partition,) = commit.message.topics[0].partitions
    assert (partition.partition_index, partition.committed_offset) == (1, 42)
    assert partition.committed_metadata == "so far"
    assert (result.is_done, result.error) == (True, None)
    assert transactions.finish(transactions.manager.begin_commit()) == [Call.COMMIT]


def test_offsets_of_nobody_in_particular_can_be_told_to_any_broker() -> None:
    transactions = PureTransactions(0).begun()
    transactions.manager.send_offsets(OFFSETS, ConsumerGroupMetadata("group"))
    assert transactions.take_until(Call.TXN_OFFSET_COMMIT).min_version == 0


def test_requests_wait_in_the_order_of_their_priorities() -> None:
    assert list(Priority) == sorted(Priority)
    assert [priority.name for priority in sorted(Priority)] == [
        "FIND_COORDINATOR", "INIT_PRODUCER_ID", "ADD_PARTITIONS_OR_OFFSETS", "END_TXN",
        "EPOCH_BUMP",
    ]  # fmt: skip


# -- waits and retries ----------------------------------------------------------------------------


def test_a_call_that_timed_out_is_resumed_by_the_same_call_and_stands_before_others() -> None:
    transactions = PureTransactions().ready()
    manager = transactions.manager
    manager.begin()
    manager.may_send(PARTITION)
    first = manager.begin_commit()
    for ask in (manager.begin_abort, manager.begin, manager.initialize):
        with pytest.raises(IllegalStateException, match="call commit_transaction again"):
            ask()
    with pytest.raises(IllegalStateException, match="call commit_transaction again"):
        manager.check_in_transaction("append")
    transactions.run()
    assert first.is_done
    with pytest.raises(IllegalStateException, match="call commit_transaction again"):
        manager.begin()
    assert manager.begin_commit() is first
    first.is_acknowledged = True
    manager.begin()


def test_a_lost_request_is_looked_up_and_sent_again_after_growing_waits() -> None:
    transactions = PureTransactions()
    transactions.manager.initialize()
    request = transactions.take_until(Call.INIT_PRODUCER_ID)
    for longest in (0.12, 0.24, 0.48):
        transactions.lose(request)
        look_up = transactions.take()
        assert look_up.call is Call.FIND_COORDINATOR
        transactions.answer(look_up)
        due_at = transactions.manager.queue.next_due_at()
        assert longest / 2 < due_at - transactions.now <= longest
        assert transactions.manager.due(due_at - 0.001, has_incomplete=False) is None
        transactions.now = due_at
        assert transactions.take() is request
    transactions.answer(request)
    assert transactions.state is S.READY


def test_a_coordinator_that_went_down_is_looked_up_again() -> None:
    transactions = PureTransactions().writing()
    transactions.manager.queue.coordinators.node_down(COORDINATOR)
    result = transactions.manager.begin_commit()
    assert transactions.finish(result) == [Call.FIND_COORDINATOR, Call.COMMIT]


def test_the_first_partitions_wait_20_ms_for_the_transaction_before() -> None:
    transactions = PureTransactions(1).begun()
    transactions.manager.may_send(PARTITION)
    request = transactions.take()
    transactions.answer(request, codes.CONCURRENT_TRANSACTIONS)
    assert transactions.manager.queue.next_due_at() == pytest.approx(0.020)
    transactions.now = 0.020
    transactions.answer(transactions.take())
    transactions.manager.may_send(TopicPartition("t", 1))
    transactions.answer(transactions.take(), codes.CONCURRENT_TRANSACTIONS)
    assert transactions.manager.queue.next_due_at() > 0.020 + 0.05


def test_offsets_are_not_committed_before_their_group_is_added_however_often_that_is_tried() -> (
    None
):
    transactions = PureTransactions(1).begun()
    transactions.manager.send_offsets(OFFSETS, GROUP)
    add = transactions.take()
    transactions.answer(add, codes.CONCURRENT_TRANSACTIONS)
    transactions.now = 1.0
    assert [request.call for request in transactions.run()] == [
        Call.ADD_OFFSETS_TO_TXN, Call.FIND_COORDINATOR, Call.TXN_OFFSET_COMMIT,
    ]  # fmt: skip


# -- transaction.version --------------------------------------------------------------------------


def test_the_broker_with_the_newest_view_of_the_features_decides() -> None:
    transactions = PureTransactions(2)
    behind = versions_of(1)
    behind.finalized_features_epoch = 9
    transactions.manager.queue.coordinators.node_ready(2, behind)
    assert transactions.begun().manager.may_send(PARTITION)


def test_an_upgrade_counts_from_the_next_transaction_on_which_has_a_new_epoch() -> None:
    transactions = PureTransactions(1).writing()
    ahead = versions_of(2)
    ahead.finalized_features_epoch = 11
    transactions.manager.queue.coordinators.node_ready(2, ahead)
    assert transactions.manager.max_produce_version == 11
    result = transactions.manager.begin_commit()
    end, bump = transactions.run()
    assert (end.max_version, bump.call) == (4, Call.INIT_PRODUCER_ID)
    assert transactions.finish(result) == []
    assert transactions.sequences.producer == ProducerIdAndEpoch(4000, 1)
    assert transactions.manager.max_produce_version is None
    transactions.manager.begin()
    assert transactions.manager.may_send(PARTITION)
    transactions.manager.begin_commit()
    (end,) = transactions.run()
    assert end.max_version is None
