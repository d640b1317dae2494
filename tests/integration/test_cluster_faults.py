"""Brokers that die, freeze, restart and hand over: every row once, in order.

The cluster has three nodes, each broker and controller, so that damage to a node also affects the
quorum. FAULT_ROUNDS is the number of disasters in the random test (make test-faults); FAULT_SEED
repeats a run.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random, SystemRandom

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec
from conftest import NewTopic, need_kafka, running_cluster
from pyspark.sql import SparkSession
from support.brokers import fetch_kafka
from support.brokers.fault_proxy import PRODUCE, Fault, FaultProxy, Kind
from support.brokers.kafka_cluster import KafkaCluster
from support.brokers.steady_load import (
    SteadyLoad,
    leader_of,
    move_leaders,
    steady_load,
    wait_for_leader_but,
    wait_for_replicas,
)
from support.oracles.readers import (
    committed_values,
    create_topic,
    read_at_least,
    read_with_confluent,
    read_with_kafka_python,
)
from support.pure.measured_metrics import measured
from support.spark.flights import check_every_row_once, rows

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.consumer.topic_reader import TopicReader
from spark_kafka_sink.errors import TimeoutException

pytestmark = pytest.mark.kafka

_PARTITIONS = 6
_ROUNDS = int(os.environ.get("FAULT_ROUNDS", "1"))
_SEED = int(os.environ.get("FAULT_SEED", SystemRandom().randrange(10**9)))


def kill(kafka: KafkaCluster, topic: str, victim: int, load: SteadyLoad) -> None:
    """SIGKILL a node; the others go on; it comes back."""
    kafka.kill(victim)
    try:
        load.wait_for_progress()
    finally:
        kafka.start_node(victim)
    wait_for_replicas(kafka.bootstrap, topic)
    load.wait_for_progress()


def freeze(kafka: KafkaCluster, topic: str, victim: int, load: SteadyLoad) -> None:
    """SIGSTOP a node until the others have taken over; then it wakes with what it was sent."""
    os.kill(kafka.pid(victim), signal.SIGSTOP)
    try:
        load.wait_for_progress()
    finally:
        os.kill(kafka.pid(victim), signal.SIGCONT)
    wait_for_replicas(kafka.bootstrap, topic)
    load.wait_for_progress()


def restart(kafka: KafkaCluster, topic: str, victim: int, load: SteadyLoad) -> None:
    """End a node as for an upgrade; it comes back."""
    kafka.terminate(victim)
    try:
        load.wait_for_progress()
    finally:
        kafka.start_node(victim)
    wait_for_replicas(kafka.bootstrap, topic)


def elect(kafka: KafkaCluster, topic: str, victim: int, load: SteadyLoad) -> None:
    """Move every partition's leader to another node."""
    before = leader_of(kafka.bootstrap, topic)
    move_leaders(kafka.bootstrap, topic)
    # A node that has just woken up may still name the old leader.
    wait_for_leader_but(before, kafka.bootstrap, topic)
    load.wait_for_progress()


DISASTERS: list[Callable[[KafkaCluster, str, int, SteadyLoad], None]] = [
    kill,
    freeze,
    restart,
    elect,
]


@pytest.mark.parametrize("disaster", [kill, freeze], ids=["kill", "freeze"])
def test_the_leader_of_a_partition_goes_and_comes_back(
    frail_kafka: KafkaCluster,
    new_topic: NewTopic,
    disaster: Callable[[KafkaCluster, str, int, SteadyLoad], None],
) -> None:
    topic = new_topic(_PARTITIONS)
    with steady_load(frail_kafka.bootstrap, topic, _PARTITIONS) as load:
        disaster(frail_kafka, topic, leader_of(frail_kafka.bootstrap, topic), load)
    load.rows.check(read_with_confluent(frail_kafka.bootstrap, topic))


@pytest.mark.long(
    reason="it waits three times for replicas; a node that was killed comes back above"
)
def test_every_node_is_restarted_one_after_another(
    frail_kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic = new_topic(_PARTITIONS)
    with steady_load(frail_kafka.bootstrap, topic, _PARTITIONS) as load:
        for node in frail_kafka.ports:
            restart(frail_kafka, topic, node, load)
    load.rows.check(read_with_kafka_python(frail_kafka.bootstrap, topic))


@pytest.mark.long(reason="it waits five times for leaders; make test-faults runs it, too")
def test_leaders_move_again_and_again(frail_kafka: KafkaCluster, new_topic: NewTopic) -> None:
    topic = new_topic(_PARTITIONS)
    with steady_load(frail_kafka.bootstrap, topic, _PARTITIONS) as load:
        for _ in range(5):
            elect(frail_kafka, topic, 0, load)
    load.rows.check(read_with_confluent(frail_kafka.bootstrap, topic))


@pytest.mark.long(reason="make test-faults runs it, many times over; each disaster is met above")
def test_random_disasters_behind_a_network_with_random_faults(
    frail_kafka: KafkaCluster, proxies: dict[int, FaultProxy], new_topic: NewTopic
) -> None:
    print(f"FAULT_SEED={_SEED}")
    random = Random(_SEED)
    topic = new_topic(_PARTITIONS)
    bootstrap = ",".join(f"127.0.0.1:{proxy.port}" for proxy in proxies.values())
    with steady_load(bootstrap, topic, _PARTITIONS) as load:
        for _ in range(_ROUNDS):
            for proxy in proxies.values():
                proxy.clear()
                proxy.inject(
                    Fault(
                        kind=random.choice(list(Kind)),
                        nth=random.randint(1, 300),
                        times=random.randint(1, 3),
                        delay_s=random.random(),
                    )
                )
            disaster, victim = random.choice(DISASTERS), random.choice(list(proxies))
            print(disaster.__name__, victim)
            disaster(frail_kafka, topic, victim, load)
        for proxy in proxies.values():
            proxy.clear()
    assert all(proxy.requests[PRODUCE] for proxy in proxies.values())
    load.rows.check(read_with_confluent(frail_kafka.bootstrap, topic))


# -- a node goes in the middle of something --------------------------------------------------------


def _values(*texts: str) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(texts)})


def test_rows_go_on_over_the_death_of_a_leader(
    frail_kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic = new_topic(6)
    with KafkaProducer({"bootstrap.servers": frail_kafka.bootstrap, "linger.ms": 1}) as producer:
        futures = [producer.send(topic, b"%d" % number) for number in range(3000)]
        frail_kafka.kill(2)
        try:
            futures += [producer.send(topic, b"%d" % number) for number in range(3000, 6000)]
            producer.flush()
        finally:
            frail_kafka.start_node(2)
    records = read_with_confluent(frail_kafka.bootstrap, topic)
    found = {(record.partition, record.offset): record for record in records}
    assert len(found) == 6000
    for number, future in enumerate(futures):
        metadata = future.result(0)
        assert found[metadata.partition, metadata.offset].value == b"%d" % number


def test_a_transaction_survives_the_death_of_its_coordinator(
    frail_kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic = new_topic(6)
    config = {
        "bootstrap.servers": frail_kafka.bootstrap,
        "transactional.id": topic,
        "max.block.ms": 120_000,
    }
    with KafkaProducer(config) as producer:
        producer.init_transactions()
        assert producer._state.transactions is not None
        (coordinator,) = producer._state.transactions.queue.coordinators.nodes
        producer.begin_transaction()
        producer.append(topic, _values(*(f"before {number}" for number in range(50))))
        producer.flush()
        frail_kafka.kill(coordinator)
        try:
            producer.append(topic, _values(*(f"after {number}" for number in range(50))))
            producer.commit_transaction()
        finally:
            frail_kafka.start_node(coordinator)
        producer.begin_transaction()
        producer.append(topic, _values("the next"))
        producer.commit_transaction()
    expected = [f"{when} {number}" for when in ("before", "after") for number in range(50)]
    assert committed_values(frail_kafka.bootstrap, topic) == sorted([*expected, "the next"])


def test_a_reading_goes_on_where_partitions_move_to(
    frail_kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic = new_topic(6)
    numbers = pa.array([number for number in range(300) for _ in range(6)])
    partitions = pa.array(list(range(6)) * 300, pa.int32())
    numbered = pa.record_batch({"value": numbers.cast(pa.string()), "partition": partitions})
    with KafkaProducer({"bootstrap.servers": frail_kafka.bootstrap, "batch.size": 100}) as producer:
        producer.append(topic, numbered)
    config = {"bootstrap.servers": frail_kafka.bootstrap, "max.partition.fetch.bytes": 500}
    killed = 1
    try:
        with TopicReader(config) as reader:
            batches = reader.read(topic)
            first = next(batches)
            frail_kafka.kill(killed)
            found = [*first.to_pylist(), *(row for b in batches for row in b.to_pylist())]
    finally:
        frail_kafka.start_node(killed)
    places = sorted((row["partition"], row["offset"]) for row in found)
    assert places == [(partition, offset) for partition in range(6) for offset in range(300)]
    assert all(row["value"] == b"%d" % row["offset"] for row in found)


@contextmanager
def _frozen(kafka: KafkaCluster, node: int) -> Iterator[None]:
    """Freeze a node: it takes bytes and answers nothing."""
    os.kill(kafka.pid(node), signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(kafka.pid(node), signal.SIGCONT)
        kafka.wait_for(node)


def test_records_sent_again_are_counted_as_retries(
    frail_kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic = new_topic(1)
    config = {"bootstrap.servers": frail_kafka.bootstrap, "request.timeout.ms": 2000}
    with KafkaProducer(config) as producer:
        producer.append(topic, _values(*map(str, range(30))))
        producer.flush()
        assert measured(producer)["record-retry-total"] == 0
        closed_before = measured(producer)["connection-close-total"]
        # A node that has just come back may still lead the topic, or lose it.
        wait_for_replicas(frail_kafka.bootstrap, topic)
        with _frozen(frail_kafka, leader_of(frail_kafka.bootstrap, topic)):
            producer.append(topic, _values(*map(str, range(50))))
            producer.flush()
        all_of = measured(producer)
        of_topic = measured(producer, "producer-topic-metrics", topic=topic)
    assert len(read_at_least(frail_kafka.bootstrap, topic, 80)) == 80
    retried = all_of["record-retry-total"]
    assert retried >= 50
    assert retried == of_topic["record-retry-total"]
    assert all_of["record-send-total"] == 80 + retried
    assert all_of["record-error-total"] == 0
    assert all_of["connection-close-total"] > closed_before
    assert all_of["buffer-available-bytes"] == all_of["buffer-total-bytes"]


@pytest.mark.long(reason="it starts a node of its own, and again when its disk was full")
def test_rows_for_a_disk_that_is_full_are_written_once_there_is_room_or_say_why_not(
    scratch: Path, caplog: pytest.LogCaptureFixture
) -> None:
    need_kafka()
    folder = scratch / "full"
    # The node goes on without one of its log directories, if it is not the only one.
    settings = {"log.dirs": f"{folder}/one,{folder}/two", "metadata.log.dir": f"{folder}/metadata"}
    big = [letter * 600_000 for letter in "abc"]
    with running_cluster(fetch_kafka.NEWEST, folder, 1, settings=settings) as kafka:
        create_topic(kafka.bootstrap, "full", 1)
        config = {"bootstrap.servers": kafka.bootstrap}
        soon_over = config | {"delivery.timeout.ms": 4000, "request.timeout.ms": 2000}
        with KafkaProducer(config) as patient, KafkaProducer(soon_over) as impatient:
            patient.append("full", _values(big[0]))
            patient.flush()
            kafka.limit_files(1, 1_000_000)
            impatient.append("full", _values(big[1]))
            with pytest.raises(TimeoutException, match="failed attempt"):
                impatient.flush()
            patient.append("full", _values(big[2], "d"))
            kafka.kill(1)
            kafka.start_node(1)
        found = [record.value for record in read_with_confluent(kafka.bootstrap, "full")]
    assert found == [big[0].encode(), big[2].encode(), b"d"]
    assert "1 record(s) are sent again after KAFKA_STORAGE_ERROR (56) from node 1" in caplog.text


_PATIENCE_S = 120


def gate(folder: str, batches_before: list[int]) -> Callable[..., Iterator[pa.RecordBatch]]:
    """Make a mapInArrow function that stops after so many batches until a file appears.

    Gate i opens when `folder` has a file named i.
    """

    def pass_through(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if number in batches_before:
                flag = Path(folder, str(batches_before.index(number)))
                while not flag.exists():
                    time.sleep(0.02)
            yield batch

    return pass_through


def count_records(admin: AdminClient, topic: str, partitions: int) -> int:
    """Return the number of a topic's records, as far as its leaders answer."""
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # the library has no types here
    asked = {TopicPartition(topic, number): latest for number in range(partitions)}
    total = 0
    for future in admin.list_offsets(asked, request_timeout=1).values():
        if future.exception() is None:
            total += future.result().offset
    return total


def wait_for_records(bootstrap: str, topic: str, partitions: int, more_than: int) -> int:
    """Wait until a topic has more records than `more_than`; return their number."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        found = count_records(admin, topic, partitions)
        if found > more_than:
            return found
    message = f"{topic} did not get more than {more_than} records"
    raise TimeoutError(message)


@pytest.mark.long(reason="a job long enough to meet a broker's whole restart; leaders die above")
@pytest.mark.spark
def test_a_broker_is_killed_and_restarted_in_the_middle_of_a_job(
    spark: SparkSession, frail_kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    count, tasks, partitions, victim = 800_000, 2, 12, 2
    topic = new_topic(partitions)
    frame = rows(spark, count, tasks)
    # A task has 40 batches of 10,000 rows; the sink works on 8 MiB of them at a time.
    gated = frame.mapInArrow(gate(str(tmp_path), [20, 30]), frame.schema)

    def kill_and_restart() -> None:
        try:
            before = wait_for_records(frail_kafka.bootstrap, topic, partitions, more_than=0)
            frail_kafka.kill(victim)
            try:
                (tmp_path / "0").touch()
                wait_for_records(frail_kafka.bootstrap, topic, partitions, more_than=before)
            finally:
                frail_kafka.start_node(victim)
        finally:
            (tmp_path / "0").touch()
            (tmp_path / "1").touch()

    with ThreadPoolExecutor(1) as beside:
        chaos = beside.submit(kill_and_restart)
        # A task that fails is not run again in a local session, so no row may come twice.
        (
            gated.write.format("pykafka")
            .mode("append")
            .option("kafka.bootstrap.servers", frail_kafka.bootstrap)
            .option("kafka.compression.type", "lz4")
            .option("kafka.batch.size", "65536")
            .option("topic", topic)
            .save()
        )
        chaos.result()
    check_every_row_once(
        read_with_confluent(frail_kafka.bootstrap, topic), count, tasks, partitions
    )
