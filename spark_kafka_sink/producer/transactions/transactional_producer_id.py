"""Where a producer id and its epochs come from, without transactions and with them.

`ProducerIdRequests` is for an idempotent producer: any broker gives it an id, and it raises the
epoch itself. `TransactionalProducerId` is for a transactional one, whose epochs are its
coordinator's: when it needs another one, and whether it can have one at all. The id itself, its
epoch and the sequences under it are those of `Sequences`; the transactions those of
`TransactionManager`.

::

    transaction.version 1   the epoch stays the same from one transaction to the next. After an
                            error the client asks for the next one by InitProducerId (KIP-360),
                            which the coordinator has to know; else the error is fatal
    transaction.version 2   each EndTxn is answered with the epoch of the next transaction (KIP-890)

The version is read only between transactions.
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
    """The producer id of one transactional producer, and whether its epoch has to be raised."""

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
        """The id and the epoch that requests carry."""
        return self._sequences.producer

    @property
    def is_known(self) -> bool:
        """Whether there is an id."""
        return self._sequences.has_producer_id

    @property
    def is_v2(self) -> bool:
        """Whether the transaction is one of transaction.version 2 (KIP-890)."""
        return self._is_v2

    @property
    def can_go_on(self) -> bool:
        """Whether the next transaction can have another epoch than one that has failed."""
        return self._is_v2 or self._can_raise

    @property
    def _can_raise(self) -> bool:
        return self._coordinators.raises_epoch(self._key)

    def initialized(self, response: InitProducerIdResponse) -> None:
        """Take the id and the epoch that the coordinator has given."""
        self._sequences.adopt(ProducerIdAndEpoch(response.producer_id, response.producer_epoch))
        self._is_v2 = self._coordinators.transaction_version >= 2

    def transaction_ended(self, response: EndTxnResponse) -> None:
        """Take the epoch that comes with the end of a transaction of version 2."""
        producer = ProducerIdAndEpoch(response.producer_id, response.producer_epoch)
        if producer.is_valid:
            self._sequences.adopt(producer)

    def next_transaction(self) -> bool:
        """Read the version again. Return whether an epoch has to be requested first."""
        was_v2, self._is_v2 = self._is_v2, self._coordinators.transaction_version >= 2
        # The first transaction of version 2 must not begin with an epoch of version 1.
        raises = self._must_raise or not self.is_known or (self._is_v2 and not was_v2)
        self._must_raise = False
        return raises

    def batch_failed(self, batch: ProducerBatch) -> bool:
        """Note that a batch has failed. Return whether another transaction can follow.

        Version 2 numbers the next transaction's records from 0 in any case.
        """
        makes_gap = batch.has_sequence and not self._is_v2
        if makes_gap and not self._can_raise:
            return False
        self._must_raise = self._must_raise or makes_gap
        return True

    def transaction_failed(self) -> None:
        """Note that a transaction can only be aborted.

        What the brokers have of it may not be known; a new epoch ends all of it.
        """
        self._must_raise = self._must_raise or (not self._is_v2 and self._can_raise)

    def raise_epoch(self) -> None:
        """Make the next transaction begin with another epoch."""
        self._must_raise = True
