"""The producers that a worker process keeps between tasks, by their entire configuration."""

from __future__ import annotations

import dataclasses
import multiprocessing
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient
from conftest import NewTopic, topic_maker
from support.brokers.fault_proxy import API_VERSIONS, Fault, FaultProxy, Kind
from support.brokers.kafka_cluster import KafkaCluster
from support.oracles.readers import create_topic, read_with_confluent

from spark_kafka_sink.config import ProducerConfig, producer_config
from spark_kafka_sink.errors import (
    DataException,
    IllegalArgumentException,
    IllegalStateException,
    KafkaException,
)
from spark_kafka_sink.spark.options import sink_options
from spark_kafka_sink.spark.tasks import producer_pool
from spark_kafka_sink.spark.tasks.producer_pool import IDLE_S, POOL, ProducerPool
from spark_kafka_sink.spark.tasks.task import write_task
from spark_kafka_sink.task_producer import TaskProducer

pytestmark = pytest.mark.kafka


@dataclasses.dataclass(eq=False)
class _Timer:
    """A timer that the test fires."""

    seconds: float
    fire: Callable[[], None]
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True


def is_closed(producer: TaskProducer) -> bool:
    """Whether a producer takes nothing any more."""
    try:
        producer.flush()
    except IllegalStateException:
        return True
    return False


class Timers(list[_Timer]):
    """All timers that a pool started."""

    def start(self, seconds: float, call: Callable[[], None]) -> _Timer:
        """Return a timer, which fires when the test says so."""
        self.append(_Timer(seconds, call))
        return self[-1]


@pytest.fixture
def timers() -> Timers:
    """The timers of `pool`."""
    return Timers()


@pytest.fixture
def pool(timers: Timers) -> Iterator[ProducerPool]:
    """A pool that ends with the test."""
    pool = ProducerPool(timers.start)
    yield pool
    for timer in timers:
        timer.fire()


def values(*numbers: int) -> pa.RecordBatch:
    """Make rows."""
    return pa.record_batch({"value": [str(number) for number in numbers]})


def config_of(bootstrap: str, **more: str) -> ProducerConfig:
    """Make a configuration; options by their names with _ for the dot."""
    given = {"bootstrap.servers": bootstrap, "linger.ms": "60000"}
    return producer_config(given | {name.replace("_", "."): more[name] for name in more})


def run_task(
    pool: ProducerPool, config: ProducerConfig, topic: str, rows: pa.RecordBatch
) -> tuple[object, int]:
    """Write rows as a task does; return the producer, and its number of acknowledged rows."""
    with pool.producer(config) as producer:
        producer.append(topic, rows)
        producer.flush()
        delivered = producer.take_deliveries()
        assert producer.take_deliveries() == {}
    return producer, sum(each.records for each in delivered.values())


def found(kafka: KafkaCluster, topic: str) -> Counter[int]:
    """Count how often each value is in a topic."""
    return Counter(int(r.value or b"") for r in read_with_confluent(kafka.bootstrap, topic))


def test_the_next_task_of_an_equal_configuration_takes_the_producer(
    kafka: KafkaCluster, new_topic: NewTopic, pool: ProducerPool
) -> None:
    topic, other_topic = new_topic(3), new_topic(1)
    first = run_task(pool, config_of(kafka.bootstrap), topic, values(1, 2, 3))
    again = run_task(pool, config_of(kafka.bootstrap), topic, values(4, 5))
    other = run_task(pool, config_of(kafka.bootstrap), other_topic, values(6))
    assert first[0] is again[0] is other[0]
    assert (first[1], again[1], other[1]) == (3, 2, 1), "a task has the deliveries of another"
    assert found(kafka, topic) == Counter(range(1, 6))
    assert found(kafka, other_topic) == Counter([6])


def test_a_configuration_that_differs_in_anything_has_a_producer_of_its_own(
    kafka: KafkaCluster, new_topic: NewTopic, pool: ProducerPool
) -> None:
    topic = new_topic(1)
    configs = [
        config_of(kafka.bootstrap),
        config_of(kafka.bootstrap, client_id="another"),
        config_of(kafka.bootstrap, metadata_max_age_ms="299999"),
        config_of(kafka.bootstrap.split(",")[0]),
    ]
    made = [run_task(pool, config, topic, values(1))[0] for config in configs]
    assert len(set(map(id, made))) == len(configs)
    assert [run_task(pool, config, topic, values(1))[0] for config in configs] == made


def test_two_tasks_at_a_time_never_share_a_producer(
    kafka: KafkaCluster, new_topic: NewTopic, pool: ProducerPool
) -> None:
    topic, config = new_topic(1), config_of(kafka.bootstrap)
    with pool.producer(config) as outer:
        outer.append(topic, values(1))
        inner, records = run_task(pool, config, topic, values(2))
        assert records == 1
        assert inner is not outer
    assert is_closed(outer), "two are kept for one configuration"
    assert found(kafka, topic) == Counter([1, 2])


def test_tasks_of_many_threads_keep_one_producer_and_every_row(
    kafka: KafkaCluster, new_topic: NewTopic, pool: ProducerPool
) -> None:
    topic, config = new_topic(3), config_of(kafka.bootstrap)

    def tasks(first: int) -> list[int]:
        return [run_task(pool, config, topic, values(first + i))[1] for i in range(25)]

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(tasks, range(0, 200, 25))) == [[1] * 25] * 8
    (kept,) = pool._kept.values()
    assert not is_closed(kept.producer)
    assert found(kafka, topic) == Counter(range(200))


@pytest.mark.parametrize("error", [DataException("row"), KeyboardInterrupt()])
def test_a_task_that_fails_leaves_no_producer(
    kafka: KafkaCluster, new_topic: NewTopic, pool: ProducerPool, error: BaseException
) -> None:
    topic, config = new_topic(1), config_of(kafka.bootstrap)
    run_task(pool, config, topic, values(1))
    lent: list[TaskProducer] = []

    def fail() -> None:
        with pool.producer(config) as producer:
            lent.append(producer)
            producer.append(topic, values(2))
            raise error

    with pytest.raises(type(error)):
        fail()
    (failed,) = lent
    assert is_closed(failed)
    after, records = run_task(pool, config, topic, values(3))
    assert after is not failed
    assert records == 1
    assert found(kafka, topic) == Counter([1, 3]), "rows of the failed task came with the next"


def test_a_task_that_does_not_flush_is_delivered_all_the_same(
    kafka: KafkaCluster, new_topic: NewTopic, pool: ProducerPool
) -> None:
    topic, config = new_topic(1), config_of(kafka.bootstrap)
    with pool.producer(config) as producer:
        producer.append(topic, values(1, 2))
    assert found(kafka, topic) == Counter([1, 2])
    assert run_task(pool, config, topic, values(3)) == (producer, 1)


def test_a_producer_that_broke_while_it_was_kept_is_not_lent(
    kafka: KafkaCluster, new_topic: NewTopic, pool: ProducerPool
) -> None:
    topic, config = new_topic(1), config_of(kafka.bootstrap)
    with pool.producer(config) as broken:
        broken.append(topic, values(1))
    with broken._state.lock:
        broken._state.give_up(KafkaException("broken"))
    after, _ = run_task(pool, config, topic, values(2))
    assert after is not broken
    assert is_closed(broken)


def test_a_producer_that_nobody_takes_is_closed(
    kafka: KafkaCluster, new_topic: NewTopic, pool: ProducerPool, timers: Timers
) -> None:
    topic, config = new_topic(1), config_of(kafka.bootstrap)
    with pool.producer(config) as producer:
        producer.append(topic, values(1))
    assert [timer.seconds for timer in timers] == [IDLE_S]
    with pool.producer(config) as again:
        assert again is producer
        assert timers[0].is_cancelled
        timers[0].fire()  # it was too late to cancel it
        again.append(topic, values(2))
    assert not is_closed(producer), "closed while a task had it, or for the idleness before"
    timers[1].fire()
    assert is_closed(producer)
    assert run_task(pool, config, topic, values(3))[0] is not producer
    assert found(kafka, topic) == Counter([1, 2, 3])


def test_a_transactional_producer_is_not_made(kafka: KafkaCluster, pool: ProducerPool) -> None:
    config = config_of(kafka.bootstrap, transactional_id="pool")
    refused = pytest.raises(IllegalArgumentException, match="begins no transactions")
    with refused, pool.producer(config):
        pass


def test_a_topic_made_anew_between_tasks_is_written_to_as_it_is_now(
    kafka: KafkaCluster, new_topic: NewTopic, pool: ProducerPool
) -> None:
    topic, config = new_topic(12), config_of(kafka.bootstrap)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    rows = values(*range(1000))
    keys = pa.array([str(number) for number in range(1000)])
    keyed = rows.append_column("key", keys)
    first, _ = run_task(pool, config, topic, keyed)
    for partitions in (2, 5):
        admin.delete_topics([topic])[topic].result()
        while topic in admin.list_topics().topics:
            pass
        create_topic(kafka.bootstrap, topic, partitions)
        again, records = run_task(pool, config, topic, keyed)
        assert again is first
        assert records == 1000
        there = read_with_confluent(kafka.bootstrap, topic)
        assert Counter(r.key for r in there) == Counter(str(n).encode() for n in range(1000))
        assert {r.partition for r in there} == set(range(partitions))


def test_a_broker_that_was_restarted_between_tasks(
    proxied_kafka: tuple[KafkaCluster, FaultProxy], pool: ProducerPool
) -> None:
    cluster, proxy = proxied_kafka
    topic = topic_maker(cluster)(3)
    config = config_of(f"127.0.0.1:{proxy.port}")
    first, _ = run_task(pool, config, topic, values(*range(100)))
    cluster.terminate(1)
    cluster.start_node(1)
    again, records = run_task(pool, config, topic, values(*range(100, 200)))
    assert again is first
    assert records == 100
    assert found(cluster, topic) == Counter(range(200))


def test_the_sequences_go_on_so_that_a_lost_answer_makes_no_duplicate(
    proxied_kafka: tuple[KafkaCluster, FaultProxy], pool: ProducerPool
) -> None:
    cluster, proxy = proxied_kafka
    topic = topic_maker(cluster)(1)
    config = config_of(f"127.0.0.1:{proxy.port}")
    for task in range(4):
        fault = proxy.inject(Fault(kind=Kind.DROP_ANSWER))
        run_task(pool, config, topic, values(*range(task * 10, task * 10 + 10)))
        assert fault.happened.is_set()
    assert [int(r.value or b"") for r in read_with_confluent(cluster.bootstrap, topic)] == list(
        range(40)
    )


def test_what_is_kept_holds_no_rows(
    kafka: KafkaCluster, new_topic: NewTopic, pool: ProducerPool
) -> None:
    topic, config = new_topic(3), config_of(kafka.bootstrap, max_request_size="2000000")
    run_task(pool, config, topic, values(0))
    before = pa.total_allocated_bytes()
    rows = pa.record_batch({"value": [b"x" * 100_000] * 200})
    with pool.producer(config) as producer:
        producer.append(topic, rows)
    del rows
    assert producer._state.accumulator.pool.available_bytes == config.buffer_memory
    assert pa.total_allocated_bytes() - before < 1_000_000


def test_a_producer_that_has_written_to_very_many_topics_is_not_kept(
    kafka: KafkaCluster, new_topic: NewTopic, pool: ProducerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_pool, "MANY_TOPICS", 2)
    config, topics = config_of(kafka.bootstrap), [new_topic(1) for _ in range(3)]
    made = [run_task(pool, config, topic, values(1))[0] for topic in [*topics[:2], *topics]]
    assert made[0] is made[1] is made[2] is made[3] is made[4]
    again, _ = run_task(pool, config, topics[0], values(2))
    assert again is not made[0]
    assert is_closed(made[0])  # type: ignore[arg-type]
    assert [found(kafka, topic) for topic in topics] == [
        Counter({1: 2, 2: 1}), Counter({1: 2}), Counter({1: 1})
    ]  # fmt: skip


def _write_in_child(topic: str, bootstrap: str) -> None:
    options = sink_options({"kafka.bootstrap.servers": bootstrap, "topic": topic})
    assert POOL._kept == {}, "the child knows its parent's producer"
    assert write_task(options, iter([values(2)])).report.rows == 1


# Python 3.12 and newer: what comes of it is what this test is about.
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_no_producer_of_its_parent(
    kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic = new_topic(1)
    options = sink_options({"kafka.bootstrap.servers": kafka.bootstrap, "topic": topic})
    try:
        write_task(options, iter([values(1)]))
        kept = POOL._kept[
            options.producer, ""
        ]  # in addition to those that earlier tests may have left
        with POOL._lock:  # as if another thread held it at the fork
            child = multiprocessing.get_context("fork").Process(
                target=_write_in_child, args=(topic, kafka.bootstrap)
            )
            child.start()
        child.join(60)
        assert child.exitcode == 0
        with POOL.producer(options.producer) as producer:
            assert producer is kept.producer, "the parent lost its own"
            producer.append(topic, values(3))
    finally:
        for each in POOL._kept.values():
            each.timer.cancel()
            each.producer.close()
        POOL.forget()
    assert found(kafka, topic) == Counter([1, 2, 3])


_JOBS = """
import sys

from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
print("ready", flush=True)
for line in sys.stdin:
    bootstrap, topic, client_id, value = line.split()
    (
        spark.sql(f"SELECT '{value}' AS value").write.format("pykafka").mode("append")
        .option("kafka.bootstrap.servers", bootstrap).option("topic", topic)
        .option("kafka.client.id", client_id).save()
    )
    print("saved", flush=True)
spark.stop()
"""


@pytest.mark.spark
def test_jobs_of_one_worker_process_share_connections_unless_they_differ(
    proxied_kafka: tuple[KafkaCluster, FaultProxy], tmp_path: Path
) -> None:
    kafka, proxy = proxied_kafka
    topic, bootstrap = topic_maker(kafka)(1), f"127.0.0.1:{proxy.port}"
    script = tmp_path / "jobs.py"
    script.write_text(_JOBS)
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(
            [sys.executable, script],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
        ) as jobs,
    ):  # fmt: skip
        to_jobs, from_jobs = jobs.stdin, jobs.stdout
        assert to_jobs is not None
        assert from_jobs is not None

        def connections_of(client_id: str, value: int) -> int:
            """Save one row; return the number of connections opened, by ApiVersions requests.

            The driver's check of the topic opens one for every job.
            """
            before = proxy.requests[API_VERSIONS]
            print(bootstrap, topic, client_id, value, file=to_jobs, flush=True)
            assert from_jobs.readline() == "saved\n", (tmp_path / "log").read_text()[-3000:]
            return proxy.requests[API_VERSIONS] - before

        assert from_jobs.readline() == "ready\n"
        assert connections_of("one", 0) > 1
        assert [connections_of("one", value) for value in (1, 2, 3)] == [1, 1, 1]
        assert connections_of("two", 4) > 1
        assert [connections_of(name, 5) for name in ("one", "two")] == [1, 1]
        to_jobs.close()
        assert jobs.wait(60) == 0
    assert found(kafka, topic) == Counter([0, 1, 2, 3, 4, 5, 5])
