"""A task prints its progress, also while it waits, and nothing waits for the line to be printed."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from queue import Empty, Queue

import pyarrow as pa
import pytest
from support.pure.full_pipe import full_pipe
from support.pure.idle_producer import idle_task_producer
from support.pure.pure_producer import TOPIC
from support.spark.played_tasks import in_task

from spark_kafka_sink.errors import ConfigException, KafkaException
from spark_kafka_sink.spark.micro_batch import BATCH_ID, QUERY_ID
from spark_kafka_sink.spark.options import sink_options
from spark_kafka_sink.spark.tasks import task, task_progress
from spark_kafka_sink.spark.tasks.task_progress import (
    PERIOD_S,
    ProgressLines,
    name_of,
    print_line,
    printed_progress,
)
from spark_kafka_sink.spark.tasks.task_rows import TaskWaits
from spark_kafka_sink.task_producer import DeliveryProgress

NOTHING = DeliveryProgress(
    records=0,
    bytes=0,
    pending=0,
    is_waiting_for_memory=False,
    throttled={},
    retried={},
    unreachable={},
    awaited={},
)
LIMIT_S = 60


class Ticks:
    """The test's clock: each tick ends one wait of the thread that prints."""

    def __init__(self) -> None:
        self._ticks = Queue[float]()
        self.waited = Queue[float]()
        self.now = 0.0

    def wait(self, is_over: threading.Event, seconds: float) -> bool:
        """Wait for the next tick; without one, the thread ends."""
        self.waited.put(seconds)
        try:
            self.now += self._ticks.get(timeout=LIMIT_S)
        except Empty:
            return True
        return is_over.is_set()

    def tick(self, seconds: float = PERIOD_S) -> None:
        """Let time pass."""
        self._ticks.put(seconds)


def test_a_line_has_the_rate_since_the_line_before() -> None:
    lines = ProgressLines("task 3 (attempt 0)", 100.0)
    first = lines.line(NOTHING._replace(records=1000, bytes=20_000_000, pending=7), 110.0)
    assert first == (
        "pykafka: task 3 (attempt 0): 1000 rows, 20.0 MB acknowledged, 2.0 MB/s; "
        "7 rows unacknowledged"
    )
    second = lines.line(NOTHING._replace(records=1500, bytes=20_500_000), 115.0)
    assert second == "pykafka: task 3 (attempt 0): 1500 rows, 20.5 MB acknowledged, 0.1 MB/s"
    assert lines.line(NOTHING, 115.0).endswith(" 0.0 MB/s")


def test_a_line_has_one_row_in_the_singular() -> None:
    line = ProgressLines("task 0", 0.0).line(NOTHING._replace(records=1, pending=1), 10.0)
    assert line == "pykafka: task 0: 1 row, 0.0 MB acknowledged, 0.0 MB/s; 1 row unacknowledged"


def test_a_line_says_what_the_task_waits_for() -> None:
    progress = NOTHING._replace(
        is_waiting_for_memory=True,
        throttled={2: 1.25},
        retried={1: 1, 3: 2},
        unreachable={-1: "host:9092 refused"},
        awaited={
            "the metadata of topic t": "UNKNOWN_TOPIC_OR_PARTITION",
            "the transaction coordinator": "",
        },
    )
    line = ProgressLines("task 0", 0.0).line(progress, 10.0)
    assert line.split("; ")[1:] == [
        "waiting for memory (kafka.buffer.memory)",
        "throttled by node 2 (for 1.2 s more)",
        "retrying at node 1 (1 batch), node 3 (2 batches)",
        "no connection to a bootstrap server (host:9092 refused)",
        "waiting for the metadata of topic t (UNKNOWN_TOPIC_OR_PARTITION), "
        "the transaction coordinator",
    ]
    many = NOTHING._replace(retried=dict.fromkeys(range(7), 1))
    assert ProgressLines("", 0.0).line(many, 1.0).endswith("node 2 (1 batch) and 4 more")
    unknown = NOTHING._replace(awaited={f"the metadata of topic t{i}": "" for i in range(500)})
    assert (
        ProgressLines("", 0.0)
        .line(unknown, 1.0)
        .endswith(
            "; waiting for the metadata of topic t0, the metadata of topic t1, "
            "the metadata of topic t2 and 497 more"
        )
    )
    long = NOTHING._replace(unreachable={1: "x" * 5000})
    assert len(ProgressLines("", 0.0).line(long, 1.0)) == 1000, "what a pipe takes as a whole"


def test_a_task_is_named_with_its_micro_batch() -> None:
    assert name_of(None) == "task 0"
    with in_task(3, 1):
        from pyspark import TaskContext

        assert name_of(TaskContext.get()) == "task 3 (attempt 1)"
    with in_task(3, 1, {QUERY_ID: "q", BATCH_ID: "7"}):
        name = "task 3 (attempt 1) of micro-batch 7 of query q"
        assert name_of(TaskContext.get()) == name


def test_a_task_that_waits_for_memory_says_so_meanwhile() -> None:
    batch = pa.record_batch({"value": ["x" * 1000] * 60})
    ticks, lines = Ticks(), Queue[str]()

    with idle_task_producer(1, buffer_memory=100_000, max_block_ms=LIMIT_S * 1000) as producer:

        def task() -> None:
            with (
                suppress(KafkaException),  # the test closes the producer
                printed_progress(
                    "task 5",
                    producer.progress,
                    wait=ticks.wait,
                    clock=lambda: ticks.now,
                    write=lines.put,
                ),
            ):
                producer.append(TOPIC, batch)
                producer.append(TOPIC, batch)

        thread = threading.Thread(target=task)
        thread.start()
        said = ""
        while "waiting for memory" not in said:
            assert ticks.waited.get(timeout=LIMIT_S) == 10
            ticks.tick()
            said = lines.get(timeout=LIMIT_S)
        assert said.startswith("pykafka: task 5: 0 rows, 0.0 MB acknowledged, 0.0 MB/s; ")
        assert " rows unacknowledged; waiting for memory (kafka.buffer.memory)" in said
        producer.close(0)
        thread.join(LIMIT_S)
        assert not thread.is_alive()
        ticks.tick()
    assert lines.empty(), "the task is over"


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], DeliveryProgress]]:
    """What returns the progress of each task; no line is printed."""
    found: list[Callable[[], DeliveryProgress]] = []

    def printed(_: str, progress: Callable[[], DeliveryProgress]) -> AbstractContextManager[None]:
        found.append(progress)
        return nullcontext()

    monkeypatch.setattr(task_progress, "printed_progress", printed)
    return found


def test_the_progress_has_what_the_task_and_its_producer_wait_for(
    found: list[Callable[[], DeliveryProgress]],
) -> None:
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t", "progress": "true"}
    waits = [TaskWaits(), TaskWaits()]
    with idle_task_producer(1) as producer:
        with task._progress(sink_options(given), producer.progress, waits, None):
            (progress,) = found
        assert progress().awaited == {}
        producer.append(TOPIC, pa.record_batch({"value": ["x"]}))
        with waits[1].waiting_for("the creation of topics"):
            assert progress().awaited == {"the creation of topics": "", "a producer id": ""}
        assert progress().awaited == {"a producer id": ""}


def test_a_task_whose_rows_were_written_before_says_how_many_there_are(
    found: list[Callable[[], DeliveryProgress]],
) -> None:
    lines: list[str] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for size in (1, 2):
            yield pa.record_batch({"value": ["x"] * size})
            lines.append(ProgressLines("task 0", 0.0).line(found[0](), 1.0))

    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t", "progress": "true"}
    assert task.skip_task(sink_options(given), batches()).rows == 3
    said = "pykafka: task 0: 0 rows, 0.0 MB acknowledged, 0.0 MB/s; waiting for the rows that were "
    assert lines == [
        f"{said}written before (1 row so far)",
        f"{said}written before (3 rows so far)",
    ]


@pytest.fixture
def full_stderr(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    """Make a full pipe the stderr of tasks; return its ends."""
    with full_pipe() as ends:
        monkeypatch.setattr(task_progress, "_STDERR", ends[1])
        yield ends


def test_a_full_pipe_stops_neither_the_task_nor_the_io_thread(
    full_stderr: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = full_stderr
    ticks, printing, os_write = Ticks(), threading.Event(), os.write

    def write(file: int, text: bytes) -> int:
        if file == writer:
            printing.set()
        return os_write(file, text)

    monkeypatch.setattr(os, "write", write)
    with idle_task_producer(1) as producer:
        with printed_progress("task 5", producer.progress, wait=ticks.wait):
            ticks.tick()
            assert printing.wait(LIMIT_S)
            # The I/O thread's lock is free, and a second line does not wait behind the first.
            with producer._state.lock:
                producer._state.now()
            print_line("left out")
            assert task_progress._printing.locked()
        drained = b""
        while b"\n" not in drained:
            drained += os.read(reader, 65536)
    assert drained.lstrip(b"x").startswith(b"pykafka: task 5: 0 rows")
    assert b"left out" not in drained


def test_a_closed_stderr_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    os.close(writer)
    with monkeypatch.context() as closed:
        closed.setattr(task_progress, "_STDERR", writer)
        print_line("nobody reads it")
    print_line("read")
    assert capfd.readouterr().err == "read\n"


def test_a_line_goes_to_the_logs_that_spark_collects(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    logged: list[logging.LogRecord] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            logged.append(record)

    handler = Handler()
    logging.getLogger().addHandler(handler)
    try:
        print_line("before")
        monkeypatch.setenv("PYSPARK_SPARK_SESSION_UUID", "u")
        print_line("after")
    finally:
        logging.getLogger().removeHandler(handler)
    assert [(r.levelname, r.name, r.getMessage()) for r in logged] == [
        ("INFO", "spark_kafka_sink.progress", "after")
    ]
    assert capfd.readouterr().err == "before\n"


def test_spark_still_names_the_session_of_a_worker_whose_logs_it_collects() -> None:
    """The variable is Spark's own, and not documented."""
    worker_io = pytest.importorskip("pyspark.logger.worker_io", reason="Spark older than 4.1")
    source = Path(worker_io.__file__).read_text()
    assert f'"{task_progress._COLLECTS_LOGS}" in os.environ' in source


def test_progress_is_an_option_that_is_off() -> None:
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"}
    assert not sink_options(given).progress
    assert sink_options(given | {"progress": "TRUE"}).progress
    with pytest.raises(ConfigException, match="option progress is 'yes': expected true or false"):
        sink_options(given | {"progress": "yes"})
