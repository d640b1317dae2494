"""A program: jobs and streams of Spark in one mode of exactly once, one after another.

Arguments: the mode, an empty folder, and for each cluster its name and its brokers. It prints one
JSON object: for each cluster and each case, the values that readers see in its topics, and the
error.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere
from pyspark.sql.streaming.query import StreamingQuery

from spark_kafka_sink import atomic_layout, register, write_batch
from support.oracles.readers import committed_values, create_topic
from support.spark.held_commits import VARIABLE, held_commits

_IN_TIME_S = 120.0
_FAILS = "if(value = '77', raise_error('no'), value)"


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + _IN_TIME_S
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.02)


def fails_once(mark: Path) -> Column:
    """Return the column value; the first task with the value 77 fails after it has rows."""

    def pass_on(value: str) -> str:
        if value == "77" and not mark.exists():
            mark.touch()
            raise RuntimeError("the first attempt fails")
        return value

    return F.udf(pass_on, "string")("value")


def waits(folder: Path) -> Column:
    """Return the column value; a task waits as long as the folder has a file `wait`."""
    wait, waiting = folder / "wait", folder / "waiting"

    def pass_on(value: str) -> str:
        if wait.exists():
            waiting.touch()
            wait_until(lambda: not wait.exists(), "nobody stops the query")
        return value

    return F.udf(pass_on, "string")("value")


class Cases:
    """The cases of one mode on one cluster."""

    def __init__(self, spark: SparkSession, mode: str, bootstrap: str, folder: Path) -> None:
        self.found: dict[str, object] = {}
        self._spark = spark
        self._mode = mode
        self._bootstrap = bootstrap
        self._folder = folder
        self._lines = folder / "lines"
        self._lines.mkdir(parents=True)
        self._log = self._new_topic(1, {"cleanup.policy": "compact"})

    def _new_topic(self, partitions: int, config: dict[str, str] | None = None) -> str:
        name = f"topic-{uuid.uuid4().hex[:12]}"
        create_topic(self._bootstrap, name, partitions, config, replicas=1)
        return name

    def _case(self, name: str, run: Callable[[], None], *topics: str) -> None:
        try:
            run()
            error = None
        except Exception as failure:  # noqa: BLE001 - it is what the case came to
            error = str(failure)
        values = [committed_values(self._bootstrap, topic) for topic in topics]
        self.found[name] = [*values, error]
        counts = list(map(len, values))
        print(self._bootstrap, name, counts, error, file=sys.stderr, flush=True)

    def _options(self, topic: str, **more: str) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self._bootstrap,
            "topic": topic,
            "exactlyOnce": self._mode,
            "commitLogTopic": self._log,
            "kafka.transaction.timeout.ms": "60000",
            **more,
        }

    def _ready(self, frame: DataFrame, options: dict[str, str]) -> DataFrame:
        """Return the frame as the mode wants it."""
        return atomic_layout(frame, options) if self._mode == "single" else frame

    # -- jobs -------------------------------------------------------------------------------------

    def run_jobs(self) -> None:
        """Run the cases of batch jobs."""
        topic = self._new_topic(8)
        rows = self._spark.range(200).select(F.col("id").cast("string").alias("value"))
        rows = rows.repartition(8)

        def save(
            frame: DataFrame,
            version: int,
            change: Callable[[DataFrame], DataFrame] = lambda frame: frame,
        ) -> None:
            given = self._options(topic, txnAppId="cases", txnVersion=str(version))
            ready = change(self._ready(frame, given))
            ready.write.format("pykafka").options(**given).save()

        def value(column: Column) -> Callable[[DataFrame], DataFrame]:
            return lambda frame: frame.withColumn("value", column)

        def case(name: str, run: Callable[[], None]) -> None:
            self._case(name, run, topic)

        case("200 rows of 8 tasks", lambda: save(rows, 1))
        case("again", lambda: save(rows, 1))
        case("one task", lambda: save(rows.filter("value = '0'").coalesce(1), 20))
        case("some empty tasks", lambda: save(rows.filter("value IN ('1', '2')"), 2))
        case("no rows", lambda: save(rows.filter("false"), 3))
        case("rows for the version without rows", lambda: save(rows, 3))
        case("a task fails", lambda: save(rows, 4, value(F.expr(_FAILS))))
        case("and the job runs again", lambda: save(rows, 4))
        mark = self._folder / "failed"
        case("an attempt fails", lambda: save(rows, 5, value(fails_once(mark))))
        if self._mode == "single":
            case("a union", lambda: save(rows, 6, lambda frame: frame.union(frame)))
            case("another layout", lambda: save(rows, 7, lambda frame: frame.repartition(8)))

    # -- streams ----------------------------------------------------------------------------------

    def _add(self, *files: int) -> None:
        """Add files of ten lines."""
        for number in files:
            text = "".join(f"{number}.{line}\n" for line in range(10))
            (self._folder / f"{number}.txt").write_text(text)
            (self._folder / f"{number}.txt").rename(self._lines / f"{number}.txt")

    def _stream(self) -> DataFrame:
        """Return the files as a stream, one to a micro-batch."""
        reader = self._spark.readStream.format("text").option("maxFilesPerTrigger", "1")
        return reader.load(str(self._lines))

    def _checkpoint(self, name: str) -> Path:
        return self._folder / "checkpoints" / name

    def _start(self, topic: str, change: Column | None = None) -> StreamingQuery:
        """Begin to write what there is to a topic."""
        options = self._options(topic)
        ready = self._ready(self._stream(), options)
        if change is not None:
            ready = ready.withColumn("value", change)
        writer = ready.writeStream.format("pykafka").options(**options)
        writer = writer.option("checkpointLocation", str(self._checkpoint(topic)))
        return writer.trigger(availableNow=True).start()

    def _run_function(self, name: str, save: Callable[[DataFrame, int], None]) -> None:
        writer = self._stream().writeStream.foreachBatch(save)
        writer = writer.option("checkpointLocation", str(self._checkpoint(name)))
        writer.trigger(availableNow=True).start().awaitTermination()

    def _write_batch(self, frame: DataFrame, batch_id: int, topic: str, **more: str) -> None:
        options = self._options(topic, **more)
        write_batch(self._ready(frame, options), batch_id, options)

    def _save_version(self, frame: DataFrame, version: int, topic: str) -> None:
        given = self._options(topic, txnAppId="by version", txnVersion=str(version))
        self._ready(frame, given).write.format("pykafka").options(**given).save()

    def _forget_commit(self, name: str) -> None:
        """Make Spark run the last micro-batch again."""
        commits = self._checkpoint(name) / "commits"
        newest = max(int(file.name) for file in commits.iterdir() if file.name.isdecimal())
        for each in (f"{newest}", f".{newest}.crc"):
            (commits / each).unlink(missing_ok=True)

    def run_streams(self) -> None:
        """Run the cases of streams."""
        topic = self._new_topic(4)

        def run() -> None:
            self._start(topic).awaitTermination()

        def case(name: str, run: Callable[[], None]) -> None:
            self._case(name, run, topic)

        self._add(1, 2)
        case("two micro-batches", run)
        self._forget_commit(topic)
        case("the last one again", run)
        self._add(3)
        case("another one", run)
        self._add(4)
        case("it is stopped in a task", lambda: self._stop_in_task(topic))
        case("and starts again", run)
        self._add(5)
        case("it is stopped in its commit", lambda: self._stop_in_commit(topic))
        case("and starts again after its commit", run)
        shutil.rmtree(self._checkpoint(topic))
        case("its checkpoint is deleted", run)

    def _stop_in_task(self, topic: str) -> None:
        wait, waiting = self._folder / "wait", self._folder / "waiting"
        wait.touch()
        query = self._start(topic, waits(self._folder))
        wait_until(waiting.exists, "no task waits")
        query.stop()
        wait.unlink()

    def _stop_in_commit(self, topic: str) -> None:
        with held_commits() as is_held:
            query = self._start(topic)
            wait_until(is_held, "no commit is held")
            # It returns once the commit has ended.
            stopping = threading.Thread(target=query.stop, daemon=True)
            stopping.start()
            wait_until(lambda: not query.isActive, "the query does not stop")
        stopping.join(_IN_TIME_S)

    def run_functions(self) -> None:
        """Run the cases of foreachBatch; the files are those of the streams."""
        topic, second = self._new_topic(4), self._new_topic(4)

        def one(frame: DataFrame, batch_id: int) -> None:
            self._write_batch(frame, batch_id, topic)

        def two(frame: DataFrame, batch_id: int) -> None:
            self._write_batch(frame, batch_id, topic, txnAppId="two")
            self._write_batch(frame, batch_id, second, txnAppId="two")
            options = self._options(topic, txnAppId="two")
            del options["topic"]
            is_first = F.col("value").endswith(".0")
            column = F.when(is_first, topic).otherwise(second)
            ready = self._ready(frame.withColumn("topic", column), options)
            write_batch(ready, batch_id, options)

        def twice(frame: DataFrame, batch_id: int) -> None:
            frame.sparkSession.sparkContext.setJobDescription("of the user")
            self._write_batch(frame, batch_id, topic, txnAppId="twice")
            self._write_batch(frame, batch_id, topic, txnAppId="twice")

        def by_version(frame: DataFrame, batch_id: int) -> None:
            self._save_version(frame, batch_id, topic)

        def by_version_twice(frame: DataFrame, batch_id: int) -> None:
            self._save_version(frame, batch_id, topic)
            self._save_version(frame, batch_id, topic)

        def run(name: str, save: Callable[[DataFrame, int], None]) -> None:
            self._case(name, lambda: self._run_function(save.__name__, save), topic, second)

        run("by a function", one)
        self._forget_commit("one")
        run("the last one by it again", one)
        run("one application, two topics and a topic column", two)
        self._forget_commit("two")
        run("the last one of all three again", two)
        run("one application and one topic twice", twice)
        run("by both options", by_version)
        self._forget_commit("by_version")
        run("the last one by both options again", by_version)
        run("by both options twice, with another checkpoint", by_version_twice)


def main() -> None:
    """Run all cases on each cluster."""
    mode, folder, *clusters = sys.argv[1:]
    os.environ[VARIABLE] = folder
    spark = (
        SparkSession.builder.master("local[2,2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    register(spark)
    found = {}
    for name, bootstrap in zip(clusters[::2], clusters[1::2], strict=True):
        cases = Cases(spark, mode, bootstrap, Path(folder) / name.replace(" ", "-"))
        cases.run_jobs()
        cases.run_streams()
        cases.run_functions()
        found[name] = cases.found
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main()
