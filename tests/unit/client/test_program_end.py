"""The end of a program reports lost rows of producers that were not closed.

So does the end of a child process of `multiprocessing`, however it was started. No broker can be
reached. `integration/test_program_end.py` tests the ends that lose nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
from support.programs.program_ends import ProgramEnd, program_ends

# Makes a producer that knows its topic, with rows that stay. The time at the end is cut short.
BEGIN = """
import threading, time
import pyarrow as pa
from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.client import base_producer, unclosed
from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.network import nodes
from spark_kafka_sink.producer.transactions.state import TransactionState
from support.pure.unreachable import NOBODY, TOPIC, answer

def limit(deliveries_s, callbacks_s):
    unclosed.AT_EXIT_S = deliveries_s + callbacks_s
    base_producer._LAST_CALLBACKS_AT_EXIT_S = callbacks_s

# The machine may be busy.
limit(0.3, 20)
nodes._NO_RESPONSE_S = 3600
AT_ONCE = {"delivery.timeout.ms": 1, "request.timeout.ms": 1, "linger.ms": 0}

def take_time(producer):
    # More than delivery.timeout.ms.
    for thread, (name, state, close, _) in unclosed._unclosed.items():
        unclosed._unclosed[thread] = (name, state, close, 60)
    producer._delivery_timeout_s = 60

def refuse(*_):
    raise KafkaException("refused")

# It is asked when the program ends: until then, rows linger.
REFUSING = {"partitioner.class": refuse, "linger.ms": 60_000}

def made(name="mine", options={"linger.ms": 60_000}):
    producer = KafkaProducer({"bootstrap.servers": NOBODY, "client.id": name, **options})
    with producer._state.lock:
        producer._state.metadata.track(TOPIC, time.monotonic())
        producer._state.metadata.update(answer([1]), time.monotonic())
    return producer

def send(producer):
    producer.send(TOPIC, b"in a batch")
    producer._feeder.drain()
    producer.send(TOPIC, b"in no batch yet")

def run_child(method, text):
    import multiprocessing, sys
    child = multiprocessing.get_context(method).Process(target=exec, args=(text, {}), name="child")
    child.start()
    child.join()
    sys.exit(child.exitcode)
"""
LOST = "2 record(s) (t: 2)"
NOT_CLOSED = "KafkaProducer mine was not closed before the program ended: "
GARBAGE = "kafka-producer-network-thread | mine was not closed and lost"


class Program(NamedTuple):
    """A program, its exit code, and what it tells on stderr: the beginnings of its lines."""

    text: str
    code: int
    printed: list[str]


PROGRAMS = {
    "plain end": Program(
        "producer = made(); send(producer)",
        0,
        [f"{NOT_CLOSED}{LOST} were not delivered; TimeoutException: 1 batch(es) not acknowledged"],
    ),
    "exit code": Program(
        "import sys; producer = made(); send(producer); sys.exit(3)", 3, [f"{NOT_CLOSED}{LOST}"]
    ),
    # Its thread goes on with what it has.
    "garbage": Program(
        "limit(0.3, 0); send(made())", 0, [f"{NOT_CLOSED}{LOST} were not delivered"]
    ),
    "garbage with an open transaction": Program(
        "limit(0.3, 0); producer = made(options={'transactional.id': 'tid'})\n"
        "with producer._state.lock:\n"
        "    manager = producer._state.transactions\n"
        "    manager._state = TransactionState.IN_TRANSACTION\n"
        "    manager._partitions.begin()\n"
        "del producer",
        0,
        [f"{NOT_CLOSED}its open transaction was not committed"],
    ),
    "two share the time": Program(
        "one, two, three = made('one'), made('two'), made('three'); send(one); send(two)",
        0,
        [f"KafkaProducer {name} was not closed" for name in ("one", "two")],
    ),
    "an error that no call has raised": Program(
        "producer = made(options=AT_ONCE)\n"
        "producer.append(TOPIC, pa.record_batch({'value': ['v']}))\n"
        "while producer._state.deliveries.error is None: time.sleep(0.01)\n"
        "take_time(producer)",
        0,
        [
            f"{NOT_CLOSED}1 record(s) (t: 1) were not delivered; TimeoutException: t-0: 1 "
            "record(s) were not acknowledged"
        ],
    ),
    "garbage with an error that no call has raised": Program(
        "producer = made(options=AT_ONCE); thread = producer._thread\n"
        "producer.append(TOPIC, pa.record_batch({'value': ['v']}))\n"
        "del producer; thread.join(None)",
        0,
        [
            f"{GARBAGE} 1 record(s) (t: 1): t-0: 1 record(s) were not acknowledged",
        ],
    ),
    "rows that fail at the end": Program(
        "limit(20, 20)\n"
        "producer = made(options=REFUSING); producer.send(TOPIC, b'v'); producer.send(TOPIC, b'w')",
        0,
        [f"{NOT_CLOSED}{LOST} were not delivered"],
    ),
    "garbage with rows that fail": Program(
        "limit(20, 20); made(options=REFUSING).send(TOPIC, b'v')",
        0,
        [f"{GARBAGE} 1 record(s) (t: 1)"],
    ),
    "ctrl-c in with": Program(
        "with made() as producer:\n    send(producer)\n    signal.raise_signal(signal.SIGINT)",
        -2,
        [
            "closing KafkaProducer mine after KeyboardInterrupt failed: 1 batch(es) not "
            "acknowledged in 0.3",
            f"KafkaProducer mine was closed after KeyboardInterrupt: {LOST} were not delivered",
            "Traceback",
            "KeyboardInterrupt",
        ],
    ),
    "ctrl-c in with while a callback does not return": Program(
        "base_producer._LAST_CALLBACKS_S = 3600; limit(0.3, 0.1)\n"
        "begun = threading.Event()\n"
        "with made(options=AT_ONCE) as producer:\n"
        "    producer.send(TOPIC, b'v', on_delivery=lambda *_: (begun.set(), time.sleep(3600)))\n"
        "    begun.wait()\n"
        "    signal.raise_signal(signal.SIGINT)",
        -2,
        [
            "KafkaProducer mine is closed, but its I/O thread has not ended: a callback may hold",
            "closing KafkaProducer mine after KeyboardInterrupt failed: callbacks have not ended",
            "Traceback",
            "KeyboardInterrupt",
        ],
    ),
    "ctrl-c": Program(
        "producer = made(); send(producer); signal.raise_signal(signal.SIGINT)",
        -2,
        ["Traceback", "KeyboardInterrupt", f"{NOT_CLOSED}{LOST}"],
    ),
    "ctrl-c while the first of two is closed": Program(
        "unclosed._AFTER_CTRL_C_S = 20\n"
        "one, two = made('one'), made('two'); send(one); send(two)\n"
        "one._flush = lambda *_: signal.raise_signal(signal.SIGINT)",
        0,
        [
            *(
                f"KafkaProducer {name} was not closed before the program ended: {LOST} were not "
                "delivered"
                for name in ("one", "two")
            ),
            "Exception ignored in atexit callback",
            "Traceback",
            "KeyboardInterrupt",
        ],
    ),
    "an error in with": Program(
        "with made(options=AT_ONCE) as producer:\n"
        "    producer.append(TOPIC, pa.record_batch({'value': ['v']}))\n"
        "    1 / 0",
        1,
        [
            "closing KafkaProducer mine after ZeroDivisionError failed: t-0: 1 record(s) were "
            "not acknowledged within delivery.timeout.ms=1",
            "KafkaProducer mine was closed after ZeroDivisionError: 1 record(s) (t: 1) were not",
            "Traceback",
            "ZeroDivisionError",
        ],
    ),
    "a callback that does not return": Program(
        "limit(0.3, 0.1)\n"
        "producer = made(options=AT_ONCE)\n"
        "begun = threading.Event()\n"
        "producer.send(TOPIC, b'v', on_delivery=lambda *_: (begun.set(), time.sleep(3600)))\n"
        "begun.wait()",
        0,
        [
            "KafkaProducer mine is closed, but its I/O thread has not ended: a callback may hold",
            f"{NOT_CLOSED}TimeoutException: callbacks have not ended",
        ],
    ),
    "no rows": Program("producer = made()", 0, []),
    "closed": Program("producer = made(); send(producer); producer.close(0)", 0, []),
    # It takes seconds on a busy machine, which the end of a program does not have.
    "what calls of a partitioner import is imported before": Program(
        "import sys\n"
        "producer = made(options={'partitioner.class': print})\n"
        "for _ in range(3000):\n"
        "    if 'pandas' in sys.modules: break\n"
        "    time.sleep(0.01)\n"
        "else: print('pandas is not imported', file=sys.stderr)\n"
        "producer.close(0)",
        0,
        [],
    ),
    "a child of a process with a producer": Program(
        "import sys, warnings\n"
        "warnings.simplefilter('ignore', DeprecationWarning)  # of forks beside threads\n"
        "producer = made(); send(producer)\n"
        "child = os.fork()\n"
        "if child == 0: sys.exit(0)\n"
        "os.waitpid(child, 0)\n"
        "producer.close(0)",
        0,
        [],
    ),
}


def in_child(method: str, text: str) -> str:
    """Return a program that runs a program in a child process, and ends with its exit code."""
    return f"run_child({method!r}, {BEGIN + text!r})"


# How child processes are started. Before Python 3.13, only the last runs the functions of `atexit`.
METHODS = ("fork", "forkserver", "spawn")
# The main thread counts as ended when the main function of a child process has returned. Before
# Python 3.13, the finalizers of `multiprocessing` have run then.
WHEN_OVER = "threading.main_thread().join()"

CHILDREN = {
    **{
        f"a child by {method}": Program(
            in_child(method, "import sys; producer = made(); send(producer); sys.exit(3)"),
            3,
            [f"{NOT_CLOSED}{LOST} were not delivered; TimeoutException: 1 batch(es)"],
        )
        for method in METHODS
    },
    # It runs both the finalizer and the function of `atexit`. Its I/O thread is alive both times.
    "garbage in a child": Program(
        in_child("spawn", "limit(0.3, 0); send(made())"), 0, [f"{NOT_CLOSED}{LOST}"]
    ),
    "two in a child": Program(
        in_child("fork", "one, two = made('one'), made('two'); send(one); send(two)"),
        0,
        [f"KafkaProducer {name} was not closed" for name in ("one", "two")],
    ),
    "closed in a child": Program(
        in_child("fork", "producer = made(); send(producer); producer.close(0)"), 0, []
    ),
    "a child of a child": Program(
        in_child(
            "fork",
            "producer = made('outer')\n" + in_child("fork", "producer = made(); send(producer)"),
        ),
        0,
        [f"{NOT_CLOSED}{LOST}"],
    ),
    **{
        f"a thread that outlives the main function of a child by {method}": Program(
            in_child(
                method,
                "producer = made()\n"
                f"threading.Thread(target=lambda: ({WHEN_OVER}, send(producer))).start()",
            ),
            0,
            [f"{NOT_CLOSED}{LOST}"],
        )
        for method in METHODS
    },
    "a producer that such a thread makes": Program(
        in_child(
            "fork",
            "kept = []\n"
            "def work():\n"
            f"    {WHEN_OVER}\n"
            "    kept.append(made())\n"
            "    send(kept[0])\n"
            "threading.Thread(target=work).start()",
        ),
        0,
        [f"{NOT_CLOSED}{LOST}"],
    ),
    # Its idle threads end only when Python waits for them.
    "a pool of threads in a child": Program(
        in_child(
            "fork",
            "from concurrent.futures import ThreadPoolExecutor\n"
            "producer, pool = made(), ThreadPoolExecutor(2)\n"
            "pool.submit(send, producer).result()",
        ),
        0,
        [f"{NOT_CLOSED}{LOST}"],
    ),
}


def ends_of(programs: dict[str, Program]) -> dict[str, ProgramEnd]:
    """Run programs, and return their ends."""
    return program_ends(BEGIN, {name: program.text for name, program in programs.items()})


def check(program: Program, end: ProgramEnd) -> None:
    """Check the exit code of a program, and the beginnings of the lines on its stderr."""
    assert end.code == program.code, end.stderr
    lines = [line for line in end.stderr.splitlines() if not line.startswith(" ")]
    assert len(lines) == len(program.printed), end.stderr
    for line, printed in zip(lines, program.printed, strict=True):
        assert line.startswith(printed)


@pytest.fixture(scope="module")
def ends() -> dict[str, ProgramEnd]:
    """Return the ends of the programs."""
    return ends_of(PROGRAMS)


@pytest.fixture(scope="module")
def ends_of_children() -> dict[str, ProgramEnd]:
    """Return the ends of the programs that run a child process."""
    return ends_of(CHILDREN)


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_the_end_of_a_program_loses_is_told_and_its_exit_code_stays(
    name: str, ends: dict[str, ProgramEnd]
) -> None:
    check(PROGRAMS[name], ends[name])


@pytest.mark.parametrize("name", CHILDREN)
def test_what_the_end_of_a_child_of_multiprocessing_loses_is_told_like_a_program_s(
    name: str, ends_of_children: dict[str, ProgramEnd]
) -> None:
    check(CHILDREN[name], ends_of_children[name])
