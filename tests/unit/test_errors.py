"""Error codes and exceptions are those of the Java client (org.apache.kafka...protocol.Errors)."""

from __future__ import annotations

import pickle
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.brokers.jvm import run_java
from support.oracles.error_tables import CALLS, ROWS

from spark_kafka_sink import error_codes, errors
from spark_kafka_sink.errors import (
    ERROR_CODES,
    ApiException,
    ApplicationRecoverableException,
    AuthorizationException,
    BufferExhaustedException,
    ErrorCode,
    InvalidConfigurationException,
    InvalidMetadataException,
    KafkaException,
    Option,
    RefreshRetriableException,
    RetriableException,
    TransactionAbortableException,
    advice,
    api_exception,
    error_code,
    exception_class,
    name_options,
)
from spark_kafka_sink.producer.error_actions import Action, Call, ProducerKind, error_action

# The classes of codes that have no class of their own.
_GENERIC = (
    ApiException,
    RetriableException,
    InvalidMetadataException,
    InvalidConfigurationException,
    AuthorizationException,
)
# The classes of KIP-1050 of every code that a producer can be answered with, the narrowest first;
# codes that stand nowhere are of none.
_KINDS = (
    RefreshRetriableException,
    RetriableException,
    TransactionAbortableException,
    ApplicationRecoverableException,
    InvalidConfigurationException,
)
_KIND_OF = {
    RefreshRetriableException: [3, 5, 6, 9, 13, 15, 16, 56, 72, 74, 100, 103],
    RetriableException: [2, 7, 14, 19, 20, 51, 75, 89],
    TransactionAbortableException: [120],
    ApplicationRecoverableException: [22, 25, 47, 49, 82, 90],
    InvalidConfigurationException: [17, 18, 21, 29, 30, 31, 35, 43, 53, 87],
}
_OF_NO_KIND = [-1, 10, 32, 42, 44, 45, 46, 48, 50, 55, 59, 76]
_KIND_ROWS = [(code, kind) for kind, codes in _KIND_OF.items() for code in codes]

CODES = st.integers(-(2**15), 2**15 - 1)


class _JavaError(NamedTuple):
    name: str
    retriable: bool
    refresh_metadata: bool
    classes: list[str]


@pytest.fixture(scope="module")
def java_errors() -> dict[int, _JavaError]:
    """Every code of the Java client, with its exception's class and superclasses."""
    found = {}
    for line in run_java("DumpErrors").splitlines():
        code, name, retriable, stale, classes = line.split("|")
        found[int(code)] = _JavaError(name, retriable == "true", stale == "true", classes.split())
    return found


def test_the_table_is_that_of_the_java_client(java_errors: dict[int, _JavaError]) -> None:
    theirs = {code: error[:3] for code, error in java_errors.items()}
    assert ERROR_CODES.keys() - theirs.keys() == set()
    assert theirs.keys() - ERROR_CODES.keys() == set()
    ours = {
        code: (row.name, row.retriable, row.refresh_metadata) for code, row in ERROR_CODES.items()
    }
    assert theirs == ours
    assert [row.code for row in ERROR_CODES.values()] == list(ERROR_CODES)


def test_exceptions_of_codes_have_the_java_client_s_names(
    java_errors: dict[int, _JavaError],
) -> None:
    answered = {*_OF_NO_KIND, *(code for code, _ in _KIND_ROWS)}
    for code, error in java_errors.items():
        ours = exception_class(code)
        if code in answered or ours not in _GENERIC:
            assert (code, ours.__name__) == (code, error.classes[0])


def test_exceptions_can_be_caught_by_the_same_base_classes_as_in_java(
    java_errors: dict[int, _JavaError],
) -> None:
    ours_by_name = {name: c for name, c in vars(errors).items() if isinstance(c, type)}
    for code, error in java_errors.items():
        for name in error.classes[1:]:
            base = ours_by_name.get(name)
            if base is not None and issubclass(base, KafkaException):
                assert issubclass(exception_class(code), base), (code, name)


@pytest.mark.parametrize("code", ERROR_CODES)
def test_an_exception_is_as_retriable_as_its_code(code: int) -> None:
    row, cls = ERROR_CODES[code], exception_class(code)
    assert issubclass(cls, RetriableException) is row.retriable
    assert issubclass(cls, InvalidMetadataException) is row.refresh_metadata


def _kind(code: int) -> type[ApiException] | None:
    return next((kind for kind in _KINDS if issubclass(exception_class(code), kind)), None)


@pytest.mark.parametrize(("code", "kind"), [*_KIND_ROWS, *((code, None) for code in _OF_NO_KIND)])
def test_an_error_says_by_its_class_what_can_be_done(
    code: int, kind: type[ApiException] | None
) -> None:
    assert _kind(code) is kind


def test_every_code_that_a_producer_can_get_has_a_row() -> None:
    answered = {int(row[0]) for row in ROWS} | {code for _, code, _ in CALLS}
    assert {code for code, _ in _KIND_ROWS} | {*_OF_NO_KIND} == answered - {error_codes.NONE}


@pytest.mark.parametrize("code", ERROR_CODES)
def test_a_transactional_producer_does_what_the_class_says(code: int) -> None:
    for call in Call:
        action = error_action(code, call, ProducerKind.TRANSACTIONAL)
        if action in (Action.RETRY, Action.LOOK_UP):
            assert issubclass(exception_class(code), RetriableException)
        if action is Action.FENCED:
            assert _kind(code) is ApplicationRecoverableException
    if _kind(code) is TransactionAbortableException:
        commit = error_action(code, Call.COMMIT, ProducerKind.TRANSACTIONAL)
        assert commit is Action.ABORTABLE


@given(code=CODES.filter(lambda code: code not in ERROR_CODES))
def test_an_unknown_code_is_a_value_that_is_not_retriable(code: int) -> None:
    unknown = errors.UnknownServerException
    assert error_code(code) == ErrorCode(code, f"UNKNOWN_ERROR_CODE_{code}", unknown)
    assert (error_code(code).retriable, error_code(code).refresh_metadata) == (False, False)
    assert exception_class(code) is unknown


@given(code=CODES)
def test_an_exception_carries_its_code_message_and_context(code: int) -> None:
    error = api_exception(
        code, "it went wrong", topic="t", partition=1, node_id=2, api="Produce", attempts=3
    )
    assert type(error) is exception_class(code)
    assert str(error) == "it went wrong"
    assert error.code == code
    assert (error.topic, error.partition, error.node_id) == ("t", 1, 2)
    assert (error.api, error.attempts) == ("Produce", 3)


@pytest.mark.parametrize("code", [33, 34, 58])
def test_a_failed_login_has_its_code_and_class_whoever_finds_it(code: int) -> None:
    cls = exception_class(code)
    assert issubclass(cls, errors.AuthenticationException)
    assert cls("found by the client").code == code


def test_one_exception_s_code_is_not_another_s() -> None:
    first, second = api_exception(19, "first"), api_exception(3, "second")
    assert (first.code, second.code) == (19, 3)
    assert ApiException("no code").code == error_codes.UNKNOWN_SERVER_ERROR


def test_advice_is_given_for_codes_that_exist() -> None:
    given = {code: advice(code) for code in range(-2, 1000)}
    assert {code for code, text in given.items() if text} <= set(ERROR_CODES) - {error_codes.NONE}
    assert "" not in given.values()


def test_advice_names_options_as_the_user_writes_them() -> None:
    assert advice(18) == "lower batch.size, or raise the topic's segment.bytes"
    with name_options("kafka.".__add__):
        assert advice(18) == "lower kafka.batch.size, or raise the topic's segment.bytes"
    assert all("{}" not in (advice(code) or "") for code in ERROR_CODES)


@pytest.mark.parametrize("code", [3, 17])
def test_advice_on_a_topic_of_the_brokers_own_is_neither_on_names_nor_to_create_it(
    code: int,
) -> None:
    said = advice(code, topic="__consumer_offsets") or ""
    assert said.startswith("__consumer_offsets is internal to Kafka, and producers must not write")
    assert advice(code, topic="flights") == advice(code)


def test_the_named_codes_are_those_of_the_table() -> None:
    named = {
        name: value
        for name, value in vars(error_codes).items()
        if name.isupper() and isinstance(value, int)
    }
    by_name = {row.name: row.code for row in ERROR_CODES.values()}
    assert named == {name: by_name.get(name) for name in named}
    assert len(named) > 10


def test_an_option_has_the_name_that_its_user_writes_and_only_inside() -> None:
    limit = Option("linger.ms", 5)
    with name_options("kafka.".__add__):
        assert f"{limit}, {Option('acks')}" == "kafka.linger.ms=5, kafka.acks"
        with name_options(str.upper):
            assert str(limit) == "LINGER.MS=5"
        assert str(limit) == "kafka.linger.ms=5"
    assert f"{limit}" == "linger.ms=5"


@pytest.mark.parametrize(
    ("last_error", "said"),
    [
        (None, ""),
        (api_exception(41, "rejected", topic="t"), "; the last error was: rejected"),
        (
            api_exception(19, "rejected", topic="t", partition=0),
            "; the last error was: t-0: rejected",
        ),
    ],
)
def test_a_timeout_has_the_last_error_as_its_cause_and_in_its_message(
    last_error: ApiException | None, said: str
) -> None:
    error = BufferExhaustedException.after(
        last_error, "too late", trouble=" (refused)", api="Fetch"
    )
    assert str(error) == f"too late{said} (refused)"
    assert (type(error), error.__cause__, error.api) == (
        BufferExhaustedException, last_error, "Fetch",
    )  # fmt: skip


def test_another_message_leaves_what_an_exception_is_about() -> None:
    error = api_exception(19, "first", topic="t", partition=1)
    error.row, error.place, error.__cause__ = 3, "row 3 of task 0", ValueError()
    other = error.with_message("second")
    assert str(other) == "row 3 of task 0: second"
    assert str(error) == "row 3 of task 0: first"
    assert (type(other), other.code, other.topic, other.__cause__) == (
        type(error), 19, "t", error.__cause__,
    )  # fmt: skip
    unpickled = pickle.loads(pickle.dumps(other))
    assert (str(unpickled), unpickled.row) == (str(other), 3)
