"""User code that behaves as badly as it may: it raises, is slow, and calls the producer.

It checks wherever it is called that no lock is held, and, if it may be slow, that it is not in the
I/O thread. Its own calls must not wait; those that would have to must raise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from simulation.scheduler import SimulationError
from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.model import (
    AppendFailure,
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    ProducerRecord,
    RecordMetadata,
    TopicPartition,
)

if TYPE_CHECKING:
    from simulation.threads.program import Program

IO_THREAD: Final = "kafka-producer-network-thread | c"
# Time passes at some steps; a wait takes longer.
_AT_ONCE_S: Final = 0.5
_SLOW_S: Final = (0.01, 0.3, 4.0)


class MischiefError(Exception):
    """The exception that user code raises."""


class UnspeakableError(MischiefError):
    """One that cannot even be printed."""

    def __str__(self) -> str:
        raise UnspeakableError


# The classes that user code raises on purpose, and that are no Exception.
NO_EXCEPTIONS: Final = (SystemExit, KeyboardInterrupt, asyncio.CancelledError)


class UserCode:
    """All user code. `program` has the producer, and accepts the rows that callbacks send."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._world = program.world
        self._resends = 5

    # -- what is called ---------------------------------------------------------------------------

    def on_delivery(self, number: int) -> Callable[..., None]:
        """Return the callback of a row."""

        def called(metadata: RecordMetadata, error: BaseException | None) -> None:
            self._program.ledger.called(number)
            self._misbehave("on_delivery")

        return called

    def on_failure(self, numbers: list[int]) -> Callable[[AppendFailure], None]:
        """Return the on_failure callback for the rows of an append."""

        def note_failure(failure: AppendFailure) -> None:
            self._program.ledger.failed([numbers[row] for row in failure.rows.tolist()])
            self._misbehave("on_failure")

        return note_failure

    def done(self, _: object) -> None:
        """Run as the done callback of a future."""
        self._misbehave("done")

    def partitioner(self, _: str, batch: pa.RecordBatch, partitions: int) -> list[int]:
        """Choose the last partition."""
        self._not_in_io_thread("a partitioner")
        self._misbehave("partitioner")
        return [partitions - 1] * batch.num_rows

    def serialize(self, value: object) -> object:
        """Return a value unchanged."""
        if not self._program.is_calling_back:  # the callback's own send
            self._not_in_io_thread("a serializer")
        self._misbehave("serializer")
        return value

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """Run user code for a record before it is sent."""
        self._misbehave("on_send")
        return record

    def on_acknowledgement(self, *_: object) -> None:
        """Run user code for an acknowledged record."""
        self._misbehave("on_acknowledgement")

    def close(self) -> None:
        """Do nothing."""
        self._misbehave("close")

    # -- what it does there -----------------------------------------------------------------------

    @property
    def _is_in_io_thread(self) -> bool:
        return self._world.current.name == IO_THREAD

    def _not_in_io_thread(self, what: str) -> None:
        if self._is_in_io_thread:
            message = f"{what} was called by the I/O thread"
            self._world.fail(SimulationError(message))

    def _misbehave(self, where: str) -> None:
        world, random = self._world, self._world.random
        if world.current.held:
            message = f"{where} was called with {world.current.held}"
            world.fail(SimulationError(message))
        world.step(where)
        if random.random() >= self._program.plan.mischief:
            return
        kind = random.choice(["slow", "raise", "exit", "call", "call"])
        world.trace("{}: {}", where, kind)
        if kind == "slow":
            seconds = random.choice(_SLOW_S)
            world.user_slept_s += seconds
            world.sleep(seconds)
        elif kind == "raise":
            raise random.choice([MischiefError, UnspeakableError])(where)
        elif kind == "exit":
            raise random.choice(NO_EXCEPTIONS)(where)
        elif self._is_in_io_thread:
            self._call_in_io_thread()
        elif world.current.name == "partitioner":
            self._refused("flush in a partitioner", self._program.producer.flush)

    def _call_in_io_thread(self) -> None:
        program, producer = self._program, self._program.producer
        waiting = [*_WAITING] if program.plan.is_transactional else ["flush"]
        name = self._world.random.choice([*waiting, "result", "send", "send", "look", "close"])
        self._world.trace("calls {}", name)
        if name in _WAITING:
            self._refused(name, lambda: _WAITING[name](producer))
        elif name == "result":
            row = next((r for r in program.ledger.rows.values() if not r.is_done), None)
            if row is not None and row.future is not None:
                self._refused("result of an open future", row.future.result)
        elif name == "send":
            if self._resends and not program.is_calling_back:
                self._resends -= 1
                self._at_once(name, program.send_from_callback)
        elif name == "look":
            self._at_once(name, producer.metrics)
            self._at_once(name, producer._state.take_deliveries)
            self._at_once(name, producer._state.forget_topics)
        elif self._world.random.random() < 0.2:
            program.is_closing = program.ledger.is_reported = True
            self._at_once(name, producer.close)

    def _refused(self, name: str, call: Callable[[], object]) -> None:
        if self._at_once(name, call):
            message = f"{name} was not refused in {self._world.current.name}"
            self._world.fail(SimulationError(message))

    def _at_once(self, name: str, call: Callable[[], object]) -> bool:
        """Make a call, which must not wait; return whether it succeeded."""
        began, slept_s = self._world.now, self._world.user_slept_s
        outer = self._program.is_calling_back
        self._program.is_calling_back = True
        succeeded = True
        try:
            call()
        except KafkaException:  # possibly the error of rows of append, which is raised once
            succeeded, self._program.ledger.is_reported = False, True
        finally:
            self._program.is_calling_back = outer
            lasted = self._world.now - began - (self._world.user_slept_s - slept_s)
            if lasted > _AT_ONCE_S:
                message = f"{name} in {self._world.current.name} waited for {lasted:.3f} s"
                self._world.fail(SimulationError(message))
        return succeeded


_OFFSETS: Final = {TopicPartition("t", 0): OffsetAndMetadata(1)}
_WAITING: Final[dict[str, Callable[[KafkaProducer], Any]]] = {
    "flush": KafkaProducer.flush,
    "init_transactions": KafkaProducer.init_transactions,
    "send_offsets_to_transaction": lambda producer: producer.send_offsets_to_transaction(
        _OFFSETS, ConsumerGroupMetadata("g")
    ),
    "commit_transaction": KafkaProducer.commit_transaction,
    "abort_transaction": KafkaProducer.abort_transaction,
}
