"""verify.py: what counts as a difference, in topics that another client has written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from support.brokers.kafka_cluster import KafkaCluster
from support.oracles.readers import create_topic
from support.spark.job_server import Ended

from .conftest import RunMany

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

ROWS = 300
Header = tuple[str, bytes | None]


def line(number: int) -> str:
    return f"line {number}: ünïcode, 'quotes' and ,commas"


class Fake(NamedTuple):
    """A record written by another client."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[Header] = ()


def the_lines() -> list[Fake]:
    return [Fake(line(n).encode(), line(n).encode()) for n in range(ROWS)]


def altered(record: Fake) -> list[Fake]:
    return [*the_lines()[1:], record]


FIRST = line(0).encode()

# Topics with the records of the text file, or nearly: name, records, exit code, output.
FAKES: dict[str, tuple[list[Fake], int, str]] = {
    "the same": (the_lines(), 0, "holds exactly the records of the source"),
    "other order": (the_lines()[::-1], 0, "holds exactly the records of the source"),
    "one missing": (the_lines()[1:], 1, "1 are missing"),
    "one extra": ([*the_lines(), Fake(None, None)], 1, "1 too many"),
    "one twice": ([*the_lines(), the_lines()[0]], 1, "1 too many"),
    "one in place of another": ([*the_lines()[1:], the_lines()[1]], 1, "not the same"),
    "value altered": (altered(Fake(FIRST, b"x")), 1, "not the same"),
    "value null": (altered(Fake(FIRST, None)), 1, "not the same"),
    "key empty": (altered(Fake(b"", FIRST)), 1, "not the same"),
    "header added": (altered(Fake(FIRST, FIRST, [("h", None)])), 1, "not the same"),
    "key and value swapped": (
        [*the_lines()[2:], Fake(the_lines()[0].key, the_lines()[1].value),
         Fake(the_lines()[1].key, the_lines()[0].value)], 1, "not the same",
    ),
    "nothing": ([], 1, "300 are missing"),
}  # fmt: skip


def write_fakes(bootstrap: str) -> dict[str, str]:
    """Write every fake into a topic of its own; return the topics."""
    topics = {}
    for name, (records, _, _) in FAKES.items():
        topics[name] = topic = f"fake-{name.replace(' ', '-')}"
        create_topic(bootstrap, topic, 2)
        write(bootstrap, topic, records)
    return topics


def write(bootstrap: str, topic: str, records: Sequence[Fake]) -> None:
    """Write records by another client."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for record in records:
        producer.produce(topic, key=record.key, value=record.value, headers=list(record.headers))
    assert producer.flush(60) == 0


def delete_a_record(bootstrap: str, topic: str) -> None:
    """Delete the first record of a topic."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    until = confluent_kafka.TopicPartition(topic, 0, 1)
    for future in admin.delete_records([until]).values():
        future.result()


@pytest.fixture(scope="module")
def faked(
    run_many: RunMany, kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Ended]:
    """The output of verify.py for every fake, and for a false report."""
    folder = tmp_path_factory.mktemp("verify")
    source, report = folder / "lines.txt", folder / "report.json"
    source.write_text("\n".join(map(line, range(ROWS))))
    report.write_text(json.dumps({"partitions": [{"partition": 0, "records": ROWS}]}))
    topics = write_fakes(kafka.bootstrap)
    verify = ["verify.py", "--source", str(source), "--key", "value"]
    verify += ["--bootstrap", kafka.bootstrap, "--topic"]
    topics["deleted"] = "fake-deleted"
    create_topic(kafka.bootstrap, topics["deleted"], 1)
    write(kafka.bootstrap, topics["deleted"], the_lines())
    delete_a_record(kafka.bootstrap, topics["deleted"])
    plan = {name: [*verify, topic] for name, topic in topics.items()}
    plan["report"] = [*verify, topics["the same"], "--report", str(report)]
    return dict(zip(plan, run_many(list(plan.values())), strict=True))


@pytest.mark.parametrize("name", FAKES)
def test_a_topic_that_differs_is_told(faked: dict[str, Ended], name: str) -> None:
    _, code, said = FAKES[name]
    assert faked[name].code == code, faked[name].output
    assert said in faked[name].lines[-1]


def test_partitions_are_compared_with_the_report(faked: dict[str, Ended]) -> None:
    assert faked["report"].code == 1, faked["report"].output
    assert (
        faked["report"]
        .lines[-1]
        .endswith(f"records in partition 0, where the sink's report says {ROWS}")
    )


def test_a_topic_whose_records_were_deleted_cannot_be_compared(faked: dict[str, Ended]) -> None:
    assert faked["deleted"].code == 2, faked["deleted"].output
    assert "begins at offset 1 of partition 0: its broker has deleted" in faked["deleted"].lines[-1]


def test_records_are_shown_as_a_consumer_sees_them(faked: dict[str, Ended]) -> None:
    shown = [each for each in faked["the same"].lines if each.startswith("  ")]
    assert [each.split()[0] for each in shown] == ["key", "value", "timestamp"] * 2
    assert "line " in shown[0]
