"""How each contender writes the rows of a cell to a topic, and why a contender cannot.

Every contender has the same acks, idempotence (except R0, which has no producer id) and
compression. R0 and R6 send bytes that are prepared from the cell's own rows before the measurement.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import importlib.util
import itertools
import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.avro.functions import to_avro

from bench import raw_socket
from bench.cells import CONTENDERS, OURS, SAIL, TUNED, USUAL_PARTITIONS, Cell, Kind
from bench.rows import marked
from bench.sail import Sail
from bench.topics import Topics
from bench.worker_contenders import (
    SOURCES,
    ArrowKafkaSource,
    ConfluentAvroSource,
    ConfluentKafkaSource,
    DiscardSource,
    KafkaPythonSource,
)
from spark_kafka_sink import register
from spark_kafka_sink.records.compression import codec
from spark_kafka_sink.serde.derived_avro import derive_schema
from spark_kafka_sink.serde.wire_format import schema_id_prefix
from spark_kafka_sink.spark.driver import register as arrow_batches
from spark_kafka_sink.spark.planning.spark_types import column_type

BEFORE_FORMAT: Final = "pykafka_before"
_PACKAGE: Final = "spark_kafka_sink"


def ship_before(spark: SparkSession, checkout: Path) -> None:
    """Register a checkout's sink with a session and its workers as the format `BEFORE_FORMAT`.

    Its package is shipped as `spark_kafka_sink_before`, so that one worker can import both. The
    names are replaced in the text.
    """
    path = _archive(checkout)
    spark.sparkContext.addPyFile(str(path))
    spark.dataSource.register(importlib.import_module(path.stem).KafkaDataSource)


@functools.cache
def _archive(checkout: Path) -> Path:
    """Return an archive of the checkout, importable here while this process runs."""
    folder = tempfile.mkdtemp(prefix="bench-before-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder, f"{_PACKAGE}_before.zip")
    with zipfile.ZipFile(path, "w") as archive:
        for source in sorted((checkout / _PACKAGE).rglob("*.py")):
            name = str(source.relative_to(checkout)).replace(_PACKAGE, path.stem)
            text = source.read_text().replace(_PACKAGE, path.stem)
            archive.writestr(name, text.replace('"pykafka"', f'"{BEFORE_FORMAT}"'))
    sys.path.insert(1, str(path))
    return path


# Writes a frame with this number of rows to a topic; returns the seconds if only the contender
# knows them.
Write = Callable[[DataFrame, str, int], float | None]

_BATCH_BYTES: Final = 512 * 1024
_SPARKS_ROWS: Final = 10_000  # the most rows of an Arrow batch
_SCHEMA_ID: Final = 1
_PAYLOAD_BYTES: Final = 16 * 1024 * 1024
_PERF_TEST: Final = "org.apache.kafka.tools.ProducerPerformance"
_PERF_RESULT: Final = re.compile(r"(\d+) records sent, ([\d.]+) records/sec")
_JVM_SINK: Final = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
_JVM_AVRO: Final = "org.apache.spark.sql.avro.functions"


class NotRunError(Exception):
    """A contender cannot write the rows of a cell; the message is the reason in a few words."""


class Tls(NamedTuple):
    """The brokers' listener with TLS, and a PEM file with the certificate to trust."""

    bootstrap: str
    truststore: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The input of contenders: a session, a cell, some of its rows, and the target.

    tls: None if the brokers have no such listener. parquet: the cell's rows, None if they are
    cached. sail: None if no Python with Sail is named.
    """

    spark: SparkSession
    cell: Cell
    sample: DataFrame
    bootstrap: str
    topics: Topics
    registry: str
    kafka_libs: Path | None
    before: Path | None
    tls: Tls | None = None
    parquet: Path | None = None
    sail: Sail | None = None


def prepare(spark: SparkSession) -> None:
    """Register the sink as in README, and make the Python contenders available to the workers."""
    register(spark)
    spark.sparkContext.addPyFile(str(_worker_archive()))
    for source in SOURCES:
        spark.dataSource.register(source)


@functools.cache
def _worker_archive() -> Path:
    """Return an archive of only those modules of the package that workers import."""
    folder = tempfile.mkdtemp(prefix="bench-workers-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder, "bench.zip")
    here = Path(__file__).parent
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("__init__.py", "worker_contenders.py"):
            archive.write(here / name, f"{here.name}/{name}")
    return path


def write_of(name: str, setting: Setting) -> Write:
    """Return the function with which a contender writes. Raise NotRunError."""
    plain = CONTENDERS[name].over_tls
    if plain is not None and not setting.cell.tls:
        raise NotRunError("it is for cells with TLS")
    if plain is None and setting.cell.tls and name not in _WITH_TLS:
        raise NotRunError("it is not compared over TLS")
    compares_modes = name == OURS or CONTENDERS[name].exactly_once is not None
    if setting.cell.exactly_once and not compares_modes:
        raise NotRunError("it has no exactlyOnce")
    if CONTENDERS[name].exactly_once is not None and not setting.cell.exactly_once:
        raise NotRunError("it is for cells with exactlyOnce")
    if plain is not None and setting.tls is None:
        raise NotRunError("--tls-bootstrap and --tls-truststore are not set")
    if setting.cell.avro and not CONTENDERS[name].avro and name not in _WITH_AVRO:
        raise NotRunError("it does not write Avro")
    if CONTENDERS[name].avro and not setting.cell.avro:
        raise NotRunError("it is for cells of Avro")
    if setting.cell.parquet and name not in _WITH_PARQUET:
        raise NotRunError("it is not compared with rows from Parquet")
    return _BUILDERS[name](setting)


# The contenders that are compared with themselves over TLS.
_WITH_TLS: Final = frozenset(each.over_tls for each in CONTENDERS.values() if each.over_tls)
# The contenders that can write structs, too.
_WITH_AVRO: Final = (OURS, "R1h", "noop")
# The contenders that read the rows in the measured write.
_WITH_PARQUET: Final = (OURS, "R1h", "noop", "R2", "R2t", SAIL)


def _spark_writer(source: str, options: dict[str, str]) -> Write:
    def write(frame: DataFrame, topic: str, _rows: int) -> None:
        frame.write.format(source).mode("append").options(**options, topic=topic).save()

    return write


def _noop(_setting: Setting) -> Write:
    return lambda frame, _topic, _rows: frame.write.format("noop").mode("append").save()


def _kafka_options(setting: Setting) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": setting.bootstrap,
        "kafka.compression.type": setting.cell.compression,
    }


def _tls_options(setting: Setting) -> dict[str, str]:
    """Return the options of a sink over TLS, which are the same for both sinks."""
    if setting.tls is None:
        return {}
    return {
        "kafka.bootstrap.servers": setting.tls.bootstrap,
        "kafka.security.protocol": "SSL",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": str(setting.tls.truststore),
    }


def _ours(setting: Setting, *, tls: bool = False) -> Write:
    more = _tls_options(setting) if tls else {}
    if setting.cell.avro:
        more |= {"valueFormat": "avro", "schema.registry.url": setting.registry}
    write = _spark_writer("pykafka", _kafka_options(setting) | more)
    if not setting.cell.exactly_once:
        return write
    partitions = setting.cell.partitions
    return lambda frame, topic, rows: write(marked(frame, topic, partitions), topic, rows)


_VERSIONS: Final = itertools.count(time.time_ns())


def _exactly_once(name: str, setting: Setting) -> Write:
    """Return the sink with the contender's mode, which writes a new version at each call."""

    def write(frame: DataFrame, topic: str, rows: int) -> None:
        mode = str(CONTENDERS[name].exactly_once)
        version = {"exactlyOnce": mode, "txnAppId": name, "txnVersion": str(next(_VERSIONS))}
        laid_out = marked(frame, topic, setting.cell.partitions)
        _spark_writer("pykafka", _kafka_options(setting) | version)(laid_out, topic, rows)

    return write


def _to_one_partition(setting: Setting) -> Write:
    if setting.cell.partitions <= USUAL_PARTITIONS:
        raise NotRunError("it is for cells of many partitions")
    return _ours(setting)


def _unregistered(setting: Setting) -> Write:
    if setting.cell.value_bytes * _SPARKS_ROWS < arrow_batches.LIMIT_BYTES:
        raise NotRunError("its Arrow batches are as R1's, by the number of their rows")
    write, conf = _ours(setting), setting.spark.conf

    def with_sparks_limit(frame: DataFrame, topic: str, count: int) -> None:
        limit = conf.get(arrow_batches.SETTING) or arrow_batches.SPARKS_DEFAULT
        conf.set(arrow_batches.SETTING, arrow_batches.SPARKS_DEFAULT)
        try:
            write(frame, topic, count)
        finally:
            conf.set(arrow_batches.SETTING, limit)

    return with_sparks_limit


def _before(setting: Setting) -> Write:
    if setting.before is None:
        raise NotRunError("--before is not a checkout")
    ship_before(setting.spark, setting.before)
    return _spark_writer(BEFORE_FORMAT, _kafka_options(setting))


def _check_class(setting: Setting, name: str) -> None:
    """Raise NotRunError if Spark does not find a class."""
    jvm = setting.spark._jvm  # noqa: SLF001 - the way to ask for a class
    try:
        if jvm is None:
            raise NotRunError("a Connect session has no JVM to ask")
        loader = jvm.Thread.currentThread().getContextClassLoader()
        jvm.java.lang.Class.forName(name, True, loader)  # noqa: FBT003 - Java's signature
    except Py4JError:
        raise NotRunError("its jars are not on Spark's class path (--jars)") from None


def _avro_schema(setting: Setting) -> str:
    """Return the Avro schema of a cell's values, which is the same for all contenders."""
    kind = setting.sample.schema["value"].dataType
    return derive_schema(column_type(kind), "value", "Value")


def _made_by_jvm(setting: Setting) -> Write:
    """Return a write of this sink, whose values Spark makes, and puts the prefix before them."""
    _check_class(setting, _JVM_AVRO)
    prefix = functions.lit(bytearray(schema_id_prefix(_SCHEMA_ID)))
    value = functions.concat(prefix, to_avro("value", _avro_schema(setting)))
    write = _spark_writer("pykafka", _kafka_options(setting))
    return lambda frame, topic, rows: write(frame.withColumn("value", value), topic, rows)


def _avro_serializer(setting: Setting) -> Write:
    if not str(setting.spark.sparkContext.master).startswith("local"):
        raise NotRunError("its schema registry is on 127.0.0.1 of the driver's machine")
    options = {"schema": _avro_schema(setting)}
    if importlib.util.find_spec("authlib") is None:
        raise NotRunError("the Python module authlib, which it needs, is not installed")
    return _python_writer("confluent_kafka", ConfluentAvroSource, setting, options)


def _jvm_sink(setting: Setting, *, tuned: bool, tls: bool = False) -> Write:
    _check_class(setting, _JVM_SINK)
    settings = TUNED if tuned else {}
    options = {f"kafka.{name}": value for name, value in settings.items()}
    options |= _tls_options(setting) if tls else {}
    return _spark_writer("kafka", _kafka_options(setting) | options)


def _python_writer(
    module: str | None, source: type, setting: Setting, more: Mapping[str, str] | None = None
) -> Write:
    if module is not None and importlib.util.find_spec(module) is None:
        raise NotRunError(f"the Python module {module} is not installed")
    options = {
        "bootstrap": setting.bootstrap,
        "compression": setting.cell.compression,
        "registry": setting.registry,
        **(more or {}),
    }
    return _spark_writer(source.format_name, options)  # type: ignore[attr-defined]


def _arrow_kafka(setting: Setting) -> Write:
    if setting.cell.headers:
        raise NotRunError("its headers are the same for all rows")
    if not str(setting.spark.sparkContext.master).startswith("local"):
        raise NotRunError("its schema registry is on 127.0.0.1 of the driver's machine")
    return _python_writer("arrow_kafka_pyo3", ArrowKafkaSource, setting)


def _on_sail(setting: Setting) -> Write:
    if setting.parquet is None:
        raise NotRunError("it is for cells that are read from Parquet")
    if setting.sail is None:
        raise NotRunError("--sail-python is not a Python with pysail and this sink")
    options, sail, parquet = _kafka_options(setting), setting.sail, setting.parquet
    return lambda _frame, topic, _rows: sail.write(parquet, options | {"topic": topic})


def _raw_socket(setting: Setting) -> Write:
    cell, tasks = setting.cell, setting.spark.sparkContext.defaultParallelism
    rows = _arrow_rows(setting.sample, cell, 4 * _BATCH_BYTES)
    now_ms = round(time.time() * 1000)
    full = raw_socket.batch_of(rows, cell.compression, now_ms)
    fitting = full.records * _BATCH_BYTES // full.size_bytes
    if cell.key_bytes:
        # A task's rows go to all partitions, so no batch can have more than its share.
        fitting = min(fitting, -(-cell.rows // (tasks * cell.partitions)))
    fitting = max(1, min(fitting, rows.num_rows))
    batch = raw_socket.batch_of(rows.slice(0, fitting), cell.compression, now_ms)

    def write(_frame: DataFrame, topic: str, count: int) -> float:
        return raw_socket.write(setting.topics.shares(topic, tasks), topic, batch, count)

    return write


def _codec_alone(setting: Setting) -> Write:
    cell, tasks = setting.cell, setting.spark.sparkContext.defaultParallelism
    if cell.compression == "none":
        raise NotRunError("there is nothing to compress")
    rows = _arrow_rows(setting.sample, cell, _BATCH_BYTES)
    records = raw_socket.records_of(rows, round(time.time() * 1000))
    packing = codec(cell.compression)

    def write(_frame: DataFrame, _topic: str, count: int) -> None:
        with ThreadPoolExecutor(tasks) as pool:
            for _ in pool.map(packing, [[records]] * -(-count // rows.num_rows)):
                pass

    return write


def _arrow_rows(frame: DataFrame, cell: Cell, size_bytes: int) -> pa.RecordBatch:
    count = max(1, size_bytes // (cell.value_bytes + cell.key_bytes + 10))
    table = frame.limit(count).toArrow().combine_chunks()
    return table.to_batches()[0]


def _perf_test(setting: Setting) -> Write:
    cell, libs = setting.cell, setting.kafka_libs
    if cell.key_bytes or cell.headers:
        raise NotRunError("it sends neither keys nor headers")
    if cell.kind is Kind.STREAM:
        raise NotRunError("it starts a JVM of its own for every micro-batch")
    if libs is None or not any(libs.glob("kafka-tools-*.jar")):
        raise NotRunError("--kafka-libs is not a folder with Kafka's jars")
    if shutil.which("java") is None:
        raise NotRunError("there is no java on the PATH")
    settings = TUNED | {
        "bootstrap.servers": setting.bootstrap,
        "compression.type": cell.compression,
    }
    values = _arrow_rows(setting.sample, cell, _PAYLOAD_BYTES).column("value").to_pylist()
    command = ["java", "-Xmx1g", "-cp", f"{libs}/*", _PERF_TEST, "--throughput", "-1"]
    command += ["--command-property", *(f"{name}={value}" for name, value in settings.items())]

    def write(_frame: DataFrame, topic: str, count: int) -> float:
        with tempfile.NamedTemporaryFile(prefix="bench-payload-") as payload:
            payload.write(b"\n".join(values))
            payload.flush()
            this = ["--topic", topic, "--num-records", str(count), "--payload-file", payload.name]
            done = subprocess.run([*command, *this], capture_output=True, text=True, check=False)  # noqa: S603 - no shell
        results = _PERF_RESULT.findall(done.stdout)
        if done.returncode or not results or int(results[-1][0]) != count:
            raise RuntimeError(f"kafka-producer-perf-test: {(done.stderr or done.stdout)[-300:]}")
        return count / float(results[-1][1])

    return write


_BUILDERS: Final[dict[str, Callable[[Setting], Write]]] = {
    "R0": _raw_socket,
    "R1": _ours,
    "R1b": _before,
    "R1p": _to_one_partition,
    "R1u": _unregistered,
    "R1c": _codec_alone,
    "R1h": functools.partial(_python_writer, None, DiscardSource),
    "noop": _noop,
    "R2": functools.partial(_jvm_sink, tuned=False),
    "R2t": functools.partial(_jvm_sink, tuned=True),
    "R1s": functools.partial(_ours, tls=True),
    "R2s": functools.partial(_jvm_sink, tuned=False, tls=True),
    "R2ts": functools.partial(_jvm_sink, tuned=True, tls=True),
    "R1e": functools.partial(_exactly_once, "R1e"),
    "R1x": functools.partial(_exactly_once, "R1x"),
    "R1j": _made_by_jvm,
    "R3": functools.partial(_python_writer, "confluent_kafka", ConfluentKafkaSource),
    "R3a": _avro_serializer,
    "R4": functools.partial(_python_writer, "kafka", KafkaPythonSource),
    "R6": _perf_test,
    SAIL: _on_sail,
    "R8": _arrow_kafka,
}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(404, {"error_code": 40401, "message": "Subject not found."})

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        asked = json.loads(self.rfile.read(length) or b"{}")
        self._answer(200, {"id": _SCHEMA_ID, "version": 1, "schema": asked.get("schema", "")})

    def _answer(self, status: int, body: Mapping[str, object]) -> None:
        answer = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def schema_registry() -> Iterator[str]:
    """Run a schema registry on 127.0.0.1 and yield its address.

    It has no subjects, and registers every schema with id 1. Nothing reads the records that are
    written with it.
    """
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
