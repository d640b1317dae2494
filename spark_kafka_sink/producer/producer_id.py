"""ProducerIdRequests: the source of the producer id of an idempotent producer without transactions.

Any broker assigns one, and the producer raises the epoch itself. The id, its epoch and the
sequences under it are in `Sequences`; `TransactionalProducerId` is for producers with transactions.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.auth.acls import Acls
from spark_kafka_sink.backoff import ExponentialBackoff
from spark_kafka_sink.errors import ApiException, Option, api_exception, error_code
from spark_kafka_sink.model import ProducerIdAndEpoch
from spark_kafka_sink.wire.messages import InitProducerIdRequest, InitProducerIdResponse

if TYPE_CHECKING:
    from spark_kafka_sink.producer.sequences import Sequences

# Brokers ignore the timeout if there is no transactional.id, but the field is required.
_NO_TRANSACTION_TIMEOUT_MS = 2**31 - 1


class ProducerIdRequests:
    """InitProducerId of one producer. Times are seconds of the producer's clock."""

    def __init__(
        self,
        sequences: Sequences,
        retry_backoff: ExponentialBackoff,
        random: Random,
        acls: Acls | None = None,
    ) -> None:
        self._sequences = sequences
        self._retry_backoff = retry_backoff
        self._random = random
        self._acls = acls or Acls()
        self._in_progress = False
        self._attempts = 0
        self._not_before = 0.0

    def due(self, now: float) -> InitProducerIdRequest | None:
        """Return the request that is due if there are batches to send; it counts as sent."""
        if self._sequences.has_producer_id or self._in_progress or now < self._not_before:
            return None
        self._in_progress = True
        return InitProducerIdRequest(transaction_timeout_ms=_NO_TRANSACTION_TIMEOUT_MS)

    def next_due_at(self) -> float:
        """Return until when `due` returns nothing because of time alone."""
        return self._not_before

    def answered(
        self, response: InitProducerIdResponse, node_id: int, now: float
    ) -> ApiException | None:
        """Take a response. Return the error if there is no producer id to be had."""
        if response.error_code != codes.NONE:
            return self.failed(response.error_code, "", node_id, now)
        self._in_progress = False
        self._attempts = 0
        self._sequences.adopt(ProducerIdAndEpoch(response.producer_id, response.producer_epoch))
        return None

    def failed(
        self, code: int, reason: str, node_id: int | None, now: float
    ) -> ApiException | None:
        """Ask again later after an error that a retry may help. Return the error otherwise."""
        self._in_progress = False
        if error_code(code).retriable:
            self._not_before = now + self._retry_backoff.delay_s(self._attempts, self._random)
            self._attempts += 1
            return None
        return no_producer_id(code, reason, node_id, self._acls.hint(code, None))


def no_producer_id(
    code: int, reason: str, node_id: int | None = None, hint: str | None = None
) -> ApiException:
    """Return the error for a cluster, or one node of it, that assigned no producer id."""
    message = f"no producer id could be had: {error_code(code).name} ({code})"
    if reason:
        message += f"; {reason}"
    message += f"; {Option('enable.idempotence')}=false does without one"
    message += ", at the price of duplicates"
    if hint:
        message += f"; {hint}"
    return api_exception(code, message, api="InitProducerId", node_id=node_id)
