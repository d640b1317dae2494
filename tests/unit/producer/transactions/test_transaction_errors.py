"""Errors of a transaction: what each leads to, and what the next transaction begins with."""

from __future__ import annotations

import pytest
from support.oracles.error_tables import CALLS
from support.pure.pure_transactions import (
    EVERY_VERSION,
    GROUP,
    OFFSETS,
    PARTITION,
    PureTransactions,
)
from support.pure.transaction_answers import COORDINATOR, versions_of

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.errors import (
    CommitFailedException,
    KafkaException,
    OperationNotAttemptedException,
    ProducerFencedException,
    TopicAuthorizationException,
    TransactionalIdAuthorizationException,
    UnsupportedVersionException,
    error_code,
)
from spark_kafka_sink.model import Node, ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.producer.error_actions import Action, Call
from spark_kafka_sink.producer.producer_batch import ProducerBatch
from spark_kafka_sink.producer.transactions.requests import (
    CoordinatorKey,
    Priority,
    TransactionalRequest,
    TransactionalResult,
)
from spark_kafka_sink.producer.transactions.state import TransactionState
from spark_kafka_sink.records.compression import NO_COMPRESSION
from spark_kafka_sink.wire.messages import InitProducerIdRequest, InitProducerIdResponse
from spark_kafka_sink.wire.transaction_messages import (
    AddPartitionsToTxnResponse,
    Coordinator,
    FindCoordinatorResponse,
    TxnOffsetCommitResponse,
)

S = TransactionState


def _asked(call: Call, version: int, init: int = 5) -> tuple[PureTransactions, TransactionalResult]:
    """Bring a producer to where `call` is the next request; return it and the waiting result."""
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


@EVERY_VERSION
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


WRITES, READS = ("--operation WRITE --operation DESCRIBE", "--operation READ --operation DESCRIBE")


@pytest.mark.parametrize(
    ("call", "code", "command"),
    [
        (Call.FIND_COORDINATOR, 30, "--operation READ --group group"),
        (Call.ADD_OFFSETS_TO_TXN, 30, "--operation READ --group group"),
        (Call.TXN_OFFSET_COMMIT, 30, "--operation READ --group group"),
        (Call.ADD_OFFSETS_TO_TXN, 53, f"{WRITES} --transactional-id tid"),
        (Call.TXN_OFFSET_COMMIT, 53, f"{WRITES} --transactional-id tid"),
        (Call.TXN_OFFSET_COMMIT, 29, f"{READS} --topic read"),
    ],
)
def test_the_command_that_allows_offsets_names_what_the_broker_denied(
    call: Call, code: int, command: str
) -> None:
    transactions = PureTransactions(1).writing()
    result = transactions.manager.send_offsets(OFFSETS, GROUP)
    transactions.answer(transactions.take_until(call), code)
    transactions.run()
    assert f" {command}, where User:NAME is " in str(result.error)


def test_the_offsets_of_a_topic_need_the_right_to_read_it() -> None:
    transactions = PureTransactions(2).writing()
    result = transactions.manager.send_offsets(OFFSETS, GROUP)
    transactions.answer(transactions.take_until(Call.TXN_OFFSET_COMMIT), 29)
    assert isinstance(result.error, TopicAuthorizationException)
    assert "; grant READ and DESCRIBE on the topic to this client; " in str(result.error)
    assert "WRITE" not in str(result.error)


def test_a_coordinator_with_the_id_of_a_bootstrap_address_is_not_available() -> None:
    transactions = PureTransactions()
    result = transactions.manager.initialize()
    request = transactions.take_until(Call.FIND_COORDINATOR)
    invalid = Coordinator(key="tid", node_id=-1, host="h", port=1, error_code=0)
    answer = FindCoordinatorResponse(coordinators=[invalid])
    transactions.manager.answered(request, answer, COORDINATOR, transactions.now)
    assert transactions.manager.queue.coordinators.nodes == {}
    assert not result.is_done
    assert "COORDINATOR_NOT_AVAILABLE" in str(request.last_error)
    transactions.now = 60.0
    assert Call.FIND_COORDINATOR in transactions.finish(result)


@pytest.mark.parametrize(("producer_id", "epoch"), [(-1, -1), (-1, 0), (7, -1)])
def test_a_producer_id_that_no_coordinator_assigns_is_asked_for_again(
    producer_id: int, epoch: int
) -> None:
    transactions = PureTransactions()
    result = transactions.manager.initialize()
    request = transactions.take_until(Call.INIT_PRODUCER_ID)
    answer = InitProducerIdResponse(error_code=0, producer_id=producer_id, producer_epoch=epoch)
    transactions.manager.answered(request, answer, COORDINATOR, transactions.now)
    assert transactions.manager.due(transactions.now, has_incomplete=False) is None
    assert not result.is_done
    found = f"the response has producer id {producer_id} and epoch {epoch}: expected"
    assert found in str(request.last_error)
    transactions.now = 60.0
    assert transactions.finish(result) == [Call.INIT_PRODUCER_ID]
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
        manager.queue.coordinators.forget_all()
    else:
        manager.queue.coordinators.node_down(COORDINATOR)
        found = Node(id=3, host="h", port=9003)
        manager.queue.coordinators.learn(CoordinatorKey(1, "tid"), found)
    transactions.fail_a_batch()
    assert transactions.state is S.ABORTABLE_ERROR
    manager.queue.coordinators.forget_all()
    calls = transactions.finish(manager.begin_abort())
    assert calls == [Call.FIND_COORDINATOR, Call.ABORT, Call.INIT_PRODUCER_ID]
    assert transactions.sequences.producer == ProducerIdAndEpoch(4000, 1)


def test_a_second_error_does_not_undo_that_the_epoch_is_to_be_raised() -> None:
    transactions = PureTransactions(1).writing()
    transactions.fail_a_batch()
    transactions.manager.queue.coordinators.node_ready(
        COORDINATOR, versions_of(1, init_producer_id=2)
    )
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


@EVERY_VERSION
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
    # It does not matter what the broker did with the failed request: a new epoch ends all of it.
    calls = transactions.finish(transactions.manager.begin_abort())
    assert calls == [Call.INIT_PRODUCER_ID]
    assert transactions.coordinator.ended == []


def test_an_abort_adds_no_partitions_any_more() -> None:
    transactions = PureTransactions(1).begun()
    transactions.manager.may_send(PARTITION)
    assert transactions.finish(transactions.manager.begin_abort()) == []


def _adding_refused(*refusals: int) -> tuple[PureTransactions, TransactionalRequest]:
    """Reject two partitions, of topics "a" and "b"; return the request, too."""
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
"""A broker's answer for the other partitions of a request in which it rejects one."""


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
    assert f" {WRITES} --topic {denied}, where " in str(error)


@pytest.mark.parametrize("refusals", _both_ways((NOT_ATTEMPTED, 90), (3, 90), (29, 90)))
def test_a_fenced_producer_is_so_whatever_else_the_answer_says(refusals: tuple[int, int]) -> None:
    transactions, _ = _adding_refused(*refusals)
    assert transactions.state is S.FATAL_ERROR
    assert isinstance(transactions.manager.error, ProducerFencedException)


def test_partitions_that_were_not_attempted_for_no_reason_end_the_transaction() -> None:
    transactions, _ = _adding_refused(NOT_ATTEMPTED, 0)
    assert transactions.state is S.ABORTABLE_ERROR
    assert isinstance(transactions.manager.error, OperationNotAttemptedException)


@pytest.mark.parametrize(("left_out", "ended"), [("ab", []), ("a", [False]), ("b", [False])])
def test_a_partition_that_the_answer_leaves_out_ends_the_transaction(
    left_out: str, ended: list[bool]
) -> None:
    transactions = PureTransactions(1, init_producer_id=2).begun()
    for name in ("a", "b"):
        transactions.manager.may_send(TopicPartition(name, 0))
    request = transactions.take()
    response = transactions.coordinator.answer(request)
    assert isinstance(response, AddPartitionsToTxnResponse)
    results = response.results_by_topic_v3_and_below
    response.results_by_topic_v3_and_below = [r for r in results if r.name not in left_out]
    transactions.manager.answered(request, response, COORDINATOR, transactions.now)
    assert transactions.state is S.ABORTABLE_ERROR
    named = ", ".join(f"{name}-0" for name in left_out)
    assert f"from node 1 for {named}, missing in the broker's response" in str(
        transactions.manager.error
    )
    transactions.finish(transactions.manager.begin_abort())
    # Those that it does name are in the transaction, which is then open at its coordinator.
    assert transactions.coordinator.ended == ended


@EVERY_VERSION
def test_no_offsets_are_not_sent_and_do_not_begin_the_transaction(version: int) -> None:
    transactions = PureTransactions(version).begun()
    result = transactions.manager.send_offsets({}, GROUP)
    assert (result.is_done, result.error) == (True, None)
    assert transactions.finish(transactions.manager.begin_commit()) == []
    assert transactions.state is S.READY


def test_offsets_that_the_answer_leaves_out_are_not_taken_for_committed() -> None:
    transactions = PureTransactions(2).begun()
    result = transactions.manager.send_offsets(OFFSETS, GROUP)
    request = transactions.take_until(Call.TXN_OFFSET_COMMIT)
    transactions.manager.answered(
        request, TxnOffsetCommitResponse(topics=[]), COORDINATOR, transactions.now
    )
    assert "for read-1, missing in the broker's response" in str(result.error)
    assert transactions.state is S.ABORTABLE_ERROR


def test_a_look_up_that_names_no_coordinator_is_asked_again() -> None:
    transactions = PureTransactions(2)
    result = transactions.manager.initialize()
    look_up = transactions.take()
    nobody = FindCoordinatorResponse()
    transactions.manager.answered(look_up, nobody, COORDINATOR, transactions.now)
    assert not result.is_done
    transactions.now = 1.0
    assert transactions.finish(result) == [Call.FIND_COORDINATOR, Call.INIT_PRODUCER_ID]


# -- what an abort does not wait for --------------------------------------------------------------


@EVERY_VERSION
@pytest.mark.parametrize("after_error", [False, True])
def test_an_abort_does_not_wait_for_the_coordinator_of_a_group(
    version: int, *, after_error: bool
) -> None:
    transactions = PureTransactions(version).writing()
    result = transactions.manager.send_offsets(OFFSETS, GROUP)
    look_up = transactions.take_until(Call.FIND_COORDINATOR)
    transactions.answer(look_up, codes.COORDINATOR_NOT_AVAILABLE)
    if after_error:
        transactions.fail_a_batch()
    abort = transactions.manager.begin_abort()
    assert transactions.finish(abort)[0] is Call.ABORT
    assert result.is_done
    assert result.error is not None


@pytest.mark.parametrize("code", [15, 30, -1, 35, 42], ids="code {}".format)
@pytest.mark.parametrize("is_lost", [False, True])
def test_a_look_up_under_way_that_nobody_needs_any_more_changes_nothing(
    code: int, *, is_lost: bool
) -> None:
    transactions = PureTransactions().writing()
    transactions.manager.send_offsets(OFFSETS, GROUP)
    look_up = transactions.take_until(Call.FIND_COORDINATOR)
    abort = transactions.manager.begin_abort()
    if is_lost:
        transactions.lose(look_up, code)
    else:
        transactions.answer(look_up, code)
    assert transactions.finish(abort) == [Call.ABORT]
    assert transactions.state is S.READY


def test_an_abort_does_not_wait_for_partitions_that_cannot_be_added() -> None:
    transactions = PureTransactions(1).begun()
    transactions.manager.may_send(PARTITION)
    transactions.answer(transactions.take(), codes.UNKNOWN_TOPIC_OR_PARTITION)
    assert transactions.finish(transactions.manager.begin_abort()) == []
    assert transactions.state is S.READY


def having_lost(call: Call) -> PureTransactions:
    """Return a transaction whose first request to its coordinator got no response."""
    transactions = PureTransactions(1).begun()
    if call is Call.ADD_OFFSETS_TO_TXN:
        transactions.manager.send_offsets(OFFSETS, GROUP)
    else:
        transactions.manager.may_send(PARTITION)
    transactions.lose(transactions.take_until(call))
    return transactions


@pytest.mark.parametrize("after_error", [False, True])
@pytest.mark.parametrize("call", [Call.ADD_PARTITIONS_TO_TXN, Call.ADD_OFFSETS_TO_TXN])
def test_what_may_have_begun_the_transaction_at_its_coordinator_is_asked_before_the_end(
    call: Call, *, after_error: bool
) -> None:
    transactions = having_lost(call)
    transactions.now = 1.0
    calls = []
    if after_error:
        transactions.manager.record_refused(KafkaException("append failed after 1 of 2 rows"))
        calls += [request.call for request in transactions.run()]
    calls += transactions.finish(transactions.manager.begin_abort())
    assert calls == [Call.FIND_COORDINATOR, call, Call.ABORT]
    assert transactions.coordinator.ended == [False]


@pytest.mark.parametrize("code", [14, 15, 16, 51], ids="code {}".format)
@pytest.mark.parametrize("call", [Call.ADD_PARTITIONS_TO_TXN, Call.ADD_OFFSETS_TO_TXN])
def test_an_answer_that_is_retried_does_not_say_what_became_of_a_lost_request(
    call: Call, code: int
) -> None:
    transactions = having_lost(call)
    transactions.now = 1.0
    transactions.answer(transactions.take_until(call), code)
    abort = transactions.manager.begin_abort()
    transactions.now = 2.0
    assert transactions.finish(abort)[-2:] == [call, Call.ABORT]
    assert transactions.coordinator.ended == [False]


def test_an_abort_does_not_wait_for_a_lost_request_whose_topic_is_gone() -> None:
    transactions = PureTransactions(1).begun()
    transactions.manager.may_send(PARTITION)
    transactions.lose(transactions.take_until(Call.ADD_PARTITIONS_TO_TXN))
    transactions.now = 1.0
    add = transactions.take_until(Call.ADD_PARTITIONS_TO_TXN)
    transactions.answer(add, codes.UNKNOWN_TOPIC_OR_PARTITION)
    assert transactions.finish(transactions.manager.begin_abort()) == []


def test_a_commit_does_not_wait_for_a_lost_request_once_records_have_failed() -> None:
    transactions = PureTransactions(1).begun()
    transactions.manager.may_send(PARTITION)
    transactions.lose(transactions.take_until(Call.ADD_PARTITIONS_TO_TXN))
    result = transactions.manager.begin_commit()
    error = transactions.fail_a_batch()
    request = transactions.manager.due(0.0, has_incomplete=False)
    assert request is not None
    assert request.call is Call.FIND_COORDINATOR  # for the lost request
    assert (result.is_done, result.error) == (True, error)


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
