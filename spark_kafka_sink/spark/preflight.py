"""What is checked on the driver before any task starts: partitioner, report and topic.

One clear error from the driver takes the place of four attempts of every task. Stream writers are
planned for every micro-batch, so what was found of a topic is remembered per process for
metadata.max.age.ms. Nothing is checked on the commit side: rows are in Kafka then.
"""

from __future__ import annotations

import time

from spark_kafka_sink.batch_partitioner import load_partitioner
from spark_kafka_sink.errors import ConfigException
from spark_kafka_sink.kafka_producer import KafkaProducer
from spark_kafka_sink.spark.options import SinkOptions

_checked_at: dict[tuple[str, str], float] = {}


def check_partitioner(options: SinkOptions) -> None:
    """Raise ConfigException where kafka.partitioner.class is a name that cannot be imported."""
    load_partitioner(options.producer.partitioner_class, options.producer.option_prefix)


def check_report_path(options: SinkOptions) -> None:
    """Raise ConfigException where reportPath cannot be a file."""
    path = options.report_path
    if path is None:
        return
    if path.is_dir():
        found = "a folder"
    elif not path.parent.is_dir():
        found = f"in the folder {path.parent}, which does not exist on the driver"
    else:
        return
    message = f"option reportPath is {path}, {found}: expected a file in a folder that exists"
    raise ConfigException(message)


def check_topic(options: SinkOptions) -> None:
    """Raise what stands against writing to the option's topic, within kafka.max.block.ms.

    Topics of a topic column are not known before the rows are.
    """
    if options.topic is None:
        return
    key = (options.producer.bootstrap_servers, options.topic)
    now = time.monotonic()
    checked_at = _checked_at.get(key)
    if checked_at is not None and now < checked_at + options.producer.metadata_max_age_ms / 1000:
        return
    producer = KafkaProducer(options.producer)
    try:
        producer.partitions_for(options.topic)
    finally:
        producer.close(0)
    _checked_at[key] = now
