"""World: threads that run one at a time, in an order that a seed determines, in simulated time.

The threads are real and pass a baton: a thread without it waits for it. At every point at which
another thread could interfere, the product calls `step` or `block`, and the seed selects the thread
that continues. Time passes when no thread can run, and a little at some steps.

A thread that cannot continue gives its condition as a function, which is called repeatedly, so the
world itself never loses a wake-up. If no thread can run and no event is pending, there is a
deadlock.
"""

from __future__ import annotations

import _thread
import threading
import zlib
from collections.abc import Callable
from random import Random
from typing import Any, Final

from simulation.scheduler import Scheduler, SimulationError

_NEVER: Final = float("inf")
# Runs have about 500 steps; an endless loop has more than this.
_MOST_STEPS: Final = 30_000
# The limit of a run in real time: nothing in it waits for anything real, but a machine may be busy.
_STUCK_S: Final = 120.0
# An idle I/O thread waits for at most an hour.
_LONGEST_WAIT_S: Final = 3700.0
# The probability that another thread continues at a step.
_EAGERNESS: Final = (0.05, 0.2, 0.6)
# The probability that time passes at a step.
_SLOWNESS: Final = (0.03, 0.2, 0.6)
_LAPSES_S: Final = (1e-6, 1e-5, 1e-3, 5e-3)


class Abandoned(BaseException):
    """Ends the threads of a failed run."""


class Task:
    """One thread. held: its locks. until, deadline: the condition it waits for, and the time limit.

    interrupt_at: which of its next waits an interrupt (Ctrl-C) ends, 0 for none.
    """

    def __init__(self, name: str, call: Callable[[], object]) -> None:
        self.name = name
        self.call = call
        self.baton = _thread.allocate_lock()
        self.baton.acquire()
        self.is_over = False
        self.held: list[SimulatedLock] = []
        self.until: Callable[[], bool] | None = None
        self.waits_for = ""
        self.deadline = _NEVER
        self.interrupt_at = 0

    def may_run(self, now: float) -> bool:
        """Whether it can continue."""
        return self.until is None or now >= self.deadline or self.until()


class World:
    """All threads of one run, and its time. `random` is the only source of randomness.

    is_inside: whether the driver's own code runs, and not the code that it drives.
    """

    def __init__(self, seed: int | str, *, tracing: bool = False) -> None:
        self.random = Random(f"threads {seed}")
        self.events = Scheduler(tracing=tracing)
        self._tracing = tracing
        self._tasks: list[Task] = []
        self._eagerness = self.random.choice(_EAGERNESS)
        self._slowness = self.random.choice(_SLOWNESS)
        self._over = _thread.allocate_lock()
        self._over.acquire()
        self._steps = 0
        self.digest = 0
        self.failure: BaseException | None = None
        self.is_inside = False
        self.user_slept_s = 0.0

    # -- the run ----------------------------------------------------------------------------------

    def run(self, main: Callable[[], object]) -> None:
        """Run `main` and all threads that it starts. Raise the error that was found."""
        self.current = self.spawn("main", main)
        self.current.baton.release()
        if not self._over.acquire(timeout=_STUCK_S):
            message = f"{self.current.name} is stuck at something real: {self._waiting()}"
            raise SimulationError(message) from self.failure
        if self.failure is not None:
            raise self.failure

    def spawn(self, name: str, call: Callable[[], object]) -> Task:
        """Create a thread, which runs when it is selected."""
        task = Task(name, call)
        self._tasks.append(task)
        _thread.start_new_thread(self._run_task, (task,))
        return task

    def _run_task(self, task: Task) -> None:
        task.baton.acquire()
        try:
            self._check()
            task.call()
        except Abandoned:
            pass
        except BaseException as error:  # noqa: BLE001 - raised by `run`
            self.fail(error)
        task.is_over = True
        if task.held and self.failure is None:
            self.fail(SimulationError(f"{task.name} ended with {task.held}"))
        self._tasks.remove(task)
        if not self._tasks:
            self._over.release()
            return
        self.is_inside = True
        self.current = self._choose()
        self.is_inside = False
        self.current.baton.release()

    def fail(self, error: BaseException) -> None:
        """End the run with an error; the first one counts."""
        if self.failure is None:
            self.trace("is wrong: {}", error)
            self.failure = error

    def _check(self) -> None:
        if self.failure is not None:
            raise Abandoned

    def trace(self, text: str, *args: object) -> None:
        """Log an action of the running thread."""
        if self._tracing:
            self.events.trace(self.current.name[-10:], text, *args)

    # -- who goes on ------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """The time in seconds."""
        return self.events.now

    def step(self, what: str) -> None:
        """Pass a point at which another thread may continue."""
        self._check()
        self.is_inside = True
        self._steps += 1
        self.digest = zlib.crc32(f"{self.current.name}{what}".encode(), self.digest)
        if self._steps > _MOST_STEPS:
            self.fail(SimulationError(f"busy loop at {self.now:.4f} s: {self._waiting()}"))
        if self.random.random() < self._slowness:
            self._let_pass(self.now + self.random.choice(_LAPSES_S))
        if self.random.random() < self._eagerness:
            self._hand_on()
        self.is_inside = False
        self._check()

    def block(
        self,
        until: Callable[[], bool],
        waits_for: str,
        deadline: float = _NEVER,
        *,
        may_interrupt: bool = True,
    ) -> bool:
        """Wait until a condition is true or the deadline is over; return whether it is true.

        Raise KeyboardInterrupt if an interrupt ends this wait.
        """
        self._check()
        self.is_inside = True
        task, interrupted = self.current, False
        if task.interrupt_at and may_interrupt:
            task.interrupt_at -= 1
            interrupted = not task.interrupt_at
        if interrupted:
            deadline = min(deadline, self.now + self.random.choice(_LAPSES_S))
        task.until, task.waits_for, task.deadline = until, waits_for, deadline
        self._hand_on()
        task.until, task.waits_for, task.deadline = None, "", _NEVER
        self.is_inside = False
        self._check()
        if interrupted:
            raise KeyboardInterrupt
        return until()

    def has_waiting(self) -> bool:
        """Whether a thread waits for a signal."""
        return any(task.waits_for == "a signal" for task in self._tasks)

    def lapse(self, seconds: float) -> None:
        """Let time pass while no other thread runs."""
        self.is_inside = True
        self._let_pass(self.now + seconds)
        self.is_inside = False

    def sleep(self, seconds: float) -> None:
        """Let time pass for the other threads."""
        self.block(lambda: False, "time", self.now + seconds)

    def _hand_on(self) -> None:
        task = self.current
        other = self._choose()
        if other is not task:
            self.current = other
            other.baton.release()
            task.baton.acquire()

    def _choose(self) -> Task:
        began = self.now
        while self.failure is None:
            ready = [task for task in self._tasks if task.may_run(self.now)]
            if ready:
                return ready[0] if len(ready) == 1 else self.random.choice(ready)
            due = min(self.events.next_at(), *(task.deadline for task in self._tasks))
            if due > began + _LONGEST_WAIT_S:  # which brokers may fill with events of their own
                self.fail(SimulationError(f"deadlock at {began:.4f} s: {self._waiting()}"))
                break
            self._let_pass(due)
        return self._tasks[0]

    def _let_pass(self, until: float) -> None:
        """Run the events until then; errors of brokers are not errors of a thread."""
        try:
            self.events.run_until(until)
        except Exception as error:  # noqa: BLE001 - raised by `run`
            self.fail(error)

    def _waiting(self) -> str:
        return "; ".join(
            f"{task.name} waits for {task.waits_for or 'nothing'}, has {task.held}"
            for task in self._tasks
        )


class SimulatedLock:
    """A lock of `threading`; an RLock if it is `reentrant`."""

    def __init__(self, world: World, *, reentrant: bool) -> None:
        self._world = world
        self._is_reentrant = reentrant
        self._owner: Task | None = None
        self._count = 0

    def __repr__(self) -> str:
        return f"lock {id(self):x} of {self._owner.name if self._owner else 'nobody'}"

    def _is_free(self) -> bool:
        return self._owner is None

    def _is_owned(self) -> bool:
        return self._owner is self._world.current

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: FBT001, FBT002 - as the real one
        """Acquire the lock."""
        world = self._world
        if self._is_reentrant and self._owner is world.current:
            self._count += 1
            return True
        world.step("acquire")
        if self._owner is not None:
            if not blocking:
                return False
            deadline = _NEVER if timeout < 0 else world.now + timeout
            holder = self._owner.name
            if not world.block(self._is_free, f"a lock that {holder} had", deadline):
                return False
        self._take(1)
        return True

    def _take(self, count: int) -> None:
        self._owner, self._count = self._world.current, count
        self._world.current.held.append(self)

    def release(self) -> None:
        """Release the lock."""
        if not self._is_owned() and self._world.failure is None:
            message = f"{self._world.current.name} releases {self}"
            raise RuntimeError(message)
        self._count -= 1
        if not self._count:
            self.let_go()
            if self._world.failure is None:
                self._world.step("release")

    def let_go(self) -> int:
        """Release all levels, as a condition does; return their number."""
        count, self._owner, self._count = self._count, None, 0
        if self in self._world.current.held:
            self._world.current.held.remove(self)
        return count

    def take_back(self, count: int) -> None:
        """Acquire all levels again, in spite of interrupts."""
        what = "the lock of its condition"
        self._world.block(self._is_free, what, may_interrupt=False)
        self._take(count)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class SimulatedCondition:
    """A condition of `threading`; wakes only threads that were waiting when it was notified."""

    def __init__(self, world: World, lock: SimulatedLock | None = None) -> None:
        self._world = world
        self._lock = lock or SimulatedLock(world, reentrant=True)
        self._waiters: list[list[bool]] = []
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait to be notified; return False if the timeout is over before."""
        if not self._lock._is_owned():
            message = "cannot wait on un-acquired lock"
            raise RuntimeError(message)
        world, notified = self._world, [False]
        deadline = _NEVER if timeout is None else world.now + max(0.0, timeout)
        self._waiters.append(notified)
        count = self._lock.let_go()
        try:
            return world.block(lambda: notified[0], "a condition", deadline)
        finally:
            if world.failure is None:
                self._lock.take_back(count)
            self._waiters = [waiter for waiter in self._waiters if waiter is not notified]

    def notify(self, n: int = 1) -> None:
        """Wake `n` waiters."""
        for notified in self._waiters[:n]:
            notified[0] = True
        del self._waiters[:n]

    def notify_all(self) -> None:
        """Wake all waiters."""
        self.notify(len(self._waiters))


class SimulatedSignal:
    """A signal of `client.deadlines`: a lock that one thread takes and another one releases."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._is_taken = False

    def locked(self) -> bool:
        """Whether the signal is not set."""
        return self._is_taken

    def release(self) -> None:
        """Set the signal."""
        self._is_taken = False

    def acquire(self, *, timeout: float | None = None) -> bool:
        """Take the signal, or wait until it is set; return False after the timeout."""
        if not self._is_taken:
            self._is_taken = True
            return True
        world = self._world
        deadline = _NEVER if timeout is None else world.now + max(0.0, timeout)
        return world.block(lambda: not self._is_taken, "a signal", deadline)


class SimulatedThread:
    """A thread of `threading`."""

    def __init__(self, world: World, target: Callable[[], object], name: str, **_: object) -> None:
        self._world = world
        self._target = target
        self._name = name
        self._task: Task | None = None

    def start(self) -> None:
        """Start the thread."""
        self._task = self._world.spawn(self._name, self._target)
        self._world.step("start")

    def is_alive(self) -> bool:
        """Whether it is running."""
        return self._task is not None and not self._task.is_over

    def is_current(self) -> bool:
        """Whether the caller is this thread."""
        return self._task is self._world.current

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""
        deadline = _NEVER if timeout is None else self._world.now + max(0.0, timeout)
        self._world.block(lambda: not self.is_alive(), f"the end of {self._name}", deadline)


def threads_of(world: World) -> dict[str, object]:
    """Return the replacements for the names in `threading` that the product uses."""
    started: list[SimulatedThread] = []

    def make(**given: Any) -> SimulatedThread:  # noqa: ANN401 - handed on
        started.append(SimulatedThread(world, **given))
        return started[-1]

    return {
        "Lock": lambda: SimulatedLock(world, reentrant=False),
        "RLock": lambda: SimulatedLock(world, reentrant=True),
        "Condition": lambda lock=None: SimulatedCondition(world, lock),
        "Thread": make,
        "current_thread": lambda: next((each for each in started if each.is_current()), None),
        "get_ident": threading.get_ident,
        "TIMEOUT_MAX": threading.TIMEOUT_MAX,
    }
