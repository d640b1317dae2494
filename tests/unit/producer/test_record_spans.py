"""Spans of a batch's records: what splitting a batch does to them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.producer.producer_batch import ProducerBatch, RecordSpan, split_spans


class Owner:
    """Somebody who waits."""

    def completed(self, span: RecordSpan, batch: ProducerBatch) -> None:
        """Do nothing."""


OWNERS = [Owner(), Owner(), Owner()]
# A batch by its spans: owners and numbers of records; None for records without an owner.
BATCHES = st.lists(
    st.tuples(st.sampled_from([None, *OWNERS]), st.integers(1, 5), st.integers(0, 100)), max_size=6
)


def spans_of(batch: list[tuple[Owner | None, int, int]]) -> tuple[list[RecordSpan], int]:
    """Lay spans out one after another; return them and the number of records in the batch."""
    spans, records = [], 0
    for owner, count, first_row in batch:
        if owner is not None:
            spans.append(RecordSpan(owner, first_row, records, count))
        records += count
    return spans, records


def rows_by_record(spans: list[RecordSpan], base: int) -> dict[int, tuple[object, int]]:
    """Return the owner and the row of each record; `base` is the first record's number."""
    return {
        base + span.first_record + number: (span.owner, span.first_row + number)
        for span in spans
        for number in range(span.records)
    }


@given(BATCHES, st.data())
def test_a_split_loses_no_record_and_moves_none_to_another_row(
    batch: list[tuple[Owner | None, int, int]], data: st.DataObject
) -> None:
    spans, records = spans_of(batch)
    at = data.draw(st.integers(0, records))
    before, after = split_spans(spans, at)
    original = rows_by_record(spans, 0)
    left, right = rows_by_record(before, 0), rows_by_record(after, at)
    assert left | right == original
    assert all(number < at for number in left)
    assert all(number >= at for number in right)
    assert all(span.records > 0 for span in before + after)
