"""What the driver prints when it aborts a run of mode `two-phase`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from support.pure.planned_run import (
    ATTEMPT,
    DECIDED,
    FINE,
    LEFT,
    LOSER,
    OWNER,
    PLAN,
    PRODUCER,
    RAISED,
    RECORD,
)
from support.pure.scripted_machine import kind_of

from spark_kafka_sink.commit.attempts import WrittenPartition
from spark_kafka_sink.commit.log_record import CommitRecord, LogReading
from spark_kafka_sink.commit.questions import (
    COMPLETE_ABORT,
    EMPTY,
    ONGOING,
    Answer,
    Ask,
    Described,
    DescribeTransaction,
    Ended,
    EndTxn,
    Listed,
    ListTransactions,
    LogRead,
    MarkerRead,
    OpenTransaction,
    ReadLog,
    ReadMarker,
    Reply,
    Unanswered,
    WriteRecord,
    Written,
)
from spark_kafka_sink.errors import (
    ConfigException,
    KafkaException,
    ProducerFencedException,
    SaslAuthenticationException,
    TimeoutException,
    corrupt,
)
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.records.batch import Marker
from spark_kafka_sink.spark import commit_clients
from spark_kafka_sink.spark.committing import two_phase_commit
from spark_kafka_sink.spark.committing.job_commit import AbortResult
from spark_kafka_sink.spark.options import sink_options

OPTIONS = sink_options({"kafka.bootstrap.servers": "b:1", "topic": "t"})
IS_COMMITTED = f"the write of {OWNER} failed after the decision to commit it, so it IS committed"


@dataclass
class Clock:
    """A clock on which nothing waits."""

    now: float = 0.0

    def monotonic(self) -> float:
        """Return the time."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let the time pass."""
        self.now += seconds


class Client:
    """The commit client: printed: what stderr had when each EndTxn(commit) came."""

    acls: Any = None

    def __init__(
        self,
        script: dict[Any, list[Reply]],
        capsys: pytest.CaptureFixture[str],
        transaction_version: int = 2,
    ) -> None:
        self._script = FINE | script
        self._capsys = capsys
        self._transaction_version = transaction_version
        self.clock = Clock()
        self.printed: list[str] = []

    def now(self) -> float:
        """Return the time."""
        return self.clock.now

    def level(self, deadline: float, limit: object = None) -> int:
        """Return the transaction.version."""
        return self._transaction_version

    def run(self, begun: Any, step: Any) -> Any:  # noqa: ANN401 - any machine
        """Answer every question of a machine."""
        machine, questions = begun
        asked = list(questions)
        while machine.outcome is None:
            ask = asked.pop(0).ask
            if kind_of(ask) == "commit":
                self.printed.append(self._capsys.readouterr().err)
            self.clock.sleep(0.1)
            machine, more = step(machine, Answer(ask, self.reply(ask)), self.now())
            asked += more
        return machine

    def reply(self, ask: Ask) -> Reply:
        """Return the reply to a request."""
        return self._script[kind_of(ask)][0]


@pytest.fixture
def lend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Client], None]:
    """A function that makes a client the one of the process; processes share the folder."""

    def lend(client: Client) -> None:
        @contextmanager
        def lent(*_: object) -> Iterator[Client]:
            yield client

        monkeypatch.setattr(two_phase_commit, "commit_client", lent)
        monkeypatch.setattr(two_phase_commit, "time", client.clock)
        monkeypatch.setattr(two_phase_commit, "driver_folder", lambda: tmp_path)

    return lend


@pytest.mark.parametrize(
    ("error", "record", "lines"), [(48, DECIDED, 1), (90, DECIDED, 1), (90, RECORD, 0)]
)
def test_an_abort_of_a_decided_run_prints_a_line_before_it_commits_the_rest(
    error: int,
    record: CommitRecord,
    lines: int,
    lend: Callable[[Client], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    script: dict[Any, list[Reply]] = {
        "abort": [Ended(error=error)],
        ReadLog: [LogRead(LogReading(record, 3), end=4)],
    }
    client = Client(script, capsys)
    lend(client)
    result = two_phase_commit.abort_run(OPTIONS, PLAN, (), is_missing=False)
    assert (result.line, result.is_committed) == (IS_COMMITTED, True)
    said = (
        f"pykafka: the commit log has the decision to commit the write of {OWNER}, so its "
        "transactions are committed now, which takes at most 900000 ms\n"
    )
    assert "".join(client.printed) == said * lines
    assert client.printed[:1] == [said] * lines


def test_an_abort_that_finds_lost_rows_names_those_of_every_partition(
    lend: Callable[[Client], None], capsys: pytest.CaptureFixture[str]
) -> None:
    script: dict[Any, list[Reply]] = {
        "abort": [Ended(error=48)],
        ReadLog: [LogRead(LogReading(DECIDED, 3), end=4)],
        "commit": [Ended(error=48)],
        DescribeTransaction: [Described(ONGOING, LOSER)],
        ReadMarker: [MarkerRead(Marker.ABORT, 5)],
    }
    lend(Client(script, capsys))
    other = WrittenPartition(TopicPartition("t", 1), 6, 30, 35, 5)
    attempt = replace(ATTEMPT, written=(*ATTEMPT.written, other))
    result = two_phase_commit.abort_run(OPTIONS, PLAN, [attempt], is_missing=False)
    assert not result.is_committed
    assert (
        "rows are lost: 5 records of task 0 in t-0 from offset 20 on, 6 records of task 0 in t-1 "
        "from offset 30 on; if they are needed"
    ) in result.line


@pytest.mark.parametrize(
    ("level", "is_missing", "seconds", "said"),
    [
        (2, False, 1, "no row is visible"),
        *(
            (
                level, True, 5,
                "no row is visible; if a task still opens a transaction, brokers abort it "
                "within 900000 ms",
            )
            for level in (1, 2)
        ),
    ],
)  # fmt: skip
def test_an_abort_waits_for_tasks_whose_messages_are_missing(
    level: int,
    seconds: int,
    said: str,
    lend: Callable[[Client], None],
    capsys: pytest.CaptureFixture[str],
    *,
    is_missing: bool,
) -> None:
    client = Client({}, capsys, level)
    lend(client)
    result = two_phase_commit.abort_run(OPTIONS, PLAN, (), is_missing=is_missing)
    assert (result.line, result.is_committed) == (
        f"the write of {OWNER} was aborted: {said}",
        False,
    )
    assert seconds - 1 < client.now() < seconds + 1


def test_an_abort_says_until_when_transactions_that_no_broker_lists_may_be_open(
    lend: Callable[[Client], None], capsys: pytest.CaptureFixture[str]
) -> None:
    client = Client({ListTransactions: [Unanswered(13)]}, capsys)
    lend(client)
    assert two_phase_commit.abort_run(OPTIONS, PLAN, (), is_missing=True).line == (
        f"the write of {OWNER} was aborted: no row is visible; the open transactions of the "
        "run's tasks cannot be found: ListTransactions got NETWORK_EXCEPTION (13); if one is open, "
        "brokers abort it within 900000 ms, and read_committed consumers may have to wait until "
        "then"
    )
    assert client.now() > 60


def test_an_abort_waits_for_longer_than_the_linger_time(
    lend: Callable[[Client], None], capsys: pytest.CaptureFixture[str]
) -> None:
    client = Client({}, capsys)
    lend(client)
    given = {"kafka.bootstrap.servers": "b:1", "topic": "t", "kafka.linger.ms": "20000"}
    two_phase_commit.abort_run(sink_options(given), PLAN, (), is_missing=True)
    assert client.now() > 21


SUPERSEDED = "was superseded by a newer run, which ends the open transactions that it finds"
UNTIL = "within 900000 ms, brokers abort each transaction that is still open"


@pytest.mark.parametrize(
    ("level", "described", "said"),
    [
        # A coordinator answers in one way after a timeout and to an older run: at level 1, and in
        # Kafka 4.0 also at level 2.
        (2, Described(EMPTY, RAISED), f"{SUPERSEDED}; {UNTIL}"),
        (2, Described(COMPLETE_ABORT, RAISED), f"{SUPERSEDED}, or timed out; {UNTIL}"),
        (1, Described(EMPTY, RAISED), f"{SUPERSEDED}; {UNTIL}"),
        (1, Described(COMPLETE_ABORT, RAISED), f"timed out: no row is visible; {UNTIL}"),
        (1, Described(error=53), f"{SUPERSEDED}, or timed out; {UNTIL}"),
    ],
)
def test_a_fenced_abort_says_whether_a_newer_run_is_the_reason(
    level: int,
    described: Described,
    said: str,
    lend: Callable[[Client], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    script: dict[Any, list[Reply]] = {
        "abort": [Ended(error=90)],
        DescribeTransaction: [described],
    }
    lend(Client(script, capsys, level))
    result = two_phase_commit.abort_run(OPTIONS, PLAN, (), is_missing=False)
    assert (result.line, result.is_committed) == (f"the write of {OWNER} {said}", False)


DECIDED_BEFORE: dict[Any, list[Reply]] = {
    "abort": [Ended(error=90)],
    ReadLog: [LogRead(LogReading(DECIDED, 3), end=4)],
}
AWAY = Unanswered(13, "no broker is there")
NOT_KNOWN = (
    f"it is not known whether the write of {OWNER} is committed (the transactions of {OWNER} could "
    "not be aborted: EndTxn (abort) got NETWORK_EXCEPTION (13); no broker is there); if the "
    "decision to commit it is recorded, a part of its rows is lost unless you run the write again, "
    "or run python -m spark_kafka_sink.recover, within 900000 ms of the first row"
)


class ReturningClient(Client):
    """The commit client of brokers that respond only from a time on."""

    def __init__(
        self, returns_at: float, script: dict[Any, list[Reply]], capsys: pytest.CaptureFixture[str]
    ) -> None:
        super().__init__(script, capsys)
        self._there = self._script
        self._returns_at = returns_at

    def level(self, deadline: float, limit: object = None) -> int:
        """Return the transaction.version, if a broker responds before the deadline."""
        if deadline < self._returns_at:
            self.clock.now = deadline
            message = "no broker has answered"
            raise TimeoutException(message)
        return super().level(deadline, limit)

    def run(self, begun: Any, step: Any) -> Any:  # noqa: ANN401 - any machine
        """Answer every question of a machine."""
        is_there = self.now() >= self._returns_at
        self._script = self._there if is_there else {kind: [AWAY] for kind in self._there}
        return super().run(begun, step)


def abort_with(client: Client, lend: Callable[[Client], None], **more: bool) -> AbortResult:
    """Abort the run with a client."""
    lend(client)
    return two_phase_commit.abort_run(OPTIONS, PLAN, (), **{"is_missing": False} | more)


def test_an_abort_that_gets_no_response_asks_again_because_the_run_may_be_decided(
    lend: Callable[[Client], None], capsys: pytest.CaptureFixture[str]
) -> None:
    client = ReturningClient(500.0, DECIDED_BEFORE, capsys)
    result = abort_with(client, lend)
    assert (result.line, result.is_committed) == (IS_COMMITTED, True)
    assert 500.0 < client.now() < 600.0
    said = f"pykafka: no broker has said yet whether the write of {OWNER} is committed"
    why = "(no broker has answered), so the driver continues to ask, for at most 900000 ms"
    assert client.printed[0].startswith(f"{said} {why}\n")


def test_an_abort_waits_before_it_asks_again(
    lend: Callable[[Client], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client, tries = Client({}, capsys), []

    def level(_: float, limit: object = None) -> int:
        tries.append(limit)
        assert len(tries) <= 301
        raise TimeoutException("no broker has answered")

    monkeypatch.setattr(client, "level", level)
    assert "no broker has answered" in abort_with(client, lend).line


def test_an_abort_that_never_gets_a_response_says_that_the_run_may_be_decided(
    lend: Callable[[Client], None], capsys: pytest.CaptureFixture[str]
) -> None:
    client = ReturningClient(1e6, {}, capsys)
    result = abort_with(client, lend)
    assert "no broker has answered); if the decision to commit it is recorded" in result.line
    assert 900.0 <= client.now() <= 960.0
    there = Client({"abort": [AWAY]}, capsys)
    assert abort_with(there, lend).line == NOT_KNOWN


class DamagedClient(Client):
    """A client whose first reads of the commit log find a damaged batch.

    damaged: how many reads do. is_raised: whether the client finds the damage, and not the broker.
    """

    def __init__(
        self, damaged: int, capsys: pytest.CaptureFixture[str], *, is_raised: bool
    ) -> None:
        super().__init__(DECIDED_BEFORE, capsys)
        self._damaged = damaged
        self._is_raised = is_raised

    def reply(self, ask: Ask) -> Reply:
        """Return the reply to a request."""
        if not isinstance(ask, ReadLog) or self._damaged == 0:
            return super().reply(ask)
        self._damaged -= 1
        if self._is_raised:
            raise corrupt("a batch is damaged")
        return LogRead(error=2)


@pytest.mark.parametrize("is_raised", [True, False])
def test_an_abort_reads_a_damaged_commit_log_again_because_the_run_may_be_decided(
    lend: Callable[[Client], None], capsys: pytest.CaptureFixture[str], *, is_raised: bool
) -> None:
    client = DamagedClient(3, capsys, is_raised=is_raised)
    result = abort_with(client, lend)
    assert (result.line, result.is_committed) == (IS_COMMITTED, True)
    stays = DamagedClient(10**6, capsys, is_raised=is_raised)
    line = abort_with(stays, lend).line
    assert line.startswith(f"it is not known whether the write of {OWNER} is committed (")
    assert ("a batch is damaged" if is_raised else "Fetch got CORRUPT_MESSAGE (2)") in line
    assert 900.0 <= stays.now() <= 970.0
    missing = DamagedClient(10**6, capsys, is_raised=is_raised)
    assert "could not be aborted now" in abort_with(missing, lend, is_missing=True).line
    assert missing.now() < 70.0


def test_an_abort_of_a_run_that_is_certainly_not_decided_ends_after_max_block_ms(
    lend: Callable[[Client], None], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    missing = ReturningClient(1e6, {}, capsys)
    assert "could not be aborted now" in abort_with(missing, lend, is_missing=True).line
    assert missing.now() == 60.0
    refusing = Client({WriteRecord: [Written(error=47)]}, capsys)
    lend(refusing)
    with pytest.raises(ProducerFencedException):
        two_phase_commit.commit_record(OPTIONS, PLAN, RECORD, (), "no rows")
    assert len(list(tmp_path.iterdir())) == 1
    failed = ReturningClient(1e6, {}, capsys)
    assert "could not be aborted now" in abort_with(failed, lend).line
    assert failed.now() == 60.0
    assert list(tmp_path.iterdir()) == []


REJECTED = "the broker rejected user u"
NO_TOKEN = "the file of the token has no token"


class LoggedInClient(Client):
    """A client of `Logins`: once its login is refused, it refuses every request."""

    def __init__(self, logins: Logins, capsys: pytest.CaptureFixture[str]) -> None:
        super().__init__(DECIDED_BEFORE, capsys)
        self.clock = logins.clock
        self._logins = logins
        self._is_refused = False
        self.is_closed = False

    def level(self, deadline: float, limit: object = None) -> int:
        """Return the transaction.version, or log in for it."""
        self._log_in("level")
        return super().level(deadline, limit)

    def run(self, begun: Any, step: Any) -> Any:  # noqa: ANN401 - any machine
        """Answer every question of a machine."""
        self._log_in(type(begun[0]).__name__)
        return super().run(begun, step)

    def _log_in(self, where: str) -> None:
        assert not self.is_closed
        self._is_refused = self._is_refused or self._logins.refuses(where)
        if self._is_refused:
            raise SaslAuthenticationException(REJECTED)

    def close(self) -> None:
        """Close the client."""
        self.is_closed = True


@dataclass
class Logins:
    """Makes the clients. refused: the place of each login to refuse. always: a place for ever."""

    refused: list[str] = field(default_factory=list)
    always: str = ""
    clock: Clock = field(default_factory=Clock)
    clients: list[LoggedInClient] = field(default_factory=list)

    def refuses(self, where: str) -> bool:
        """Return whether a login in a place is refused, and cross it off."""
        if self.refused[:1] == [where]:
            del self.refused[0]
            return True
        return where == self.always

    def identity(self, _: object) -> str:
        """Read the file of the credentials."""
        if self.refuses("file"):
            raise ConfigException(NO_TOKEN)
        return ""


@pytest.fixture
def logins(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Iterator[Logins]:
    """The logins of the clients that commits and aborts make."""
    logins = Logins()

    def make(*_: object, **__: object) -> LoggedInClient:
        logins.clients.append(LoggedInClient(logins, capsys))
        return logins.clients[-1]

    commit_clients.close_all()
    monkeypatch.setattr(commit_clients, "CommitClient", make)
    monkeypatch.setattr(commit_clients, "login_identity", logins.identity)
    monkeypatch.setattr(two_phase_commit, "time", logins.clock)
    monkeypatch.setattr(two_phase_commit, "driver_folder", lambda: tmp_path)
    yield logins
    commit_clients.close_all()


def commit_that_fails(logins: Logins, where: str) -> None:
    """Commit, with a login that is refused in a place."""
    logins.refused = [where]
    with pytest.raises(KafkaException, match=REJECTED):
        two_phase_commit.commit_record(OPTIONS, PLAN, RECORD, (), "no rows")
    logins.clock.now = 0.0


def abort(*, is_missing: bool = False) -> AbortResult:
    """Abort the run, with the clients of `Logins`."""
    return two_phase_commit.abort_run(OPTIONS, PLAN, (), is_missing=is_missing)


@pytest.mark.parametrize(
    ("refused", "why"),
    [
        (["level"], REJECTED),
        (["Aborting"], REJECTED),
        (["file", "level", "file"], NO_TOKEN),
    ],
)
def test_an_abort_after_a_refused_login_logs_in_again_because_the_run_may_be_decided(
    refused: list[str], why: str, logins: Logins, capsys: pytest.CaptureFixture[str]
) -> None:
    commit_that_fails(logins, "Committing")
    logins.refused = list(refused)
    result = abort()
    assert (result.line, result.is_committed) == (IS_COMMITTED, True)
    assert 3.0 * len(refused) <= logins.clock.now < 3.0 * len(refused) + 10.0
    assert all(each.is_closed for each in logins.clients[:-1])
    printed = "".join(logins.clients[-1].printed) + capsys.readouterr().err
    said = f"pykafka: no broker has said yet whether the write of {OWNER} is committed ({why}), so "
    assert printed.count("no broker has said yet") == printed.count(said) == 1


def test_an_abort_whose_login_is_refused_after_it_found_the_decision_commits_with_a_new_login(
    logins: Logins, capsys: pytest.CaptureFixture[str]
) -> None:
    logins.refused = ["Committing"] * 3
    result = abort()
    assert (result.line, result.is_committed) == (IS_COMMITTED, True)
    printed = capsys.readouterr().err + "".join(logins.clients[-1].printed)
    assert printed.count("the commit log has the decision to commit") == printed.count("\n") == 1
    logins.always = "Committing"
    assert abort().line == (f"the write of {OWNER} has to be committed, but is not yet: {REJECTED}")


def test_an_abort_that_has_found_the_decision_never_aborts_again(
    logins: Logins, monkeypatch: pytest.MonkeyPatch
) -> None:
    logins.refused = ["Committing", "file"]
    begun: list[tuple[str, float]] = []
    run_one = LoggedInClient.run

    def run(client: LoggedInClient, first: Any, step: Any) -> Any:  # noqa: ANN401 - any machine
        begun.append((type(first[0]).__name__, first[0].deadline))
        # Brokers do not return the decision a second time.
        client._script = DECIDED_BEFORE | FINE if len(begun) > 1 else client._script
        return run_one(client, first, step)

    monkeypatch.setattr(LoggedInClient, "run", run)
    result = abort()
    assert (result.line, result.is_committed) == (IS_COMMITTED, True)
    assert [name for name, _ in begun] == ["Aborting", "Committing", "Committing"]
    assert begun[1] == begun[2], "the time for the commit is not extended"


@pytest.mark.parametrize(("always", "why"), [("level", REJECTED), ("file", NO_TOKEN)])
def test_an_abort_whose_login_stays_refused_ends_with_the_reason(
    always: str, why: str, logins: Logins
) -> None:
    commit_that_fails(logins, "Committing")
    logins.always = always
    said = f"it is not known whether the write of {OWNER} is committed ({why})"
    assert abort().line.startswith(said)
    assert 900.0 <= logins.clock.now <= 960.0


@pytest.mark.parametrize("is_missing", [False, True])
def test_an_abort_of_a_run_that_is_certainly_not_decided_ends_at_the_first_refused_login(
    logins: Logins, *, is_missing: bool
) -> None:
    if not is_missing:
        commit_that_fails(logins, "level")
    logins.always = "level"
    said = f"the write of {OWNER} could not be aborted now ({REJECTED}); "
    assert abort(is_missing=is_missing).line.startswith(said)
    assert (logins.clock.now, logins.clients[-1].is_closed) == (0.0, True)


class RaisingClient(Client):
    """A client of a coordinator that raises the driver's epoch with each abort.

    Tasks have left one transaction open. refused: for each login that is refused, the number of
    the request before which it is.
    """

    def __init__(self, refused: list[int], capsys: pytest.CaptureFixture[str]) -> None:
        super().__init__({DescribeTransaction: [Described(ONGOING, LOSER)]}, capsys)
        self._refused = refused
        self._producer = PRODUCER
        self._open = {LEFT}
        self.asked: list[Any] = []

    def reply(self, ask: Ask) -> Reply:
        """Return the reply to a request."""
        self.asked.append(kind_of(ask))
        if self._refused[:1] == [len(self.asked)]:
            del self._refused[0]
            raise SaslAuthenticationException(REJECTED)
        if isinstance(ask, ListTransactions):
            return Listed(frozenset(OpenTransaction(each, 21) for each in self._open))
        if isinstance(ask, EndTxn) and ask.transactional_id == LEFT:
            self._open.discard(LEFT)
        elif isinstance(ask, EndTxn):
            if ask.producer != self._producer:
                return Ended(error=90)
            self._producer = replace(self._producer, epoch=self._producer.epoch + 1)
            return Ended(self._producer)
        return super().reply(ask)


def test_an_abort_goes_on_after_a_refused_login_with_the_epoch_that_it_has_raised(
    lend: Callable[[Client], None], capsys: pytest.CaptureFixture[str]
) -> None:
    fine = RaisingClient([], capsys)
    said = f"the write of {OWNER} was aborted: no row is visible"
    assert abort_with(fine, lend).line == said
    for number in range(1, len(fine.asked) + 1):
        client = RaisingClient([number, number + 1, number + 3], capsys)
        assert abort_with(client, lend).line.startswith(said)
        assert "abort" in client.asked
        assert not client._open


def test_an_abort_whose_login_is_refused_after_its_proof_says_that_nothing_is_visible(
    lend: Callable[[Client], None], capsys: pytest.CaptureFixture[str]
) -> None:
    proved = len([ListTransactions, DescribeTransaction, "abort", ReadLog])
    client = RaisingClient(list(range(proved + 1, 1000)), capsys)
    assert abort_with(client, lend).line == (
        f"the write of {OWNER} was aborted: no row is visible; the open transactions of the run's "
        f"tasks cannot be aborted: {REJECTED}; if one is open, brokers abort it within 900000 ms, "
        "and read_committed consumers may have to wait until then"
    )
    assert 60.0 <= client.now() < 70.0
    assert capsys.readouterr().err == ""
