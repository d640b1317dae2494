"""The metrics of a producer in a form for comparisons."""

from __future__ import annotations

from spark_kafka_sink import KafkaProducer


def measured(
    producer: KafkaProducer, group: str = "producer-metrics", **tags: str
) -> dict[str, float]:
    """Return the values of a group by their names; tags are those other than client-id."""
    found = producer.metrics().items()
    expected = {name.replace("_", "-"): value for name, value in tags.items()}
    return {
        name.name: value
        for name, value in found
        if name.group == group
        and {k: v for k, v in name.tags.items() if k != "client-id"} == expected
    }
