"""Every public method of the producers, TopicReader and KafkaAdmin, called from all user code.

Also in a forked child, after close, while another thread closes, and after user code has raised.
Nothing hangs, no future stays pending, all memory is released, and rejected calls change nothing.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Final

import pytest
from support.brokers.calling_scene import ENOUGH_S, METHODS, TOPIC, TOPIC_READ, Scene, admin_broker
from support.brokers.mock_cluster import PRODUCE, MockCluster
from support.programs.forked import in_child
from support.pure.public_methods import public_methods

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.error_codes import INVALID_RECORD

WATCHDOG_S: Final = 60
TRANSACTIONAL: Final = {
    f"KafkaProducer.{name}"
    for name in public_methods(KafkaProducer)
    if name.endswith(("_transactions", "_transaction"))
}

# Calls in user code: in a callback, in an interceptor's on_acknowledgement, in the partitioner that
# is asked about a row of `send` and about rows of `append`, in a serializer, in an interceptor's
# on_send. Calls in the main thread (mn), in a forked child (fk), after close (cl), while another
# thread closes (cg). In capitals, calls after user code of a kind has raised an Exception,
# SystemExit or KeyboardInterrupt: one of those, a future's done-callback, an on_failure, or the
# refresh of `limit_messages`.
IN_USER_CODE: Final = {
    "cb": "callback",
    "ak": "acknowledgement",
    "ps": "partitioner",
    "pa": "partitioner",
    "sr": "serializer",
    "ic": "interceptor",
}
RAISING: Final = {
    "CB": "callback",
    "PA": "partitioner",
    "SR": "serializer",
    "IC": "interceptor",
    "AK": "acknowledgement",
    "DC": "done",
    "OF": "failure",
    "LA": "look",
}
# Which of it `append` alone runs; `send` runs the rest, and both run the partitioner.
OF_APPEND: Final = ("OF", "LA")
RAISED: Final = (ZeroDivisionError, SystemExit, KeyboardInterrupt)
# What a cell says: "." the call works, "r" it raises what user code has raised, "e" it does so
# unless that is an Exception, which is logged, "-" not applicable (see below), and refused:
REFUSED: Final = {
    "c": "inside a callback is not permitted",
    "p": "a partitioner has called its own producer",
    "f": "was created before a fork",
    "x": "has been closed",
    "b": "is in use by another thread",
    "t": "transaction",
    "d": "INVALID_RECORD (87)",  # of the transaction's row that brokers reject
}
TABLE: Final = """
                                          mn cb ak ps pa sr ic fk cl cg CB PA SR IC AK DC OF LA
KafkaProducer.abort_transaction           .  c  c  p  .  .  .  f  x  x  .  .  .  .  .  .  .  .
KafkaProducer.append                      .  .  .  p  .  .  .  f  x  x  .  r  .  .  .  .  .  r
KafkaProducer.begin_transaction           .  t  t  t  t  t  t  f  x  x  -  -  -  -  -  -  -  -
KafkaProducer.close                       .  .  .  .  .  .  .  .  .  .  .  .  .  .  .  .  .  .
KafkaProducer.commit_transaction          .  c  c  p  .  .  .  f  x  x  .  r  .  .  .  .  d  .
KafkaProducer.flush                       .  c  c  p  .  .  .  f  x  x  .  .  .  .  .  .  .  .
KafkaProducer.init_transactions           .  c  c  t  t  t  t  f  x  x  -  -  -  -  -  -  -  -
KafkaProducer.metrics                     .  .  .  .  .  .  .  f  .  .  .  .  .  .  .  .  .  .
KafkaProducer.partitions_for              .  .  .  .  .  .  .  f  x  x  .  .  .  .  .  .  .  .
KafkaProducer.send                        .  .  .  p  .  .  .  f  x  x  .  r  r  e  .  .  .  .
KafkaProducer.send_offsets_to_transaction .  c  c  .  .  .  .  f  x  x  .  r  .  .  .  .  t  .
KafkaProducer.spread_evenly               .  .  .  .  .  .  .  f  x  x  .  .  .  .  .  .  .  .
KafkaProducer.__enter__                   .  .  .  .  .  .  .  f  .  .  .  .  .  .  .  .  .  .
KafkaProducer.__exit__                    .  .  .  .  .  .  .  .  .  .  .  .  .  .  .  .  .  .
TaskProducer.detach_transaction           .  -  -  -  -  -  -  f  x  x  -  -  -  -  -  -  -  -
TaskProducer.forget_topics                .  .  .  .  .  .  .  f  x  x  .  .  .  .  .  .  .  .
TaskProducer.join_transaction             .  -  -  -  -  -  -  f  x  x  -  -  -  -  -  -  -  -
TaskProducer.limit_messages               .  .  .  .  .  .  .  f  .  .  .  .  .  .  .  .  .  .
TaskProducer.partition_counts             .  .  .  .  .  .  .  f  x  x  .  .  .  .  .  .  .  .
TaskProducer.progress                     .  .  .  .  .  .  .  f  .  .  .  .  .  .  .  .  .  .
TaskProducer.record_limits                .  .  .  .  .  .  .  f  .  .  .  .  .  .  .  .  .  .
TaskProducer.slice_bytes                  .  .  .  .  .  .  .  f  .  .  .  .  .  .  .  .  .  .
TaskProducer.take_deliveries              .  .  .  .  .  .  .  f  .  .  .  .  .  .  .  .  .  .
TaskProducer.throttle_time_ms             .  .  .  .  .  .  .  f  .  .  .  .  .  .  .  .  .  .
TaskProducer.topics_written               .  .  .  .  .  .  .  f  .  .  .  .  .  .  .  .  .  .
TopicReader.close                         .  .  .  .  .  .  .  .  .  b  .  .  .  .  .  .  .  .
TopicReader.read                          .  .  .  .  .  .  .  f  x  b  .  .  .  .  .  .  .  .
TopicReader.__enter__                     .  .  .  .  .  .  .  f  .  b  .  .  .  .  .  .  .  .
TopicReader.__exit__                      .  .  .  .  .  .  .  .  .  b  .  .  .  .  .  .  .  .
KafkaAdmin.check_creation                 .  .  .  .  .  .  .  f  x  b  .  .  .  .  .  .  .  .
KafkaAdmin.configs_of_topics              .  .  .  .  .  .  .  f  x  b  .  .  .  .  .  .  .  .
KafkaAdmin.create_delegation_token        .  .  .  .  .  .  .  f  x  b  .  .  .  .  .  .  .  .
KafkaAdmin.describe_delegation_token      .  .  .  .  .  .  .  f  x  b  .  .  .  .  .  .  .  .
KafkaAdmin.existing_topics                .  .  .  .  .  .  .  f  x  b  .  .  .  .  .  .  .  .
KafkaAdmin.expire_delegation_token        .  .  .  .  .  .  .  f  x  b  .  .  .  .  .  .  .  .
KafkaAdmin.renew_delegation_token         .  .  .  .  .  .  .  f  x  b  .  .  .  .  .  .  .  .
KafkaAdmin.topic_configs                  .  .  .  .  .  .  .  f  x  b  .  .  .  .  .  .  .  .
KafkaAdmin.topics                         .  .  .  .  .  .  .  f  x  b  .  .  .  .  .  .  .  .
KafkaAdmin.__enter__                      .  .  .  .  .  .  .  f  .  b  .  .  .  .  .  .  .  .
KafkaAdmin.__exit__                       .  .  .  .  .  .  .  .  .  b  .  .  .  .  .  .  .  .
"""
# Why a cell is not applicable.
_NO_ROW: Final = "no row can be sent before it, so no user code has run"
_BETWEEN_ROWS: Final = "the sink calls it between the rows of two attempts, and no user has it"
NOT_APPLICABLE: Final = {
    **{
        (f"TaskProducer.{name}_transaction", when): _BETWEEN_ROWS
        for name in ("join", "detach")
        for when in (*IN_USER_CODE, *RAISING)
    },
    **{("KafkaProducer.begin_transaction", when): _NO_ROW for when in RAISING},
    **{("KafkaProducer.init_transactions", when): _NO_ROW for when in RAISING},
}
# The calls that pass rows which were sent before to user code.
ENDS_ROWS: Final = {
    f"KafkaProducer.{name}" for name in ("flush", "commit_transaction", "close", "__exit__")
}


def table() -> dict[tuple[str, str], str]:
    """Return the cells by method and column."""
    (_, *columns), *rows = (("", *line.split()) for line in TABLE.strip().splitlines())
    return {
        (method, column): cell
        for _, method, *cells in rows
        for column, cell in zip(columns, cells, strict=True)
    }


def word(call: Callable[[], object], kind: type[BaseException] | None = None) -> str:
    """Return a cell's word for the result of a call; kind: the exception of user code."""
    try:
        call()
    except BaseException as error:  # noqa: BLE001 - told
        cause: BaseException | None = error
        while kind is not None and cause is not None:
            if isinstance(cause, kind):
                return "r"
            cause = cause.__cause__
        return said_in_a_word(f"{type(error).__name__}: {error}")
    return "."


def said_in_a_word(said: str) -> str:
    """Return the word for a message, or the message if there is none."""
    return next((word for word, has in REFUSED.items() if has in said), said)


def plainly(scene: Scene, method: str) -> str:
    """Call a method in the main thread."""
    scene.begin(method)
    return word(lambda: scene.call(method))


def in_user_code(scene: Scene, method: str, column: str) -> str:
    """Call a method in user code; check that everything continues if it is rejected."""
    scene.begin("KafkaProducer.commit_transaction")
    said: list[str] = []
    is_said = threading.Event()

    def call() -> None:
        said.append(word(lambda: scene.call(method)))
        is_said.set()

    scene.hooks[IN_USER_CODE[column]] = call
    with suppress(Exception):  # if the call has closed, or ended the transaction
        if column == "pa":
            scene.append()
        else:
            scene.send()
        scene.producer.flush()
    if not is_said.wait(ENOUGH_S):
        return "it was not called"
    if said[0] in REFUSED:
        sent = scene.send()
        if method in TRANSACTIONAL:
            scene.producer.commit_transaction()
        scene.producer.flush()
        sent.result(0)
    return said[0]


def after_close(scene: Scene, method: str) -> str:
    """Call a method of what is closed."""
    scene.close()
    return word(lambda: scene.call(method))


def while_closing(scene: Scene, method: str) -> str:
    """Call a method while another thread is in `close`."""
    scene.begin("KafkaProducer.commit_transaction")
    begun, may_end = threading.Event(), threading.Event()
    scene.slow_close(method, begun, may_end)
    closing = threading.Thread(target=scene.thing_of(method).__exit__, args=(None, None, None))
    closing.start()
    assert begun.wait(ENOUGH_S)
    try:
        return word(lambda: scene.call(method))
    finally:
        may_end.set()
        closing.join(ENOUGH_S)


def after_raising(scene: Scene, method: str, column: str, kind: type[BaseException]) -> str:
    """Call a method that runs user code which raises, or one after such user code was run."""
    scene.begin(method)
    scene.raises[RAISING[column]] = kind
    if column == "LA":
        scene.limit()
    is_of_append = column in OF_APPEND
    runs_it = (method == "KafkaProducer.append" and (is_of_append or column == "PA")) or (
        method == "KafkaProducer.send" and not is_of_append
    )
    if not runs_it:
        with suppress(BaseException):
            (scene.append if is_of_append else scene.send)()
        if method not in ENDS_ROWS:
            with suppress(BaseException):
                scene.producer.flush()
    found = word(lambda: scene.call(method), kind)
    if runs_it and found == ".":
        scene.producer.flush()
        if method == "KafkaProducer.send":
            found = word(lambda: scene.sent.result(0), kind)
    scene.close()
    return found if RAISING[column] in scene.ran else f"{found}; it was not called"


@contextmanager
def cluster_of_scenes() -> Iterator[MockCluster]:
    """A cluster with the topics of a scene."""
    with MockCluster() as cluster:
        for topic in (TOPIC, TOPIC_READ):
            cluster.create_topic(topic)
        yield cluster


class Walk:
    """The cells that were walked through so far, each with a scene of its own."""

    def __init__(self, cluster: MockCluster, admin_bootstrap: str) -> None:
        self._cluster = cluster
        self._admin_bootstrap = admin_bootstrap
        self.found: dict[tuple[str, str], str] = {}
        self.at: tuple[str, str] | None = None

    def run(self) -> None:
        """Walk through all of them."""
        for is_transactional in (False, True):
            methods = [name for name in METHODS if (name in TRANSACTIONAL) is is_transactional]
            self._walk_in_child(methods, is_transactional=is_transactional)
        for method in METHODS:
            self._walk(method, "mn", plainly)
            self._walk(method, "cl", after_close)
            self._walk(method, "cg", while_closing)
            for column in (*IN_USER_CODE, *RAISING):
                if (method, column) in NOT_APPLICABLE:
                    self.found[method, column] = "-"
                    continue
                with self._own_cluster(method):
                    if column in RAISING:
                        self._walk_raising(method, column)
                    else:
                        self._walk(method, column, in_user_code, column)

    @contextmanager
    def _own_cluster(self, method: str) -> Iterator[None]:
        # The mock cluster draws producer ids from 900,000 numbers, also those that it has given
        # already. Of the producers of all cells, two with transactions would have the same one in
        # some runs.
        if method not in TRANSACTIONAL:
            yield
            return
        shared = self._cluster
        with cluster_of_scenes() as self._cluster:
            yield
        self._cluster = shared

    def _walk_raising(self, method: str, column: str) -> None:
        words = []
        # What a producer's user code raises has no way into a reader or an admin.
        kinds = RAISED if "Producer." in method else RAISED[-1:]
        for kind in kinds:
            if column == "OF":
                self._cluster.answer_next(PRODUCE, [INVALID_RECORD])
            self._walk(method, column, after_raising, column, kind)
            self._cluster.clear(PRODUCE)
            words.append(self.found[method, column])
        is_same = len(set(words)) == 1
        is_logged = words == [".", "r", "r"]
        self.found[method, column] = words[0] if is_same else "e" if is_logged else str(words)

    def _scene(self, *, is_transactional: bool) -> Scene:
        addresses = self._cluster.bootstrap, self._admin_bootstrap
        return Scene(*addresses, is_transactional=is_transactional)

    def _walk(self, method: str, column: str, walk: Callable[..., str], *arguments: object) -> None:
        self.at = (method, column)
        scene = self._scene(is_transactional=method in TRANSACTIONAL)
        try:
            found = walk(scene, method, *arguments)
        except BaseException as error:  # noqa: BLE001 - told
            found = f"{type(error).__name__}: {error}"
        self.found[method, column] = "; ".join([found, *scene.left_over()])

    def _walk_in_child(self, methods: list[str], *, is_transactional: bool) -> None:
        self.at = (methods[0], "fk")
        scene = self._scene(is_transactional=is_transactional)
        scene.begin("KafkaProducer.commit_transaction")
        # Those that close are the last: each of the others finds all open.
        last = [method for method in methods if method.endswith((".close", ".__exit__"))]
        names = [*(method for method in methods if method not in last), *last]
        said = in_child({method: partial(scene.call, method) for method in names})
        left = scene.left_over()
        for method in methods:
            found = said_in_a_word(said.get(method, "this, or one before it, hangs"))
            self.found[method, "fk"] = "; ".join(["." if found == "nothing" else found, *left])


@pytest.fixture
def admin_bootstrap() -> Iterator[str]:
    """The address of a broker for an admin."""
    with admin_broker() as broker:
        yield broker.address


def stacks() -> str:
    """Return the stacks of all threads."""
    return "\n".join(
        "".join(traceback.format_stack(frame)) for frame in sys._current_frames().values()
    )


def test_the_table_has_every_public_method() -> None:
    assert list(dict.fromkeys(method for method, _ in table())) == METHODS
    assert {cell for cell, said in table().items() if said == "-"} == NOT_APPLICABLE.keys()


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_each_call_comes_to_what_the_table_says_wherever_it_is_made(
    admin_bootstrap: str,
) -> None:
    # Not in this thread: a call that hangs hangs neither the test nor the end of the cluster.
    stack = ExitStack()
    walk = Walk(stack.enter_context(cluster_of_scenes()), admin_bootstrap)
    thread = threading.Thread(target=walk.run, daemon=True)
    thread.start()
    while thread.is_alive():
        cells = len(walk.found)
        thread.join(WATCHDOG_S)
        assert len(walk.found) > cells or not thread.is_alive(), f"{walk.at} hangs:\n{stacks()}"
    stack.close()
    expected = table()
    assert walk.found.keys() == expected.keys()
    wrong = {cell: said for cell, said in walk.found.items() if said != expected[cell]}
    assert wrong == {}
