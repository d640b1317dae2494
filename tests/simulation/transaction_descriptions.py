"""What coordinators return of transactions: ListTransactions and DescribeTransactions (KIP-664)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Final

from simulation.controller import Broker, Reply
from simulation.coordinator import State, Transaction, TransactionCoordinator
from simulation.coordinator_log import LOAD_IN_PROGRESS
from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.wire.describe_messages import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)
from spark_kafka_sink.wire.transaction_messages import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from spark_kafka_sink.wire.transaction_messages import TransactionState as ListedState

_NAMES: Final = {
    State.EMPTY: "Empty",
    State.ONGOING: "Ongoing",
    State.PREPARE_COMMIT: "PrepareCommit",
    State.PREPARE_ABORT: "PrepareAbort",
    State.COMPLETE_COMMIT: "CompleteCommit",
    State.COMPLETE_ABORT: "CompleteAbort",
}
_NO_TIME: Final = -1


class TransactionDescriptions:
    """The requests about transactions."""

    def __init__(self, coordinator: TransactionCoordinator) -> None:
        self._coordinator = coordinator
        self.handlers: dict[type, Callable[[Broker, Any, Reply], None]] = {
            ListTransactionsRequest: self._list,
            DescribeTransactionsRequest: self._describe,
        }

    def _list(self, broker: Broker, request: ListTransactionsRequest, reply: Reply) -> None:
        """List the transactions that the broker has in its memory, once that is loaded."""
        led = [log for log in self._coordinator.logs.values() if log.is_led_by(broker)]
        if not all(log.is_loaded for log in led):
            reply(ListTransactionsResponse(error_code=LOAD_IN_PROGRESS))
            return
        pattern = request.transactional_id_pattern
        found = [
            ListedState(
                transactional_id=each.transactional_id,
                producer_id=each.producer_id,
                transaction_state=_NAMES[each.state],
            )
            for each in self._coordinator.transactions.values()
            if each.log in led
            and (pattern is None or re.fullmatch(pattern, each.transactional_id))
            and (not request.state_filters or _NAMES[each.state] in request.state_filters)
        ]
        reply(
            ListTransactionsResponse(
                throttle_time_ms=broker.throttle_ms,
                error_code=codes.NONE,
                transaction_states=found,
            )
        )

    def _describe(self, broker: Broker, request: DescribeTransactionsRequest, reply: Reply) -> None:
        states = [self._state(broker, name) for name in request.transactional_ids]
        reply(
            DescribeTransactionsResponse(
                throttle_time_ms=broker.throttle_ms, transaction_states=states
            )
        )

    def _state(self, broker: Broker, name: str) -> TransactionState:
        code = self._coordinator.log(name).refusal(broker)
        known = self._coordinator.transactions.get(name)
        if code == codes.NONE and known is None:
            code = codes.TRANSACTIONAL_ID_NOT_FOUND
        if code != codes.NONE or known is None:
            return TransactionState(
                error_code=code,
                transactional_id=name,
                transaction_state="",
                transaction_timeout_ms=0,
                transaction_start_time_ms=_NO_TIME,
                producer_id=-1,
                producer_epoch=-1,
                topics=[],
            )
        return TransactionState(
            error_code=codes.NONE,
            transactional_id=name,
            transaction_state=_NAMES[known.state],
            transaction_timeout_ms=round(known.timeout_s * 1000),
            transaction_start_time_ms=_start_ms(known),
            producer_id=known.producer_id,
            producer_epoch=known.epoch,
            topics=_by_topic(known.partitions),
        )


def _start_ms(known: Transaction) -> int:
    return _NO_TIME if known.state is State.EMPTY else round(known.began_at * 1000)


def _by_topic(partitions: Iterable[TopicPartition]) -> list[TopicData]:
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        topics.setdefault(topic, []).append(number)
    return [TopicData(topic=topic, partitions=numbers) for topic, numbers in topics.items()]
