"""The command line of `recover`: what is refused before a broker is asked, and what is printed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.pure.planned_run import DECIDED, OWNER, WRITER
from support.pure.scripted_machine import kinds
from support.pure.scripted_machine import run as scripted

from spark_kafka_sink import recover
from spark_kafka_sink.commit.attempts import Plan, Run
from spark_kafka_sink.commit.log_record import NOTHING, CommitRecord, LogReading, RecordState
from spark_kafka_sink.commit.names import Owner, checked_owner
from spark_kafka_sink.commit.outcomes import Planned
from spark_kafka_sink.commit.questions import (
    COMPLETE_COMMIT,
    ONGOING,
    AllRecordsRead,
    Described,
    DescribeTransaction,
    Ended,
    Listed,
    ListTransactions,
    OpenTransaction,
    ReadAllRecords,
    Unanswered,
)
from spark_kafka_sink.commit.recovery import Fate, Recovered
from spark_kafka_sink.commit.steps import Failure, FailureKind
from spark_kafka_sink.commit.survey import FoundOwner, Surveyed
from spark_kafka_sink.commit_client import CommitClient
from spark_kafka_sink.config import producer_config
from spark_kafka_sink.errors import SaslAuthenticationException, TimeoutException, corrupt
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.recover import main

NOWHERE = "127.0.0.1:1"


def use_no_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command start without brokers."""
    monkeypatch.setattr(CommitClient, "check_brokers", lambda *_: None)
    monkeypatch.setattr(CommitClient, "level", lambda *_: 2)


@contextmanager
def command(app_id: str | None = None) -> Iterator[recover._Command]:
    """Yield the command for the prefix `team` and a txnAppId."""
    config = producer_config({"bootstrap.servers": NOWHERE})
    asked = recover._Asked(config, "team", TopicPartition("log", 0), app_id, None)
    with CommitClient(config, "log") as client:
        yield recover._Command(asked, client)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "no brokers: give --bootstrap HOST:PORT, or bootstrap.servers in the file"),
        (["--bootstrap", "host"], "bootstrap.servers"),
        (["--bootstrap", NOWHERE, "--accept-torn"], "--accept-torn needs --app-id"),
        (["--bootstrap", NOWHERE, "--abort", "a", "--app-id", "b"], "remove --app-id"),
        (["--bootstrap", NOWHERE, "--abort", ""], "option txnAppId has 0 bytes"),
        (["--bootstrap", NOWHERE, "--txn-id-prefix", "a/b"], "option txnIdPrefix is 'a/b'"),
        (["--bootstrap", NOWHERE, "--commit-log-topic", "no topic"], "is not a valid topic name"),
        (["--bootstrap", NOWHERE, "--topic", "no topic"], "is not a valid topic name: expected"),
        (["--config", "/nowhere/at all"], "cannot be read as properties: No such file"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main(arguments) == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.startswith("recover: ")
    assert said in found.err
    assert found.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [["--dry-run", "--abort", "a"], ["--abort"], ["--nonsense"], ["--abort", "a", "b"]]
)
def test_a_wrong_argument_ends_with_2_and_points_to_the_help(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith("; see --help\n")


def test_a_file_with_an_unknown_or_a_secret_option_is_refused_without_its_value(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "client.properties"
    file.write_text(f"bootstrap.servers={NOWHERE}\nsasl.jaas.setup=s3cret\n")
    assert main(["--config", str(file)]) == 2
    said = capsys.readouterr().err
    assert "sasl.jaas.setup" in said
    assert "s3cret" not in said


def test_an_empty_option_of_a_file_counts(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    name = "ssl.endpoint.identification.algorithm"
    file.write_text(f"bootstrap.servers={NOWHERE}\nsecurity.protocol=SSL\n{name}=\n")
    asked = recover._asked(recover._parser().parse_args(["--config", str(file)]))
    assert asked.config.ssl_endpoint_identification_algorithm == ""


def test_brokers_that_are_not_there_are_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "client.properties"
    file.write_text("max.block.ms=200\n")
    assert main(["--bootstrap", NOWHERE, "--config", str(file)]) == 2
    assert capsys.readouterr().err == (
        "recover: no broker has answered within max.block.ms=200; check "
        f"bootstrap.servers={NOWHERE} (bootstrap ({NOWHERE}): Connection refused)\n"
    )


def test_ctrl_c_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(recover, "_run", interrupted)
    assert main(["--bootstrap", NOWHERE]) == 130
    assert capsys.readouterr().err == "recover: stopped by Ctrl-C; it can be run again\n"


def test_it_runs_as_a_module_and_explains_itself() -> None:
    command = [sys.executable, "-m", "spark_kafka_sink.recover", "--help"]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    for name in ("--dry-run", "--abort APPID", "--accept-torn", "--config FILE", "Exit codes"):
        assert name in found.stdout


def test_text_of_the_log_cannot_control_a_terminal() -> None:
    assert recover._plain("a\x1b[2Jb\nc\u202e") == "a\\x1b[2Jb\\nc\\u202e"


# Runs the command for two owners, and appends the names of those that it recovers to a file.
OF_TWO = """
import sys
from pathlib import Path
from spark_kafka_sink import recover
from spark_kafka_sink.commit.log_record import NOTHING
from spark_kafka_sink.commit.names import checked_owner
from spark_kafka_sink.commit.recovery import Recovered
from spark_kafka_sink.commit.survey import FoundOwner
from spark_kafka_sink.commit_client import CommitClient

def recovered(self, found, *, commits):
    with Path(sys.argv[1]).open("a") as file:
        file.write(ascii(found.owner.app_id))
    return Recovered(found)

CommitClient.check_brokers = lambda *_: None
CommitClient.level = lambda *_: 2
recover._Command._recovered = recovered
recover._Command.owners = lambda *_, **__: [
    FoundOwner(checked_owner("pykafka", each, "t"), NOTHING, ()) for each in ("\\u017c", "b")
]
sys.exit(recover.main(["--bootstrap", "127.0.0.1:1"]))
"""


@pytest.mark.parametrize("is_read", [(True, True), (False, True), (False, False)])
def test_output_that_cannot_be_written_stops_nothing(
    tmp_path: Path, is_read: tuple[bool, bool]
) -> None:
    recovered = tmp_path / "recovered"
    read_end, closed = os.pipe()
    os.close(read_end)
    out, err = (subprocess.PIPE if each else closed for each in is_read)
    done = subprocess.run(
        [sys.executable, "-c", OF_TWO, str(recovered)],
        env=os.environ | {"PYTHONIOENCODING": "latin-1"},
        stdout=out,
        stderr=err,
        check=False,
        timeout=60,
    )
    os.close(closed)
    assert recovered.read_text() == r"'\u017c''b'"
    assert done.returncode == 0
    if out != closed:
        assert rb"txnAppId '\u017c' (topic t)" in done.stdout
    if err != closed:
        lines = b"recover: the output cannot be written (Broken pipe); the command continues\n"
        assert done.stderr == (lines if out == closed else b"")


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (53, " --resource-pattern-type prefixed --transactional-id team/"),
        (
            50,
            "no; transaction.timeout.ms is 60000: in the file of --config, set it to at most the "
            "transaction.max.timeout.ms of the brokers",
        ),
    ],
)
def test_the_right_or_the_option_that_helps_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: int, hint: str
) -> None:
    use_no_brokers(monkeypatch)
    found = FoundOwner(checked_owner("team", "app", "t"), NOTHING, ())
    refused = Failure(FailureKind.REFUSED, "no", error)
    with command() as asked:
        assert asked._failed(found, refused) == 2
    assert capsys.readouterr().out.endswith(f"{hint}\n")


@pytest.mark.parametrize(
    ("fates", "newer_format", "exit_code", "said"),
    [
        (
            (Fate.COMMITTED, Fate.COMMITTED),
            None,
            0,
            "no rows of the last run are lost: there is nothing to accept",
        ),
        (
            (Fate.COMMITTED, Fate.UNKNOWN),
            None,
            1,
            "nothing is accepted, because it is not known whether rows of the last run are lost; "
            "run this command again when the errors above no longer occur",
        ),
        (
            (),
            "its record has the format 3",
            1,
            "nothing is accepted, because it is not known whether rows of the last run are lost; "
            "run this command again when the errors above no longer occur",
        ),
    ],
)
def test_nothing_is_accepted_where_no_rows_are_known_to_be_lost(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    fates: tuple[Fate, ...],
    newer_format: str | None,
    exit_code: int,
    said: str,
) -> None:
    reading = replace(NOTHING, newer_format=newer_format)
    found = FoundOwner(checked_owner("team", "app", "t"), reading, ())
    failures = tuple(
        Failure(FailureKind.NO_ANSWER, "no broker has answered")
        for fate in fates
        if fate is Fate.UNKNOWN
    )
    recovered = Recovered(found, fates=fates, failures=failures)
    use_no_brokers(monkeypatch)
    monkeypatch.setattr(recover._Command, "_recovered", lambda *_, **__: recovered)
    with command("app") as asked:
        assert asked.accept_torn(found) == exit_code
    *before, last = capsys.readouterr().out.splitlines()
    assert last.strip() == said
    reasons = [line for line in before if line.endswith("not known: no broker has answered")]
    assert len(reasons) == len(failures)


def test_the_record_that_was_read_last_is_the_one_that_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = FoundOwner(checked_owner("team", "app", "t"), NOTHING, ())
    record = CommitRecord(RecordState.DONE, "run", 5, 0).after_version(7)
    recovered = Recovered(found._replace(reading=LogReading(record, 3)))
    use_no_brokers(monkeypatch)
    monkeypatch.setattr(recover._Command, "_recovered", lambda *_, **__: recovered)
    with command("app") as asked:
        assert asked.recover(found) == 0
    assert "last written: version 7, 5 rows, at 1970" in capsys.readouterr().out


def test_without_the_list_of_open_transactions_the_command_commits_and_ends_with_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    owner = checked_owner("pykafka", "app", "t")
    missed = Failure(FailureKind.NO_ANSWER, "they could not be listed: node 3 did not answer")
    found = FoundOwner(owner, NOTHING, None)
    surveyed = [Surveyed((found,), missed), Surveyed((), missed)]
    fates = [(Fate.COMMITTED,), ()]
    use_no_brokers(monkeypatch)
    monkeypatch.setattr(CommitClient, "run", lambda *_: SimpleNamespace(outcome=surveyed[0]))
    monkeypatch.setattr(recover._Command, "_recovered", lambda *_, **__: Recovered(found, fates[0]))
    assert main(["--bootstrap", NOWHERE]) == 2
    said = capsys.readouterr()
    assert said.err == (
        "recover: warning: they could not be listed: node 3 did not answer; some open "
        "transactions may be missing below\n"
    )
    assert "decided: 1 transactions: 1 are committed" in said.out
    fates.pop(0)
    assert main(["--bootstrap", NOWHERE]) == 2
    assert "no transaction is decided; which ones are open is not known" in capsys.readouterr().out
    surveyed.pop(0)
    assert main(["--bootstrap", NOWHERE, "--app-id", "app"]) == 2
    assert capsys.readouterr().err == "recover: they could not be listed: node 3 did not answer\n"


@pytest.mark.parametrize("action", [[], ["--dry-run"]])
def test_after_one_lost_connection_what_is_decided_is_committed_and_then_all_owners_are_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], action: list[str]
) -> None:
    other = OWNER._replace(target="u")
    lists = [Unanswered(13, "lost"), Listed(frozenset({OpenTransaction(other.driver_id, 9)}))]
    every = ((OWNER.driver_id, LogReading(DECIDED, 3)),)
    open_since = Described(ONGOING, WRITER, 900_000, 5_000)
    asked: list[Any] = []

    def run(_: object, begun: Any, step: Any) -> Any:  # noqa: ANN401 - any machine
        script: dict[Any, Any] = {
            ReadAllRecords: [AllRecordsRead(every)],
            ListTransactions: list(lists),
            DescribeTransaction: [open_since],
            "commit": [Ended()],
        }
        machine, questions = scripted(begun, step, script)
        asked.extend(kinds(questions))
        del lists[:-1]
        return machine

    use_no_brokers(monkeypatch)
    monkeypatch.setattr(CommitClient, "run", run)
    assert main(["--bootstrap", NOWHERE, *action]) == (1 if action else 0)
    said = capsys.readouterr()
    assert said.err == ""
    assert [line for line in said.out.splitlines() if line[0] != " "] == [str(OWNER), str(other)]
    if action:
        assert "commit" not in asked
    else:
        first, second = (n for n, each in enumerate(asked) if each is ListTransactions)
        assert "commit" in asked[first:second]


OPEN_UNTIL_NOW = [
    "    decided: 1 transactions: 1 are committed",
    "    1 of them were open until now, since 1970-01-01T00:00:05.000Z",
]
OTHER = OWNER._replace(target="u")


class EarlyRun:
    """Runs machines with brokers of which one is silent once.

    Two owners are decided, and their transactions are open until they are committed. fails: the
    number of the machine that raises `error`.
    """

    def __init__(self, fails: int = 0, error: BaseException | None = None) -> None:
        self._fails = fails
        self._error = error
        self.machines: list[str] = []
        self._asked: list[Any] = []

    def __call__(self, begun: Any, step: Any) -> Any:  # noqa: ANN401 - any machine
        """Run a machine to its end."""
        self.machines.append(type(begun[0]).__name__)
        if len(self.machines) == self._fails and self._error is not None:
            raise self._error
        is_open = self.machines.count("Recovering") <= 2
        record = LogReading(DECIDED, 3)
        script: dict[Any, Any] = {
            ReadAllRecords: [
                AllRecordsRead(((OWNER.driver_id, record), (OTHER.driver_id, record)))
            ],
            ListTransactions: [Unanswered(7, "silent")] if len(self.machines) == 1 else [Listed()],
            DescribeTransaction: [
                Described(ONGOING if is_open else COMPLETE_COMMIT, WRITER, 900_000, 5_000)
            ],
            "commit": [Ended()],
        }
        return scripted(begun, step, script)[0]


def run_with(run: EarlyRun, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Run the command with the brokers of `run`, and return its exit code."""
    use_no_brokers(monkeypatch)
    monkeypatch.setattr(CommitClient, "run", lambda _, begun, step: run(begun, step))
    return main(["--bootstrap", NOWHERE, *arguments])


def test_what_was_open_before_an_early_commit_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = EarlyRun()
    assert run_with(run, monkeypatch) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line in {*OPEN_UNTIL_NOW, str(OWNER), str(OTHER)}] == [
        str(OWNER), *OPEN_UNTIL_NOW, str(OTHER), *OPEN_UNTIL_NOW
    ]  # fmt: skip
    assert run.machines == ["Surveying", *["Recovering"] * 2, "Surveying", *["Recovering"] * 2]


def test_an_abort_says_what_was_committed_early(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(recover._Command, "_plan", lambda *_, **__: 0)
    arguments = ("--abort", OWNER.app_id, "--topic", "u")
    assert run_with(EarlyRun(), monkeypatch, *arguments) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == OPEN_UNTIL_NOW


@pytest.mark.parametrize(
    ("fails", "error", "exit_code", "owners"),
    [
        (2, SaslAuthenticationException("refused"), 2, []),
        (2, TimeoutException("no broker"), 0, [OWNER, OTHER]),
        (3, SaslAuthenticationException("refused"), 2, [OWNER]),
        (4, SaslAuthenticationException("refused"), 2, [OWNER, OTHER]),
        (4, corrupt("a batch is damaged"), 2, [OWNER, OTHER]),
        (4, KeyboardInterrupt(), 130, [OWNER, OTHER]),
        (5, corrupt("a batch is damaged"), 2, [OWNER, OTHER]),
    ],
)
def test_what_was_committed_early_is_said_also_if_the_command_fails_after_that(
    fails: int,
    error: BaseException,
    exit_code: int,
    owners: list[Owner],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = EarlyRun(fails, error)
    assert run_with(run, monkeypatch) == exit_code
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line[0] != " "] == list(map(str, owners))
    assert lines.count(OPEN_UNTIL_NOW[0]) == len(owners)
    if fails < 5:
        assert len(run.machines) == (fails if exit_code else 6)


def test_what_a_silent_coordinator_knows_is_named_and_the_command_ends_with_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = FoundOwner(checked_owner("pykafka", "app", "t"), NOTHING, ())
    missed = Failure(FailureKind.NO_ANSWER, "they could not be described: node 3 did not answer")
    recovered = Recovered(found, (Fate.COMMITTED,), missed=missed)
    use_no_brokers(monkeypatch)
    monkeypatch.setattr(recover._Command, "owners", lambda *_, **__: [found])
    monkeypatch.setattr(recover._Command, "_recovered", lambda *_, **__: recovered)
    assert main(["--bootstrap", NOWHERE]) == 2
    said = capsys.readouterr().out
    assert "decided: 1 transactions: 1 are committed" in said
    assert f"the state of some transactions is not known: {missed.sentence}" in said
    assert main(["--bootstrap", NOWHERE, "--app-id", "app", "--accept-torn"]) == 1
    assert "nothing is accepted, because it is not known" in capsys.readouterr().out


@pytest.mark.parametrize("action", [[], ["--dry-run"], ["--abort", "app"]])
def test_a_failure_for_one_owner_does_not_end_the_work_for_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], action: list[str]
) -> None:
    owners = [checked_owner("pykafka", "app", topic) for topic in ("t", "u")]
    found = [FoundOwner(each, NOTHING, ()) for each in owners]
    planned = Planned(
        Plan(Run(owners[1], "run", TopicPartition("log", 0), 2, 60_000), ProducerIdAndEpoch(1, 0))
    )
    outcomes = [corrupt("a batch is damaged"), Recovered(found[1])]
    if "--abort" in action:
        outcomes[1] = planned

    def run(*_: object) -> SimpleNamespace:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return SimpleNamespace(outcome=outcome)

    use_no_brokers(monkeypatch)
    monkeypatch.setattr(recover._Command, "owners", lambda *_, **__: found)
    monkeypatch.setattr(CommitClient, "run", run)
    assert main(["--bootstrap", NOWHERE, *action]) == 2
    lines = capsys.readouterr().out.splitlines()
    failed = next(line for line in lines if "failed" in line)
    assert failed == (
        "    the command failed for this txnAppId and topic: records cannot be read: a batch is "
        "damaged"
    )
    before, after = lines[: lines.index(failed)], lines[lines.index(failed) + 1 :]
    assert before[0] == str(owners[0])
    assert after[0] == str(owners[1])
    assert after[-1].strip().startswith("aborted: " if action[:1] == ["--abort"] else "no tran")


def test_an_abort_does_not_promise_what_a_running_task_may_break(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    owner = checked_owner("pykafka", "app", "t")
    planned = Planned(
        Plan(Run(owner, "run", TopicPartition("log", 0), 2, 60_000), ProducerIdAndEpoch(1, 0))
    )
    outcomes = [Surveyed((FoundOwner(owner, NOTHING, ()),)), planned]
    use_no_brokers(monkeypatch)
    monkeypatch.setattr(CommitClient, "run", lambda *_: SimpleNamespace(outcome=outcomes.pop(0)))
    assert main(["--bootstrap", NOWHERE, "--abort", "app"]) == 0
    assert capsys.readouterr().out.endswith(
        "aborted: the open transactions of the owner are ended; if a task is still running, it may "
        "open one more, which brokers abort after the transaction timeout of the job\n"
    )
