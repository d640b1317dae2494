"""Prints the modules that one Arrow batch passes, from a task to the socket and back.

::

    PYTHONPATH=tests:jobs python -m support.house.one_batch [--write]

A task writes to librdkafka's mock cluster. A first task connects and learns the topic. The second
one is watched from the moment at which Spark hands it a batch until it ends, in the task's thread
and in the I/O thread.

A module counts if one of its functions gets the batch as an argument, has it as ``self``, or
returns it. The batch is each form that the rows have on their way: the Arrow batch and its columns,
the columns of records, the slice, the encoded records, the producer's batch, the Produce request,
and bytes of at least `_LEAST_BYTES`. Measures of it (sizes, hashes, numbers) are not
the batch: a module that decides from numbers does not count, nor does one that tells the time,
looks up metadata or takes a lock. ``--write`` puts the modules into docs/contributing/one-batch.md.
"""

from __future__ import annotations

import argparse
import re
import sys
import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final

import pyarrow as pa

import spark_kafka_sink
from spark_kafka_sink.client.appender import Slice
from spark_kafka_sink.producer.partitioner import GroupedRows
from spark_kafka_sink.producer.produce_requests import DrainedBatches
from spark_kafka_sink.producer.producer_batch import ProducerBatch
from spark_kafka_sink.producer.sender import SenderPoll
from spark_kafka_sink.records.columns import BinaryColumn, RecordColumns, Rows
from spark_kafka_sink.records.encoder import EncodedRecords, EncodedRows
from spark_kafka_sink.spark.options import sink_options
from spark_kafka_sink.spark.tasks.task import write_task
from spark_kafka_sink.wire.exchange import Answered, ClientRequest
from spark_kafka_sink.wire.messages import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from spark_kafka_sink.wire.primitives import Records, Writer
from support.brokers.mock_cluster import MockCluster

PAGE: Final = Path(__file__).parents[3] / "docs" / "contributing" / "one-batch.md"
BEGIN: Final = "<!-- made by tests/support/house/one_batch.py: begin -->\n"
END: Final = "<!-- made by tests/support/house/one_batch.py: end -->\n"
_PACKAGE: Final = str(Path(spark_kafka_sink.__file__).parent) + "/"
# The name of what `wire.message_codecs` generates.
_GENERATED: Final = re.compile(r"<\w+ v\d+ (reader|writer)>")
_ROWS: Final = 1000
NO_OPTIONS: Final[Mapping[str, str]] = {}
# Options with which a batch passes other modules, too.
_OTHER_OPTIONS: Final = (("kafka.compression.type", "lz4"), ("onError", "skip"))
# The forms of a batch on its way.
OF_BATCH: Final = (
    *(pa.RecordBatch, pa.Table, pa.Array, pa.ChunkedArray),
    *(BinaryColumn, RecordColumns, Rows, Slice, GroupedRows, EncodedRecords, EncodedRows),
    *(ProducerBatch, DrainedBatches),
    *(ProduceRequest, TopicProduceData, PartitionProduceData, Records, Writer),
)
# Fewer bytes are those of a header or of a response.
_LEAST_BYTES: Final = 2000


@dataclass(slots=True)
class Way:
    """The modules of one thread, in the order in which they were entered first.

    entered_by: by module, the one that called it first. twice: modules that were entered once more
    while one of their functions waited for the call to return.
    """

    entered_by: dict[str, str | None] = field(default_factory=dict)
    twice: dict[str, str] = field(default_factory=dict)

    def enter(self, frame: FrameType) -> None:
        """Note a call of a function of this package that gets the batch, or returns it."""
        module = _module(frame)
        if module is None:
            return
        above = list(_modules_above(frame))
        caller = next((each for each in above if each != module), None)
        self.entered_by.setdefault(module, caller)
        if above and above[0] != module and module in above:
            self.twice.setdefault(module, above[0])


def _module(frame: FrameType) -> str | None:
    file = frame.f_code.co_filename
    if _GENERATED.fullmatch(file):
        return "wire/message_codecs"
    if not file.startswith(_PACKAGE):
        return None
    return file.removeprefix(_PACKAGE).removesuffix(".py").removesuffix("/__init__")


def _modules_above(frame: FrameType) -> Iterator[str]:
    above = frame.f_back
    while above is not None:
        if (module := _module(above)) is not None:
            yield module
        above = above.f_back


class Watch:
    """Notes calls in all threads that start later, and in this one, while it is on."""

    def __init__(self) -> None:
        self.is_on = False
        self.ways: dict[str, Way] = {}

    def install(self) -> None:
        """Watch this thread and those to come."""
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def remove(self) -> None:
        """Watch no more."""
        threading.setprofile(None)
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, argument: object) -> None:
        if not self.is_on or _module(frame) is None:
            return
        if (event == "call" and any(map(_is_of_batch, _arguments(frame)))) or (
            event == "return" and _is_of_batch(argument)
        ):
            self.ways.setdefault(threading.current_thread().name, Way()).enter(frame)


def _arguments(frame: FrameType) -> Iterator[object]:
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + 2]
    yield from (frame.f_locals[name] for name in names if name in frame.f_locals)


def _is_of_batch(thing: object, depth: int = 3) -> bool:
    """Return whether a thing is the batch, a part of it, or contains one."""
    if isinstance(thing, bytes | bytearray | memoryview):
        return memoryview(thing).nbytes >= _LEAST_BYTES
    if isinstance(thing, OF_BATCH):
        return True
    parts: Iterable[object] = ()
    if isinstance(thing, ClientRequest):
        parts = (thing.message,)
    elif isinstance(thing, Answered):
        parts = (thing.request,)
    elif isinstance(thing, SenderPoll):
        parts = thing.drained
    elif isinstance(thing, list | tuple | deque):
        parts = thing
    return depth > 0 and any(_is_of_batch(each, depth - 1) for each in parts)


def ways_of_one_batch(given: Mapping[str, str] = NO_OPTIONS) -> dict[str, Way]:
    """Return the way of a batch by the name of the thread. given: options."""
    watch = Watch()
    rows = pa.record_batch({"value": pa.array([b"value"] * _ROWS), "key": pa.array([b"k"] * _ROWS)})

    def watched() -> Iterator[pa.RecordBatch]:
        watch.is_on = True
        yield rows

    with MockCluster() as cluster:
        cluster.create_topic("one-batch", 2)
        needed = {"kafka.bootstrap.servers": cluster.bootstrap, "topic": "one-batch"}
        options = sink_options({**needed, **given})
        watch.install()
        try:
            write_task(options, iter([rows]))
            write_task(options, watched())
            watch.is_on = False
        finally:
            watch.remove()
    return watch.ways


def modules(ways: dict[str, Way]) -> list[str]:
    """Return the modules of all threads, each once, in the order of the ways."""
    return list(dict.fromkeys(module for way in ways.values() for module in way.entered_by))


def in_several(ways: dict[str, Way]) -> list[str]:
    """Return the modules that more than one thread enters, in the order of the ways."""
    entered = Counter(module for way in ways.values() for module in way.entered_by)
    return [module for module, threads in entered.items() if threads > 1]


def page_part() -> str:
    """Return what the page has of the ways: without options, and what other options add."""
    ways = ways_of_one_batch()
    lines = [f"{len(modules(ways))} modules. A name in brackets is the module's first caller.\n"]
    for thread, way in ways.items():
        name = "The task's thread" if thread == threading.main_thread().name else f"`{thread}`"
        lines.append(f"{name}:\n")
        lines += [
            f"{number}. `{module}`" + (f" (`{caller}`)" if caller else "")
            for number, (module, caller) in enumerate(way.entered_by.items(), 1)
        ]
        lines.append(f"\n{_entered_again(way)}\n")
    shared = ", ".join(f"`{module}`" for module in in_several(ways)) or "no module"
    lines.append(f"The other thread also runs these modules: {shared}.\n")
    lines.append("With another option, a batch passes more modules:\n")
    lines += [_of_option(name, value, modules(ways)) for name, value in _OTHER_OPTIONS]
    lines.append("")
    return "\n".join(lines)


def _entered_again(*ways: Way) -> str:
    again = [f"`{module}` by `{caller}`" for way in ways for module, caller in way.twice.items()]
    return f"Modules that the batch passes twice on the way down: {', '.join(again) or 'none'}."


def _of_option(name: str, value: str, usual: list[str]) -> str:
    ways = ways_of_one_batch({name: value})
    passed = modules(ways)
    more = ", ".join(f"`{module}`" for module in passed if module not in usual)
    return (
        f"- `{name}={value}`: {len(passed)} modules; also {more}. {_entered_again(*ways.values())}"
    )


def page_with(text: str, made: str) -> str:
    """Return the text of the page with its generated part replaced."""
    head, _, rest = text.partition(BEGIN)
    return head + BEGIN + "\n" + made + "\n" + END + rest.partition(END)[2]


def main() -> None:
    """Print the ways, or write them to the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write them to {PAGE.name}")
    made = page_part()
    if parser.parse_args().write:
        PAGE.write_text(page_with(PAGE.read_text(), made))
    else:
        print(made)


if __name__ == "__main__":
    main()
