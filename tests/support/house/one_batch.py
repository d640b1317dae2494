"""Prints the modules that one Arrow batch passes, from a task to the socket and back.

::

    PYTHONPATH=tests:jobs python -m support.house.one_batch [--write]

A task writes to librdkafka's mock cluster. A first task connects and learns the topic. The second
one is watched from the moment at which Spark hands it a batch until it ends: each module whose
functions are called counts, in the task's thread and in the I/O thread. ``--write`` puts the
modules into docs/contributing/one-batch.md.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final

import pyarrow as pa

import spark_kafka_sink
from spark_kafka_sink.spark.options import sink_options
from spark_kafka_sink.spark.tasks.task import write_task
from support.brokers.mock_cluster import MockCluster

PAGE: Final = Path(__file__).parents[3] / "docs" / "contributing" / "one-batch.md"
BEGIN: Final = "<!-- made by tests/support/house/one_batch.py: begin -->\n"
END: Final = "<!-- made by tests/support/house/one_batch.py: end -->\n"
_PACKAGE: Final = str(Path(spark_kafka_sink.__file__).parent) + "/"
_ROWS: Final = 1000


@dataclass(slots=True)
class Way:
    """The modules of one thread, in the order in which they were entered first.

    entered_by: by module, the one that called it first. twice: modules that were entered once more
    while one of their functions waited for the call to return.
    """

    entered_by: dict[str, str | None] = field(default_factory=dict)
    twice: dict[str, str] = field(default_factory=dict)

    def enter(self, frame: FrameType) -> None:
        """Note a call of a function of this package."""
        module = _module(frame)
        caller = next(_modules_above(frame), None)
        if module is None or module == caller:
            return
        self.entered_by.setdefault(module, caller)
        if module in set(_modules_above(frame)) and caller is not None:
            self.twice.setdefault(module, caller)


def _module(frame: FrameType) -> str | None:
    file = frame.f_code.co_filename
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

    def _note(self, frame: FrameType, event: str, _argument: object) -> None:
        if self.is_on and event == "call" and _module(frame) is not None:
            self.ways.setdefault(threading.current_thread().name, Way()).enter(frame)


def ways_of_one_batch() -> dict[str, Way]:
    """Return the way of a batch in each thread, by the thread's name."""
    watch = Watch()
    rows = pa.record_batch({"value": pa.array([b"value"] * _ROWS), "key": pa.array([b"k"] * _ROWS)})

    def watched() -> Iterator[pa.RecordBatch]:
        watch.is_on = True
        yield rows

    with MockCluster() as cluster:
        cluster.create_topic("one-batch", 2)
        options = sink_options({"kafka.bootstrap.servers": cluster.bootstrap, "topic": "one-batch"})
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


def page_part(ways: dict[str, Way]) -> str:
    """Return what the page has of the ways."""
    lines = [f"{len(modules(ways))} modules. What stands in brackets calls the module first.\n"]
    for thread, way in ways.items():
        name = "The task's thread" if thread == threading.main_thread().name else f"`{thread}`"
        lines.append(f"{name}:\n")
        lines += [
            f"{number}. `{module}`" + (f" (`{caller}`)" if caller else "")
            for number, (module, caller) in enumerate(way.entered_by.items(), 1)
        ]
        again = [f"`{module}` by `{caller}`" for module, caller in way.twice.items()]
        lines.append(f"\nEntered again on the way down: {', '.join(again) or 'no module'}.\n")
    return "\n".join(lines)


def main() -> None:
    """Print the ways, or write them to the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write them to {PAGE.name}")
    made = page_part(ways_of_one_batch())
    if parser.parse_args().write:
        head, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(head + BEGIN + "\n" + made + "\n" + END + rest.partition(END)[2])
    else:
        print(made)


if __name__ == "__main__":
    main()
