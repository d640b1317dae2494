"""The meaning of error codes, copied from the Java client (Sender, TransactionManager, 4.2)."""

from __future__ import annotations

from typing import Final

from spark_kafka_sink.producer.error_actions import Action, Call

# code, name, and what it means to a producer that is plain, idempotent, transactional; "-" is where
# the producer cannot get the code
PRODUCE: Final = """
  0 NONE                                succeed succeed        succeed
 -1 UNKNOWN_SERVER_ERROR                fail    fail           abortable
  2 CORRUPT_MESSAGE                     retry   retry          retry
  3 UNKNOWN_TOPIC_OR_PARTITION          retry   retry          retry
  5 LEADER_NOT_AVAILABLE                retry   retry          retry
  6 NOT_LEADER_OR_FOLLOWER              retry   retry          retry
  7 REQUEST_TIMED_OUT                   retry   retry          retry
  9 REPLICA_NOT_AVAILABLE               retry   retry          retry
 10 MESSAGE_TOO_LARGE                   split   split          split
 13 NETWORK_EXCEPTION                   retry   retry          retry
 14 COORDINATOR_LOAD_IN_PROGRESS        retry   retry          retry
 15 COORDINATOR_NOT_AVAILABLE           retry   retry          retry
 16 NOT_COORDINATOR                     retry   retry          retry
 17 INVALID_TOPIC_EXCEPTION             fail    fail           abortable
 18 RECORD_LIST_TOO_LARGE               fail    fail           abortable
 19 NOT_ENOUGH_REPLICAS                 retry   retry          retry
 20 NOT_ENOUGH_REPLICAS_AFTER_APPEND    retry   retry          retry
 21 INVALID_REQUIRED_ACKS               fail    fail           abortable
 29 TOPIC_AUTHORIZATION_FAILED          fail    fail           abortable
 31 CLUSTER_AUTHORIZATION_FAILED        fail    fatal          fatal
 32 INVALID_TIMESTAMP                   fail    fail           abortable
 35 UNSUPPORTED_VERSION                 fail    fatal          fatal
 43 UNSUPPORTED_FOR_MESSAGE_FORMAT      fail    fail           abortable
 44 POLICY_VIOLATION                    fail    fail           abortable
 45 OUT_OF_ORDER_SEQUENCE_NUMBER        -       check_sequence check_sequence
 46 DUPLICATE_SEQUENCE_NUMBER           -       succeed        succeed
 47 INVALID_PRODUCER_EPOCH              -       fail           abortable
 48 INVALID_TXN_STATE                   -       -              abortable
 49 INVALID_PRODUCER_ID_MAPPING         -       fatal          fatal
 51 CONCURRENT_TRANSACTIONS             -       -              retry
 53 TRANSACTIONAL_ID_AUTHORIZATION_FAILED -     -              fatal
 56 KAFKA_STORAGE_ERROR                 retry   retry          retry
 59 UNKNOWN_PRODUCER_ID                 -       check_sequence check_sequence
 72 LISTENER_NOT_FOUND                  retry   retry          retry
 74 FENCED_LEADER_EPOCH                 retry   retry          retry
 75 UNKNOWN_LEADER_EPOCH                retry   retry          retry
 76 UNSUPPORTED_COMPRESSION_TYPE        fail    fail           abortable
 87 INVALID_RECORD                      fail    fail           abortable
 89 THROTTLING_QUOTA_EXCEEDED           retry   retry          retry
 90 PRODUCER_FENCED                     -       fatal          fatal
100 UNKNOWN_TOPIC_ID                    retry   retry          retry
103 INCONSISTENT_TOPIC_ID               retry   retry          retry
120 TRANSACTION_ABORTABLE               -       -              abortable
"""

# Per call: its codes by what they mean. Retriable codes that are not named are retried, all others
# mean what "others" says.
COORDINATOR_CALLS: Final[dict[Call, dict[str, list[int]]]] = {
    Call.INIT_PRODUCER_ID: {
        "succeed": [0],
        "look_up": [15, 16],
        "retry": [7, 14, 51],
        "abortable": [31, 53, 120],
        "fenced": [47, 90],
        "others": [-1, 35, 42, 48, 50],
    },
    Call.ADD_PARTITIONS_TO_TXN: {
        "succeed": [0],
        "look_up": [15, 16],
        "retry": [3, 7, 14, 51],
        "abortable": [29, 55, 120],
        "abortable_if_bump": [59],
        "fenced": [47, 90],
        "fatal": [48, 49, 53],
        "others": [-1, 42],
    },
    Call.ADD_OFFSETS_TO_TXN: {
        "succeed": [0],
        "look_up": [15, 16],
        "retry": [7, 14, 51],
        "abortable": [30, 120],
        "abortable_if_bump": [59],
        "fenced": [47, 90],
        "others": [-1, 48, 53],
    },
    Call.COMMIT: {
        "succeed": [0],
        "look_up": [15, 16],
        "retry": [7, 14, 51],
        "abortable": [120],
        "abortable_if_bump": [59],
        "fenced": [47, 90],
        "others": [-1, 48, 49, 53],
    },
    Call.ABORT: {
        "succeed": [0],
        "look_up": [15, 16],
        "retry": [7, 14, 51],
        "abortable_if_bump": [59],
        "fenced": [47, 90],
        "fatal": [120],
        "others": [-1, 48, 49, 53],
    },
    Call.FIND_COORDINATOR: {
        "succeed": [0],
        "retry": [7, 14, 15, 16],
        "abortable": [30, 120],
        "others": [-1, 42, 53],
    },
    Call.TXN_OFFSET_COMMIT: {
        "succeed": [0],
        "look_up": [7, 15, 16],
        "retry": [3, 14],
        "abortable": [22, 25, 30, 82, 120],
        "fenced": [47, 90],
        "others": [-1, 43, 53],
    },
}
OTHERS: Final = dict.fromkeys(COORDINATOR_CALLS, Action.FATAL) | {
    Call.ADD_PARTITIONS_TO_TXN: Action.ABORTABLE
}
ROWS: Final = [line.split() for line in PRODUCE.strip().splitlines()]
CALLS: Final = [
    (call, code, OTHERS[call] if meaning == "others" else Action[meaning.upper()])
    for call, meanings in COORDINATOR_CALLS.items()
    for meaning, codes in meanings.items()
    for code in codes
]
