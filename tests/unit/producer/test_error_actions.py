"""The action for every error code, compared row by row with a copy of Java's rules.

A code that is in no table is decided by whether it is retriable.
"""

from __future__ import annotations

import pytest
from support.oracles.error_tables import CALLS, COORDINATOR_CALLS, OTHERS, ROWS

from spark_kafka_sink.errors import ERROR_CODES, error_code
from spark_kafka_sink.producer.error_actions import Action, Call, ProducerKind, error_action


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[1])
def test_a_produce_answer_means_what_the_table_says(row: list[str]) -> None:
    code = int(row[0])
    assert error_code(code).name == row[1]
    for kind, meaning in zip(ProducerKind, row[2:], strict=True):
        action = error_action(code, Call.PRODUCE, kind)
        if meaning == "-":
            assert action is not Action.SUCCEED
        else:
            assert (kind, action) == (kind, Action[meaning.upper()])


@pytest.mark.parametrize(
    ("call", "code", "action"), CALLS, ids=[f"{c.name}-{error_code(n).name}" for c, n, _ in CALLS]
)
def test_a_coordinator_s_answer_means_what_the_table_says(
    call: Call, code: int, action: Action
) -> None:
    assert error_action(code, call, ProducerKind.TRANSACTIONAL) is action


@pytest.mark.parametrize("call", COORDINATOR_CALLS, ids=lambda call: call.name)
def test_codes_that_no_table_names_are_retried_if_they_are_retriable(call: Call) -> None:
    named = {code for codes in COORDINATOR_CALLS[call].values() for code in codes}
    for code in [*ERROR_CODES.keys() - named, 32_000]:
        expected = Action.RETRY if error_code(code).retriable else OTHERS[call]
        assert (code, error_action(code, call, ProducerKind.TRANSACTIONAL)) == (code, expected)


def test_every_other_answer_to_produce_is_retried_or_the_end_of_the_batch() -> None:
    last = {
        ProducerKind.PLAIN: Action.FAIL,
        ProducerKind.IDEMPOTENT: Action.FAIL,
        ProducerKind.TRANSACTIONAL: Action.ABORTABLE,
    }
    for code in [*ERROR_CODES.keys() - {int(row[0]) for row in ROWS}, 32_000]:
        for kind, end in last.items():
            expected = Action.RETRY if error_code(code).retriable else end
            assert (code, error_action(code, Call.PRODUCE, kind)) == (code, expected)


def test_an_idempotent_producer_asks_for_its_id_until_the_answer_is_final() -> None:
    for code in ERROR_CODES.keys() - {0}:
        expected = Action.RETRY if error_code(code).retriable else Action.FATAL
        assert error_action(code, Call.INIT_PRODUCER_ID, ProducerKind.IDEMPOTENT) is expected
