"""KafkaProducer: the public producer for Arrow batches and single rows.

To `BaseProducer`, it adds `send` for single rows (`client.row_producer`), transactions
(`client.transaction_calls`), and the user's serializers and interceptors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

from spark_kafka_sink.client.base_producer import BaseProducer
from spark_kafka_sink.client.chunk_feeder import ChunkFeeder
from spark_kafka_sink.client.future import OnDelivery
from spark_kafka_sink.client.row_producer import RowProducer
from spark_kafka_sink.client.transaction_calls import ProducerTransactions, transaction_manager
from spark_kafka_sink.config import ProducerConfig, check_options, producer_config
from spark_kafka_sink.errors import IllegalStateException
from spark_kafka_sink.model import (
    ConsumerGroupMetadata,
    Headers,
    Node,
    OffsetAndMetadata,
    RecordMetadata,
    TopicPartition,
    check_counts,
    check_topic_name,
    checked,
    checked_brokers,
)
from spark_kafka_sink.plugins.batch_partitioner import PARTITIONER_CLASS
from spark_kafka_sink.plugins.user_code import CODE_OPTIONS, UserCode, without_user_code


class KafkaProducer(BaseProducer):
    """A Kafka producer for Arrow batches and single rows.

    >>> with KafkaProducer({"bootstrap.servers": "localhost:9092"}) as producer:  # doctest: +SKIP
    ...     producer.append("flights", record_batch)
    ...     future = producer.send("flights", b"value", key=b"key")
    ...     producer.flush()
    ...     print(future.result().offset)

    configs: options of the Java producer by their Java names; each value may be a string.
    ``key.serializer``, ``value.serializer`` and ``interceptor.classes`` (for `send`) are Python
    objects, classes or their names as ``module.Name``. ``partitioner.class`` may also be a Python
    object, a class or its name (see `batch_partitioner`). key_serializer, value_serializer: if
    given, the option for the same purpose is ignored. brokers: known brokers of the cluster. They
    are used instead of bootstrap.servers, unless they are unreachable. allow_auto_create_topics: if
    False, brokers do not create missing topics, even if auto.create.topics.enable is set (brokers
    before 0.11 ignore this). Raise ConfigException if an option is invalid, and KafkaException if
    no thread or socket can be created. Before the error is raised, everything that was created is
    closed.

    The producer's `close` also closes these Python objects. It does not close an object that an
    option refers to by its name, because other producers may use this object.

    The end of a ``with`` block closes the producer, even after an error. Records that were sent
    before the error are still delivered; after KeyboardInterrupt, this takes at most 5 s. If a
    program ends without `close`, delivery also takes at most 5 s, and the number of lost records is
    printed to stderr. Several threads may append at the same time. Large Arrow batches are cut into
    slices, and slices of different threads may alternate. A producer can be used only in the
    process that created it, and not in a forked child. A signal handler must not call the producer,
    because the interrupted call may hold a lock.
    """

    def __init__(
        self,
        configs: Mapping[str, Any] | ProducerConfig,
        *,
        key_serializer: object = None,
        value_serializer: object = None,
        brokers: Iterable[Node] = (),
        allow_auto_create_topics: bool = True,
    ) -> None:
        brokers = checked_brokers(brokers)
        what = "allow_auto_create_topics"
        checked(what, allow_auto_create_topics, bool, "True or False")
        given: dict[str, Any] = {}
        if isinstance(configs, ProducerConfig):
            config = configs
            given = {PARTITIONER_CLASS: config.partitioner_class}
        else:
            check_options(configs)
            given = dict(configs)
            config = producer_config(without_user_code(given), of_caller=CODE_OPTIONS)
        self._user_code = UserCode(
            given,
            key_serializer=key_serializer,
            value_serializer=value_serializer,
        )
        self._transactions: ProducerTransactions | None = None
        make_transactions = None
        if config.transactional_id is not None:
            make_transactions = partial(transaction_manager, config)
        super().__init__(
            config,
            self._user_code,
            brokers,
            allow_auto_create_topics=allow_auto_create_topics,
            make_transactions=make_transactions,
        )

    def _make_feeder(self) -> ChunkFeeder:
        state, thread, config = self._state, self._thread, self._config
        self._feeder = feeder = ChunkFeeder(
            state,
            thread,
            self._appender,
            self._user_code.partitioner,
            linger_s=config.linger_ms / 1000,
            delivery_timeout_s=config.delivery_timeout_ms / 1000,
        )
        self._rows = RowProducer(state, thread, feeder, self._caller, self._user_code, self._limits)
        if state.transactions is not None:
            self._transactions = ProducerTransactions(
                state, thread, state.transactions, config.max_block_ms, feeder.drain, feeder.drop
            )
            thread.attach(self._transactions)
        return feeder

    def _close_rows(self) -> None:
        self._rows.close()

    @property
    def _has_transaction(self) -> bool:
        return self._transactions is not None and self._transactions.is_open

    @property
    def _has_unseen_commit(self) -> bool:
        return self._transactions is not None and self._transactions.has_unseen_commit

    @property
    def _outcome(self) -> str:
        return "" if self._transactions is None else self._transactions.outcome.value

    def _end_transaction(self, timeout: float | None) -> None:
        if self._transactions is not None:
            self._transactions.end_open(timeout)

    # -- sending row by row -----------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: object = None,
        key: object = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> Future[RecordMetadata]:
        """Send one record. The result of the future is the RecordMetadata of the record.

        value, key: bytes, str or None, or the types that the serializers accept. partition: None to
        let the key or the partitioner determine it. timestamp_ms: milliseconds since 1970, None for
        the current time. headers: pairs of a str and its value, which is bytes or None.
        on_delivery: called in the I/O thread with the RecordMetadata and the error (or None). For
        the records of one partition, the calls come in the order of the records, except in two
        cases. After abort_transaction, the calls for records that were not sent come at once,
        perhaps before those for records in flight. If a batch is sent again, a later batch that was
        in flight may be acknowledged first. Exceptions of on_delivery are logged and dropped. If
        `send` itself rejects the record and returns a failed future, it calls on_delivery in the
        caller's thread, perhaps before the calls for earlier records. In this case, `send` raises
        an exception of on_delivery that is not an Exception, such as SystemExit.

        The call waits at most max.block.ms for the topic's metadata and for memory. The future
        fails with an ApiException if this time passes, if a broker returns an error, if the topic
        cannot be written to, or if the record is too large. `flush` and `close` do not raise this
        exception again. `send` itself raises SerializationException, IllegalStateException after
        close, and DataException for an invalid topic, partition, timestamp or header.
        """
        return self._rows.send(topic, value, key, partition, timestamp_ms, headers, on_delivery)

    def partitions_for(self, topic: str, expected: int = 1) -> int:
        """Return the number of partitions of a topic.

        expected: if fewer partitions than this are known, the metadata is requested once more,
        because topics may grow. Inside a callback, or with max.block.ms=0, the call does not wait
        for the response, but returns the known number. Raise DataException for an invalid topic
        name, and TimeoutException after max.block.ms. An error that prevents writes to the topic
        (InvalidTopicException, TopicAuthorizationException) is raised at once.
        """
        check_topic_name(topic)
        check_counts("expected", {topic: expected}, 0)
        return self._partition_counts({topic: expected})[topic]

    # -- transactions -----------------------------------------------------------------------------

    def init_transactions(self) -> None:
        """Fence older producers with the same transactional.id, and abort their open transactions.

        Call it once, before the other transactional calls. Each transactional call waits for at
        most max.block.ms, and then raises TimeoutException. After a timeout of init_transactions,
        commit_transaction or abort_transaction, call the same method again to continue. Raise
        IllegalStateException if the state of the transaction does not allow the call; the call then
        has no effect. Raise ProducerFencedException if a newer producer has taken over the
        transactional.id. After this error and other fatal errors, only `close` is possible.
        """
        self._transactional("init_transactions").init()

    def begin_transaction(self) -> None:
        """Begin a transaction. All rows that are appended or sent from now on are part of it."""
        self._transactional().begin()

    def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group_metadata: ConsumerGroupMetadata,
    ) -> None:
        """Commit offsets of a consumer group as part of the transaction (KIP-447).

        offsets: the offset of the next record to read in each partition; without any, nothing is
        sent. Raise CommitFailedException if the group has assigned the partitions to another
        member; the transaction can then only be aborted. Raise IllegalArgumentException for invalid
        offsets or an invalid group, and DataException for an invalid topic name. These two are
        raised before anything is sent, and the transaction continues.
        """
        self._transactional("send_offsets_to_transaction").send_offsets(offsets, group_metadata)

    def commit_transaction(self) -> None:
        """Deliver the appended rows, then commit the transaction. Meanwhile, no rows are accepted.

        Raise the error of a row that was not delivered; the transaction can then only be aborted.
        """
        transactions = self._transactions or self._transactional()
        transactions.commit(lambda: self._transactional_end("commit_transaction"))

    def abort_transaction(self) -> None:
        """Abort the transaction, and drop the rows that were not sent yet.

        After an error in a transaction, call this before you begin the next transaction.
        """
        self._transactional_end("abort_transaction").abort()

    def _transactional_end(self, call: str) -> ProducerTransactions:
        """Return the object for transactional calls. call: the method, a commit or an abort."""
        transactions = self._transactional(call)
        self._feeder.check_not_in_partitioner()
        return transactions

    def _transactional(self, waiting: str | None = None) -> ProducerTransactions:
        """Return the object for transactional calls.

        waiting: the name of the method if it waits for brokers; None otherwise.
        """
        self._caller.check_open()
        if self._transactions is None:
            message = "transactions need a transactional.id: set it in the producer's configuration"
            raise IllegalStateException(message)
        if waiting is not None:
            self._caller.check_not_in_callback(waiting)
        return self._transactions
