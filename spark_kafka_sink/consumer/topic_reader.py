"""TopicReader: read a range of a topic, or of some of its partitions, as Arrow batches.

It connects the network client with a `Reading`. There are no consumer groups, offset commits or
rebalances. The range is fixed at the start, and reading ends at the end of the range. The next
request is sent before the rows of the last response are yielded, so that the caller and the brokers
work at the same time.

All work is done in the caller's thread, one call at a time.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from random import Random
from types import TracebackType
from typing import Any, Final, NoReturn, Self
from uuid import UUID

import pyarrow as pa

from spark_kafka_sink.auth.acls import Acls
from spark_kafka_sink.backoff import ExponentialBackoff
from spark_kafka_sink.consumer.list_offsets import (
    OffsetsByPartition,
    OffsetsLookup,
    OffsetsQuery,
    reader_advice,
)
from spark_kafka_sink.consumer.reader_config import (
    ISOLATION_LEVELS,
    TIMESTAMPS,
    IsolationLevel,
    Offsets,
    ReadArguments,
    checked_offsets,
    partition_numbers,
    reader_config,
)
from spark_kafka_sink.consumer.reading import Fetch, FetchLimits, FetchOutcome, Reading
from spark_kafka_sink.errors import (
    ApiException,
    ConfigException,
    IllegalStateException,
    InvalidTopicException,
    OffsetOutOfRangeException,
    Option,
    TimeoutException,
    error_code,
    listed,
)
from spark_kafka_sink.model import Node, check_topic_name
from spark_kafka_sink.network.request_client import (
    ConsumerNetworkClient,
    OneCaller,
    RequestFuture,
    by_one_caller,
)
from spark_kafka_sink.producer.metadata import RELIABLE_EPOCHS_SINCE, ClusterMetadata
from spark_kafka_sink.wire.fetch_messages import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    FetchResponse,
)
from spark_kafka_sink.wire.messages import MetadataResponse
from spark_kafka_sink.wire.primitives import ZERO_UUID

# The last Fetch version with topic names; later versions need topic ids (KIP-516).
_LAST_FETCH_BY_NAME: Final = 12


class TopicReader:
    """Reads topics of one cluster; a context manager.

    configs: options by the Java consumer's names (see `reader_config`). buffer.memory (64 MiB by
    default) limits the bytes of records that are decoded and not yet yielded. The decompressed
    bytes of one record batch need memory in addition, and the compressed responses of each leader
    need up to twice fetch.max.bytes. If a record that exceeds the limit has several headers, a copy
    of its headers also needs memory. A record batch that takes more than 512 MiB after
    decompression is rejected. Raise ConfigException if an option is invalid.

    Use it from one thread at a time, in the process that created it. A call raises
    IllegalStateException while another thread's call is running. Getting the next batch from the
    iterator of `read` also counts as a call. In a forked child, every call raises
    IllegalStateException, except `close`, which does nothing there.

    After KeyboardInterrupt in a call, the reader can be used again. If the call was getting the
    next batch from an iterator, this iterator has ended. Other iterators continue, over new
    connections.
    """

    def __init__(self, configs: Mapping[str, Any]) -> None:
        self._config = reader_config(configs)
        self._clock = time.monotonic
        self._random = Random()  # noqa: S311 - jitter, not secrets
        shared = self._config.client
        self._retry_backoff = ExponentialBackoff.of_ms(
            shared.retry_backoff_ms, shared.retry_backoff_max_ms
        )
        trigger_s = shared.metadata_recovery_rebootstrap_trigger_ms / 1000
        self._metadata = ClusterMetadata(
            shared.metadata_max_age_ms / 1000,
            self._retry_backoff,
            self._random,
            rebootstrap_after_s=trigger_s if shared.rebootstraps else None,
            advice=reader_advice(Acls.of(shared, lambda: self._client.principal)),
            allow_auto_topic_creation=False,
        )
        self._metadata_future: RequestFuture | None = None
        # The brokers that the network client knows.
        self._known_nodes: Mapping[int, Node] = {}
        self._is_closed = False
        self._caller = OneCaller("TopicReader")
        self._client = ConsumerNetworkClient.of(shared, self._clock, self._random)

    def __enter__(self) -> Self:
        return self._caller.run(lambda: self)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection. Nothing can be read afterwards."""
        if not self._caller.is_forked:
            self._close()

    @by_one_caller
    def _close(self) -> None:
        self._is_closed = True
        self._client.close()

    @by_one_caller
    def read(
        self,
        topic: str,
        partitions: Iterable[int] | None = None,
        *,
        start: Offsets = "earliest",
        end: Offsets = "latest",
        isolation_level: IsolationLevel = "read_uncommitted",
    ) -> Iterator[pa.RecordBatch]:
        """Return an iterator over the records from `start` up to, but not including, `end`.

        partitions: the partitions to read. None means the partitions for which `start` or `end` has
        offsets; if neither has offsets, it means all partitions that the topic has when the first
        batch is requested. start, end: "earliest", "latest", or offsets by partition, with an
        offset for each partition to read. If there is no partition to read, for example with
        ``partitions=[]`` or ``start={}``, there are no batches. "earliest" and "latest" are looked
        up once, when the first batch is requested. With read_committed, records of aborted
        transactions are skipped, and the latest offset is the last stable offset.

        Each batch has at least one row, and the columns topic (string), partition (int32), offset
        (int64), timestamp (ms, UTC; null if a record has none), key, value (binary) and headers
        (see `reading.SCHEMA`). Offsets ascend within a partition, and batches of different
        partitions are interleaved. If `start` is "earliest", records that retention deletes before
        they are read are skipped with a warning.

        Raise DataException at once for an invalid topic name, and ConfigException for other invalid
        arguments. Getting the first batch raises ConfigException for partitions that do not exist
        or have no offset. Getting any batch raises IllegalStateException after `close`,
        TimeoutException if nothing arrives within default.api.timeout.ms, CorruptRecordException
        for invalid records, and the errors of brokers. It raises OffsetOutOfRangeException if the
        records at an offset were deleted, or if the topic is created again during the read. The
        same error is raised if `end` is "latest" and the partition ends before `start`. If the
        topic is created again before the first batch, and `start` and `end` have no offsets, the
        new topic is read.
        """
        self._check_open()
        check_topic_name(topic)
        numbers = None if partitions is None else partition_numbers(partitions)
        is_known = isinstance(isolation_level, str) and isolation_level in ISOLATION_LEVELS
        if not is_known:
            expected = ", ".join(ISOLATION_LEVELS)
            message = f"isolation_level is {isolation_level!r}: expected one of {expected}"
            raise ConfigException(message)
        start, end = checked_offsets("start", start), checked_offsets("end", end)
        level = ISOLATION_LEVELS[isolation_level]
        batches = self._read(ReadArguments(topic, numbers, start, end, level))
        return _Batches(batches, self._caller)

    def _read(self, arguments: ReadArguments) -> Iterator[pa.RecordBatch]:
        deadline = self._deadline()
        topic, offsets = arguments.topic, (arguments.start, arguments.end)
        has_yielded = False
        while True:
            numbers = self._partitions(arguments, deadline)
            # The look-ups of the offsets can wait, and the topic can be created again meanwhile.
            topic_id = self._metadata.topic_id(topic)
            try:
                for batch in self._read_once(arguments, numbers, topic_id, deadline):
                    has_yielded = True
                    yield batch
                    del batch  # its memory is free before the next one is decoded
            except OffsetOutOfRangeException:
                # The id may have been that of an earlier topic, from a broker that lagged behind.
                is_new = topic_id not in (ZERO_UUID, self._metadata.topic_id(topic))
                are_found_again = is_new and all(isinstance(each, str) for each in offsets)
                if has_yielded or not are_found_again or self._clock() >= deadline:
                    raise
            else:
                return

    def _read_once(
        self, arguments: ReadArguments, numbers: list[int], topic_id: UUID, deadline: float
    ) -> Iterator[pa.RecordBatch]:
        """Look up the offsets, and yield the records. deadline: the end of the look-ups.

        Raise OffsetOutOfRangeException if the topic no longer has the id `topic_id`.
        """
        starts = self._offsets(arguments, numbers, arguments.start, deadline)
        ends = self._offsets(arguments, numbers, arguments.end, deadline)
        shared = self._config
        reading = Reading(
            arguments.topic,
            {number: (starts[number], ends[number]) for number in numbers},
            limits=FetchLimits(
                max_bytes=shared.fetch_max_bytes,
                partition_max_bytes=shared.max_partition_fetch_bytes,
                min_bytes=shared.fetch_min_bytes,
                max_wait_ms=shared.fetch_max_wait_ms,
                budget_bytes=shared.buffer_memory,
            ),
            read_committed=arguments.isolation_level == READ_COMMITTED,
            from_earliest=arguments.start == "earliest",
            metadata=self._metadata,
            retry_backoff=self._retry_backoff,
            random=self._random,
        )
        reading.topic_id = topic_id
        if arguments.end == "latest":
            reading.mark_out_of_range()
        yield from self._run(reading, arguments)

    def _run(self, reading: Reading, arguments: ReadArguments) -> Iterator[pa.RecordBatch]:
        deadline = self._deadline()
        in_flight: list[tuple[Fetch, RequestFuture]] = []
        outcome = FetchOutcome()
        self._reset_out_of_range(reading, arguments, deadline)
        while True:
            self._check_open()
            for fetch in reading.fetches(self._clock()):
                cap = _LAST_FETCH_BY_NAME if fetch.topic_id == ZERO_UUID else None
                in_flight.append((fetch, self._client.send(fetch.node_id, fetch.message, cap)))
            if outcome.records:
                for records in outcome.records:
                    yield from records
                # The time that the caller spends between two batches does not count towards the
                # timeout.
                deadline = self._deadline()
            if reading.is_done:
                return
            if self._clock() >= deadline:
                self._raise_timeout(
                    f"topic {arguments.topic} could not be read further: {reading.unfinished()}"
                )
            # A poll of a different iterator or of a lookup may have completed these requests.
            if not any(future.is_done for _, future in in_flight):
                self._poll(min(deadline, reading.next_due_at(self._clock())))
            outcome = self._collect(reading, in_flight)
            if outcome.progress:
                deadline = self._deadline()
            self._reset_out_of_range(reading, arguments, deadline)

    def _collect(
        self, reading: Reading, in_flight: list[tuple[Fetch, RequestFuture]]
    ) -> FetchOutcome:
        """Process the responses that have arrived."""
        outcome = FetchOutcome()
        for fetch, future in [each for each in in_flight if each[1].is_done]:
            in_flight.remove((fetch, future))
            if future.error is not None:
                reading.failed(fetch, future.error, self._clock())
            elif isinstance(future.response, FetchResponse):
                found = reading.answered(fetch, future.response, self._clock())
                outcome.records += found.records
                outcome.progress |= found.progress
        return outcome

    def _reset_out_of_range(
        self, reading: Reading, arguments: ReadArguments, deadline: float
    ) -> None:
        moved = reading.out_of_range()
        if not moved:
            return
        numbers = [p.topic_partition.partition for p in moved]
        # A valid position may be above the last stable offset, so look up the end of the log.
        arguments = arguments._replace(isolation_level=READ_UNCOMMITTED)
        earliest = self._lookup(arguments, numbers, EARLIEST_TIMESTAMP, deadline)
        latest = self._lookup(arguments, numbers, LATEST_TIMESTAMP, deadline)
        for partition in moved:
            number = partition.topic_partition.partition
            reading.reset(partition, earliest[number], latest[number], self._clock())

    # -- before the first record ------------------------------------------------------------------

    def _partitions(self, arguments: ReadArguments, deadline: float) -> list[int]:
        """Wait for the topic's current metadata, and return the partitions to read."""
        metadata = self._metadata
        # Earlier metadata may be out of date: a topic can get more partitions, and the cause of
        # an error can be removed.
        requests_before = metadata.refresh_topic(arguments.topic, self._clock())
        while True:
            known = metadata.topic(arguments.topic)
            is_own = metadata.last_request_about(arguments.topic) > requests_before
            if known is not None and is_own:
                break
            error = metadata.take_error(arguments.topic)
            if error is not None and (is_own or isinstance(error, InvalidTopicException)):
                raise error
            if self._clock() >= deadline:
                error = metadata.topic_error(arguments.topic)
                if error is not None:
                    raise error
                if not metadata.nodes:
                    raise self._no_broker(arguments.topic)
                of_topic = f"topic {arguments.topic}"
                self._raise_timeout(
                    f"{of_topic} is not known"
                    if known is None
                    else f"the current partitions of {of_topic} are not known"
                )
            self._poll(deadline)
        existing = range(len(known.leaders))
        numbers = arguments.partitions
        if numbers is None:
            given = [o for o in (arguments.start, arguments.end) if not isinstance(o, str)]
            # A partition may be in only one of `start` and `end`; `_offsets` rejects it.
            named = dict.fromkeys(number for offsets in given for number in offsets)
            numbers = list(named if given else existing)
        missing = [number for number in numbers if number not in existing]
        if missing:
            has = f"the partitions 0 to {len(existing) - 1}"
            message = f"topic {arguments.topic} has {has}, not {listed(map(str, missing))}"
            raise ConfigException(message)
        return numbers

    def _offsets(
        self, arguments: ReadArguments, numbers: list[int], offsets: Offsets, deadline: float
    ) -> OffsetsByPartition:
        if isinstance(offsets, str):
            return self._lookup(arguments, numbers, TIMESTAMPS[offsets], deadline)
        missing = [number for number in numbers if number not in offsets]
        if missing:
            message = (
                f"no offset is given for these partitions of topic {arguments.topic}: "
                f"{listed(map(str, missing))}"
            )
            raise ConfigException(message)
        return {number: offsets[number] for number in numbers}

    def _lookup(
        self, arguments: ReadArguments, numbers: list[int], timestamp: int, deadline: float
    ) -> OffsetsByPartition:
        """Request the offsets for a timestamp from the leaders, and return them by partition."""
        lookup = OffsetsLookup(
            OffsetsQuery(arguments.topic, numbers, timestamp, arguments.isolation_level),
            metadata=self._metadata,
            retry_backoff=self._retry_backoff,
            random=self._random,
        )
        while not lookup.is_done:
            if self._clock() >= deadline:
                self._raise_timeout(
                    f"the offsets of topic {arguments.topic} are not known: {lookup.missing()}"
                )
            for node_id, message in lookup.requests(self._clock()):
                lookup.sent(node_id, self._client.send(node_id, message))
            self._poll(min(deadline, lookup.next_due_at(self._clock())))
            lookup.collect(self._clock())
        return lookup.found

    # -- the network ------------------------------------------------------------------------------

    def _poll(self, until: float) -> None:
        """Wait for network events, at most until `until`, and request metadata when it is due."""
        self._check_open()
        self._set_nodes()
        now = self._clock()
        if self._metadata_future is None and self._metadata.is_in_flight:
            # An interrupt came while the request was being sent, or its response processed.
            self._metadata.failed(now)
        request = self._metadata.request(now)
        if request is not None:
            self._metadata_future = self._client.send(None, request)
        wait = min(until, self._metadata.next_update_at()) - now
        self._client.poll(max(0.0, wait))
        self._take_metadata()

    def _take_metadata(self) -> None:
        """Process a metadata response that has arrived. Raise errors that are not retriable."""
        future = self._metadata_future
        if future is None or not future.is_done:
            return
        self._metadata_future = None
        if future.error is not None:
            self._metadata.failed(self._clock())
        elif isinstance(future.response, MetadataResponse):
            reliable = future.version is None or future.version >= RELIABLE_EPOCHS_SINCE
            self._metadata.update(future.response, self._clock(), reliable_epochs=reliable)
        self._set_nodes()
        if future.error is not None and not error_code(future.error.code).retriable:
            raise future.error

    def _set_nodes(self) -> None:
        """Pass the brokers in the metadata to the network client if it does not know them yet.

        An interrupt may end an earlier call between the change of the metadata and `set_nodes`. The
        next call of this method makes up for that.
        """
        nodes = self._metadata.nodes
        if nodes != self._known_nodes:
            self._client.set_nodes(nodes)
            self._known_nodes = nodes

    def _check_open(self) -> None:
        if self._is_closed:
            message = "this TopicReader has been closed: create a new one to read"
            raise IllegalStateException(message)

    def _deadline(self) -> float:
        return self._clock() + self._config.default_api_timeout_ms / 1000

    def _no_broker(self, topic: str) -> ApiException:
        shared, trouble = self._config.client, self._client.last_errors()
        return self._client.no_broker.error(
            topic=topic,
            api="Metadata",
            limit=f"default.api.timeout.ms={self._config.default_api_timeout_ms}",
            servers=Option("bootstrap.servers", shared.bootstrap_servers),
            trouble=f" ({trouble})" if trouble else "",
        )

    def _raise_timeout(self, what: str) -> NoReturn:
        trouble = self._client.last_errors()
        said = f"{what}; default.api.timeout.ms={self._config.default_api_timeout_ms} has passed"
        raise TimeoutException(f"{said}; {trouble}" if trouble else said)


class _Batches(Iterator[pa.RecordBatch]):
    """The iterator that `read` returns; getting the next batch counts as a call of the reader."""

    def __init__(self, batches: Iterator[pa.RecordBatch], caller: OneCaller) -> None:
        self._batches = batches
        self._caller = caller

    def __next__(self) -> pa.RecordBatch:
        return self._caller.run(lambda: next(self._batches))
