"""Spark's own Kafka sink and this one behind one interface, so that a test case works with both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter

OURS: Final = "pykafka"
THEIRS: Final = "kafka"
# The exceptions of failed writes: in planning, in a Python task, in a JVM task.
WRITE_FAILED: Final = (PySparkException, Py4JJavaError)
# The time that each sink waits for something that never happens.
SOON: Final = {"kafka.max.block.ms": "2000"}


@dataclass(frozen=True)
class Sink:
    """One of the two sinks, and the brokers it writes to."""

    format: str
    bootstrap: str

    @property
    def is_ours(self) -> bool:
        """Whether it is this project's sink."""
        return self.format == OURS

    def options(self, topic: str | None, more: Mapping[str, str]) -> dict[str, str]:
        """Return the options of a write."""
        options = {"kafka.bootstrap.servers": self.bootstrap}
        return options | ({} if topic is None else {"topic": topic}) | dict(more)

    def writer(
        self, frame: DataFrame, topic: str | None, options: Mapping[str, str]
    ) -> DataFrameWriter:
        """Return the writer of a batch job, without a mode."""
        return frame.write.format(self.format).options(**self.options(topic, options))

    def append(
        self, frame: DataFrame, topic: str | None = None, options: Mapping[str, str] | None = None
    ) -> None:
        """Write a frame."""
        self.writer(frame, topic, options or {}).mode("append").save()
