"""Program: a user's program whose threads use one producer, and its expectations of calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import pyarrow as pa

from simulation.batches import NUMBER, POISON
from simulation.scheduler import SimulationError
from simulation.threads.interrupts import Interrupt
from simulation.threads.ledger import Ledger, Row
from simulation.threads.plan import Plan
from simulation.threads.user_code import NO_EXCEPTIONS, MischiefError, UserCode
from simulation.threads.world import World
from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.errors import IllegalStateException, KafkaException, TimeoutException

_FILLER: Final = b"." * 200


class Program:
    """Main thread and callers. is_closing: from then on, calls may fail because it is too late."""

    def __init__(self, plan: Plan, world: World, interrupt: Interrupt | None = None) -> None:
        self.plan = plan
        self.world = world
        self.ledger = Ledger(plan)
        self.ledger.may_fail = self._may_fail
        self.is_closing = False
        self.is_calling_back = False
        self._interrupt = interrupt
        self._user_code = UserCode(self)
        self._callers_left = 0
        self._began_at = 0

    # -- the main thread --------------------------------------------------------------------------

    def main(self) -> None:
        """Use a producer from several threads, and close it."""
        self.producer = KafkaProducer(self._configs())
        names = [f"caller {number}" for number in range(self.plan.callers)]
        self._callers_left = len(names)
        for name in names:
            self.world.spawn(name, self._caller)
        self.world.block(lambda: not self._callers_left, "its callers")
        if self.world.random.random() < 0.5:
            self._rest()
        if not self.is_closing and self._interrupt is None and self.world.random.random() < 0.2:
            self._call("the end of an unclosed producer", self._collect_producer)
            return
        self._flush_all()
        self._call("close", self._close)
        self.is_closing = True
        self._call("close", self.producer.close)
        if self.producer._thread.is_alive:
            self._call("join", lambda: self.producer._thread.join(None))

    def _configs(self) -> dict[str, Any]:
        code = self._user_code
        configs = dict(self.plan.configs)
        if self.plan.partitioner:
            configs["partitioner.class"] = code.partitioner
        if self.plan.serializers:
            configs["value.serializer"] = code.serialize
        if self.plan.interceptor:
            configs["interceptor.classes"] = [code]
        return configs

    def _rest(self) -> None:
        """Check that rows are delivered without further calls."""
        slept_s = -1.0
        while slept_s < self.world.user_slept_s:  # which keeps the I/O thread from doing it
            slept_s = self.world.user_slept_s
            self.world.sleep(slept_s + self._patience_s(self.world.now))
        is_left = self.producer._state.accumulator.has_incomplete or self.producer._feeder._pending
        self._require(not is_left or self.is_closing, "rows wait for a flush")

    def _collect_producer(self) -> None:
        """Wait for the thread of a producer that is garbage-collected; it delivers its rows."""
        self.is_closing = True  # callbacks may use the producer after its end
        self.producer._state.end_when_idle()
        self.producer._thread.join(None)

    def _flush_all(self) -> None:
        """Flush until callbacks send nothing more; then nothing is kept."""
        state, feeder = self.producer._state, self.producer._feeder
        while not self.is_closing:
            self._call("flush", self.producer.flush)
            is_left = feeder._pending or state.accumulator.has_incomplete
            if not is_left or state.fatal_error is not None:
                break
        if self.is_closing or state.fatal_error is not None:
            return
        if self.plan.is_hasty:
            # The memory of an expired batch is kept until its request ends.
            self.world.sleep(1.0)
        if self._interrupt is not None:
            # After a second interrupt, the I/O thread cleans up.
            done_by = self.world.now + 10
            self.world.block(lambda: not state.left_behind, "the I/O thread", done_by)
        accumulator = state.accumulator
        kept = accumulator.pool.total_bytes - accumulator.pool.available_bytes
        left = (kept, accumulator.pool.waiters, accumulator.flushes, accumulator._held)
        self._require(left == (0, 0, 0, set()), f"bytes, waiters, flushes and holds left: {left}")

    # -- callers ----------------------------------------------------------------------------------

    def _caller(self) -> None:
        try:
            for call in self._calls():
                self._call(_name(call), call)
        finally:
            self._callers_left -= 1

    def _calls(self) -> Iterator[Callable[[], object]]:
        """Draw the calls of a thread one by one."""
        random, usual = self.world.random, [self._append, self._send, self._send]
        others = [self._flush, self._wait, self._forget, self._count, self._pause]
        if self.plan.is_forgetful:  # calls that wait for metadata each time
            usual = [self._append, self._count, self._count]
        if self._interrupt is not None:
            yield from self._calls_around(self._interrupt)
        elif self.plan.is_transactional:
            yield self.producer.init_transactions
            for _ in range(self.plan.calls - 1):
                yield self._begin
                for _ in range(random.randint(0, 4)):
                    yield random.choice([*usual, *usual, *others])
                yield random.choice([self._commit, self.producer.abort_transaction])
        elif self.plan.is_forgetful and self.world.current.name == "caller 1":
            for _ in range(3 * self.plan.calls):
                yield self._forget
        else:
            for _ in range(self.plan.calls):
                yield random.choice([*usual, *usual, *others])
            if random.random() < 0.1:
                yield self._close

    def _call(self, what: str, call: Callable[[], object]) -> bool:
        """Make a call that has to end in time; return whether it succeeded."""
        began = self.world.now
        self.world.trace("{}", what)
        succeeded = False
        try:
            call()
            succeeded = True
        except (MischiefError, *NO_EXCEPTIONS):
            pass
        except KafkaException as error:
            self.world.trace("{}: {}", what, error)
            self.ledger.is_reported = True
            self._require(self._may_fail(error), f"{what} failed: {error!r}")
        lasted, late = self.world.now - began, self.world.user_slept_s + self._patience_s(began)
        self._require(lasted <= late, f"{what} lasted {lasted:.3f} s, more than {late:.3f} s")
        return succeeded

    def _patience_s(self, began: float) -> float:
        """Return the longest duration of a call, in spite of temporary faults."""
        return self.plan.patience_s + max(0.0, self.plan.weather.until - began)

    def _may_fail(self, error: BaseException | None) -> bool:
        """Whether an error of the producer is expected."""
        if self.is_closing or (self.plan.is_hasty and _is_late(error)):
            return True
        if self.plan.is_transactional and self.plan.mischief:
            return True
        if self.plan.poison and isinstance(error, KafkaException) and not _is_late(error):
            return True
        if self._interrupt is not None and self.producer._state.fatal_error is not None:
            return "create another producer" in str(error)
        while error is not None:
            if isinstance(error, (MischiefError, *NO_EXCEPTIONS)):
                return True
            error = error.__cause__
        return False

    def _require(self, holds: bool, sentence: str) -> None:  # noqa: FBT001 - an assertion with a sentence
        if not holds:
            self.world.fail(SimulationError(sentence))

    # -- the calls --------------------------------------------------------------------------------

    def _topic(self) -> str:
        return self.world.random.choice(self.plan.shape.partitions).topic

    def _value(self, number: int) -> bytes:
        filler = _FILLER[: self.world.random.choice([0, 20, 150])]
        if self.world.random.random() < self.plan.poison:
            filler = bytes([POISON]) + filler[1:]
        return NUMBER.pack(number) + filler

    def _append(self) -> None:
        """Append some rows."""
        random, topic = self.world.random, self._topic()
        numbers = self.ledger.give(
            self.world.current.name, topic, random.randint(1, 6), is_append=True
        )
        columns: dict[str, Any] = {"value": [self._value(number) for number in numbers]}
        if random.random() < 0.5:
            columns["partition"] = pa.array([0] * len(numbers), pa.int32())
        on_row_failure = self._user_code.on_failure(numbers) if random.random() < 0.5 else None
        batch = pa.record_batch(columns)
        self._give(numbers, lambda: self.producer.append(topic, batch, on_row_failure))

    def _give(self, numbers: list[int], call: Callable[[], Any]) -> Any:  # noqa: ANN401 - of the call
        """Pass rows to the producer, and record whether it accepts them."""
        try:
            given = call()
        except BaseException:
            is_complete = len(numbers) == 1 or not self.plan.has_slices
            if is_complete and self._interrupt is None:
                self._note(numbers, is_taken=False)
            raise
        self._note(numbers, is_taken=True)
        return given

    def _note(self, numbers: list[int], *, is_taken: bool) -> None:
        for number in numbers:
            self.ledger.rows[number].is_taken = is_taken

    def _send(self) -> None:
        """Send some rows one by one."""
        for _ in range(self.world.random.randint(1, 5)):
            self._send_row(self.world.current.name, self._topic())

    def _send_many(self, topic: str) -> None:
        """Send so many rows to one topic that they do not fit into one chunk."""
        for _ in range(self.world.random.randint(8, 24)):
            self._send_row(self.world.current.name, topic)

    def send_from_callback(self) -> None:
        """Send a row from a callback, for example to another topic after a failure."""
        self._send_row("callback", self._topic())

    def _send_row(self, caller: str, topic: str) -> None:
        random = self.world.random
        (number,) = self.ledger.give(caller, topic, 1, is_append=False)
        row: Row = self.ledger.rows[number]
        row.has_callback = random.random() < 0.7
        callback = self._user_code.on_delivery(number) if row.has_callback else None
        partition = 0 if random.random() < 0.3 else None
        row.future = self._give(
            [number],
            lambda: self.producer.send(
                topic, self._value(number), partition=partition, on_delivery=callback
            ),
        )
        if random.random() < 0.3:
            row.future.add_done_callback(self._user_code.done)

    def _flush(self) -> None:
        timeout = self.world.random.choice([None, None, 0.02])
        before = [row for row in self.ledger.rows.values() if row.is_taken]
        try:
            self.producer.flush(timeout)
        except TimeoutException:
            self.ledger.is_reported = True
            if timeout is None:
                raise
        finally:
            is_over = timeout is not None or self.is_closing or self.world.failure is not None
            ended = is_over or all(row.is_done for row in before)
            self._require(ended, "flush ended before the rows that were given before it")

    def _wait(self) -> None:
        """Wait for a row's future."""
        open_rows = [row for row in self.ledger.rows.values() if not row.is_done]
        if open_rows:
            future = self.world.random.choice(open_rows).future
            if future is not None:
                future.exception()

    def _forget(self) -> None:
        """Forget topics, if possible while a caller waits for one, and read some properties."""
        if self.plan.is_forgetful:
            self.world.sleep(self.world.random.uniform(0, 0.02))
            self.world.block(self.world.has_waiting, "a caller that waits", self.world.now + 0.1)
        self.producer.metrics()
        self.producer._state.take_deliveries()
        self.producer._state.forget_topics()

    def _count(self) -> None:
        self.producer.partitions_for(self._topic(), self.world.random.choice([1, 1, 9]))

    def _pause(self) -> None:
        self.world.sleep(self.world.random.choice([0.0001, 0.01, 0.5]))

    def _close(self, timeouts: Sequence[float | None] = (None, None, 1.0, 0.02, 0)) -> None:
        timeout = self.world.random.choice(timeouts)
        # A close without a timeout does not report lost rows.
        self.ledger.is_reported = self.ledger.is_reported or timeout == 0
        self.is_closing = self.is_closing or timeout is not None or self._callers_left > 0
        self.producer.close(timeout)

    def _begin(self) -> None:
        self._began_at = len(self.ledger.rows)
        self.producer.begin_transaction()

    def _commit(self) -> None:
        rows = list(self.ledger.rows.values())[self._began_at :]
        taken = [row for row in rows if row.is_taken]
        try:
            self.producer.commit_transaction()
        except KafkaException as error:
            self._require(self._may_fail(error), f"commit failed: {error!r}")
            self.producer.abort_transaction()
        else:
            for row in taken:
                row.is_committed = True

    # -- interrupted calls ------------------------------------------------------------------------

    def _calls_around(self, interrupt: Interrupt) -> Iterator[Callable[[], object]]:
        """Draw a call that is interrupted, and what comes before and after it.

        If there is another thread, its only call is a close at about the time of the interrupt.
        """
        if self.world.current.name != "caller 0":
            yield partial(self._close_during, interrupt)
            return
        random = self.world.random
        kinds = {
            "append": 3,
            "send": 1,
            "sends": 3,
            "flush": 1 if self._callers_left == 1 else 5,
            "close": 1,
        }
        if self.plan.is_transactional:
            kinds |= {"commit": 2, "abort": 2}
        kind = random.choices([*kinds], [*kinds.values()])[0]
        if self.plan.is_transactional:
            yield self.producer.init_transactions
            yield self._begin
        yield self._append
        if kind != "append":
            yield self._send
        send_many = partial(self._send_many, self._topic())
        calls: dict[str, Callable[[], object]] = {
            "append": self._append,
            "send": partial(self._send_row, self.world.current.name, self._topic()),
            "sends": send_many,
            "flush": self.producer.flush,
            "close": self._close,
            "commit": self.producer.commit_transaction,
            "abort": self.producer.abort_transaction,
        }
        yield partial(self._interrupted, interrupt, calls[kind])
        if kind in ("commit", "abort"):
            yield partial(self._repeat, kind, calls[kind])
        if kind == "sends":
            yield send_many  # an append would first put all rows into batches
        if kind not in ("commit", "abort") and self.plan.is_transactional:
            yield self._commit
        if self.plan.is_transactional:
            yield self._begin
        yield self._append
        yield self._send
        if self.plan.is_transactional:
            yield self._commit

    def _close_during(self, interrupt: Interrupt) -> None:
        """Close during a call of another caller that is interrupted."""
        self.world.block(lambda: interrupt.has_paused or self._callers_left == 1, "a call")
        self._close([0, 0, 0.02, None])

    def _interrupted(self, interrupt: Interrupt, call: Callable[[], object]) -> None:
        """Append some rows with an interrupt."""
        try:
            interrupt.during(call)
        except KeyboardInterrupt:
            self.world.trace("interrupted")

    def _repeat(self, kind: str, call: Callable[[], object]) -> None:
        """Go on with the end of a transaction, unless it had come before the interrupt."""
        rows = list(self.ledger.rows.values())[self._began_at :]
        try:
            call()
        except IllegalStateException as error:
            self._require(self._has_ended(error), f"{kind} cannot be repeated: {error}")
        for row in rows:
            row.is_committed = kind == "commit" and bool(row.is_taken)

    def _has_ended(self, error: IllegalStateException) -> bool:
        return "in state READY" in str(error) or self._may_fail(error)


def _name(call: Callable[[], object]) -> str:
    return str(call.func.__name__ if isinstance(call, partial) else call.__name__)


def _is_late(error: BaseException | None) -> bool:
    return isinstance(error, TimeoutException) or "delivery.timeout.ms" in str(error)
