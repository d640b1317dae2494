"""What the ids of topics in responses of Metadata mean for the partitions that were written to."""

from __future__ import annotations

from typing import Self
from uuid import UUID

from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.producer.producer_batch import ProducerBatch
from spark_kafka_sink.producer.sequences import Sequences
from spark_kafka_sink.records.compression import NO_COMPRESSION
from spark_kafka_sink.wire.messages import MetadataResponseTopic


class _Counted(str):
    """The name of a topic, which counts how often it is hashed or compared."""

    __slots__ = ("uses",)
    uses: int

    def __new__(cls, name: str) -> Self:
        made = super().__new__(cls, name)
        made.uses = 0
        return made

    def __hash__(self) -> int:
        self.uses += 1
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        self.uses += 1
        return super().__eq__(other)


def _answer(name: str, topic_id: int) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=0, name=name, topic_id=UUID(int=topic_id), partitions=[]
    )


def _in_flight(sequences: Sequences, topic: str) -> ProducerBatch:
    """Return a batch that was just sent to node 1."""
    batch = ProducerBatch(TopicPartition(topic, 0), NO_COMPRESSION, 0, 0.0)
    sequences.assign(batch, 0.0)
    batch.node_id = 1
    return batch


def _takes_another(sequences: Sequences, topic: str) -> bool:
    """Return whether another batch may be sent while one is in flight."""
    batch = ProducerBatch(TopicPartition(topic, 0), NO_COMPRESSION, 0, 0.0)
    return sequences.may_send(batch, 1)


def test_a_new_id_holds_up_the_partitions_of_its_own_topic_alone() -> None:
    sequences = Sequences()
    sequences.adopt(ProducerIdAndEpoch(4000, 0))
    sequences.follow_topics([_answer("a", 1), _answer("b", 2)])
    for topic in ("a", "b"):
        sequences.acknowledged(_in_flight(sequences, topic))
    sequences.follow_topics([_answer("a", 1), _answer("b", 3), _answer("c", 4)])
    for topic in ("a", "b"):
        _in_flight(sequences, topic)
    assert _takes_another(sequences, "a")
    assert not _takes_another(sequences, "b")


def test_a_topic_that_was_written_to_before_it_had_an_id_may_have_been_recreated() -> None:
    sequences = Sequences()
    sequences.adopt(ProducerIdAndEpoch(4000, 0))
    sequences.acknowledged(_in_flight(sequences, "a"))
    sequences.follow_topics([_answer("a", 1)])
    _in_flight(sequences, "a")
    assert not _takes_another(sequences, "a")


def test_a_topic_that_is_new_costs_nothing_for_each_other_partition() -> None:
    """With thousands of topics, found one after another, this would take seconds."""
    sequences = Sequences()
    sequences.adopt(ProducerIdAndEpoch(4000, 0))
    names = [_Counted(f"topic-{number}") for number in range(100)]
    for name in names:
        _in_flight(sequences, name)
    before = [name.uses for name in names]
    sequences.follow_topics([_answer("another", 1)])
    # One name may have the same place in a table.
    assert sum(name.uses for name in names) - sum(before) < 10
