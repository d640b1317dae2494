"""The commit log of a cluster: write a record in a transaction, and read the records to the end.

The log is partition 0 of its topic. A `CommitLog` keeps the records that it has read, and reads
only newer records the next time.
"""

from __future__ import annotations

import time
from typing import Final
from uuid import UUID

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.commit.log_record import LogEntry, LogReader, encode
from spark_kafka_sink.commit.questions import (
    AllRecordsRead,
    LogRead,
    ReadAllRecords,
    ReadLog,
    Reply,
    WriteRecord,
    Written,
)
from spark_kafka_sink.commit_client.brokers import Brokers
from spark_kafka_sink.commit_client.generators import Steps, left_out, reason_of, refused
from spark_kafka_sink.commit_client.leader_requests import Partitions, batches_of
from spark_kafka_sink.errors import one_line
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.records.batch import batch_header
from spark_kafka_sink.records.default_record import one_record
from spark_kafka_sink.wire.messages import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from spark_kafka_sink.wire.primitives import ZERO_UUID, Records

_ALL_REPLICAS: Final = -1
# Produce 12 implicitly adds the partition to the transaction. Produce 13 contains topic ids instead
# of names.
_LAST_PRODUCE_V1: Final = 11
_PRODUCE_V2: Final = 12
# The end of each warning that records which were read before are no longer in the log.
_AGAIN: Final = (
    "it is read again from its start; a version that it no longer has can be written twice"
)


class CommitLog:
    """The commit log. Each method that takes an `ask` raises the exceptions of `Brokers.ask`."""

    def __init__(
        self,
        brokers: Brokers,
        partitions: Partitions,
        partition: TopicPartition,
        request_timeout_ms: int,
    ) -> None:
        self._brokers = brokers
        self._partitions = partitions
        self._log = partition
        self._request_timeout_ms = request_timeout_ms
        # For each key, or None for all keys: the reader, and the offset from which it reads next.
        self._read: dict[str | None, tuple[LogReader, int]] = {}
        self._topic_id = ZERO_UUID
        self._warnings: list[str] = []

    def take_warnings(self) -> list[str]:
        """Return the warnings about the log since the last call of this method."""
        taken, self._warnings = self._warnings, []
        return taken

    def write(self, ask: WriteRecord) -> Steps[Reply]:
        """Write a commit log record in the open transaction of the driver."""
        node_id = yield from self._brokers.leader(self._log)
        key = ask.transactional_id
        value = encode(key, ask.record)
        # The batch gets the current time, because the record may have been made long before.
        # Brokers may refuse a batch with an old timestamp, or begin a log segment because of it.
        section, info = one_record(key.encode(), value, time.time_ns() // 1_000_000)
        header = batch_header(info, [section], ask.producer, ask.sequence, transactional=True)
        records = Records((header, section), len(header) + len(section))
        data = PartitionProduceData(index=self._log.partition, records=records)
        request = ProduceRequest(
            transactional_id=ask.transactional_id,
            acks=_ALL_REPLICAS,
            timeout_ms=self._request_timeout_ms,
            topic_data=[TopicProduceData(name=self._log.topic, partition_data=[data])],
        )
        is_v2 = ask.level >= 2
        response = yield from self._brokers.ask(
            node_id,
            request,
            ProduceResponse,
            max_version=_PRODUCE_V2 if is_v2 else _LAST_PRODUCE_V1,
            min_version=_PRODUCE_V2 if is_v2 else 0,
        )
        for topic in response.responses:
            for each in topic.partition_responses:
                reason = reason_of(each.error_code, f"Produce to {self._log}", node_id)
                said = one_line(each.error_message) if each.error_message else ""
                return Written(
                    each.base_offset,
                    each.log_append_time_ms != -1,
                    each.error_code,
                    "; ".join(filter(None, (reason, said))),
                )
        raise left_out("Produce", node_id)

    def read(self, ask: ReadLog) -> Steps[Reply]:
        """Read the records of one owner up to the high watermark. Their key is its driver id."""
        reader, end = yield from self._read_to_end(ask.key)
        return LogRead(reader.reading(ask.key), end=end)

    def read_all(self, ask: ReadAllRecords) -> Steps[Reply]:
        """Read up to the high watermark. Return the records whose keys begin with `ask.prefix`."""
        reader, _ = yield from self._read_to_end(None)
        keys = sorted(key for key in reader.owners() if key.startswith(ask.prefix))
        return AllRecordsRead(tuple((key, reader.reading(key)) for key in keys))

    def _check_topic_id(self) -> Steps[UUID]:
        """Forget all records if the log's topic was deleted and created again.

        Return the id of the topic. The request goes only to the leader of the log, so no other
        broker has to be available.
        """
        node_id = yield from self._brokers.leader(self._log)
        topic_id = yield from self._brokers.topic_id(self._log.topic, node_id)
        if self._read and topic_id != self._topic_id:
            self._warnings.append(f"{self._log} was deleted and created again; {_AGAIN}")
            self._read.clear()
        self._topic_id = topic_id
        return topic_id

    def _read_to_end(self, key: str | None) -> Steps[tuple[LogReader, int]]:
        """Read up to the high watermark. Return the LogReader for `key`, and the next offset.

        key: None for the records of all keys.
        """
        yield from self._check_topic_id()
        end = yield from self._partitions.end(self._log)
        reader, position = self._read.get(key) or (LogReader(key), 0)
        # A record without a marker is read again. If compaction has removed it since, together with
        # the content of its marker, it was aborted (see `LogReader`).
        pending = reader.forget_pending()
        if position > end:
            self._warnings.append(
                f"{self._log} ends at offset {end}, and was read up to offset {position} before: "
                f"its topic was deleted and created again, or its leader lacks records; {_AGAIN}"
            )
            self._read.pop(key)
            reader, position = LogReader(key), 0
        elif pending is not None:
            position = pending
            self._read[key] = (reader, position)
        while position < end:
            found = yield from self._partitions.fetch(self._log, position)
            if found.error_code == codes.OFFSET_OUT_OF_RANGE:
                # Compaction does not change the log start offset, but users can delete records.
                start = found.log_start_offset
                if start <= position:
                    raise refused(found.error_code, f"Fetch of {self._log} at {position}")
                self._warnings.append(
                    f"the records below offset {start} of {self._log} were deleted: versions that "
                    "only these records contained are written again"
                )
                position = start
                continue
            batches = list(batches_of(self._log, found))
            reader.read(LogEntry.of(each) for each in batches)
            position = batches[-1].header.last_offset + 1
            self._read[key] = (reader, position)
        self._warnings += reader.take_warnings()
        return reader, position
