"""Contenders that run in Spark's Python workers, as data sources that take Arrow batches.

This file is shipped to the workers, so it imports no other module of the benchmark. Every client
has acks=all, idempotence if it supports it, large batches and a long linger. A task ends when all
rows are acknowledged.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    import pyarrow as pa

LINGER_MS: Final = 50
BATCH_BYTES: Final = 1024 * 1024
_MEMORY_BYTES: Final = 256 * 1024 * 1024
_PATIENCE_S: Final = 300


class _Writer(DataSourceArrowWriter):
    """A writer with the options of a write: topic, bootstrap, compression, registry, schema."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._topic = options.get("topic", "")
        self._bootstrap = options.get("bootstrap", "")
        self._compression = options.get("compression", "none")
        self._registry = options.get("registry", "")
        self._schema = options.get("schema", "")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Run a task."""
        self._write(iterator)
        return WriterCommitMessage()

    @abstractmethod
    def _write(self, batches: Iterator[pa.RecordBatch]) -> None:
        """Send the rows of a task and wait until all are acknowledged."""


class _Discard(_Writer):
    def _write(self, batches: Iterator[pa.RecordBatch]) -> None:
        from spark_kafka_sink.spark import worker as quick_ack  # noqa: PLC0415 - only in the workers

        quick_ack.acknowledge_now()
        for _ in batches:
            pass


class _ConfluentKafka(_Writer):
    def _write(self, batches: Iterator[pa.RecordBatch]) -> None:
        from confluent_kafka import Producer  # noqa: PLC0415 - an extra, and only in the workers

        failed: list[object] = []
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "compression.type": self._compression,
                "enable.idempotence": True,
                "linger.ms": LINGER_MS,
                "batch.size": BATCH_BYTES,
                "queue.buffering.max.messages": 1_000_000,
                "queue.buffering.max.kbytes": _MEMORY_BYTES // 1024,
                "delivery.report.only.error": True,
                "on_delivery": lambda error, _: failed.append(error),
            }
        )
        encode = self._encoder()
        for batch in batches:
            for value, key, headers in _rows(batch):
                encoded = value if encode is None else encode(value)
                while True:
                    try:
                        producer.produce(self._topic, encoded, key, headers=headers)
                        break
                    except BufferError:
                        producer.poll(0.1)
        left = producer.flush(_PATIENCE_S)
        if left or failed:
            raise RuntimeError(f"confluent-kafka left {left} rows unsent, {failed[:1]} went wrong")

    def _encoder(self) -> Callable[[Any], bytes | None] | None:
        """Return a function that makes bytes of a value, None if values are bytes."""
        return None


class _ConfluentAvro(_ConfluentKafka):
    def _encoder(self) -> Callable[[Any], bytes | None]:
        from confluent_kafka import schema_registry  # noqa: PLC0415 - an extra, only in the workers
        from confluent_kafka.schema_registry.avro import AvroSerializer  # noqa: PLC0415 - likewise
        from confluent_kafka.serialization import (  # noqa: PLC0415 - likewise
            MessageField,
            SerializationContext,
        )

        client = schema_registry.SchemaRegistryClient({"url": self._registry})
        naming = {"subject.name.strategy": schema_registry.topic_subject_name_strategy}
        serializer = AvroSerializer(client, self._schema, conf=naming)
        context = SerializationContext(self._topic, MessageField.VALUE)
        return lambda value: serializer(value, context)


class _KafkaPython(_Writer):
    def _write(self, batches: Iterator[pa.RecordBatch]) -> None:
        from kafka import KafkaProducer  # noqa: PLC0415 - an extra, and only in the workers

        failed: list[object] = []
        producer = KafkaProducer(
            bootstrap_servers=self._bootstrap.split(","),
            compression_type=None if self._compression == "none" else self._compression,
            acks="all",
            enable_idempotence=True,
            linger_ms=LINGER_MS,
            batch_size=BATCH_BYTES,
            max_request_size=8 * BATCH_BYTES,
        )
        for batch in batches:
            for value, key, headers in _rows(batch):
                sent = producer.send(self._topic, value, key, headers=headers)
                sent.add_errback(failed.append)
        producer.flush(_PATIENCE_S)
        producer.close()
        if failed:
            raise RuntimeError(f"kafka-python failed to send {len(failed)} rows: {failed[0]}")


class _ArrowKafka(_Writer):
    def _write(self, batches: Iterator[pa.RecordBatch]) -> None:
        import pyarrow as pa  # noqa: PLC0415 - only in the workers
        from arrow_kafka_pyo3 import ArrowKafkaSink  # noqa: PLC0415 - an extra, likewise

        sink = ArrowKafkaSink(
            kafka_servers=self._bootstrap,
            schema_registry_url=self._registry,
            max_in_flight=5,
            linger_ms=LINGER_MS,
            batch_size=BATCH_BYTES,
            compression_type=self._compression,
            enable_idempotence=True,
            acks="all",
        )
        for batch in batches:
            table = pa.Table.from_batches([batch])
            keys = ["key"] if "key" in table.column_names else None
            if keys:
                at = table.column_names.index("key")
                table = table.set_column(at, "key", table["key"].cast(pa.string()))
            sink.consume_arrow(table, self._topic, key_cols=keys)
        sink.flush(_PATIENCE_S * 1000)
        sink.close()


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[Any, bytes | None, list[Any] | None]]:
    columns = {
        name: batch.column(name).to_pylist(maps_as_pydicts="strict") for name in batch.schema.names
    }
    nothing = [None] * batch.num_rows
    rows = zip(
        columns["value"], columns.get("key", nothing), columns.get("headers", nothing), strict=True
    )
    if "headers" not in columns:  # even an empty list costs confluent-kafka an object a row
        yield from rows
        return
    for value, key, headers in rows:
        yield value, key, [(header["key"], header["value"]) for header in headers or ()]


class _Source(DataSource):
    format_name: ClassVar[str]
    writer_class: ClassVar[type[_Writer]]

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return cls.format_name

    def writer(self, schema: StructType, overwrite: bool) -> _Writer:  # noqa: ARG002, FBT001 - Spark's signature
        """Plan a write."""
        return self.writer_class(self.options)


class DiscardSource(_Source):
    """The hop from the JVM to Python, without the wait that the sink avoids."""

    format_name = "bench-discard"
    writer_class: ClassVar[type[_Writer]] = _Discard


class ConfluentKafkaSource(_Source):
    """confluent-kafka, row by row."""

    format_name = "bench-confluent-kafka"
    writer_class: ClassVar[type[_Writer]] = _ConfluentKafka


class ConfluentAvroSource(_Source):
    """confluent-kafka with its AvroSerializer, row by row."""

    format_name = "bench-confluent-avro"
    writer_class: ClassVar[type[_Writer]] = _ConfluentAvro


class KafkaPythonSource(_Source):
    """kafka-python, row by row."""

    format_name = "bench-kafka-python"
    writer_class: ClassVar[type[_Writer]] = _KafkaPython


class ArrowKafkaSource(_Source):
    """arrow-kafka-pyo3: Arrow tables in, a message in Avro for every row."""

    format_name = "bench-arrow-kafka"
    writer_class: ClassVar[type[_Writer]] = _ArrowKafka


SOURCES: Final = (
    DiscardSource,
    ConfluentKafkaSource,
    ConfluentAvroSource,
    KafkaPythonSource,
    ArrowKafkaSource,
)
