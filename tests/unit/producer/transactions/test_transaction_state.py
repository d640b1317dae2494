"""The table of a transactional producer's states: Java's, and drawn in the documentation."""

from __future__ import annotations

from support.brokers.jvm import run_java

from spark_kafka_sink.producer.transactions.state import TRANSITIONS, TransactionState

_JAVA_NAMES = {"COMMITTING_TRANSACTION": "COMMITTING", "ABORTING_TRANSACTION": "ABORTING"}
# Two-phase commit (KIP-939) is not offered, and the other one is an idempotent producer's that has
# used up its epochs: `Sequences` does that.
_NOT_OURS = {("READY", "UNINITIALIZED")}


def test_the_table_is_that_of_the_java_client() -> None:
    lines = run_java("DumpTransitions").splitlines()
    theirs = {tuple(_JAVA_NAMES.get(name, name) for name in line.split()) for line in lines}
    theirs = {pair for pair in theirs if "PREPARED_TRANSACTION" not in pair} - _NOT_OURS
    ours = {(source.name, to.name) for source, targets in TRANSITIONS.items() for to in targets}
    assert ours == theirs


def test_the_table_has_every_state_and_every_state_can_be_reached() -> None:
    assert set(TRANSITIONS) == set(TransactionState)
    reached = {TransactionState.UNINITIALIZED}
    while more := {to for state in reached for to in TRANSITIONS[state]} - reached:
        reached |= more
    assert reached == set(TransactionState)
