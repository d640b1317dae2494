"""The row API beside kafka-python and confluent-kafka: rows per second, and CPU per row.

    PYTHONPATH=benchmarks:tests:jobs python -m bench.studies.row_api [--rows 200000] \
        [--rounds 5] [--clients …]

One Kafka node on loopback; in every round each client sends its rows once, in a process of its
own, keeps every future and reads its offset in the end (confluent-kafka has no futures: a callback
per row). All have the same settings: acks=all, idempotence, batches of 16 KiB, linger.ms 5, no
compression. On a busy machine trust the CPU time, which is of the client's process alone.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from support.brokers.kafka_cluster import KafkaCluster
from support.brokers.own_broker import own_broker
from support.oracles.readers import create_topic

VALUE_BYTES = 100
PARTITIONS = 6
BATCH_BYTES, LINGER_MS = 16_384, 5
# kafka-python is slow enough that fewer rows take as long.
SHARE_OF_ROWS = {"kafka-python": 0.2}


def send_with_ours(bootstrap: str, topic: str, rows: int) -> int:
    """Send rows; return the number of offsets received."""
    from spark_kafka_sink import KafkaProducer

    config = {"bootstrap.servers": bootstrap, "linger.ms": LINGER_MS, "batch.size": BATCH_BYTES}
    with KafkaProducer(config) as producer:
        send = producer.send
        futures = [send(topic, bytes(VALUE_BYTES)) for _ in range(rows)]
        producer.flush()
        return sum(future.result().offset >= 0 for future in futures)


def send_with_kafka_python(bootstrap: str, topic: str, rows: int) -> int:
    """Send rows; return the number of offsets received."""
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=bootstrap.split(","),
        acks="all",
        enable_idempotence=True,
        linger_ms=LINGER_MS,
        batch_size=BATCH_BYTES,
    )
    send = producer.send
    futures = [send(topic, bytes(VALUE_BYTES)) for _ in range(rows)]
    producer.flush()
    offsets = [future.get(60).offset for future in futures]
    producer.close()
    return sum(offset >= 0 for offset in offsets)


def send_with_confluent_kafka(bootstrap: str, topic: str, rows: int) -> int:
    """Send rows; return the number of offsets received."""
    from confluent_kafka import Message, Producer

    offsets: list[int | None] = []

    def delivered(error: object, message: Message) -> None:
        if error is None:
            offsets.append(message.offset())

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": LINGER_MS,
            "batch.size": BATCH_BYTES,
        }
    )
    for _ in range(rows):
        while True:
            try:
                producer.produce(topic, bytes(VALUE_BYTES), on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()
    return len(offsets)


CLIENTS: dict[str, Callable[[str, str, int], int]] = {
    "spark-kafka-sink": send_with_ours,
    "kafka-python": send_with_kafka_python,
    "confluent-kafka": send_with_confluent_kafka,
}


def run_child(client: str, bootstrap: str, topic: str, rows: int) -> None:
    """Run one client in this process, and print its measurements as JSON."""
    CLIENTS[client](bootstrap, topic, 1000)  # imports, connections, metadata
    gc.collect()
    before, started = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    delivered = CLIENTS[client](bootstrap, topic, rows)
    took, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(json.dumps({"delivered": delivered, "seconds": took, "cpu_seconds": cpu}))


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process so far, from /proc."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run_round(
    clients: list[str], cluster: KafkaCluster, topic: str, rows: int
) -> dict[str, dict[str, float]]:
    """Run every client once; return rows/s, CPU microseconds per row, and the broker's CPU."""
    results = {}
    for client in clients:
        count = int(rows * SHARE_OF_ROWS.get(client, 1))
        child_of = ["--child", client, cluster.bootstrap, topic, str(count)]
        command = [sys.executable, "-m", "bench.studies.row_api", *child_of]
        before = cpu_seconds(cluster.pid(1))
        child = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        broker_cpu = cpu_seconds(cluster.pid(1)) - before
        found = json.loads(child.stdout)
        if found["delivered"] != count:
            raise RuntimeError(f"{client} delivered {found['delivered']} of {count} rows")
        results[client] = {
            "rows/s": count / found["seconds"],
            "CPU us/row": found["cpu_seconds"] / count * 1e6,
            "broker CPU us/row": broker_cpu / count * 1e6,
        }
        print(f"  {client:18}" + "".join(f"{v:12,.2f} {k}" for k, v in results[client].items()))
    return results


def main() -> None:
    """Run the rounds and print the medians of the ratios of each round."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", nargs="+", choices=CLIENTS, default=list(CLIENTS))
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        client, bootstrap, topic, rows = arguments.child
        run_child(client, bootstrap, topic, int(rows))
        return
    ours, *others = arguments.clients
    with own_broker() as cluster:
        topic = f"rows-{uuid.uuid4().hex[:8]}"
        create_topic(cluster.bootstrap, topic, PARTITIONS)
        rounds = []
        for number in range(arguments.rounds):
            print(f"round {number + 1} of {arguments.rounds}")
            order = arguments.clients if number % 2 == 0 else arguments.clients[::-1]
            rounds.append(run_round(order, cluster, topic, arguments.rows))
    for other in others:
        speed = [r[ours]["rows/s"] / r[other]["rows/s"] for r in rounds]
        cpu = [r[other]["CPU us/row"] / r[ours]["CPU us/row"] for r in rounds]
        for name, ratios in (("rows/s", speed), ("CPU per row", cpu)):
            print(
                f"{ours} to {other}, {name}: {statistics.median(ratios):.2f} times better "
                f"(rounds: {min(ratios):.2f} to {max(ratios):.2f})"
            )


if __name__ == "__main__":
    main()
