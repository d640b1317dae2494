"""A program that ends without `close()` delivers its rows, for every kind of end.

Each is a process of its own. `unit/test_program_end.py` tests the messages without a broker.
"""

from __future__ import annotations

import uuid

import pytest
from confluent_kafka import Consumer, TopicPartition
from support.brokers.kafka_cluster import KafkaCluster
from support.oracles.readers import create_topic, read_with_confluent, wait_for_transactions
from support.programs.program_ends import ProgramEnd, program_ends

pytestmark = pytest.mark.kafka

BEGIN = """
import threading
from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.client import base_producer, unclosed
from spark_kafka_sink.network import nodes

# The machine may be busy.
unclosed.AT_EXIT_S = 60
nodes._NO_RESPONSE_S = 60

def made(**options):
    given = {name.replace("_", "."): value for name, value in options.items()}
    return KafkaProducer({"bootstrap.servers": BOOTSTRAP, "linger.ms": 60_000, **given})

def transaction(name):
    producer = made(transactional_id=name)
    producer.init_transactions()
    producer.begin_transaction()
    return producer

def send(producer, name):
    producer.send(PREFIX + name, name.encode())
"""
# The name of each is that of its topic, and the value of its row.
PROGRAMS = {
    "plain-end": "producer = made(); send(producer, 'plain-end')",
    "garbage": "send(made(), 'garbage')",
    "sys-exit": "producer = made(); send(producer, 'sys-exit'); sys.exit(3)",
    "sys-exit-in-with": "with made() as producer: send(producer, 'sys-exit-in-with'); sys.exit(3)",
    "error-in-with": "with made() as producer: send(producer, 'error-in-with'); 1 / 0",
    "ctrl-c": "producer = made(); send(producer, 'ctrl-c'); signal.raise_signal(signal.SIGINT)",
    "ctrl-c-in-with": (
        "with made() as producer: send(producer, 'ctrl-c-in-with');"
        " signal.raise_signal(signal.SIGINT)"
    ),
    # A thread that sends after the main thread has ended.
    "thread": (
        "producer = made()\n"
        "def late(): threading.main_thread().join(); send(producer, 'thread')\n"
        "threading.Thread(target=late).start()"
    ),
    # The program ends while another thread, which Python does not wait for, closes the producer.
    "close-in-thread": (
        "producer = made(); send(producer, 'close-in-thread')\n"
        "threading.Thread(target=producer.close, daemon=True).start()\n"
        "while not producer._is_closing: pass"
    ),
    "partitioner": (
        "def first(topic, batch, partitions): return [0] * batch.num_rows\n"
        "producer = made(partitioner_class=first); send(producer, 'partitioner')"
    ),
    "transaction": "producer = transaction('transaction'); send(producer, 'transaction')",
    "error-in-transaction": (
        "with transaction('error-in-transaction') as producer:\n"
        "    send(producer, 'error-in-transaction')\n"
        "    producer.flush()\n"
        "    1 / 0"
    ),
}
CODES = {"sys": 3, "error": 1, "ctrl": -2}
# What a program's stderr ends with.
LAST = {"error": "ZeroDivisionError: division by zero", "ctrl": "KeyboardInterrupt"}


@pytest.fixture(scope="module")
def prefix() -> str:
    """Return the prefix of the topics of this run."""
    return f"end-{uuid.uuid4().hex[:8]}-"


@pytest.fixture(scope="module")
def ends(kafka: KafkaCluster, prefix: str) -> dict[str, ProgramEnd]:
    """Return the ends of the programs."""
    for name in PROGRAMS:
        create_topic(kafka.bootstrap, f"{prefix}{name}", 1)
    own = f"BOOTSTRAP, PREFIX = {kafka.bootstrap!r}, {prefix!r}\n"
    return program_ends(own + BEGIN, PROGRAMS)


def end_offset(kafka: KafkaCluster, topic: str) -> int:
    """Return the offset after a topic's last record or marker."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "none"})
    try:
        _, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)
    finally:
        consumer.close()
    return int(high)


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_was_sent_is_there_once_and_the_exit_code_is_the_program_s(
    name: str, kafka: KafkaCluster, prefix: str, ends: dict[str, ProgramEnd]
) -> None:
    code, stderr = ends[name]
    kind = name.partition("-")[0]
    assert code == CODES.get(kind, 0), stderr
    assert stderr.rstrip().endswith(LAST.get(kind, ""))
    assert "closing" not in stderr
    assert "not delivered" not in stderr
    assert "given up" not in stderr
    assert stderr == "" or "Traceback" in stderr or "transaction" in name
    if "transaction" not in name:
        found = [record.value for record in read_with_confluent(kafka.bootstrap, prefix + name)]
        assert found == [name.encode()]


def test_an_open_transaction_is_aborted(
    kafka: KafkaCluster, prefix: str, ends: dict[str, ProgramEnd]
) -> None:
    assert ends["transaction"].stderr == (
        "KafkaProducer producer-transaction was not closed before the program ended: its open "
        "transaction was not committed\n"
    )
    wait_for_transactions(kafka.bootstrap, f"{prefix}error-in-transaction")
    # Its row was not sent; the other producer's row is there, followed by the marker of the abort.
    assert end_offset(kafka, f"{prefix}transaction") == 0
    stderr = ends["error-in-transaction"].stderr
    assert end_offset(kafka, f"{prefix}error-in-transaction") == 2, stderr
    for name in ("transaction", "error-in-transaction"):
        assert read_with_confluent(kafka.bootstrap, prefix + name) == []
