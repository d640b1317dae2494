"""Show open, decided and lost transactions of exactly-once writes, and commit decided ones.

    python -m spark_kafka_sink.recover --bootstrap HOST:PORT

A write with exactlyOnce=two-phase is "decided" once its decision to commit is recorded in the
commit log. Its transactions are committed after that. If the driver dies in between, the next run
of the job commits them, or this command does. Brokers abort transactions that are not committed
within kafka.transaction.timeout.ms of their first row. Then rows are lost, and every further run of
the job fails and names the lost rows.

Without --abort and --accept-torn, the command aborts nothing and does not disturb a running job.

Exit codes: 0: no rows are lost or at risk. 1: rows are lost, or it is not known whether rows are
lost, or --dry-run has found decided transactions that are open. 2: the command failed. 130: stopped
by Ctrl-C.
"""

from __future__ import annotations

import argparse
import io
import sys
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NoReturn, TextIO

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.auth.acls import READ
from spark_kafka_sink.auth.java_properties import properties
from spark_kafka_sink.commit import plan, recovery, survey
from spark_kafka_sink.commit.attempts import Run
from spark_kafka_sink.commit.log_record import LOG_PARTITION
from spark_kafka_sink.commit.names import (
    ANY_TOPIC,
    DEFAULT_LOG_TOPIC,
    DEFAULT_PREFIX,
    Owner,
    check_app_id,
    check_prefix,
)
from spark_kafka_sink.commit.outcomes import Planned, Torn, torn_lines
from spark_kafka_sink.commit.recovery import Fate, Recovered
from spark_kafka_sink.commit.recovery_lines import record_lines, state_lines
from spark_kafka_sink.commit.steps import Failure
from spark_kafka_sink.commit.survey import FoundOwner, Surveyed
from spark_kafka_sink.commit_client import CommitClient
from spark_kafka_sink.config import ProducerConfig, producer_config
from spark_kafka_sink.errors import (
    AuthenticationException,
    ConfigException,
    KafkaException,
    listed,
)
from spark_kafka_sink.logs import masked, without_path
from spark_kafka_sink.model import TOPIC_NAME, TopicPartition

_NAME: Final = "recover"
_FINE, _AT_RISK, _NOT_POSSIBLE, _INTERRUPTED = 0, 1, 2, 130
_SERVERS: Final = "bootstrap.servers"
_NOT_KNOWN: Final = "the state of these transactions is not known"
# The tasks of a job that is still running are fenced only once they ask for an epoch.
_ABORTED: Final = (
    "aborted: the open transactions of the owner are ended; if a task is still running, it may "
    "open one more, which brokers abort after the transaction timeout of the job"
)
_NOTHING_LOST: Final = "no rows of the last run are lost: there is nothing to accept"
_NOT_ACCEPTED: Final = (
    "nothing is accepted, because it is not known whether rows of the last run are lost; run this "
    "command again when the errors above no longer occur"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit code."""
    given = _parser().parse_args(argv)
    try:
        return _run(given)
    except KafkaException as error:
        _say(str(error))
        return _NOT_POSSIBLE
    except KeyboardInterrupt:
        _say("stopped by Ctrl-C; it can be run again")
        return _INTERRUPTED


# -- the command line -----------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(_NOT_POSSIBLE, f"{_NAME}: {message}; see --help\n")


def _parser() -> argparse.ArgumentParser:
    made = _Parser(
        prog="python -m spark_kafka_sink.recover",
        description=str(__doc__),
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--bootstrap", metavar="HOST:PORT", help="brokers, separated by commas")
    made.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help="a properties file of a Kafka client, with the login settings and "
        "bootstrap.servers (--bootstrap overrides the latter)",
    )
    made.add_argument("--app-id", metavar="APPID", help="only jobs with this txnAppId")
    made.add_argument(
        "--topic",
        help=f"only jobs that write to this topic; {ANY_TOPIC} for jobs with a topic column",
    )
    made.add_argument(
        "--txn-id-prefix",
        metavar="PREFIX",
        default=DEFAULT_PREFIX,
        help="the option txnIdPrefix of the jobs (%(default)s)",
    )
    made.add_argument(
        "--commit-log-topic",
        metavar="TOPIC",
        default=DEFAULT_LOG_TOPIC,
        help="the option commitLogTopic of the jobs (%(default)s)",
    )
    action = made.add_mutually_exclusive_group()
    action.add_argument("--dry-run", action="store_true", help="only look, and change nothing")
    action.add_argument(
        "--abort",
        metavar="APPID",
        help="end the transactions that jobs with this txnAppId have left open, as their next run "
        "would: commit decided transactions, and abort all others; a job that is still running "
        "fails",
    )
    action.add_argument(
        "--accept-torn",
        action="store_true",
        help="let the jobs of --app-id go on although rows of their last run are lost: that run "
        "counts as written",
    )
    return made


@dataclass(frozen=True, slots=True)
class _Asked:
    """The checked arguments of the command line.

    app_id: the txnAppId, or None for all. topic: the target topic, or None for all.
    """

    config: ProducerConfig
    prefix: str
    log: TopicPartition
    app_id: str | None
    topic: str | None


def _asked(given: argparse.Namespace) -> _Asked:
    """Return the checked arguments. Raise ConfigException if they are invalid."""
    if given.accept_torn and given.app_id is None:
        raise ConfigException("--accept-torn needs --app-id: it is for one txnAppId")
    if given.abort is not None and given.app_id is not None:
        raise ConfigException("--abort APPID already names the txnAppId: remove --app-id")
    app_id = given.app_id if given.abort is None else given.abort
    if app_id is not None:
        check_app_id(app_id)
    check_prefix(given.txn_id_prefix)
    _check_topic(given.commit_log_topic)
    if given.topic not in (None, ANY_TOPIC):
        _check_topic(given.topic)
    options = {} if given.config is None else _properties(given.config)
    if given.bootstrap is not None:
        options[_SERVERS] = given.bootstrap
    if not options.get(_SERVERS):
        message = f"no brokers: give --bootstrap HOST:PORT, or {_SERVERS} in the file of --config"
        raise ConfigException(message)
    log = TopicPartition(given.commit_log_topic, LOG_PARTITION)
    config = producer_config(options, defaults={"client.id": _NAME})
    return _Asked(config, given.txn_id_prefix, log, app_id, given.topic)


def _check_topic(name: str) -> None:
    if TOPIC_NAME.match(name) is None:
        raise ConfigException(
            f"{name!r} is not a valid topic name: expected 1 to 249 of the characters a-z A-Z 0-9 "
            ". _ -"
        )


def _properties(path: Path) -> dict[str, str]:
    """Return the options in a properties file. Raise ConfigException if it cannot be read."""
    try:
        return properties(path.read_text(encoding="latin-1"))  # as Java reads it
    except (OSError, ValueError) as error:
        message = f"--config {path} cannot be read as properties: {without_path(error)}"
        raise ConfigException(message) from None


# -- what it does ---------------------------------------------------------------------------------


def _run(given: argparse.Namespace) -> int:
    asked = _asked(given)
    with CommitClient(asked.config, asked.log.topic) as client:
        command = _Command(asked, client)
        owners = command.owners(commits=not given.dry_run)
        act: Callable[[FoundOwner], int] = command.recover
        if given.dry_run:
            act = command.look
        elif given.abort is not None:
            act = command.abort
        elif given.accept_torn:
            act = command.accept_torn
        results = [_result(act, each) for each in owners]
    return max(results, default=_FINE)


def _result(act: Callable[[FoundOwner], int], found: FoundOwner) -> int:
    """Return the exit code of an action on an owner. If it fails, other owners need theirs."""
    try:
        return act(found)
    except KafkaException as error:
        _print_lines([f"the command failed for this txnAppId and topic: {error}"])
        return _NOT_POSSIBLE


class _Command:
    """The actions of the command on one owner (a txnAppId and its target topic).

    Each action prints what it finds and does, and returns an exit code.
    """

    def __init__(self, asked: _Asked, client: CommitClient) -> None:
        self._asked = asked
        self._client = client
        deadline = self._deadline()
        client.check_brokers(deadline)
        self._level = client.level(deadline)
        # What was committed before all was found.
        self._early: dict[Owner, Recovered] = {}

    def _deadline(self) -> float:
        return self._client.now() + self._asked.config.max_block_ms / 1000

    def owners(self, *, commits: bool) -> list[FoundOwner]:
        """Find the owners that the command line selects. Raise KafkaException if this fails.

        commits: whether to commit what is decided before all is found, if a broker is silent.
        """
        asked = self._asked
        surveyed = self._surveyed(ends_early=commits)
        if surveyed.is_early:
            try:
                self._commit_early(surveyed.owners)
                surveyed = self._surveyed()
            except (KafkaException, KeyboardInterrupt):
                for owner in self._early:
                    _print(str(owner))
                    self._print_early(owner)
                raise
        every, missed = surveyed.owners, surveyed.missed
        found = [each for each in every if self._is_asked_for(each)]
        if missed is not None:
            if not found:
                raise missed.exception()
            _say(f"warning: {missed.sentence}; some open transactions may be missing below")
        if not found and asked.app_id is not None:
            known = listed(dict.fromkeys(repr(each.owner.app_id) for each in every))
            topic = "" if asked.topic is None else f" (topic {asked.topic})"
            message = (
                f"txnAppId {asked.app_id!r}{topic} has no record in {asked.log}, and no open "
                "transaction that this client may describe; known values of txnAppId: "
                f"{known or 'none'}"
            )
            raise ConfigException(message)
        if not found:
            _print(
                f"{asked.log} has no records for transactional ids that begin with "
                f"'{asked.prefix}/', and no transaction with such an id is open"
            )
        return found

    def _commit_early(self, owners: Iterable[FoundOwner]) -> None:
        """Commit what is decided, and keep the results. After that, all owners are recovered."""
        for each in owners:
            if not self._is_asked_for(each) or not survey.has_decided(each.reading):
                continue
            try:
                outcome = self._recovered(each, commits=True, ends_early=True)
            except AuthenticationException:
                raise
            except KafkaException:
                continue
            if isinstance(outcome, Recovered) and outcome.fates:
                self._early[each.owner] = replace(outcome, undecided=(), missed=None)

    def _print_early(self, owner: Owner) -> None:
        if owner in self._early:
            _print_lines(state_lines(self._early[owner], self._asked.log.topic))

    def _surveyed(self, *, ends_early: bool = False) -> Surveyed:
        """Make a survey of all owners. Raise KafkaException if this fails."""
        begun = survey.begin(self._asked.prefix, deadline=self._deadline(), ends_early=ends_early)
        outcome = self._client.run(begun, survey.step).outcome
        for warning in self._client.take_warnings():
            _say(f"warning: commit log {self._asked.log}: {warning}")
        if isinstance(outcome, Failure):
            raise self._survey_failed(outcome)
        return outcome or Surveyed(())

    def _is_asked_for(self, found: FoundOwner) -> bool:
        owner, asked = found.owner, self._asked
        is_app = asked.app_id is None or owner.app_id == asked.app_id
        return is_app and (asked.topic is None or owner.target == asked.topic)

    def _survey_failed(self, failure: Failure) -> KafkaException:
        error, log = failure.exception(), self._asked.log.topic
        if failure.error == codes.UNKNOWN_TOPIC_OR_PARTITION:
            return error.with_message(
                f"topic {log} does not exist, so no write with exactlyOnce has used it; if your "
                "jobs set commitLogTopic, give --commit-log-topic"
            )
        hint = self._client.acls.hint(failure.error, log, READ)
        return error if hint is None else error.with_message(f"{failure.sentence}; {hint}")

    def look(self, found: FoundOwner) -> int:
        """Print the state of an owner, and change nothing."""
        return self._recover(found, commits=False)

    def recover(self, found: FoundOwner) -> int:
        """Commit the open transactions that the commit log lists as decided for an owner."""
        return self._recover(found, commits=True)

    def _recover(self, found: FoundOwner, *, commits: bool) -> int:
        outcome = self._printed(found, commits=commits)
        if outcome is None:
            return _NOT_POSSIBLE
        risks = {Fate.LOST, Fate.IN_DOUBT, Fate.UNKNOWN, Fate.OPEN}
        is_readable = outcome.found.reading.newer_format is None
        if outcome.found.open_ids is None or outcome.missed is not None:
            return _NOT_POSSIBLE
        return _AT_RISK if risks & set(outcome.fates) or not is_readable else _FINE

    def _printed(self, found: FoundOwner, *, commits: bool) -> Recovered | None:
        """Recover an owner, and print the result. Return None if the recovery failed."""
        _print(str(found.owner))
        try:
            outcome = self._recovered(found, commits=commits)
        except KafkaException:
            self._print_early(found.owner)
            raise
        if isinstance(outcome, Failure):
            _print_lines(record_lines(found.reading, masked))
            self._print_early(found.owner)
            self._failed(found, outcome)
            return None
        _print_lines(record_lines(outcome.found.reading, masked))
        early = self._early.get(found.owner)
        if early is not None and early.found.reading.record == outcome.found.reading.record:
            outcome = recovery.merged(early, outcome)
        else:
            self._print_early(found.owner)
        _print_lines(state_lines(outcome, self._asked.log.topic))
        return outcome

    def _recovered(
        self, found: FoundOwner, *, commits: bool, ends_early: bool = False
    ) -> Recovered | Failure:
        begun = recovery.begin(
            found,
            level=self._level,
            deadline=self._deadline(),
            more_s=self._asked.config.max_block_ms / 1000,
            commits=commits,
            ends_early=ends_early,
        )
        outcome = self._client.run(begun, recovery.step).outcome
        if outcome is None:
            raise KafkaException("the recovery has no outcome; this is a bug")
        return outcome

    def abort(self, found: FoundOwner) -> int:
        """End the open transactions of an owner in the way in which its next run would end them."""
        _print(str(found.owner))
        _print_lines(record_lines(found.reading, masked))
        self._print_early(found.owner)
        return self._plan(found, _ABORTED, accepts_torn=False)

    def accept_torn(self, found: FoundOwner) -> int:
        """Let an owner continue although rows of its last run are lost."""
        outcome = self._printed(found, commits=True)
        if outcome is None:
            return _NOT_POSSIBLE
        reading = outcome.found.reading
        if not {Fate.LOST, Fate.IN_DOUBT} & set(outcome.fates):
            is_known = (
                Fate.UNKNOWN not in outcome.fates
                and reading.newer_format is None
                and outcome.missed is None
            )
            _print_lines([_NOTHING_LOST if is_known else _NOT_ACCEPTED])
            return _FINE if is_known else _AT_RISK
        what = "its last run" if reading.record is None else reading.record.last_written
        return self._plan(
            found, f"accepted: {what} counts as written, and the next run can start",
            accepts_torn=True,
        )  # fmt: skip

    def _plan(self, found: FoundOwner, done: str, *, accepts_torn: bool) -> int:
        run = Run(
            owner=found.owner,
            name=f"{_NAME}-{uuid.uuid4().hex}",
            log=self._asked.log,
            level=self._level,
            timeout_ms=self._asked.config.transaction_timeout_ms,
        )
        begun = plan.begin(run, deadline=self._deadline(), accepts_torn=accepts_torn)
        outcome = self._client.run(begun, plan.step).outcome
        if isinstance(outcome, Planned):
            _print_lines([done])
            return _FINE
        if isinstance(outcome, Torn):
            record, log_topic = outcome.record, self._asked.log.topic
            every = len(record.transactions)
            _print_lines(torn_lines(found.owner, log_topic, record, outcome.lost, every))
            return _AT_RISK
        if isinstance(outcome, Failure):
            return self._failed(found, outcome, "the open transactions could not be ended")
        raise KafkaException(f"the plan ended with {outcome!r}; this is a bug")

    def _failed(self, found: FoundOwner, failure: Failure, what: str = _NOT_KNOWN) -> int:
        acls = self._client.acls
        hints = {
            # Brokers do not list an open transaction if the client lacks permission for its id.
            codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: acls.hint(
                failure.error, f"{found.owner.prefix}/", is_prefix=True
            ),
            codes.TOPIC_AUTHORIZATION_FAILED: (
                "this command needs READ on the topics of the rows, and READ and WRITE on "
                f"{self._asked.log}"
            ),
            codes.INVALID_TRANSACTION_TIMEOUT: (
                f"transaction.timeout.ms is {self._asked.config.transaction_timeout_ms}: in the "
                "file of --config, set it to at most the transaction.max.timeout.ms of the brokers"
            ),
        }
        hint = hints.get(failure.error)
        _print_lines([f"{what}: {failure.sentence}{f'; {hint}' if hint else ''}"])
        return _NOT_POSSIBLE


# -- what it prints -------------------------------------------------------------------------------


def _print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        _print(f"    {line}")


def _print(line: str) -> None:
    """Print a line. If this fails, the command continues, because rows may be at risk."""
    try:
        _write(line, sys.stdout)
    except OSError as error:  # for example, nobody reads the pipe any more
        # When Python ends, it would fail again to write this line, and return exit code 120.
        sys.stdout = io.StringIO()
        _say(f"the output cannot be written ({without_path(error)}); the command continues")


def _say(line: str) -> None:
    try:
        _write(f"{_NAME}: {line}", sys.stderr)
    except OSError:
        sys.stderr = io.StringIO()


def _write(line: str, stream: TextIO | None) -> None:
    """Write a line, and escape the characters that the stream cannot encode."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    text = _plain(line).encode(encoding, "backslashreplace").decode(encoding)
    print(text, file=stream, flush=True)


def _plain(text: str) -> str:
    """Return `text` with control characters escaped, because log records may contain them."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


if __name__ == "__main__":
    sys.exit(main())
