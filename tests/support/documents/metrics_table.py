"""Generate docs/reference/metrics.md, the table of all metrics; as a script, write the page.

::

    PYTHONPATH=tests:jobs python -m support.documents.metrics_table
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from spark_kafka_sink.client.producer_metrics import (
    GAUGES,
    SENSORS,
    TIMES,
    TOPIC_GROUP,
    TOPIC_SENSORS,
)
from spark_kafka_sink.metrics import MetricTemplate
from spark_kafka_sink.network import network_metrics

PAGE: Final = Path(__file__).parents[3] / "docs" / "reference" / "metrics.md"
COMMAND: Final = "PYTHONPATH=tests:jobs python -m support.documents.metrics_table"

_NOT_NUMBERS: Final = "its value is not a number"
# The Java producer's metrics that this one does not have, and why.
ABSENT: Final[Mapping[str, str]] = {
    "app-info commit-id": _NOT_NUMBERS,
    "app-info start-time-ms": _NOT_NUMBERS,
    "app-info version": f"{_NOT_NUMBERS}: ask spark_kafka_sink.__version__",
    "kafka-metrics-count count": "`len(producer.metrics())` is this number",
    "producer-metrics txn-prepare-time-ns-total": "transactions cannot be prepared (KIP-939)",
}


class Group(NamedTuple):
    """Metrics of one group with the same tags."""

    name: str
    tags: tuple[str, ...]
    templates: list[MetricTemplate]


def groups() -> list[Group]:
    """Return all metrics, in the order of their names."""
    of_producer = [
        *_all(SENSORS.values()),
        *_all(network_metrics.SENSORS.values()),
        *network_metrics.OPERATIONS,
        *TIMES.values(),
        *GAUGES.values(),
    ]
    of_topic = _all(TOPIC_SENSORS.values())
    of_node = _all(network_metrics.NODE_SENSORS.values())
    return [
        Group(network_metrics.GROUP, ("client-id",), sorted(of_producer, key=_name)),
        Group(TOPIC_GROUP, ("client-id", "topic"), sorted(of_topic, key=_name)),
        Group(network_metrics.NODE_GROUP, ("client-id", "node-id"), sorted(of_node, key=_name)),
    ]


def page() -> str:
    """Return the text of docs/reference/metrics.md."""
    lines = [_HEAD]
    for group in groups():
        tags = " and ".join(f"`{tag}`" for tag in group.tags)
        lines += [f"## {group.name}", "", f"Tagged with {tags}.", ""]
        lines += ["| name | unit | meaning |", "|---|---|---|"]
        lines += [f"| `{t.name}` | {t.unit} | {t.description} |" for t in group.templates]
        lines.append("")
    lines += ["## Metrics that only the Java producer has", ""]
    lines += ["| group | name | why |", "|---|---|---|"]
    lines += [f"| {' | '.join(name.split())} | {why} |" for name, why in ABSENT.items()]
    return "\n".join(lines) + "\n"


_HEAD: Final = """\
# Metrics

`KafkaProducer.metrics()` returns a mapping from `MetricName(name, group, description, tags)` to a
float. It contains the metrics of Kafka's Java producer, with the same names, and their values at
the time of the call. Metrics are always recorded: once per request, response or slice of rows, and
never per row.

```python
for name, value in producer.metrics().items():
    if name.group == "producer-topic-metrics":
        print(name.tags["topic"], name.name, value)
```

A new value is counted at once, in a time window. Near the end of a window, a value may be counted
in the wrong window, because its time is exact only to a second.

- Averages, maxima, rates and ratios are computed over the last `metrics.num.samples` windows of
  `metrics.sample.window.ms` (2 windows of 30 s). A rate is the sum of these values, divided by at
  least the time of all windows except one. So it is not too high for a producer that has just
  started.
- A metric without a value is NaN.
- Totals count from the start of the producer.
- A topic has metrics after the first record was sent to it.
  A node has metrics after the first bytes were written to it or read from it.

Some values differ from the Java client's under the same name:

- `record-size-avg` is the mean size of all records. In the Java client, it is the mean of the
  largest record of every batch. `record-size-avg` and `record-size-max` are estimates that are made
  before the records are encoded. The estimates are a few bytes too high, and do not include the
  header of the batch.
- A record counts as retried when it is sent again, unless the only reason is that its batch was
  split. So `record-send-total` minus `record-retry-total` is the number of records that were sent
  for the first time, if no batch was split (`batch-split-total`).
- A request and its bytes are counted when the complete request is written.
- The `network-io` metrics count requests and responses, not reads and writes of sockets.
"""


def _all(sensors: Iterable[tuple[MetricTemplate, ...]]) -> list[MetricTemplate]:
    return [template for templates in sensors for template in templates]


def _name(template: MetricTemplate) -> str:
    return template.name


if __name__ == "__main__":
    PAGE.write_text(page())
