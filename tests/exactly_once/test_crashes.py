"""A driver that dies, stands still or is overtaken before any of its questions, on real brokers.

The test plays Spark's part. The moments of a run are those before each question that it puts to the
brokers: in its plan, its tasks and its commit.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from support.oracles.readers import read_with_confluent, wait_for_transactions
from support.spark.single_job import SingleJob, handed_over

from exactly_once.moments import IS_ALL, Moments, at, before_end, numbers
from exactly_once.transactions import answer, open_transactions, wait_for_timeouts, wait_until
from spark_kafka_sink.commit.questions import DescribeProducers, EndTxn, ProducersDescribed
from spark_kafka_sink.commit_client import CommitClient
from spark_kafka_sink.errors import KafkaException, TornCommitException
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.spark.report import SkippedMessage

pytestmark = [pytest.mark.kafka, pytest.mark.exactly_once]

TIMEOUT_MS = 5000
PARTITIONS_WITH_ROWS = (0, 1, 3)


def rows(name: str) -> dict[int, list[str]]:
    """Return the rows of an application, for three of the four partitions."""
    return {0: [f"{name} a", f"{name} b"], 1: [f"{name} c"], 3: [f"{name} d"]}


def values(*names: str) -> list[str]:
    """Return the values of the rows of applications."""
    return sorted(value for name in names for each in rows(name).values() for value in each)


def is_written(job: SingleJob, name: str) -> bool:
    """Run the job of an application again; return whether its version was written before."""
    return isinstance(job.run(rows(name), txnAppId=name)[0], SkippedMessage)


def committed_ends(asked: list[object], driver: str) -> int:
    """Return how many transactions of tasks were to be committed."""
    ends = [ask for ask in asked if isinstance(ask, EndTxn) and ask.commit]
    return sum(ask.transactional_id != driver for ask in ends)


def clean_up(job: SingleJob, results: Iterable[int]) -> None:
    """Run another version of each application: a loser leaves what it had open to the next run."""
    for number in results:
        job.run({}, txnAppId=f"app {number}", txnVersion="9")


@pytest.mark.long(
    reason="it plays a run for each question that a run asks; the model does so in make test"
)
def test_a_driver_that_dies_at_any_moment_writes_each_row_once_when_it_runs_again(
    job: SingleJob, moments: Moments, client: CommitClient
) -> None:
    def dies(number: int) -> bool:
        name = f"dies {number}"
        return moments.dies(at(number), lambda: job.run(rows(name), txnAppId=name))

    names = []
    for number in numbers(dies):
        names.append(f"dies {number}")
        is_written(job, names[-1])
        assert is_written(job, names[-1])
    assert len(names) > 10
    assert job.committed == values(*names)
    # A record DONE that was not committed stays open in the log, where it hides nothing.
    assert [each for each in open_transactions(client, job.topic) if each.count("/") > 2] == []


def overtaken_at_each_moment(
    job: SingleJob, moments: Moments, older: str, newer: str, **options: str
) -> dict[int, str | None]:
    """Run a job again and again, with a newer run at another moment of it each time.

    older, newer: what the rows of the two runs begin with. options: of the newer runs. Return the
    error of each older run that was overtaken, None without; by the number of the moment.

    `make test` plays each third moment, `make test-exactly-once` all.
    """
    results: dict[int, str | None] = {}

    def overtaken(number: int) -> bool:
        name = f"app {number}"

        def run_older() -> None:
            try:
                job.run(rows(f"{older} {number}"), txnAppId=name)
                results[number] = None
            except KafkaException as error:
                results[number] = str(error)

        def run_newer() -> None:
            job.run(rows(f"{newer} {number}"), txnAppId=name, **options)

        return moments.pauses(at(number), run_newer, run_older)

    first, step = (0, 1) if IS_ALL else (1, 3)
    del results[list(numbers(overtaken, first, step))[-1]]
    assert len(results) > 10 // step
    return results


def test_of_two_drivers_of_one_version_one_writes_and_the_other_says_so(
    job: SingleJob, moments: Moments, client: CommitClient, coordinators_are_never_stale: None
) -> None:
    results = overtaken_at_each_moment(job, moments, "old", "new")
    clean_up(job, results)
    found = Counter(job.committed)
    for number in results:
        old, new = (Counter(values(f"{which} {number}")) for which in ("old", "new"))
        mine = Counter({each: n for each, n in found.items() if re.search(rf" {number} ", each)})
        assert mine in (old, new), (number, mine, results[number])
        error = results[number]
        assert (error is None) or mine == new, (number, error)
        assert error is None or "superseded by a newer run of" in error, (number, error)
    assert open_transactions(client, job.topic) == []


@pytest.mark.long(
    reason="it plays a run for each question that a run asks; the model does so in make test"
)
def test_a_driver_that_is_overtaken_by_the_next_version_loses_none_and_harms_none(
    job: SingleJob, moments: Moments, client: CommitClient, coordinators_are_never_stale: None
) -> None:
    results = overtaken_at_each_moment(job, moments, "first", "next", txnVersion="2")
    clean_up(job, results)
    found = Counter(job.committed)
    for number in results:
        first, second = (Counter(values(f"{which} {number}")) for which in ("first", "next"))
        mine = Counter({each: n for each, n in found.items() if re.search(rf" {number} ", each)})
        error = results[number]
        assert mine - second in (first, Counter()), (number, mine, error)
        assert mine - first == second, (number, mine, error)
        assert (error is None) == (mine - second == first), (number, error)
        assert error is None or "superseded by a newer run of" in error, (number, error)
    assert open_transactions(client, job.topic) == []


@pytest.mark.long(
    reason="it plays a run for each question that a run asks; the model does so in make test"
)
def test_after_the_timeout_a_run_is_written_once_or_what_it_lost_is_said(
    job: SingleJob, mode: str, moments: Moments, client: CommitClient
) -> None:
    job.options["kafka.transaction.timeout.ms"] = str(TIMEOUT_MS)
    ended: dict[str, int] = {}

    def dies(number: int) -> bool:
        name = f"dies {number}"
        has_died = moments.dies(at(number), lambda: job.run(rows(name), txnAppId=name))
        if has_died and mode == "two-phase":
            driver = f"pykafka/{name}/{job.topic}"
            of_driver = EndTxn in [type(a) for a in moments.asked if _is_driver(a, driver)]
            if of_driver:
                ended[name] = committed_ends(list(moments.asked), driver)
        return has_died

    names = [f"dies {number}" for number in numbers(dies)]
    wait_for_timeouts(client, job.topic, TIMEOUT_MS)
    expected: list[str] = []
    for name in names:
        lost = PARTITIONS_WITH_ROWS[ended.get(name, 3) :]
        if not lost:
            is_written(job, name)
            assert is_written(job, name)
            expected += values(name)
            continue
        for _ in range(2):
            with pytest.raises(TornCommitException) as torn:
                is_written(job, name)
            said = set(re.findall(rf"{job.topic}-([0-9]) from offset", str(torn.value)))
            assert said == {str(partition) for partition in lost}, (name, str(torn.value))
            assert {each.partition for each in torn.value.lost} == set(lost)
        kept = [rows(name)[each] for each in PARTITIONS_WITH_ROWS if each not in lost]
        expected += [value for each in kept for value in each]
    assert job.committed == sorted(expected)
    if mode == "two-phase":
        assert {ended[name] for name in ended} == {0, 1, 2, 3}


def _is_driver(ask: object, driver: str) -> bool:
    return isinstance(ask, EndTxn) and ask.transactional_id == driver


def test_a_failure_of_a_commit_after_the_decision_leaves_the_job_committed(
    job: SingleJob, mode: str, moments: Moments, capfd: pytest.CaptureFixture[str]
) -> None:
    writer = job.plan()
    messages = job.write(writer, rows("job"))
    moment = before_end(2, of="pykafka/") if mode == "two-phase" else at(-1)
    has_died = moments.dies(moment, lambda: handed_over(writer).commit(messages))
    assert has_died == (mode == "two-phase")
    handed_over(writer).abort(messages)
    said = capfd.readouterr().err
    assert "it IS committed" in said
    assert is_written(job, "job")
    assert job.committed == values("job")


@pytest.mark.long(
    reason="it plays a run for each question that a run asks; the model does so in make test"
)
def test_readers_see_all_rows_of_a_partition_or_none_while_a_job_commits(
    job: SingleJob, moments: Moments
) -> None:
    writer = job.plan()
    messages = job.write(writer, rows("job"))
    seen: list[list[str]] = []

    def read() -> None:
        records = read_with_confluent(job.cluster.bootstrap, job.topic)
        for partition in range(4):
            found = [r.value.decode() for r in records if r.partition == partition and r.value]
            assert found in ([], rows("job").get(partition, []))
        seen.append(sorted(r.value.decode() for r in records if r.value is not None))

    assert moments.pauses(lambda *_: True, read, lambda: handed_over(writer).commit(messages))
    assert seen[0] == []
    assert job.committed == values("job")


class PollingReader:
    """Reads a topic from its begin to its end again and again, in a thread of its own.

    reads: what each of its reads has found, by partition.
    """

    def __init__(self, job: SingleJob) -> None:
        self.reads: list[list[list[str]]] = []
        self._job = job
        self._is_over = threading.Event()

    def read(self) -> None:
        """Read until the reader is closed."""
        while not self._is_over.is_set():
            records = read_with_confluent(self._job.cluster.bootstrap, self._job.topic)
            self.reads.append(
                [
                    [r.value.decode() for r in records if r.partition == number and r.value]
                    for number in range(self._job.partitions)
                ]
            )

    def close(self) -> None:
        """End after this read."""
        self._is_over.set()

    def wait_for_read(self) -> list[list[str]]:
        """Wait for a read that begins from now on; return what it found."""
        known = len(self.reads)
        # One may have begun before.
        wait_until(lambda: len(self.reads) >= known + 2, "nothing is read")
        return self.reads[known + 1]


@pytest.mark.long(reason="it reads many rows again and again")
def test_readers_see_all_rows_of_a_partition_or_none_from_the_plan_to_the_commit(
    job: SingleJob, client: CommitClient
) -> None:
    many = {number: [f"{number}.{row}" for row in range(5000)] for number in range(4)}
    all_rows = list(many.values())
    nothing: list[list[str]] = [[]] * 4
    reader = PollingReader(job)
    with ThreadPoolExecutor(1) as executor, closing(reader):
        reading = executor.submit(reader.read)
        writer = job.plan()
        messages = job.write(writer, many)
        for number in range(4):
            found = answer(client, DescribeProducers(TopicPartition(job.topic, number)))
            assert isinstance(found, ProducersDescribed)
            assert [each.transaction_start >= 0 for each in found.producers] == [True]
        assert reader.wait_for_read() == nothing
        handed_over(writer).commit(messages)
        wait_for_transactions(job.cluster.bootstrap, job.topic)
        assert reader.wait_for_read() == all_rows
    reading.result()
    for read in reader.reads:
        for number, values_of_partition in enumerate(read):
            assert values_of_partition in ([], many[number])
