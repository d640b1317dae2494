"""Determine, with `error_actions`, what to do about the response to a transactional request.

This module finds the error codes in a response, selects the most severe code, and makes the message
for the user. It changes nothing: `TransactionManager` performs the action.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.auth.acls import READ, READ_ADVICE, Acls
from spark_kafka_sink.errors import (
    CommitFailedException,
    KafkaException,
    advice,
    api_exception,
    error_code,
    listed,
)
from spark_kafka_sink.model import Node, ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.producer.error_actions import Action, Call, ProducerKind, error_action
from spark_kafka_sink.producer.transactions.requests import TransactionalRequest
from spark_kafka_sink.wire.messages import InitProducerIdResponse, Response
from spark_kafka_sink.wire.transaction_messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnResponse,
    FindCoordinatorResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

# If a response contains several codes, the code whose action is first in this list counts.
_GRAVITY: Final = (
    Action.FATAL,
    Action.FENCED,
    Action.ABORTABLE_IF_BUMP,
    Action.ABORTABLE,
    Action.LOOK_UP,
    Action.RETRY,
    Action.SUCCEED,
)
# The order for AddPartitionsToTxn, where a retry comes before ABORTABLE. A coordinator adds all
# partitions or none, so if one partition may be retried, all are retried.
_GRAVITY_OF_ADDING: Final = (
    Action.FATAL,
    Action.FENCED,
    Action.ABORTABLE_IF_BUMP,
    Action.LOOK_UP,
    Action.RETRY,
    Action.ABORTABLE,
    Action.SUCCEED,
)
# Among equally severe codes, the code with the lowest number here counts, and the default is 0. For
# equal numbers, the first code in the response counts. A code with advice for the user comes first.
# A code that only means that another partition had an error comes last.
_PRECEDENCE: Final[Mapping[int, int]] = {
    codes.TOPIC_AUTHORIZATION_FAILED: -1,
    codes.OPERATION_NOT_ATTEMPTED: 1,
}
_MEMBERSHIP_CHANGED: Final = (codes.UNKNOWN_MEMBER_ID, codes.ILLEGAL_GENERATION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The most severe error code of a response: its action, and the partitions that have the code.

    partitions: empty if the code is not about partitions. is_unnamed: whether the response does not
    contain these partitions, although the request did. is_partly_done: whether is_unnamed is true,
    and the response reports success for other partitions. problem: if the response has no error
    code but is invalid, the reason; otherwise an empty string.
    """

    call: Call
    code: int
    action: Action
    partitions: list[TopicPartition]
    node_id: int
    is_unnamed: bool = False
    is_partly_done: bool = False
    problem: str = ""

    @property
    def lacks_read(self) -> bool:
        """Whether the client lacks READ on a topic, which brokers check for a group's offsets."""
        return self.call is Call.TXN_OFFSET_COMMIT and self.code == codes.TOPIC_AUTHORIZATION_FAILED

    def error(self, hint: str | None = None) -> KafkaException:
        """Return the error for the caller that waits for the response.

        hint: how to grant this client the access that the broker denied.
        """
        api, row = self.call.value, error_code(self.code)
        code = codes.PRODUCER_FENCED if self.action is Action.FENCED else self.code
        text = f"{api} failed: {row.name} ({row.code}) from node {self.node_id}"
        if self.partitions:
            text += f" for {listed(map(str, self.partitions))}"
        if self.is_unnamed:
            text += ", missing in the broker's response"
        parts = (text, self.problem, self._advice(code), hint)
        message = "; ".join(part for part in parts if part)
        if self.call is Call.TXN_OFFSET_COMMIT and code in _MEMBERSHIP_CHANGED:
            return CommitFailedException(message, node_id=self.node_id, api=api)
        topic = self.partitions[0].topic if self.partitions else None
        return api_exception(code, message, topic=topic, node_id=self.node_id, api=api)

    def _advice(self, code: int) -> str | None:
        return READ_ADVICE if self.lacks_read else advice(code)


def read_answer(request: TransactionalRequest, response: Response | None, node_id: int) -> Answer:
    """Return the most severe error code of a response, and what to do about it.

    InitProducerId is repeated if its response contains neither an error nor a valid id.
    """
    if isinstance(response, InitProducerIdResponse) and response.error_code == codes.NONE:
        problem = ProducerIdAndEpoch(response.producer_id, response.producer_epoch).problem
        if problem:
            return Answer(
                call=request.call,
                code=codes.UNKNOWN_SERVER_ERROR,
                action=Action.RETRY,
                partitions=[],
                node_id=node_id,
                problem=problem,
            )
    found = _codes_of(response)
    named = {partition for partitions in found.values() for partition in partitions}
    left_out = [partition for partition in _asked_for(request) if partition not in named]
    if left_out:
        found.setdefault(codes.UNKNOWN_SERVER_ERROR, []).extend(left_out)
    found = found or {codes.NONE: []}
    actions = {c: error_action(c, request.call, ProducerKind.TRANSACTIONAL) for c in found}
    if left_out and found[codes.UNKNOWN_SERVER_ERROR] == left_out:
        actions[codes.UNKNOWN_SERVER_ERROR] = Action.ABORTABLE
    adds = request.call is Call.ADD_PARTITIONS_TO_TXN
    gravity = _GRAVITY_OF_ADDING if adds else _GRAVITY
    code = min(actions, key=lambda c: (gravity.index(actions[c]), _PRECEDENCE.get(c, 0)))
    is_unnamed = bool(left_out) and found[code] == left_out
    return Answer(
        call=request.call,
        code=code,
        action=actions[code],
        partitions=found[code],
        node_id=node_id,
        is_unnamed=is_unnamed,
        is_partly_done=is_unnamed and codes.NONE in found,
    )


def _asked_for(request: TransactionalRequest) -> list[TopicPartition]:
    """Return the partitions that the response to a request must contain."""
    message = request.message
    if isinstance(message, AddPartitionsToTxnRequest):
        return [
            TopicPartition(topic.name, number)
            for topic in message.v3_and_below_topics
            for number in topic.partitions
        ]
    if isinstance(message, TxnOffsetCommitRequest):
        return [
            TopicPartition(topic.name, partition.partition_index)
            for topic in message.topics
            for partition in topic.partitions
        ]
    return []


def _codes_of(response: Response | None) -> dict[int, list[TopicPartition]]:
    """Return each error code of a response, with the partitions that have it.

    The list of partitions is empty if the code is not about partitions.
    """
    found: dict[int, list[TopicPartition]] = {}
    if isinstance(response, AddPartitionsToTxnResponse):
        for topic in response.results_by_topic_v3_and_below:
            for result in topic.results_by_partition:
                about = TopicPartition(topic.name, result.partition_index)
                found.setdefault(result.partition_error_code, []).append(about)
    elif isinstance(response, TxnOffsetCommitResponse):
        for committed in response.topics:
            for partition in committed.partitions:
                about = TopicPartition(committed.name, partition.partition_index)
                found.setdefault(partition.error_code, []).append(about)
    elif isinstance(response, FindCoordinatorResponse):
        code, _ = coordinator_of(response)
        found[code] = []
    elif isinstance(response, InitProducerIdResponse | AddOffsetsToTxnResponse | EndTxnResponse):
        found[response.error_code] = []
    return found


def access_hint(
    request: TransactionalRequest, answer: Answer, transactional_id: str, acls: Acls
) -> str | None:
    """Return how to grant this client the access that a broker denied, None if it denied none."""
    name = _denied_name(request, answer, transactional_id)
    return acls.hint(answer.code, name, READ if answer.lacks_read else None)


def _denied_name(
    request: TransactionalRequest, answer: Answer, transactional_id: str
) -> str | None:
    """Return the topic, group or transactional id to which the broker denied access."""
    if answer.code == codes.TOPIC_AUTHORIZATION_FAILED:
        return answer.partitions[0].topic if answer.partitions else None
    if answer.code == codes.GROUP_AUTHORIZATION_FAILED:
        message = request.message
        if isinstance(message, AddOffsetsToTxnRequest | TxnOffsetCommitRequest):
            return message.group_id
        return None if request.looks_up is None else request.looks_up.key
    return transactional_id


def coordinator_of(response: FindCoordinatorResponse) -> tuple[int, Node]:
    """Return the error code and the coordinator of a response of any version.

    If a response contains neither a valid coordinator nor an error, the code is
    COORDINATOR_NOT_AVAILABLE.
    """
    named = response.coordinators[0] if response.coordinators else response
    if not named.host or named.node_id < 0:
        code = named.error_code or codes.COORDINATOR_NOT_AVAILABLE
        return code, Node(id=-1, host="", port=-1)
    return named.error_code, Node(id=named.node_id, host=named.host, port=named.port)
