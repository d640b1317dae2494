"""TransactionalProducerId: when a transactional producer needs a new epoch, and how it gets one.

The coordinator assigns the epochs of a transactional producer. This module determines when a new
epoch is needed, and whether the coordinator can assign one. `Sequences` stores the producer id, its
epoch and the sequences, and `TransactionManager` manages the transactions. (`ProducerIdRequests` is
for an idempotent producer, which gets its id from any broker, and bumps the epoch itself.)

::

    transaction.version 1   the epoch stays the same from one transaction to the next. After an
                            error, the client requests the next epoch with InitProducerId (KIP-360);
                            if the coordinator does not support that, the error is fatal
    transaction.version 2   each EndTxn response contains the next transaction's epoch (KIP-890)

The transaction.version is only read between transactions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.model import ProducerIdAndEpoch
from spark_kafka_sink.wire.messages import InitProducerIdResponse
from spark_kafka_sink.wire.transaction_messages import EndTxnResponse

if TYPE_CHECKING:
    from spark_kafka_sink.producer.producer_batch import ProducerBatch
    from spark_kafka_sink.producer.sequences import Sequences
    from spark_kafka_sink.producer.transactions.queue import Coordinators
    from spark_kafka_sink.producer.transactions.requests import CoordinatorKey


class TransactionalProducerId:
    """The producer id of a transactional producer, and whether its epoch must be bumped."""

    def __init__(
        self, sequences: Sequences, coordinators: Coordinators, key: CoordinatorKey
    ) -> None:
        self._sequences = sequences
        self._coordinators = coordinators
        self._key = key
        self._is_v2 = False
        self._must_raise = False

    @property
    def current(self) -> ProducerIdAndEpoch:
        """The producer id and epoch for requests."""
        return self._sequences.producer

    @property
    def is_known(self) -> bool:
        """Whether there is a producer id."""
        return self._sequences.has_producer_id

    @property
    def is_v2(self) -> bool:
        """Whether the transaction uses transaction.version 2 (KIP-890)."""
        return self._is_v2

    @property
    def can_go_on(self) -> bool:
        """Whether a failed transaction can be followed by another one, with a new epoch."""
        return self._is_v2 or self._can_raise

    @property
    def _can_raise(self) -> bool:
        return self._coordinators.bumps_epoch(self._key)

    def initialized(self, response: InitProducerIdResponse) -> None:
        """Use the producer id and epoch that the coordinator assigned."""
        self._sequences.adopt(ProducerIdAndEpoch(response.producer_id, response.producer_epoch))
        self._is_v2 = self._coordinators.transaction_version >= 2

    def transaction_ended(self, response: EndTxnResponse) -> None:
        """Use the epoch in the response to EndTxn, if it contains one (transaction.version 2)."""
        producer = ProducerIdAndEpoch(response.producer_id, response.producer_epoch)
        if producer.is_valid:
            self._sequences.adopt(producer)

    def next_transaction(self) -> bool:
        """Read the transaction.version again. Return whether a new epoch must be requested."""
        was_v2, self._is_v2 = self._is_v2, self._coordinators.transaction_version >= 2
        # The first transaction of version 2 must not begin with an epoch of version 1.
        raises = self._must_raise or not self.is_known or (self._is_v2 and not was_v2)
        self._must_raise = False
        return raises

    def batch_failed(self, batch: ProducerBatch) -> bool:
        """Record that a batch has failed. Return whether a further transaction is possible.

        With version 2, one is always possible, because each transaction gets a new epoch, and its
        sequences start at 0.
        """
        makes_gap = batch.has_sequence and not self._is_v2
        if makes_gap and not self._can_raise:
            return False
        self._must_raise = self._must_raise or makes_gap
        return True

    def transaction_failed(self) -> None:
        """Record that a transaction can only be aborted.

        If a client can request a new epoch, the next transaction gets one. It may be unknown which
        records of this transaction the brokers have written. With a new epoch, none of them can
        become part of the next transaction.
        """
        self._must_raise = self._must_raise or (not self._is_v2 and self._can_raise)

    def raise_epoch(self) -> None:
        """Request a new epoch for the next transaction."""
        self._must_raise = True
