"""ProducerMetrics: the metrics of a producer, with the Java client's names.

This module contains the producer's sensors (SenderMetricsRegistry, BufferPool, RecordAccumulator
and KafkaProducerMetrics of the Java client). When metrics are measured, it also reads values from
other parts of the producer. Its methods are called once per request, response or slice of rows,
never once per row. They take times as arguments.

Only one thread at a time writes to a sensor. The I/O thread calls `sent` and `answered`. The other
methods are called with the producer's lock, except `measure`, which needs no lock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from spark_kafka_sink.metrics import (
    MetricName,
    Metrics,
    MetricTemplate,
    Sensor,
    mean_and_maximum,
    meter,
)
from spark_kafka_sink.network.client import NetworkClient
from spark_kafka_sink.network.network_metrics import GROUP, NetworkMetrics
from spark_kafka_sink.producer.accumulator import RecordAccumulator
from spark_kafka_sink.producer.metadata import ClusterMetadata
from spark_kafka_sink.producer.producer_batch import ProducerBatch
from spark_kafka_sink.records.batch import RECORD_BATCH_OVERHEAD
from spark_kafka_sink.wire.exchange import Answered
from spark_kafka_sink.wire.messages import ProduceResponse

TOPIC_GROUP: Final = "producer-topic-metrics"

SENSORS: Final[Mapping[str, tuple[MetricTemplate, ...]]] = {
    "batch_size": mean_and_maximum("batch-size", "bytes", "size of a batch as it is sent"),
    "compression_rate": (
        MetricTemplate(
            "compression-rate-avg",
            Sensor.average,
            "ratio",
            "size of a batch's records as sent, divided by their uncompressed size, on average",
        ),
    ),
    "queue_time": mean_and_maximum(
        "record-queue-time", "ms", "time from a batch's first record until the batch is sent"
    ),
    "request_latency": mean_and_maximum(
        "request-latency", "ms", "time from a Produce request to its response"
    ),
    "records_per_request": (
        *meter("record-send", "records", "records sent; each retry counts again"),
        MetricTemplate(
            "records-per-request-avg", Sensor.average, "records", "records per request, on average"
        ),
    ),
    "record_retries": meter("record-retry", "records", "records retried"),
    "record_errors": meter(
        "record-error", "records", "records that failed, or were rejected by the append"
    ),
    "record_size": mean_and_maximum("record-size", "bytes", "size of a record before compression"),
    "batch_split": meter("batch-split", "batches", "batches split because they were too large"),
    "throttle_time": mean_and_maximum(
        "produce-throttle-time", "ms", "throttle time in a broker's response"
    ),
    "wait_time": (
        MetricTemplate(
            "bufferpool-wait-ratio", Sensor.ratio, "ratio", "fraction of time that callers wait "
            "for memory"
        ),
        MetricTemplate(
            "bufferpool-wait-time-ns-total", Sensor.total, "ns", "time that callers wait for memory"
        ),
    ),
    "buffer_exhausted": meter(
        "buffer-exhausted", "records", "records rejected because memory was full for max.block.ms"
    ),
}  # fmt: skip

TOPIC_SENSORS: Final[Mapping[str, tuple[MetricTemplate, ...]]] = {
    "records": meter("record-send", "records", "the topic's records sent"),
    "bytes": meter("byte", "bytes", "bytes of the topic's batches sent"),
    "compression_rate": (
        MetricTemplate(
            "compression-rate",
            Sensor.average,
            "ratio",
            "size of the topic's records as sent, divided by their uncompressed size, on average",
        ),
    ),
    "retries": meter("record-retry", "records", "the topic's records retried"),
    "errors": meter("record-error", "records", "the topic's records that failed"),
}

# The metrics of the time that callers spend in methods, by the `name` of `record_time`.
TIMES: Final[Mapping[str, MetricTemplate]] = {
    name: MetricTemplate(f"{name}-time-ns-total", Sensor.total, "ns", f"time spent in {what}")
    for name, what in {
        "flush": "flush",
        "metadata-wait": "waiting for a topic's metadata",
        "txn-init": "init_transactions",
        "txn-begin": "begin_transaction",
        "txn-send-offsets": "send_offsets_to_transaction",
        "txn-commit": "commit_transaction",
        "txn-abort": "abort_transaction",
    }.items()
}

GAUGES: Final[Mapping[str, MetricTemplate]] = {
    name: MetricTemplate(name, None, unit, description)
    for name, unit, description in (
        ("requests-in-flight", "requests", "requests that wait for their response"),
        ("connection-count", "connections", "connections, including those being established"),
        ("metadata-age", "s", "age of the metadata"),
        ("waiting-threads", "threads", "callers that wait for memory"),
        ("buffer-total-bytes", "bytes", "memory for records (buffer.memory)"),
        ("buffer-available-bytes", "bytes", "memory that is free for records"),
    )
}


@dataclass(frozen=True, slots=True)
class _Sensors:
    batch_size: Sensor
    compression_rate: Sensor
    queue_time: Sensor
    request_latency: Sensor
    records_per_request: Sensor
    record_retries: Sensor
    record_errors: Sensor
    record_size: Sensor
    batch_split: Sensor
    throttle_time: Sensor
    wait_time: Sensor
    buffer_exhausted: Sensor


@dataclass(frozen=True, slots=True)
class _TopicSensors:
    records: Sensor
    bytes: Sensor
    compression_rate: Sensor
    retries: Sensor
    errors: Sensor


class ProducerMetrics:
    """The metrics of one producer. Times are seconds of the producer's clock.

    throttle_time_ms: the total throttle time of all Produce responses; the Java client has no such
    metric.
    """

    def __init__(
        self,
        metrics: Metrics,
        network: NetworkMetrics,
        *,
        accumulator: RecordAccumulator,
        metadata: ClusterMetadata,
        client: NetworkClient,
    ) -> None:
        self._metrics = metrics
        self._network = network
        self.throttle_time_ms = 0
        made = {name: metrics.sensor(GROUP, templates) for name, templates in SENSORS.items()}
        self._all = _Sensors(**made)
        self._times = {name: metrics.sensor(GROUP, [row]) for name, row in TIMES.items()}
        self._topics: dict[str, _TopicSensors] = {}
        read = {
            "requests-in-flight": lambda _now: client.in_flight_count(),
            "connection-count": lambda _now: client.connection_count(),
            "metadata-age": metadata.age_s,
            "waiting-threads": lambda _now: accumulator.pool.waiters,
            "buffer-total-bytes": lambda _now: accumulator.pool.total_bytes,
            "buffer-available-bytes": lambda _now: accumulator.pool.available_bytes,
        }
        for name, row in GAUGES.items():
            metrics.gauge(GROUP, row, read[name])

    def measure(self, now: float) -> dict[MetricName, float]:
        """Return the value of each metric; any thread may call this."""
        return self._metrics.measure(now)

    @property
    def topics_written(self) -> int:
        """The number of topics that records were sent to. Only these topics have metrics."""
        return len(self._topics)

    # -- the I/O thread ---------------------------------------------------------------------------

    def sent(self, batches: Sequence[ProducerBatch], drained_at: float) -> None:
        """Record that a Produce request with these batches is sent."""
        sensors, records = self._all, 0
        for batch in batches:
            count, size = batch.record_count, batch.sent_bytes
            rate = (size - RECORD_BATCH_OVERHEAD) / batch.records_bytes
            topic = self._topic(batch.topic_partition.topic)
            topic.records.add(count)
            topic.bytes.add(size)
            topic.compression_rate.add(rate)
            sensors.batch_size.add(size)
            sensors.compression_rate.add(rate)
            sensors.queue_time.add((drained_at - batch.created_at) * 1000)
            if batch.attempts:
                topic.retries.add(count)
                sensors.record_retries.add(count)
            records += count
        sensors.records_per_request.add(records)

    def answered(self, event: Answered) -> None:
        """Record the metrics of a response; do nothing if the request has no response (acks=0)."""
        response = event.response
        if response is None:
            return
        self._all.throttle_time.add(getattr(response, "throttle_time_ms", 0))
        if isinstance(response, ProduceResponse):
            self.throttle_time_ms += response.throttle_time_ms
            latency_ms = event.latency_s * 1000
            self._all.request_latency.add(latency_ms)
            self._network.produced(event.node_id, latency_ms)

    # -- under the lock ---------------------------------------------------------------------------

    def appended(self, records: int, size_bytes: int, largest_bytes: int, now: float) -> None:
        """Record that a slice of rows was appended.

        size_bytes: the total size of its records; largest_bytes: the size of the largest record.
        """
        self._all.record_size.record(size_bytes, now, records, largest_bytes)

    def refused(self, records: int, now: float, *, exhausted: bool) -> None:
        """Record that rows were not appended; exhausted: whether buffer.memory was full."""
        self._all.record_errors.record(records, now)
        if exhausted:
            self._all.buffer_exhausted.record(records, now)

    def failed(self, batch: ProducerBatch, now: float) -> None:
        """Record that a batch failed."""
        self._all.record_errors.record(batch.record_count, now)
        topic = self._topics.get(batch.topic_partition.topic)
        # As in the Java client, a topic has metrics only after the first send to it.
        if topic is not None:
            topic.errors.record(batch.record_count, now)

    def split(self, now: float) -> None:
        """Record that a batch was split."""
        self._all.batch_split.record(1, now)

    def waited_for_memory(self, time_ns: float, now: float) -> None:
        """Record how long a caller waited for buffer.memory, in nanoseconds."""
        self._all.wait_time.record(time_ns, now)

    def record_time(self, name: str, time_ns: float) -> None:
        """Add `time_ns` to the total time that callers spent in a method.

        name: a key of `TIMES`. The metric is only a total; there is no average and no rate.
        """
        self._times[name].record(time_ns, 0.0)

    def _topic(self, name: str) -> _TopicSensors:
        topic = self._topics.get(name)
        if topic is None:
            made = {
                sensor: self._metrics.sensor(TOPIC_GROUP, templates, {"topic": name})
                for sensor, templates in TOPIC_SENSORS.items()
            }
            topic = self._topics[name] = _TopicSensors(**made)
        return topic
