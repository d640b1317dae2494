"""The I/O thread of a producer: joins the sender's decisions with the network, under one lock.

Owns the lock, the condition that callers wait on, the thread, and the objects that only it may
touch (network client, sender, metadata). The loop: take events, decide what is due (both under the
lock), build and send requests, wait for the network (both without it). It knows nothing of columns.

Whatever goes wrong in the loop ends every wait with that error: no caller hangs on a dead thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from random import Random

from spark_kafka_sink.backoff import ExponentialBackoff
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.client import NetworkClient, NetworkConfig
from spark_kafka_sink.network.selector import Selector
from spark_kafka_sink.producer.accumulator import RecordAccumulator
from spark_kafka_sink.producer.completion import BatchCompletion
from spark_kafka_sink.producer.deliveries import Deliveries
from spark_kafka_sink.producer.metadata import ClusterMetadata
from spark_kafka_sink.producer.sender import Sender, SenderConfig, SenderPoll
from spark_kafka_sink.producer.sequences import Sequences
from spark_kafka_sink.producer.transactions import TransactionManager
from spark_kafka_sink.records.compression import codec
from spark_kafka_sink.wire.exchange import Event, NodeDown

logger = logging.getLogger(__name__)

# select() takes no infinity.
_LONGEST_WAIT_S = 3600.0


class ProducerThread:
    """Everything of a producer that outlives a call: state machines, network, and their thread."""

    def __init__(self, config: ProducerConfig, client_id: str) -> None:
        self._clock = time.monotonic
        random = Random()  # noqa: S311 - jitter, not secrets
        retry_backoff = _backoff(config.retry_backoff_ms, config.retry_backoff_max_ms)
        self.accumulator = RecordAccumulator(
            batch_size_bytes=config.batch_size,
            linger_s=config.linger_ms / 1000,
            buffer_memory_bytes=config.buffer_memory,
            delivery_timeout_s=config.delivery_timeout_ms / 1000,
            codec=codec(config.compression_type, config.compression_level),
        )
        self.metadata = ClusterMetadata(config.metadata_max_age_ms / 1000, retry_backoff, random)
        self.deliveries = Deliveries()
        sequences = None
        if config.enable_idempotence:
            sequences = Sequences(is_transactional=config.transactional_id is not None)
        self.transactions = None
        if config.transactional_id is not None and sequences is not None:
            self.transactions = TransactionManager(
                config.transactional_id,
                config.transaction_timeout_ms,
                sequences,
                retry_backoff,
                random,
            )
        self._completion = BatchCompletion(
            accumulator=self.accumulator,
            metadata=self.metadata,
            sequences=sequences,
            retries=config.retries,
            delivery_timeout_s=config.delivery_timeout_ms / 1000,
            retry_backoff=retry_backoff,
            random=random,
            transactions=self.transactions,
        )
        self._sender = Sender(
            SenderConfig(
                acks=config.acks_number,
                max_in_flight=config.max_in_flight_requests_per_connection,
                max_request_size_bytes=config.max_request_size,
                request_timeout_ms=config.request_timeout_ms,
                retry_backoff=retry_backoff,
            ),
            accumulator=self.accumulator,
            metadata=self.metadata,
            completion=self._completion,
            sequences=sequences,
            random=random,
            transactions=self.transactions,
        )
        self._client = NetworkClient(
            Selector(
                send_buffer_bytes=config.send_buffer_bytes,
                receive_buffer_bytes=config.receive_buffer_bytes,
            ),
            NetworkConfig(
                client_id=client_id,
                request_timeout_s=config.request_timeout_ms / 1000,
                reconnect_backoff=_backoff(
                    config.reconnect_backoff_ms, config.reconnect_backoff_max_ms
                ),
                connection_setup_timeout=_backoff(
                    config.socket_connection_setup_timeout_ms,
                    config.socket_connection_setup_timeout_max_ms,
                ),
                connections_max_idle_s=config.connections_max_idle_ms / 1000,
            ),
            config.bootstrap_nodes,
            self._clock,
            random,
        )
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.network_trouble = ""
        self._known_nodes: Mapping[int, Node] = {}
        self._asleep = False
        self._stopping = False
        self._thread = threading.Thread(
            target=self._run, name=f"kafka-producer-network-thread | {client_id}", daemon=True
        )
        self._thread.start()

    # -- for callers, under the lock ---------------------------------------------------------------

    @property
    def fatal_error(self) -> KafkaException | None:
        """Why nothing can be delivered any more, None if it can."""
        return self._sender.fatal_error

    def wake(self) -> None:
        """Have the I/O thread look again; the caller holds the lock."""
        if self._asleep:
            self._asleep = False
            self._client.wakeup()

    def give_up(self, error: KafkaException) -> None:
        """Fail every batch with `error` and take no more; the caller holds the lock."""
        self._sender.fail_all(error)
        self._collect()
        self.changed.notify_all()

    # -- for callers, without the lock -------------------------------------------------------------

    def stop(self) -> None:
        """End the thread and close the connections; what is in flight is abandoned."""
        with self.lock:
            self._stopping = True
            self.wake()
        self._thread.join()

    # -- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._loop()
        except BaseException as error:  # a bug, or the interpreter going down: end every wait
            logger.exception("the I/O thread of a Kafka producer failed")
            message = f"the producer's I/O thread failed: {type(error).__name__}: {error}"
            failure = KafkaException(message)
            failure.__cause__ = error
            with self.lock:
                self.give_up(failure)
        finally:
            self._client.close()

    def _loop(self) -> None:
        events: list[Event] = []
        work = SenderPoll()
        while True:
            with self.lock:
                now = self._clock()
                for drained in work.drained:
                    for batch in drained.batches:
                        self.accumulator.packed(batch)
                for event in events:
                    self._sender.handle(event, now)
                work = self._sender.poll(now)
                if self._collect() or events or work.has_news:
                    self.changed.notify_all()
                if self._stopping:
                    return
                self._asleep = True
            self._act(work)
            wait = min(work.next_poll_at - self._clock(), _LONGEST_WAIT_S)
            events = self._client.poll(max(0.0, wait))
            if any(isinstance(event, NodeDown) for event in events):
                self.network_trouble = self._client.last_errors()
            self._asleep = False

    def _act(self, work: SenderPoll) -> None:
        nodes = self._sender.nodes
        if nodes != self._known_nodes:
            self._known_nodes = nodes
            self._client.set_nodes(nodes)
        self._client.connect(work.connect)
        for request in work.requests:
            self._client.send(request)
        for drained in work.drained:
            self._client.send(self._sender.build(drained))

    def _collect(self) -> bool:
        """Take account of the batches that are done; tell whether there were any."""
        done = self._completion.take_done()
        for batch in done:
            self.deliveries.add(batch)
        return bool(done)


def _backoff(base_ms: int, max_ms: int) -> ExponentialBackoff:
    return ExponentialBackoff(base_ms / 1000, max_ms / 1000)
