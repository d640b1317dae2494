"""What an error code means, row by row of what brokers were seen to answer."""

from __future__ import annotations

import pytest

from spark_kafka_sink.commit.verdicts import Call, Verdict, verdict
from spark_kafka_sink.errors import ERROR_CODES, RetriableException

# The transaction as its coordinator has it, the version of EndTxn, the code, what it means.
COMMITS = [
    ("ongoing", 4, 0, Verdict.DONE),
    ("ongoing", 5, 0, Verdict.DONE),
    ("markers are being written", 4, 51, Verdict.RETRY),
    ("markers are being written", 5, 51, Verdict.RETRY),
    ("committed by version 4, asked again by 5", 5, 48, Verdict.RESOLVE),
    ("aborted by its timeout", 4, 90, Verdict.RESOLVE),
    ("aborted by its timeout", 5, 48, Verdict.RESOLVE),
    ("aborted by its timeout, releases with KAFKA-20785", 5, 90, Verdict.RESOLVE),
    ("aborted by EndTxn", 4, 48, Verdict.RESOLVE),
    ("aborted by EndTxn", 5, 48, Verdict.RESOLVE),
    ("the id was initialized again", 4, 90, Verdict.RESOLVE),
    ("the id was initialized again", 1, 47, Verdict.RESOLVE),
    ("the id was initialized again", 5, 90, Verdict.RESOLVE),
    ("another producer id, or the id has expired", 4, 49, Verdict.RESOLVE),
    ("another producer id, or the id has expired", 5, 49, Verdict.RESOLVE),
    ("at another coordinator", 5, 16, Verdict.LOOK_UP),
    ("at a coordinator that loads", 5, 14, Verdict.RETRY),
    ("at no coordinator", 5, 15, Verdict.LOOK_UP),
    ("no response", 5, 13, Verdict.LOOK_UP),
    ("no response in time", 5, 7, Verdict.RETRY),
    ("not authorised", 5, 53, Verdict.FATAL),
    ("abortable", 5, 120, Verdict.RESOLVE),
    ("a broker's bug", 5, -1, Verdict.RESOLVE),
]
ABORTS = [
    ("ongoing", 4, 0, Verdict.DONE),
    ("ongoing", 5, 0, Verdict.DONE),
    ("aborted by EndTxn", 4, 0, Verdict.DONE),
    ("aborted by its timeout", 4, 90, Verdict.FENCED_OR_ABORTED),
    ("aborted by its timeout", 5, 0, Verdict.DONE),
    ("committed", 4, 48, Verdict.COMMITTED_OR_EMPTY),
    ("committed", 5, 48, Verdict.COMMITTED),
    ("without a partition", 4, 48, Verdict.COMMITTED_OR_EMPTY),
    ("without a partition", 5, 0, Verdict.DONE),
    ("the id was initialized again", 5, 90, Verdict.FENCED),
    ("the id was initialized again", 4, 47, Verdict.FENCED),
    ("another producer id, or the id has expired", 5, 49, Verdict.FENCED),
    ("at another coordinator", 5, 16, Verdict.LOOK_UP),
]
OTHERS = [
    # A first Produce while the leader verifies another one of the same transactional id.
    *((Call.PRODUCE, code, Verdict.RETRY) for code in (19, 51, 14, 15, 16, 7, 20)),
    *((Call.PRODUCE, code, Verdict.LOOK_UP) for code in (3, 5, 6, 13)),
    *((Call.PRODUCE, code, Verdict.FENCED) for code in (47, 90, 48, 49, 120)),
    *((Call.PRODUCE, code, Verdict.FATAL) for code in (45, 10, 87, 29, 53)),
    (Call.PRODUCE, 46, Verdict.DONE),
    *((Call.ADD_PARTITIONS_TO_TXN, code, Verdict.FENCED) for code in (47, 49, 90)),
    (Call.ADD_PARTITIONS_TO_TXN, 51, Verdict.RETRY),
    (Call.ADD_PARTITIONS_TO_TXN, 16, Verdict.LOOK_UP),
    (Call.ADD_PARTITIONS_TO_TXN, 29, Verdict.FATAL),
    (Call.INIT_PRODUCER_ID, 51, Verdict.RETRY),
    (Call.INIT_PRODUCER_ID, 50, Verdict.FATAL),
    (Call.INIT_PRODUCER_ID, 53, Verdict.FATAL),
    (Call.DESCRIBE_TRANSACTIONS, 105, Verdict.NOT_FOUND),
    (Call.DESCRIBE_TRANSACTIONS, 16, Verdict.LOOK_UP),
    (Call.DESCRIBE_PRODUCERS, 3, Verdict.LOOK_UP),
    (Call.DESCRIBE_PRODUCERS, 6, Verdict.LOOK_UP),
    (Call.LIST_TRANSACTIONS, 14, Verdict.RETRY),
    *((Call.READ_LOG, code, Verdict.RETRY) for code in (2, 78)),
    (Call.READ_LOG, 29, Verdict.FATAL),
    (Call.READ_MARKER, 78, Verdict.RETRY),
    *((Call.READ_MARKER, code, Verdict.FATAL) for code in (2, 29)),
]


@pytest.mark.parametrize(("transaction", "version", "code", "meant"), COMMITS)
def test_the_answer_to_a_commit(transaction: str, version: int, code: int, meant: Verdict) -> None:
    assert verdict(Call.COMMIT, code, version) is meant


@pytest.mark.parametrize(("transaction", "version", "code", "meant"), ABORTS)
def test_the_answer_to_an_abort(transaction: str, version: int, code: int, meant: Verdict) -> None:
    assert verdict(Call.ABORT, code, version) is meant


@pytest.mark.parametrize(("call", "code", "meant"), OTHERS)
def test_the_answer_to_other_calls(call: Call, code: int, meant: Verdict) -> None:
    assert verdict(call, code) is meant


@pytest.mark.parametrize("call", Call, ids=lambda call: call.name)
def test_no_code_but_none_is_a_success_and_retriable_codes_are_asked_again(call: Call) -> None:
    asks_again = {Verdict.RETRY, Verdict.LOOK_UP, Verdict.NOT_FOUND}
    for code, row in ERROR_CODES.items():
        found = verdict(call, code)
        is_duplicate = call is Call.PRODUCE and code == 46
        assert (found is Verdict.DONE) == (code == 0 or is_duplicate), row
        is_damaged = call is Call.READ_MARKER and code == 2
        if issubclass(row.kind, RetriableException) and not is_damaged:
            assert found in asks_again, row
    assert verdict(call, 999) is Verdict.FATAL
