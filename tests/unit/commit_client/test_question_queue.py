"""The queue of questions: which of them get a slot."""

from __future__ import annotations

from collections import Counter

from spark_kafka_sink.commit.questions import Question, ReadMarker
from spark_kafka_sink.commit_client.question_queue import Line, QuestionQueue
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition


def line_of(question: Question) -> Line:
    """Return the line at the leader of a partition, which has the partition's number."""
    assert isinstance(question.ask, ReadMarker)
    return Line(question.ask.partition.partition, reads_markers=True)


def marker(node_id: int, number: int) -> Question:
    """Return a request to a leader for a marker."""
    producer = ProducerIdAndEpoch(number, 0)
    return Question(ReadMarker(TopicPartition("t", node_id), 0, producer))


def test_brokers_that_are_silent_hold_no_slots_for_markers_that_others_need() -> None:
    queue = QuestionQueue(line_of)
    for node_id in (1, 2):
        for number in range(100):
            queue.add(marker(node_id, number))
    silent = queue.take(0.0)
    assert Counter(line.node_id for line, _ in silent) == {1: 32, 2: 32}
    for number in range(100):
        queue.add(marker(3, number))
    read = 0
    while found := queue.take(0.0):
        assert {line.node_id for line, _ in found} == {3}
        assert len(found) <= 4, "each holds a response of 1 MiB"
        for line, _ in found:
            queue.free(line)
        read += len(found)
    assert read == 100
