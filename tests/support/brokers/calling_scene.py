"""A producer with all kinds of user code, a reader and an admin, to call their methods anywhere.

The cluster is librdkafka's mock cluster, which is fast and supports producers and readers. The
admin uses a scripted broker, because the mock cluster does not support its requests.
"""

from __future__ import annotations

import inspect
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final, cast

import pyarrow as pa

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.admin import KafkaAdmin, NewTopic
from spark_kafka_sink.config import producer_config
from spark_kafka_sink.consumer.topic_reader import TopicReader
from spark_kafka_sink.error_codes import NONE
from spark_kafka_sink.model import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    ProducerIdAndEpoch,
    RecordMetadata,
    Secret,
    TopicPartition,
)
from spark_kafka_sink.plugins.interceptors import ProducerInterceptor
from spark_kafka_sink.task_producer import TaskProducer
from spark_kafka_sink.wire.admin_messages import (
    CreatableTopicResult,
    CreateTopicsResponse,
    DescribeConfigsResponse,
)
from spark_kafka_sink.wire.delegation_token_messages import (
    CreateDelegationTokenResponse,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenResponse,
)
from spark_kafka_sink.wire.messages import (
    CREATE_DELEGATION_TOKEN,
    CREATE_TOPICS,
    DESCRIBE_CONFIGS,
    DESCRIBE_DELEGATION_TOKEN,
    EXPIRE_DELEGATION_TOKEN,
    RENEW_DELEGATION_TOKEN,
)
from support.brokers.scripted_broker import ScriptedBroker, describe
from support.pure.public_methods import public_methods

ENOUGH_S: Final = 20
TOPIC: Final = "t"
# Nothing writes to it, because the mock cluster's transaction markers have no checksum.
TOPIC_READ: Final = "read"
_OF_TASKS: Final = [
    name for name in public_methods(TaskProducer) if name not in public_methods(KafkaProducer)
]
METHODS: Final = [
    *(f"KafkaProducer.{name}" for name in public_methods(KafkaProducer)),
    *(f"TaskProducer.{name}" for name in _OF_TASKS),
    *(f"TopicReader.{name}" for name in public_methods(TopicReader)),
    *(f"KafkaAdmin.{name}" for name in public_methods(KafkaAdmin)),
]
# A producer that has what tasks call as well: only a KafkaProducer has all kinds of user code.
_Producer: Final = cast(
    "type[KafkaProducer]",
    type(
        "KafkaProducer",
        (KafkaProducer,),
        {name: vars(TaskProducer)[name] for name in _OF_TASKS} | {"_joined": None},
    ),
)
_LINGER_MS: Final = 60_000
_ROW: Final = pa.record_batch({"value": ["v"]})
_NO_ERROR: Final = (None, None, None)
_ARGUMENTS: Final[dict[str, tuple[object, ...]]] = {
    "TaskProducer.limit_messages": ({TOPIC: 1_000_000},),
    "TaskProducer.partition_counts": ({TOPIC: 1},),
    "KafkaProducer.partitions_for": (TOPIC,),
    "KafkaProducer.send_offsets_to_transaction": (
        {TopicPartition(TOPIC, 0): OffsetAndMetadata(1)},
        ConsumerGroupMetadata("group"),
    ),
    "TaskProducer.join_transaction": ("joined", ProducerIdAndEpoch(1, 0), 1),
    "TaskProducer.slice_bytes": (1,),
    "KafkaProducer.spread_evenly": (0,),
    "KafkaProducer.__exit__": _NO_ERROR,
    "TopicReader.read": (TOPIC_READ,),
    "TopicReader.__exit__": _NO_ERROR,
    "KafkaAdmin.existing_topics": ([TOPIC],),
    "KafkaAdmin.topics": ([TOPIC],),
    "KafkaAdmin.topic_configs": (TOPIC, ["max.message.bytes"]),
    "KafkaAdmin.configs_of_topics": ([TOPIC], ["max.message.bytes"]),
    "KafkaAdmin.check_creation": (NewTopic(partitions=1, replication=1),),
    "KafkaAdmin.expire_delegation_token": (Secret("aG1hYw=="),),
    "KafkaAdmin.renew_delegation_token": (Secret("aG1hYw=="),),
    "KafkaAdmin.__exit__": _NO_ERROR,
}
_KEYWORDS: Final[dict[str, dict[str, object]]] = {
    "TaskProducer.join_transaction": {
        "adds_partitions": False,
        "withholds": False,
        "checks_duplicates": False,
    },
}


def admin_broker() -> ScriptedBroker:
    """Return a broker that answers all requests of an admin."""
    broker = ScriptedBroker()
    broker.metadata = describe(broker.port, TOPIC)
    created = CreatableTopicResult(name=TOPIC, error_code=NONE)
    broker.answers[CREATE_TOPICS.key] = CreateTopicsResponse(topics=[created])
    broker.answers[DESCRIBE_CONFIGS.key] = DescribeConfigsResponse(results=[])
    created_token = CreateDelegationTokenResponse(
        error_code=NONE, principal_type="User", principal_name="alice", token_id="id", hmac=b"h",
        issue_timestamp_ms=0, expiry_timestamp_ms=1, max_timestamp_ms=2, throttle_time_ms=0,
    )  # fmt: skip
    moved = {"error_code": NONE, "expiry_timestamp_ms": 1, "throttle_time_ms": 0}
    broker.answers |= {
        CREATE_DELEGATION_TOKEN.key: created_token,
        DESCRIBE_DELEGATION_TOKEN.key: DescribeDelegationTokenResponse(
            error_code=NONE, tokens=[], throttle_time_ms=0
        ),
        EXPIRE_DELEGATION_TOKEN.key: ExpireDelegationTokenResponse(**moved),
        RENEW_DELEGATION_TOKEN.key: RenewDelegationTokenResponse(**moved),
    }
    return broker


class Scene:
    """Producer, reader and admin, with the addresses of the cluster and of the admin's broker.

    hooks: functions that user code of a kind calls once. raises: what user code raises each time.
    ran: the kinds of user code that were called.
    """

    def __init__(self, bootstrap: str, admin_bootstrap: str, *, is_transactional: bool) -> None:
        self.hooks: dict[str, Callable[[], object]] = {}
        self.raises: dict[str, type[BaseException]] = {}
        self.ran: set[str] = set()
        self._futures: list[Future[RecordMetadata]] = []
        configs: dict[str, Any] = {"bootstrap.servers": bootstrap}
        more: dict[str, Any] = {
            "linger.ms": _LINGER_MS,
            "partitioner.class": self._choose,
            "interceptor.classes": [_Interceptor(self)],
        }
        if is_transactional:
            more["transactional.id"] = f"id-{uuid.uuid4().hex}"
        self.producer = _Producer(configs | more, value_serializer=self._serialize)
        self._things: dict[str, Any] = {
            "KafkaProducer": self.producer,
            "TaskProducer": self.producer,
            "TopicReader": TopicReader(configs),
            "KafkaAdmin": KafkaAdmin(producer_config({"bootstrap.servers": admin_bootstrap})),
        }

    # -- user code --------------------------------------------------------------------------------

    def run(self, kind: str) -> None:
        """Run as user code of a kind."""
        self.ran.add(kind)
        hook = self.hooks.pop(kind, None)
        if hook is not None:
            hook()
        if kind in self.raises:
            raise self.raises[kind]

    def _choose(self, _: str, batch: pa.RecordBatch, __: int) -> list[int]:
        self.run("partitioner")
        return [0] * batch.num_rows

    def _serialize(self, value: bytes) -> bytes:
        self.run("serializer")
        return value

    @property
    def sent(self) -> Future[RecordMetadata]:
        """The future of the last row sent."""
        return self._futures[-1]

    # -- calls ------------------------------------------------------------------------------------

    def thing_of(self, method: str) -> Any:  # noqa: ANN401 - one of three
        """Return the object that has a method."""
        return self._things[method.partition(".")[0]]

    def send(self) -> Future[RecordMetadata]:
        """Send a row with a callback."""
        future = self.producer.send(TOPIC, b"v", on_delivery=lambda *_: self.run("callback"))
        self._futures.append(future)
        future.add_done_callback(lambda _: self.run("done"))
        return future

    def limit(self) -> None:
        """Set a size limit that every row exceeds, until it is read again."""

        def refresh() -> dict[str, int]:
            self.run("look")
            return {}

        self.producer._columns.limit_messages({TOPIC: 1}, refresh)

    def append(self) -> None:
        """Append a row with a callback for failures."""
        self.producer.append(TOPIC, _ROW, lambda _: self.run("failure"))

    def call(self, method: str) -> object:
        """Call a method, or read a property."""
        if method == "KafkaProducer.send":
            return self.send()
        if method == "KafkaProducer.append":
            self.append()
            return None
        thing, name = self.thing_of(method), method.partition(".")[2]
        if isinstance(inspect.getattr_static(thing, name), property):
            return getattr(thing, name)
        found = getattr(thing, name)(*_ARGUMENTS.get(method, ()), **_KEYWORDS.get(method, {}))
        return list(found) if method == "TopicReader.read" else found

    def begin(self, method: str) -> None:
        """Bring the object into a state in which a method can be called."""
        if method == "TaskProducer.detach_transaction":
            self.call("TaskProducer.join_transaction")
        if self.producer._transactions is None or method == "KafkaProducer.init_transactions":
            return
        self.producer.init_transactions()
        if method != "KafkaProducer.begin_transaction":
            self.producer.begin_transaction()

    def slow_close(self, method: str, begun: threading.Event, may_end: threading.Event) -> None:
        """Make the object that has a method slow to close; set `begun` when its close starts."""
        thing = self.thing_of(method)
        part: Any
        if thing is self.producer:
            part = thing._rows
        else:
            part = (thing._requests if isinstance(thing, KafkaAdmin) else thing)._client
        close = part.close

        def close_slowly() -> None:
            close()
            begun.set()
            if thing is not self.producer:
                assert may_end.wait(ENOUGH_S)

        part.close = close_slowly
        if thing is self.producer:
            # It waits for a callback, as for a delivery.
            self.hooks["callback"] = lambda: may_end.wait(ENOUGH_S)
            self.send()

    def close(self) -> None:
        """Close all three."""
        for thing in self._things.values():
            with suppress(Exception):  # of rows that user code has failed
                thing.__exit__(*_NO_ERROR)

    def left_over(self) -> list[str]:
        """Close all objects, and return what does not end."""
        self.close()
        thread = self.producer._thread
        accumulator = self.producer._state.accumulator
        ends = {
            "the I/O thread goes on": thread.join(ENOUGH_S),
            "a future stays pending": all(future.done() for future in self._futures),
            "memory is kept": accumulator.pool.available_bytes == accumulator.pool.total_bytes,
            "its sockets are open": thread._client._selector._wake_in.fileno() == -1,
        }
        return [what for what, has_ended in ends.items() if not has_ended]


class _Interceptor(ProducerInterceptor):
    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    def on_send(self, record: Any) -> Any:  # noqa: ANN401 - handed on
        """Run user code for a record."""
        self._scene.run("interceptor")
        return record

    def on_acknowledgement(self, *_: object) -> None:
        """Run user code for an acknowledgement."""
        self._scene.run("acknowledgement")
