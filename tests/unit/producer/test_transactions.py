"""The transaction's state machine, with a test as sender, coordinator and clock."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.error_tables import CALLS
from support.pure_transactions import GROUP, OFFSETS, PARTITION, PureTransactions
from support.transaction_answers import COORDINATOR, versions_of

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.error_codes import error_code
from spark_kafka_sink.errors import (
    CommitFailedException,
    IllegalStateException,
    KafkaException,
    OperationNotAttemptedException,
    ProducerFencedException,
    TopicAuthorizationException,
    TransactionalIdAuthorizationException,
    UnsupportedVersionException,
)
from spark_kafka_sink.model import (
    ConsumerGroupMetadata,
    Node,
    ProducerIdAndEpoch,
    TopicPartition,
)
from spark_kafka_sink.producer.error_actions import Action, Call
from spark_kafka_sink.producer.producer_batch import ProducerBatch
from spark_kafka_sink.producer.transaction_requests import (
    CoordinatorKey,
    Priority,
    TransactionalRequest,
    TransactionalResult,
)
from spark_kafka_sink.producer.transaction_state import TRANSITIONS, TransactionState
from spark_kafka_sink.producer.transactions import TransactionManager
from spark_kafka_sink.records.compression import NO_COMPRESSION
from spark_kafka_sink.wire.messages import InitProducerIdRequest
from spark_kafka_sink.wire.transaction_messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    TxnOffsetCommitRequest,
)

S = TransactionState
BOTH_VERSIONS = pytest.mark.parametrize("version", [0, 1, 2], ids="transaction.version={}".format)

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


@BOTH_VERSIONS
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
    """Whether a call is under way, so that another one is refused."""
    return state in (S.INITIALIZING, S.COMMITTING, S.ABORTING)


@BOTH_VERSIONS
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


@BOTH_VERSIONS
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
    for ask, _ in ASKS.values():
        with pytest.raises(KafkaException) as raised:
            ask(transactions.manager)
        assert raised.value is error


# -- the way of a transaction ---------------------------------------------------------------------


@BOTH_VERSIONS
def test_a_producer_id_is_asked_of_the_transaction_s_coordinator(version: int) -> None:
    transactions = PureTransactions(version)
    result = transactions.manager.initialize()
    find, init = transactions.run()
    assert (find.call, transactions.manager.node_id(find)) == (Call.FIND_COORDINATOR, None)
    assert (init.call, transactions.manager.node_id(init)) == (Call.INIT_PRODUCER_ID, COORDINATOR)
    assert init.message == InitProducerIdRequest(
        transactional_id="tid", transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
    )
    assert (result.is_done, result.error) == (True, None)
    assert transactions.sequences.producer == ProducerIdAndEpoch(4000, 0)
    assert transactions.manager.coordinator_nodes[COORDINATOR].port == 9001


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


@BOTH_VERSIONS
def test_a_transaction_in_which_nothing_was_sent_ends_without_a_request(version: int) -> None:
    transactions = PureTransactions(version).begun()
    assert transactions.finish(transactions.manager.begin_commit()) == []
    transactions.manager.begin()
    assert transactions.finish(transactions.manager.begin_abort()) == []
    assert transactions.state is S.READY
    assert transactions.coordinator.ended == []


@BOTH_VERSIONS
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


@BOTH_VERSIONS
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


@BOTH_VERSIONS
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


# -- errors ---------------------------------------------------------------------------------------


def _asked(call: Call, version: int, init: int = 5) -> tuple[PureTransactions, TransactionalResult]:
    """Bring a producer to where `call` is the next request, and give who waits for it."""
    transactions = PureTransactions(version, init)
    if call in (Call.INIT_PRODUCER_ID, Call.FIND_COORDINATOR):
        return transactions, transactions.manager.initialize()
    if call is Call.ADD_PARTITIONS_TO_TXN:
        transactions.begun().manager.may_send(PARTITION)
        return transactions, TransactionalResult("nobody waits")
    if call is Call.COMMIT:
        return transactions, transactions.writing().manager.begin_commit()
    if call is Call.ABORT:
        return transactions, transactions.writing().manager.begin_abort()
    return transactions, transactions.writing().manager.send_offsets(OFFSETS, GROUP)


ROWS = [row for row in CALLS if row[2] is not Action.SUCCEED]


@BOTH_VERSIONS
@pytest.mark.parametrize(
    ("call", "code", "action"), ROWS, ids=[f"{c.name}-{error_code(n).name}" for c, n, _ in ROWS]
)
def test_an_error_leads_to_what_the_table_says(
    call: Call, code: int, action: Action, version: int
) -> None:
    if version == 2 and call in (Call.ADD_PARTITIONS_TO_TXN, Call.ADD_OFFSETS_TO_TXN):
        return  # these are never asked there
    transactions, result = _asked(call, version)
    request = transactions.take_until(call)
    state = transactions.state
    transactions.answer(request, code)
    if action in (Action.RETRY, Action.LOOK_UP):
        assert transactions.manager.due(transactions.now, has_incomplete=False) is not request
        transactions.now = 60.0
        if action is Action.LOOK_UP:
            transactions.answer(transactions.take_until(Call.FIND_COORDINATOR))
        assert transactions.take() is request
        assert (transactions.state, result.is_done) == (state, False)
        return
    after = [each.call for each in transactions.run()]
    if call is Call.ABORT and action is Action.ABORTABLE_IF_BUMP:
        assert (after, transactions.state) == ([Call.INIT_PRODUCER_ID], S.READY)
        assert (result.is_done, result.error) == (True, None)
        return
    not_authorized = call is Call.INIT_PRODUCER_ID and code in (31, 53)
    expected = S.FATAL_ERROR
    if action in (Action.ABORTABLE, Action.ABORTABLE_IF_BUMP):
        expected = S.ABORTABLE_ERROR
        if not_authorized:
            expected = S.UNINITIALIZED
    assert transactions.state is expected
    if result.operation != "nobody waits":
        assert isinstance(result.error, KafkaException)
        assert error_code(code).name in str(result.error)
    if action is Action.FENCED:
        assert isinstance(transactions.manager.error, ProducerFencedException)


def test_a_producer_id_that_is_not_granted_may_be_asked_for_again() -> None:
    transactions = PureTransactions()
    result = transactions.manager.initialize()
    transactions.answer(transactions.take_until(Call.INIT_PRODUCER_ID), 53)
    assert isinstance(result.error, TransactionalIdAuthorizationException)
    assert "grant WRITE and DESCRIBE" in str(result.error)
    result.is_acknowledged = True
    assert transactions.finish(transactions.manager.initialize()) == [Call.INIT_PRODUCER_ID]
    assert transactions.state is S.READY


@pytest.mark.parametrize("version", [0, 1])
def test_in_version_1_the_client_raises_the_epoch_after_an_error(version: int) -> None:
    transactions = PureTransactions(version).writing()
    error = transactions.fail_a_batch()
    for ask in (transactions.manager.begin_commit, transactions.manager.begin):
        with pytest.raises(
            KafkaException, match=r"can only be aborted.*a record was refused"
        ) as no:
            ask()
        assert no.value.__cause__ is error
    result = transactions.manager.begin_abort()
    end, bump = transactions.run()
    assert (end.call, transactions.coordinator.ended) == (Call.ABORT, [False])
    assert bump.priority is Priority.EPOCH_BUMP
    assert isinstance(bump.message, InitProducerIdRequest)
    assert (bump.message.producer_id, bump.message.producer_epoch) == (4000, 0)
    assert transactions.finish(result) == []
    assert transactions.sequences.producer == ProducerIdAndEpoch(4000, 1)
    assert (transactions.state, transactions.manager.error) == (S.READY, None)
    transactions.manager.begin()


def test_in_version_2_the_end_of_the_transaction_raises_the_epoch_also_after_an_error() -> None:
    transactions = PureTransactions(2).writing()
    transactions.fail_a_batch()
    assert transactions.finish(transactions.manager.begin_abort()) == [Call.ABORT]
    assert transactions.sequences.producer == ProducerIdAndEpoch(4000, 1)
    assert (transactions.state, transactions.manager.error) == (S.READY, None)


def test_brokers_that_cannot_raise_an_epoch_make_lost_records_and_lost_ids_fatal() -> None:
    transactions = PureTransactions(0, init_producer_id=2).writing()
    transactions.fail_a_batch()
    assert transactions.state is S.FATAL_ERROR
    transactions, _ = _asked(Call.COMMIT, 0, init=2)
    transactions.answer(transactions.take_until(Call.COMMIT), codes.UNKNOWN_PRODUCER_ID)
    assert transactions.state is S.FATAL_ERROR


@pytest.mark.parametrize("losing", ["rebootstrap", "death"])
def test_an_error_is_abortable_also_while_the_coordinator_is_lost(losing: str) -> None:
    transactions = PureTransactions(1).writing()
    manager = transactions.manager
    if losing == "rebootstrap":
        manager.forget_coordinators()
    else:
        manager.node_down(COORDINATOR)
        found = Node(id=3, host="h", port=9003)
        manager._queue.coordinators.learn(CoordinatorKey(1, "tid"), found)
    transactions.fail_a_batch()
    assert transactions.state is S.ABORTABLE_ERROR
    manager.forget_coordinators()
    calls = transactions.finish(manager.begin_abort())
    assert calls == [Call.FIND_COORDINATOR, Call.ABORT, Call.INIT_PRODUCER_ID]
    assert transactions.sequences.producer == ProducerIdAndEpoch(4000, 1)


def test_a_second_error_does_not_undo_that_the_epoch_is_to_be_raised() -> None:
    transactions = PureTransactions(1).writing()
    transactions.fail_a_batch()
    transactions.manager.node_ready(COORDINATOR, versions_of(1, init_producer_id=2))
    unsent = ProducerBatch(PARTITION, NO_COMPRESSION, 0, 0.0)
    transactions.manager.batch_failed(unsent, KafkaException("it was never sent"), Action.FAIL)
    calls = transactions.finish(transactions.manager.begin_abort())
    assert calls == [Call.ABORT, Call.INIT_PRODUCER_ID]
    assert transactions.sequences.producer == ProducerIdAndEpoch(4000, 1)


def test_a_record_lost_during_an_abort_has_the_client_raise_the_epoch() -> None:
    transactions = PureTransactions(1).writing()
    result = transactions.manager.begin_abort()
    transactions.fail_a_batch()
    assert transactions.state is S.ABORTING
    assert transactions.finish(result) == [Call.ABORT, Call.INIT_PRODUCER_ID]
    assert transactions.sequences.producer == ProducerIdAndEpoch(4000, 1)


@BOTH_VERSIONS
def test_a_commit_is_not_sent_once_records_have_failed(version: int) -> None:
    transactions = PureTransactions(version).writing()
    result = transactions.manager.begin_commit()
    assert transactions.manager.due(0.0, has_incomplete=True) is None
    error = transactions.fail_a_batch()
    assert transactions.run() == []
    assert (result.is_done, result.error) == (True, error)
    result.is_acknowledged = True
    transactions.finish(transactions.manager.begin_abort())
    assert transactions.coordinator.ended == [False]


def test_no_end_is_sent_where_adding_the_only_partition_was_refused() -> None:
    transactions = PureTransactions(1).begun()
    transactions.manager.may_send(PARTITION)
    transactions.answer(transactions.take(), codes.TOPIC_AUTHORIZATION_FAILED)
    assert "t-0" in str(transactions.manager.error)
    assert not transactions.manager.may_send(PARTITION)
    # What the broker has of a request that failed need not be known: a new epoch ends all of it.
    calls = transactions.finish(transactions.manager.begin_abort())
    assert calls == [Call.INIT_PRODUCER_ID]
    assert transactions.coordinator.ended == []


def test_an_abort_adds_no_partitions_any_more() -> None:
    transactions = PureTransactions(1).begun()
    transactions.manager.may_send(PARTITION)
    assert transactions.finish(transactions.manager.begin_abort()) == []


def _adding_refused(*refusals: int) -> tuple[PureTransactions, TransactionalRequest]:
    """Have two partitions refused, of topics "a" and "b"; give the request, too."""
    transactions = PureTransactions(1).begun()
    for name in ("a", "b"):
        transactions.manager.may_send(TopicPartition(name, 0))
    request = transactions.take()
    response = transactions.coordinator.answer(request)
    assert isinstance(response, AddPartitionsToTxnResponse)
    for added, code in zip(response.results_by_topic_v3_and_below, refusals, strict=True):
        added.results_by_partition[0].partition_error_code = code
    transactions.manager.answered(request, response, COORDINATOR, transactions.now)
    return transactions, request


def _both_ways(*codes_of_two: tuple[int, int]) -> list[tuple[int, int]]:
    return [order for one, other in codes_of_two for order in ((one, other), (other, one))]


NOT_ATTEMPTED = codes.OPERATION_NOT_ATTEMPTED
"""What a broker says of every partition beside the one that it has something against."""


@pytest.mark.parametrize(
    "refusals", _both_ways((NOT_ATTEMPTED, 3), (NOT_ATTEMPTED, 16), (NOT_ATTEMPTED, 51), (29, 3))
)
def test_all_partitions_are_asked_for_again_while_that_may_help_one(
    refusals: tuple[int, int],
) -> None:
    transactions, request = _adding_refused(*refusals)
    assert (transactions.state, transactions.manager.error) == (S.IN_TRANSACTION, None)
    assert transactions.manager.due(transactions.now, has_incomplete=False) is not request
    # The transaction before is nearly done where it is in the way: that wait is a short one.
    transactions.now = 0.020 if 51 in refusals else 60.0
    again = transactions.run()
    looked_up = [Call.FIND_COORDINATOR] if 16 in refusals else []
    assert [each.call for each in again] == [*looked_up, Call.ADD_PARTITIONS_TO_TXN]
    assert again[-1] is request
    assert all(transactions.manager.may_send(TopicPartition(name, 0)) for name in ("a", "b"))


@pytest.mark.parametrize("refusals", _both_ways((NOT_ATTEMPTED, 29), (87, 29)))
def test_a_topic_that_may_not_be_written_is_named_whatever_its_neighbours_got(
    refusals: tuple[int, int],
) -> None:
    transactions, _ = _adding_refused(*refusals)
    denied = "ab"[refusals.index(29)]
    error = transactions.manager.error
    assert transactions.state is S.ABORTABLE_ERROR
    assert isinstance(error, TopicAuthorizationException)
    assert error.topic == denied
    assert f"for {denied}-0;" in str(error), "no partition, or no advice"


@pytest.mark.parametrize("refusals", _both_ways((NOT_ATTEMPTED, 90), (3, 90), (29, 90)))
def test_a_fenced_producer_is_so_whatever_else_the_answer_says(refusals: tuple[int, int]) -> None:
    transactions, _ = _adding_refused(*refusals)
    assert transactions.state is S.FATAL_ERROR
    assert isinstance(transactions.manager.error, ProducerFencedException)


def test_partitions_that_were_not_attempted_for_no_reason_end_the_transaction() -> None:
    transactions, _ = _adding_refused(NOT_ATTEMPTED, 0)
    assert transactions.state is S.ABORTABLE_ERROR
    assert isinstance(transactions.manager.error, OperationNotAttemptedException)


def test_offsets_of_a_member_that_was_replaced_end_the_transaction_only() -> None:
    transactions = PureTransactions(2).begun()
    result = transactions.manager.send_offsets(OFFSETS, GROUP)
    transactions.answer(transactions.take_until(Call.TXN_OFFSET_COMMIT), 22)
    assert isinstance(result.error, CommitFailedException)
    assert "read-1" in str(result.error)
    transactions.finish(transactions.manager.begin_abort())
    assert transactions.state is S.READY


@pytest.mark.parametrize("denied_first", [True, False])
def test_an_abort_does_not_wait_for_offsets_of_a_group_that_is_denied(
    *, denied_first: bool
) -> None:
    transactions = PureTransactions().writing()
    result = transactions.manager.send_offsets(OFFSETS, GROUP)
    look_up = transactions.take_until(Call.FIND_COORDINATOR)
    if denied_first:
        transactions.answer(look_up, codes.GROUP_AUTHORIZATION_FAILED)
    abort = transactions.manager.begin_abort()
    if not denied_first:
        transactions.answer(look_up, codes.GROUP_AUTHORIZATION_FAILED)
    assert transactions.finish(abort) == [Call.ABORT]
    assert result.is_done
    assert result.error is not None
    assert transactions.state is S.READY


def test_offsets_that_cannot_be_written_end_the_transaction_only() -> None:
    transactions = PureTransactions().writing()
    result = transactions.manager.send_offsets(OFFSETS, GROUP)
    request = transactions.take_until(Call.TXN_OFFSET_COMMIT)
    transactions.lose(request, codes.INVALID_REQUEST)
    assert result.error is not None
    assert "TxnOffsetCommit failed: connection lost" in str(result.error)
    assert transactions.state == S.ABORTABLE_ERROR
    assert transactions.finish(transactions.manager.begin_abort()) == [Call.ABORT]


def test_a_broker_without_a_usable_version_is_fatal() -> None:
    transactions = PureTransactions()
    result = transactions.manager.initialize()
    transactions.lose(transactions.take(), codes.UNSUPPORTED_VERSION)
    assert isinstance(result.error, UnsupportedVersionException)
    assert transactions.state is S.FATAL_ERROR


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
        due_at = transactions.manager.next_due_at()
        assert longest / 2 < due_at - transactions.now <= longest
        assert transactions.manager.due(due_at - 0.001, has_incomplete=False) is None
        transactions.now = due_at
        assert transactions.take() is request
    transactions.answer(request)
    assert transactions.state is S.READY


def test_a_coordinator_that_went_down_is_looked_up_again() -> None:
    transactions = PureTransactions().writing()
    transactions.manager.node_down(COORDINATOR)
    result = transactions.manager.begin_commit()
    assert transactions.finish(result) == [Call.FIND_COORDINATOR, Call.COMMIT]


def test_the_first_partitions_wait_20_ms_for_the_transaction_before() -> None:
    transactions = PureTransactions(1).begun()
    transactions.manager.may_send(PARTITION)
    request = transactions.take()
    transactions.answer(request, codes.CONCURRENT_TRANSACTIONS)
    assert transactions.manager.next_due_at() == pytest.approx(0.020)
    transactions.now = 0.020
    transactions.answer(transactions.take())
    transactions.manager.may_send(TopicPartition("t", 1))
    transactions.answer(transactions.take(), codes.CONCURRENT_TRANSACTIONS)
    assert transactions.manager.next_due_at() > 0.020 + 0.05


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
    transactions.manager.node_ready(2, behind)
    assert transactions.begun().manager.may_send(PARTITION)


def test_an_upgrade_counts_from_the_next_transaction_on_which_has_a_new_epoch() -> None:
    transactions = PureTransactions(1).writing()
    ahead = versions_of(2)
    ahead.finalized_features_epoch = 11
    transactions.manager.node_ready(2, ahead)
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
