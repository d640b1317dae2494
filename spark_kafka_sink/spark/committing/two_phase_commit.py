"""The commit and the abort of mode `two-phase`: run the state machines of `commit.two_phase`.

A run is "decided" once its record in state DECIDED is committed in the commit log. From then on,
all its transactions must be committed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple, TypeGuard

from spark_kafka_sink.commit import two_phase, two_phase_abort
from spark_kafka_sink.commit.attempts import AttemptTransaction, Plan, Run
from spark_kafka_sink.commit.log_record import CommitRecord
from spark_kafka_sink.commit.outcomes import (
    Aborted,
    Committed,
    Decided,
    Superseded,
    Torn,
    Undecided,
    Unfinished,
    not_aborted_now,
    not_known,
)
from spark_kafka_sink.commit.questions import Answer
from spark_kafka_sink.commit.steps import OLD_LEADER_S, Failure, FailureKind, Step
from spark_kafka_sink.commit.two_phase_abort import SETTLES_S
from spark_kafka_sink.commit_client import CommitClient
from spark_kafka_sink.errors import (
    AuthenticationException,
    ConfigException,
    CorruptRecordException,
    KafkaException,
    Option,
    TimeoutException,
)
from spark_kafka_sink.spark.commit_clients import commit_client, exception_of, has_newer_run
from spark_kafka_sink.spark.committing.job_commit import AbortResult, say
from spark_kafka_sink.spark.options import SinkOptions
from spark_kafka_sink.spark.session import driver_folder

# The longest time in seconds to send a batch after its linger time is over.
_SENDS_S: Final = 1.0
# The shortest time in seconds of an abort that is tried again.
_TRIES_S: Final = 10.0
# The pause in seconds before an abort is tried again.
_TRY_PAUSE_S: Final = 3.0


def commit_record(
    options: SinkOptions,
    plan: Plan,
    record: CommitRecord,
    attempts: Sequence[AttemptTransaction],
    written: str,
) -> None:
    """Commit the rows of a run together with the new commit log record `record`.

    written: a description of how many rows were written, for error messages. Raise KafkaException
    if the run is not committed, if this is not known, or if some of its rows are lost.
    """
    run, config = plan.run, options.producer
    _mark_undecided(run.name)
    with commit_client(config, run.log.topic, options.brokers) as client:
        deadline = client.now() + config.delivery_timeout_ms / 1000
        begun = two_phase.begin(
            plan,
            tuple(attempts),
            record,
            level=client.level(deadline, Option("delivery.timeout.ms", config.delivery_timeout_ms)),
            deadline=deadline,
            missing_until=client.now() + config.max_block_ms / 1000,
            behind_until=client.now() + OLD_LEADER_S,
        )
        _take_mark(run.name)
        outcome = client.run(begun, two_phase.step).outcome
    if isinstance(outcome, Committed):
        return
    if isinstance(outcome, Failure):
        _mark_undecided(run.name)
        raise exception_of(outcome, run, client.acls, written)
    if isinstance(outcome, Torn):
        raise outcome.exception(run, attempts)
    if isinstance(outcome, Undecided):
        raise outcome.exception(run.owner) from outcome.failure.exception()
    raise _error(plan, outcome)


def _mark_undecided(run_name: str) -> None:
    """Note in the driver's folder that a run is certainly not decided.

    The abort of a run whose commit has failed is in a different process.
    """
    path = _mark(run_name)
    if path is not None:
        with suppress(OSError):
            path.touch(mode=0o600)


def _take_mark(run_name: str) -> bool:
    """Remove the note that a run is certainly not decided. Return whether there was one."""
    path = _mark(run_name)
    if path is None:
        return False
    try:
        path.unlink()
    except OSError:
        return False
    return True


def _mark(run_name: str) -> Path | None:
    folder = driver_folder()
    return None if folder is None else folder / f".pykafka-undecided-{run_name}"


def _error(plan: Plan, outcome: object) -> KafkaException:
    if isinstance(outcome, Unfinished):
        message = (
            f"the commit log has the decision to commit the write of {plan.run.owner}, but a part "
            f"of it could not be committed in time: {outcome.failure.sentence}; this part is lost "
            "unless you run the write again, or run python -m spark_kafka_sink.recover, within "
            f"{plan.run.timeout_ms} ms of the first row"
        )
    else:
        message = f"the commit ended with {outcome!r}; this is a bug"
    return KafkaException(message)


def abort_run(
    options: SinkOptions, plan: Plan, attempts: Sequence[AttemptTransaction], *, is_missing: bool
) -> AbortResult:
    """End the open transactions of a failed run, and return the result.

    Abort them, or commit them if the commit log contains the decision to commit the run.
    is_missing: whether a commit message is missing. If so, its task may still be running.

    If no message is missing, `commit_record` may have recorded the decision. Then the rows are lost
    unless the transactions are committed before they time out. So if no broker responds within
    max.block.ms, if the login is refused, or if a batch of the commit log is damaged, this function
    asks again until then, and commits what was decided.
    """
    is_marked = _take_mark(plan.run.name)
    may_be_decided = not is_missing and not is_marked
    tries = _Tries(plan, may_be_decided=may_be_decided)
    while True:
        try:
            with commit_client(options.producer, plan.run.log.topic, options.brokers) as client:
                return _abort_run(client, options, plan, attempts, tries, is_missing=is_missing)
        except (AuthenticationException, ConfigException) as error:
            # A client whose login was refused may refuse every request, so a new one is made.
            if not tries.go_on(error):
                return tries.failed(error)
        except KafkaException as error:
            return tries.failed(error)


class _DecidedAt(NamedTuple):
    """The decision to commit a run, which an abort has found.

    level: the transaction.version of the cluster. deadline: the time until which the transactions
    may be committed.
    """

    record: CommitRecord
    level: int
    deadline: float


class _Tries:
    """The tries of one abort, which continue for a limited time while the run may be decided.

    decided: the decision to commit the run, once it was found. From then on, no try aborts
    anything. last: the state machine of the last abort, or None.
    """

    def __init__(self, plan: Plan, *, may_be_decided: bool) -> None:
        self._run = plan.run
        self._may_be_decided = may_be_decided
        self._until = time.monotonic() + (plan.run.timeout_ms / 1000 if may_be_decided else 0.0)
        self._has_said = False
        self.decided: _DecidedAt | None = None
        self.last: two_phase_abort.Aborting | None = None

    def step(
        self, machine: two_phase_abort.Aborting, answer: Answer, now: float
    ) -> Step[two_phase_abort.Aborting]:
        """Return the state machine of the abort after a reply, and keep it."""
        after = two_phase_abort.step(machine, answer, now)
        self.last = after.machine
        return after

    def go_on(self, why: object) -> bool:
        """Return whether to try again after a failure, and wait before that.

        At the first failure, print a line.
        """
        known = self.decided or self._proved
        if time.monotonic() >= (self._until if known is None else known.deadline):
            return False
        if not self._has_said and known is None:
            say(
                f"pykafka: no broker has said yet whether the write of {self._run.owner} is "
                f"committed ({why}), so the driver continues to ask, for at most "
                f"{self._run.timeout_ms} ms"
            )
            self._has_said = True
        time.sleep(_TRY_PAUSE_S)
        return True

    @property
    def _proved(self) -> two_phase_abort.Aborting | None:
        """The state machine of the last try, if it is certain that the run is not decided."""
        return self.last if self.last is not None and self.last.is_proved else None

    def failed(self, why: object) -> AbortResult:
        """Return the result of an abort that has failed."""
        if self.decided is not None:
            line = f"the write of {self._run.owner} has to be committed, but is not yet: {why}"
            return AbortResult(line)
        if self._proved is not None:
            missed = f"the open transactions of the run's tasks cannot be aborted: {why}"
            return _aborted(self._run, Aborted(may_be_open=True, missed=missed))
        return AbortResult((not_known if self._may_be_decided else not_aborted_now)(self._run, why))


def _abort_run(
    client: CommitClient,
    options: SinkOptions,
    plan: Plan,
    attempts: Sequence[AttemptTransaction],
    tries: _Tries,
    *,
    is_missing: bool,
) -> AbortResult:
    while tries.decided is None:
        level, outcome = _abort_once(client, options, plan, attempts, tries, is_missing=is_missing)
        if _is_unanswered(outcome) and tries.go_on(outcome.sentence):
            continue
        if isinstance(outcome, Decided):
            until = client.now() + plan.run.timeout_ms / 1000
            tries.decided = _DecidedAt(outcome.record, level, until)
            _say_decided(plan.run, outcome.record)
        elif isinstance(outcome, Superseded):
            return _fenced(client, plan, level)
        elif isinstance(outcome, Aborted):
            return _aborted(plan.run, outcome)
        else:
            return tries.failed(outcome.sentence if isinstance(outcome, Failure) else outcome)
    return _forward(client, plan, attempts, tries, tries.decided)


def _abort_once(
    client: CommitClient,
    options: SinkOptions,
    plan: Plan,
    attempts: Sequence[AttemptTransaction],
    tries: _Tries,
    *,
    is_missing: bool,
) -> tuple[int, two_phase_abort.Outcome | None]:
    """Run the state machine of the abort once. Return the transaction.version and the outcome.

    If a refused login has interrupted the last try, continue it. Aborts of the driver's transaction
    may have raised its epoch, so another try begins with the epoch of the last one.
    """
    config, last = options.producer, tries.last
    deadline = client.now() + max(config.max_block_ms / 1000, 0 if is_missing else _TRIES_S)
    try:
        level = client.level(deadline)
        if last is not None and last.outcome is None:
            begun = two_phase_abort.resume(last, deadline=deadline)
        else:
            begun = two_phase_abort.begin(
                plan if last is None else replace(plan, producer=last.producer),
                tuple(attempts),
                level=level,
                deadline=deadline,
                settles_s=max(SETTLES_S, config.linger_ms / 1000 + _SENDS_S),
                is_missing=is_missing,
            )
        return level, client.run(begun, tries.step).outcome
    except (TimeoutException, CorruptRecordException) as error:
        # Another replica of the commit log may have a damaged batch undamaged.
        return plan.run.level, Failure(FailureKind.NO_ANSWER, str(error))


def _is_unanswered(outcome: object) -> TypeGuard[Failure]:
    return isinstance(outcome, Failure) and outcome.kind is FailureKind.NO_ANSWER


def _aborted(run: Run, aborted: Aborted) -> AbortResult:
    """Return the result of an abort, which says what may still be open."""
    more = _still_open(run.timeout_ms, aborted)
    return AbortResult(f"the write of {run.owner} was aborted: no row is visible{more}")


def _still_open(timeout_ms: int, aborted: Aborted) -> str:
    """Return the end of an abort message: which transactions may still be open; "" for none."""
    if aborted.missed:
        return (
            f"; {aborted.missed}; if one is open, brokers abort it within {timeout_ms} ms, and "
            "read_committed consumers may have to wait until then"
        )
    if aborted.may_be_open:
        return f"; if a task still opens a transaction, brokers abort it within {timeout_ms} ms"
    return ""


def _fenced(client: CommitClient, plan: Plan, level: int) -> AbortResult:
    """Return the result if brokers refuse to abort a run that is not decided in the commit log."""
    owner, is_newer = plan.run.owner, has_newer_run(client, plan)
    # A task may have opened its transaction after the newer run had listed the open ones.
    until = f"within {plan.run.timeout_ms} ms, brokers abort each transaction that is still open"
    # At level 2, a newer run that has just aborted the driver's transaction looks like a timeout.
    if is_newer is not False or level >= 2:
        other = "" if is_newer else ", or timed out"
        return AbortResult(
            f"the write of {owner} was superseded by a newer run, which ends the open transactions "
            f"that it finds{other}; {until}"
        )
    return AbortResult(f"the write of {owner} timed out: no row is visible; {until}")


def _say_decided(run: Run, record: CommitRecord) -> None:
    """Print a line if transactions have to be committed, because this may take long."""
    if record.transactions:
        say(
            f"pykafka: the commit log has the decision to commit the write of {run.owner}, so its "
            f"transactions are committed now, which takes at most {run.timeout_ms} ms"
        )


def _forward(
    client: CommitClient,
    plan: Plan,
    attempts: Sequence[AttemptTransaction],
    tries: _Tries,
    decided: _DecidedAt,
) -> AbortResult:
    """Commit the transactions of a run whose commit decision is already recorded."""
    record, level, deadline = decided
    begun = two_phase.begin_forward(plan, record, level=level, deadline=deadline)
    outcome = client.run(begun, two_phase.step).outcome
    if isinstance(outcome, Committed):
        owner = plan.run.owner
        line = f"the write of {owner} failed after the decision to commit it, so it IS committed"
        return AbortResult(line, is_committed=True)
    if isinstance(outcome, Failure):
        return tries.failed(outcome.sentence)
    if isinstance(outcome, Torn):
        return AbortResult(str(outcome.exception(plan.run, attempts)))
    return AbortResult(str(_error(plan, outcome)))
