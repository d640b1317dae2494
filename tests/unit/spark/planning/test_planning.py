"""The checks when a write is planned; none of them runs when one is committed."""

from __future__ import annotations

import json
import logging
import os
import pickle
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructType
from support.brokers.logins import unsigned_token
from support.brokers.scripted_broker import ScriptedBroker
from support.programs.unprivileged import unprivileged

from spark_kafka_sink.auth.delegation_tokens import with_delegation_token
from spark_kafka_sink.auth.java_properties import properties
from spark_kafka_sink.config import producer_config
from spark_kafka_sink.errors import ConfigException, DataException, TimeoutException
from spark_kafka_sink.logs import _warn
from spark_kafka_sink.model import DelegationToken, Secret
from spark_kafka_sink.network import client, nodes
from spark_kafka_sink.serde.arrow_columns import read_rows
from spark_kafka_sink.spark.options import _OWN, SinkOptions, sink_options
from spark_kafka_sink.spark.planning import preflight
from spark_kafka_sink.spark.planning.check_cache import CheckCache
from spark_kafka_sink.spark.planning.datasource import (
    KafkaDataSource,
    check_batch_write,
    check_options_and_columns,
    check_options_and_columns_of_stream,
    check_stream_write,
)
from spark_kafka_sink.spark.planning.preflight import (
    check_cluster,
    check_partitioner,
    check_report_path,
    make_dead_letter_path,
)
from spark_kafka_sink.spark.planning.schema import (
    check_has_columns,
    warn_of_unsent_columns,
)
from spark_kafka_sink.spark.report import (
    BadRowsReport,
    PartitionCounts,
    SinkCommitMessage,
    TaskReport,
)
from spark_kafka_sink.spark.writer import KafkaStreamArrowWriter, MicroBatchWriter
from spark_kafka_sink.wire.messages import METADATA

SCHEMA = StructType().add("value", StringType())
NAMES = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"}


@pytest.fixture(autouse=True)
def nothing_was_said() -> None:
    """A process that has not warned yet."""
    _warn.cache_clear()


@pytest.fixture
def dead_address() -> Iterator[str]:
    """An address without a listener."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{nobody.getsockname()[1]}"


def report_path(value: str) -> Path | None:
    """Return the parsed value of the option reportPath."""
    return sink_options(NAMES | {"reportPath": value}).report_path


@pytest.mark.parametrize(
    ("written", "path"),
    [
        ("/a/b c.json", "/a/b c.json"),
        ("file:/a/b.json", "/a/b.json"),
        ("file:///a/b.json", "/a/b.json"),
        ("FILE:///a/b.json", "/a/b.json"),
        ("file://localhost/a/b.json", "/a/b.json"),
    ],
)
def test_a_report_path_is_a_path_or_a_file_uri(written: str, path: str) -> None:
    assert report_path(written) == Path(path)


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("", "empty"),
        ("  ", "empty"),
        ("hdfs:///a/b.json", "'hdfs:///a/b.json', which is not on the driver"),
        ("s3a://bucket/b.json", "'s3a://bucket/b.json', which is not on the driver"),
        ("dbfs:/a/b.json", "'dbfs:/a/b.json', which is not on the driver"),
        (
            "s3a://KEY:hunter2@bucket/b.json",
            "'s3a://***@bucket/b.json', which is not on the driver",
        ),
        (
            "s3a://KEY:hun/t@r2@bucket/b.json",
            "'s3a://***@bucket/b.json', which is not on the driver",
        ),
        ("file://me:hunter2@host/b.json", "'file://***@host/b.json', which is not on the driver"),
        ("file://host/b.json", "'file://host/b.json', which is not on the driver"),
        ("report.json", "report.json, not an absolute path"),
        ("./reports/job.json", "reports/job.json, not an absolute path"),
        ("file:report.json", "file:report.json, not an absolute path"),
    ],
)
def test_what_is_no_file_of_the_driver_is_refused(written: str, found: str) -> None:
    with pytest.raises(ConfigException) as refused:
        report_path(written)
    assert f"option reportPath is {found}: expected a file on the driver" in str(refused.value)


def test_a_report_needs_a_file_in_a_folder_that_exists(tmp_path: Path) -> None:
    for path, found in (
        (tmp_path, "a folder"),
        (tmp_path / "no" / "such.json", f"in the folder {tmp_path / 'no'}, which does not exist"),
    ):
        with pytest.raises(ConfigException) as refused:
            check_report_path(sink_options(NAMES | {"reportPath": str(path)}), in_batches=True)
        assert f"option reportPath is {path}, {found}" in str(refused.value)
    new = str(tmp_path / "new.json")
    check_report_path(sink_options(NAMES | {"reportPath": new}), in_batches=False)
    assert list(tmp_path.iterdir()) == [], "the check wrote something"


def test_an_empty_option_reaches_the_producer() -> None:
    option = "kafka.ssl.endpoint.identification.algorithm"
    for value, expected in ((" ", ""), ("", ""), ("HTTPS", "https")):
        options = sink_options(NAMES | {"kafka.security.protocol": "SSL", option: value})
        assert options.producer.ssl_endpoint_identification_algorithm == expected


def test_an_empty_option_of_a_properties_file_reaches_the_producer() -> None:
    given = properties(
        "security.protocol=SSL\n# names are not checked\nssl.endpoint.identification.algorithm=\n"
    )
    options = sink_options(NAMES | {f"kafka.{name}": value for name, value in given.items()})
    for config in (options.producer, producer_config({"bootstrap.servers": "h:1"} | given)):
        assert config.ssl_endpoint_identification_algorithm == ""


def test_paths_are_told_without_credentials(tmp_path: Path) -> None:
    lost = "s3a:KEY:hunter2@bucket/report.json"
    with pytest.raises(ConfigException) as refused:
        sink_options(NAMES | {"reportPath": lost})
    expected = "option reportPath is ***@bucket/report.json, not an absolute path"
    assert str(refused.value).startswith(expected)
    for letters in ("KEY:hunter2@bucket/dead", "s3a://KEY:hunter2@bucket/dead"):
        with pytest.raises(
            ConfigException, match=r"option deadLetterPath is .*\*@bucket/d"
        ) as refused:
            sink_options(NAMES | {"onError": "deadLetter", "deadLetterPath": letters})
        assert "hunter2" not in str(refused.value)
    folder = tmp_path / "me@here"
    options = sink_options(NAMES | {"reportPath": str(folder / "report.json")})
    with pytest.raises(ConfigException, match=f"in the folder {folder}, which does not"):
        check_report_path(options, in_batches=False)


def test_the_driver_makes_the_folder_for_dead_letters_and_says_where_it_cannot(
    tmp_path: Path,
) -> None:
    def make(folder: Path) -> None:
        options = {"onError": "deadLetter", "deadLetterPath": str(folder)}
        make_dead_letter_path(sink_options(NAMES | options))

    for _ in range(2):
        make(tmp_path / "dead" / "letters")
    assert (tmp_path / "dead" / "letters").is_dir()
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "letters"
    with pytest.raises(ConfigException) as refused:
        make(folder)
    words = f"option deadLetterPath is {folder}, which the driver cannot create (Not a directory): "
    assert str(refused.value).startswith(words)
    with pytest.raises(
        ConfigException, match=r"file, which the driver cannot create \(File exists"
    ):
        make(tmp_path / "file")
    sealed = tmp_path / "sealed"
    sealed.mkdir(mode=0o700)
    with unprivileged(sealed), pytest.raises(ConfigException, match=r"create \(Permission denied"):
        make(sealed / "letters")
    make_dead_letter_path(sink_options(NAMES))


def test_a_client_of_spark_connect_does_not_look_at_the_server_s_folder_for_dead_letters(
    tmp_path: Path,
) -> None:
    file = tmp_path / "letters"
    file.touch()
    options = NAMES | {"onError": "deadLetter", "checkpointLocation": "/c"}
    for look in (check_options_and_columns, check_options_and_columns_of_stream):
        look(SCHEMA, options | {"deadLetterPath": str(file)})
    assert file.read_bytes() == b""


def test_a_report_that_may_not_be_written_is_told_by_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user of a test may be root, who may write anywhere."""
    there, new, sealed = (tmp_path / name for name in ("there.json", "new.json", "sealed.json"))
    there.touch()
    sealed.touch()
    may_write = {there}

    def may(path: Path, mode: int) -> bool:
        assert mode == (os.W_OK | os.X_OK if path == tmp_path else os.W_OK)
        return path in may_write

    def check(path: Path, *, in_batches: bool) -> None:
        options = sink_options(NAMES | {"reportPath": str(path)})
        check_report_path(options, in_batches=in_batches)

    monkeypatch.setattr(os, "access", may)
    words = f"reportPath is {new}, in the folder {tmp_path}, to which the driver has no permission"
    for in_batches in (False, True):
        with pytest.raises(ConfigException, match=words):
            check(new, in_batches=in_batches)
        check(there, in_batches=in_batches)
    may_write.add(tmp_path)
    check(sealed, in_batches=False)  # it is replaced
    words = f"reportPath is {sealed}, which the driver has no permission to write: expected a file"
    with pytest.raises(ConfigException, match=words):
        check(sealed, in_batches=True)
    pipe, lost = tmp_path / "pipe", tmp_path / "lost"
    os.mkfifo(pipe)
    lost.symlink_to(tmp_path / "gone" / "report.json")
    for in_batches in (False, True):
        with pytest.raises(ConfigException, match=f"{pipe}, which the driver has no perm"):
            check(pipe, in_batches=in_batches)
        words = f"{lost}, in the folder {tmp_path / 'gone'}, which does not exist on the driver"
        with pytest.raises(ConfigException, match=words):
            check(lost, in_batches=in_batches)
    may_write.add(pipe)
    check(pipe, in_batches=False)


OWN = ["topic.config.retention.ms", *_OWN.values()]


@pytest.mark.parametrize("name", [name for name in OWN if name != "unknownOptions"])
def test_text_with_half_of_a_surrogate_pair_is_refused_and_not_shown(name: str) -> None:
    said = f"^option {name} cannot be encoded as UTF-8, because it has an unpaired surrogate"
    with pytest.raises(ConfigException, match=said) as refused:
        sink_options(NAMES | {name.lower(): "s3cret\ud800"})
    assert "s3cret" not in str(refused.value)


def test_a_name_with_half_of_a_surrogate_pair_is_refused() -> None:
    said = r"^'kafka\.acks\\ud800' is not an option name: it cannot be encoded as UTF-8$"
    with pytest.raises(ConfigException, match=said):
        sink_options(NAMES | {"kafka.acks\ud800": "all", "unknownOptions": "warn"})


@pytest.mark.parametrize(
    "path", ["/reports/" + "a" * 256, "/reports/" + "ä" * 128 + "/x", "/a\0b", "/a" * 2047 + "/bc"]
)
@pytest.mark.parametrize("option", ["reportPath", "deadLetterPath"])
def test_a_path_that_no_filesystem_has_is_refused(option: str, path: str) -> None:
    with pytest.raises(
        ConfigException,
        match=f"option {option} is .*contains NUL or is too long for a filesystem: expected",
    ):
        sink_options(NAMES | {"onError": "deadLetter", "deadLetterPath": "/x", option: path})


@pytest.mark.parametrize(
    ("module", "why"),
    [
        ("import os; os.environ['SHARDS_OF_A_TEST']", "KeyError: 'SHARDS_OF_A_TEST'"),
        ("def by_shelf(", "SyntaxError: "),
        ("import sys; sys.exit(0)", "SystemExit: 0"),
        # As numpy's. A sentence is one line, so that Spark's exception has all of it.
        (
            "raise ImportError('\\n\\nno C extensions\\n\\n* reinstall')",
            "ImportError: no C extensions): ",
        ),
    ],
)
def test_a_partitioner_whose_module_fails_is_told_by_its_option(
    module: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"failing_{abs(hash(module))}"
    (tmp_path / f"{name}.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path)
    for given, reason in ((f"{name}.by_shelf", why), ("..x", "TypeError: ")):
        options = sink_options(NAMES | {"kafka.partitioner.class": given})
        with pytest.raises(ConfigException) as refused:
            check_partitioner(options)
        words = f"kafka.partitioner.class is {given!r}, which cannot be imported ({reason}"
        assert str(refused.value).startswith(words)


@pytest.mark.parametrize("end", ["", "; raise OSError('the look-up does not end')"])
def test_a_partitioner_that_a_check_makes_is_closed_and_may_fail_to(
    end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    code = f"""
open_ones = set()
class ByShelf:
    def __init__(self): open_ones.add(self)
    def __call__(self, topic, batch, partitions): return [0] * batch.num_rows
    def close(self): open_ones.remove(self){end}
by_shelf = ByShelf()
class NoChoice:
    def __init__(self): open_ones.add(self)
    def close(self): open_ones.remove(self){end}
"""
    name = f"shelves_{len(end)}"
    (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    for _ in range(3):
        check_partitioner(sink_options(NAMES | {"kafka.partitioner.class": f"{name}.ByShelf"}))
    check_partitioner(sink_options(NAMES | {"kafka.partitioner.class": f"{name}.by_shelf"}))
    with pytest.raises(ConfigException, match="cannot be called"):
        check_partitioner(sink_options(NAMES | {"kafka.partitioner.class": f"{name}.NoChoice"}))
    module = sys.modules[name]
    assert module.open_ones == {module.by_shelf}, "the object of the module is not closed"
    assert ("the look-up does not end" in caplog.text) is bool(end)


@pytest.mark.parametrize(
    ("given", "is_java"),
    [
        ("com.acme.kafka.ShelfPartitioner", True),
        ("io.acme.Partitioners$ByShelf", True),
        ("com.acme.outer$Inner", True),
        ("com.acme.outer$inner", True),
        ("acme.outer$Inner", True),
        ("de.acme.ShelfPartitioner", True),
        ("com.by_shelf", False),
        ("com.Acme", True),
        ("shelves.ByShelf", True),
        ("json.decoder.by_shelf", False),
    ],
)
def test_a_partitioner_written_in_java_is_told_to_be_one(given: str, *, is_java: bool) -> None:
    options = sink_options(NAMES | {"kafka.partitioner.class": given})
    with pytest.raises(ConfigException, match="cannot be imported") as refused:
        check_partitioner(options)
    use = "Java classes cannot run here; use roundrobin, uniformsticky, or module.Name of a Python"
    assert (use in str(refused.value)) == is_java


@pytest.mark.parametrize(
    ("given", "why", "may_be_java"),
    [
        ("acme.kafka.MyPartitioner", "ModuleNotFoundError: No module named 'acme'", True),
        ("json.MyPartitioner", "AttributeError: ", True),
        ("json.decoder.MyPartitioner", "AttributeError: ", True),
        ("com.Acme", "ModuleNotFoundError: No module named 'com'", True),
        ("acme.kafka.my_partitioner", "ModuleNotFoundError: No module named 'acme'", False),
    ],
)
def test_a_name_that_may_be_of_java_or_of_python_is_answered_for_both(
    given: str, why: str, *, may_be_java: bool
) -> None:
    options = sink_options(NAMES | {"kafka.partitioner.class": given})
    with pytest.raises(ConfigException) as refused:
        check_partitioner(options)
    message = str(refused.value)
    assert f"cannot be imported ({why}" in message
    assert "expected a Python object, a class, or the name of one as module.Name" in message
    java = ". If it is a Java class: Java classes cannot run here; use roundrobin, uniformsticky"
    assert (java in message) == may_be_java


def test_a_partitioner_in_java_s_default_package_is_answered_for_both() -> None:
    with pytest.raises(ConfigException) as refused:
        sink_options(NAMES | {"kafka.partitioner.class": "MyPartitioner"})
    assert str(refused.value) == (
        "kafka.partitioner.class is 'MyPartitioner': expected one of roundrobin, uniformsticky, "
        "module.Name of a Python callable, or empty for the built-in one. If it is a Java class: "
        "Java classes cannot run here; use one of these"
    )
    with pytest.raises(ConfigException, match=r"or empty for the built-in one$"):
        sink_options(NAMES | {"kafka.partitioner.class": "sticky"})


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import json\njson.no_such_name\n", "no_such_name'"),
        ("import no_such_shelves\n", "No module named 'no_such_shelves'"),
        ("import broken\n", "No module named 'broken'"),
    ],
)
def test_an_error_of_one_s_own_module_is_not_about_java(
    code: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_shelves.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    options = sink_options(NAMES | {"kafka.partitioner.class": "broken_shelves.ByShelf"})
    with pytest.raises(ConfigException, match=said) as refused:
        check_partitioner(options)
    assert "Java" not in str(refused.value)


CAST = "cast the {0} column to string or binary"
NO_JAVA = "Java classes cannot run here"
FUNCTION = "use a function of Spark, such as to_json or to_protobuf"
AVRO_FORMAT = "set {0}Format=avro and schema.registry.url instead"


@pytest.mark.parametrize("option", ["key", "value"])
@pytest.mark.parametrize(
    ("given", "advice"),
    [
        (
            "org.apache.kafka.common.serialization.StringSerializer",
            f"{CAST}. {NO_JAVA}; {FUNCTION}",
        ),
        ("acme.avro.MySerializer", f"{CAST}. {NO_JAVA}; {FUNCTION}"),
        ("MySerializer", f"{CAST}. {NO_JAVA}; {FUNCTION}"),
        ("io.confluent.kafka.serializers.KafkaJsonSerializer", f"{CAST}. {NO_JAVA}; {FUNCTION}"),
        (
            "io.confluent.kafka.serializers.protobuf.KafkaProtobufSerializer",
            f"{CAST}. {NO_JAVA}; {FUNCTION}",
        ),
        ("io.confluent.kafka.serializers.KafkaAvroSerializer", f"{NO_JAVA}; {AVRO_FORMAT}"),
        (" KafkaAvroSerializer ", f"{NO_JAVA}; {AVRO_FORMAT}"),
        ("io.apicurio.registry.serde.avro.AvroKafkaSerializer", f"{NO_JAVA}; {AVRO_FORMAT}"),
        (
            "io.confluent.kafka.serializers.json.KafkaJsonSchemaSerializer",
            f"{NO_JAVA}; {AVRO_FORMAT.replace('avro', 'json_sr')}",
        ),
        ("json.dumps", CAST),
    ],
)
def test_a_serializer_is_answered_with_what_takes_its_place(
    option: str, given: str, advice: str
) -> None:
    for name in (f"kafka.{option}.serializer", f"{option}.serializer"):
        with pytest.raises(ConfigException, match=rf"'{option}\.serializer' is not ") as refused:
            sink_options(NAMES | {name: given})
        expected = f" serialized with ByteArraySerializer: {advice.format(option)}"
        assert str(refused.value).endswith(expected)


def test_a_write_is_not_planned_where_the_topic_cannot_be_asked_for(dead_address: str) -> None:
    options = NAMES | {"kafka.bootstrap.servers": dead_address, "kafka.max.block.ms": "300"}
    for plan in (KafkaDataSource(options).writer, KafkaDataSource(options).streamWriter):
        with pytest.raises(TimeoutException, match=r"no broker has .*kafka\.max\.block\.ms=300"):
            plan(SCHEMA, overwrite=False)


def test_a_write_is_not_planned_where_the_report_cannot_be_written() -> None:
    options = NAMES | {"reportPath": "/no/such/folder/report.json"}
    for plan in (KafkaDataSource(options).writer, KafkaDataSource(options).streamWriter):
        with pytest.raises(ConfigException, match="option reportPath is"):
            plan(SCHEMA, overwrite=False)


def test_a_commit_asks_nobody_and_checks_nothing(
    dead_address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = NAMES | {
        "kafka.bootstrap.servers": dead_address,
        "reportPath": "/no/such/folder/report.json",
    }
    source = pickle.loads(pickle.dumps(KafkaDataSource(options)))
    done = SinkCommitMessage(
        report=TaskReport(task=0, attempt=0, host="h", rows=1, seconds=0.0),
        started_at=0.0,
        throttle_ms=0,
        bad_rows=BadRowsReport(on_error="fail"),
        expired_rows=[],
        partitions=PartitionCounts(),
        dead_letters=PartitionCounts(),
    )
    source.streamWriter(SCHEMA, overwrite=False).commit([done], 1)
    assert "wrote 1 row " in capsys.readouterr().err


def test_driver_and_task_say_the_same_of_a_column_that_is_missing() -> None:
    for columns, topic in ((["key"], "t"), (["value"], None)):
        schema = StructType()
        for name in columns:
            schema.add(name, StringType())
        with pytest.raises(DataException) as planned:
            check_has_columns(schema, topic)
        with pytest.raises(DataException) as read:
            read_rows(pa.record_batch({name: ["x"] for name in columns}), topic, 0)
        assert str(planned.value).startswith(str(read.value))


def test_columns_that_are_not_sent_are_named_once_for_a_schema(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ours, theirs = StructType(), StructType()
    for name in ("key", "value", "topic", "partition", "headers", "timestamp"):
        ours.add(name, StringType())
    for name in ("value", "Key", "VALUE", "offset"):
        theirs.add(name, StringType())
    for schema in (ours, theirs, ours, theirs):
        warn_of_unsent_columns(schema)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.message == (
        "pykafka does not send the columns Key (column names are case-sensitive: did you mean "
        "key?), VALUE, offset: a record is made of key, value, topic, partition, headers, timestamp"
    )


def test_of_many_columns_that_are_not_sent_ten_are_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    schema = StructType().add("value", StringType())
    for number in range(3000):
        schema.add(f"column_{number}", StringType())
    warn_of_unsent_columns(schema)
    (record,) = caplog.records
    assert record.message == (
        f"pykafka does not send the columns {', '.join(f'column_{n}' for n in range(10))} and 2990 "
        "more: a record is made of key, value, topic, partition, headers, timestamp"
    )


def test_a_stream_whose_tasks_were_given_no_rows_is_not_committed() -> None:
    """So it is with the continuous trigger; a batch without tasks is another matter."""
    writer = KafkaStreamArrowWriter(sink_options(NAMES))
    with pytest.raises(ConfigException, match="the continuous trigger, Spark passes no rows"):
        writer.commit([None, None], 0)
    writer.commit([], 0)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"subscribe": "t"}, "on a sink: subscribe"),
        ({"unknownoptions": "warn", "nobodys": "x"}, "option nobodys is not an option of the pyk"),
        ({"unknownoptions": "warn", "kafka.my.own": "x"}, "kafka.my.own is not an option of the K"),
        ({"kafka.metric.reporters": "com.acme.X"}, "kafka.metric.reporters has no effect: "),
        ({"kafka.metrics.recording.level": "DEBUG"}, "kafka.metrics.recording.level has no effec"),
        ({"kafka.retry.backoff.ms": "2000"}, "kafka.retry.backoff.ms=2000 is more than kafka."),
    ],
    ids=str,
)
def test_what_is_ignored_is_said_once_however_often_a_stream_is_planned(
    more: dict[str, str], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        sink_options(NAMES | more)
    (record,) = caplog.records
    assert said in record.getMessage()


def test_what_another_value_gives_cause_to_say_is_said_as_well(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for pause in ("2000", "3000", "2000"):
        sink_options(NAMES | {"kafka.retry.backoff.ms": pause})
    assert [record.getMessage()[:27] for record in caplog.records] == [
        "kafka.retry.backoff.ms=2000",
        "kafka.retry.backoff.ms=3000",
    ]


def test_the_sink_s_batches_are_large_and_linger() -> None:
    producer = sink_options(NAMES).producer
    assert (producer.batch_size, producer.linger_ms) == (512 * 1024, 300)
    given = {"kafka.batch.size": "1000", "kafka.linger.ms": "5"}
    producer = sink_options(NAMES | given).producer
    assert (producer.batch_size, producer.linger_ms) == (1000, 5)


def test_what_spark_itself_puts_among_the_options_is_no_option_of_the_sink() -> None:
    sparks = {"path": "p", "checkpointLocation": "/c", "queryName": "orders"}
    sparks |= {
        "asyncProgressTrackingEnabled": "false",
        "asyncProgressTrackingCheckpointIntervalMs": "1000",
    }
    assert sink_options(NAMES | sparks) == sink_options(NAMES)


def test_reports_of_streams_and_of_write_batch_are_lines(tmp_path: Path) -> None:
    options = sink_options(NAMES | {"reportPath": str(tmp_path / "reports.jsonl")})
    for batch_id in (7, 8):
        MicroBatchWriter(options, batch_id).commit([])
        KafkaStreamArrowWriter(options).commit([], batch_id)
    lines = (tmp_path / "reports.jsonl").read_text().splitlines()
    assert [json.loads(line)["batch_id"] for line in lines] == [7, 7, 8, 8]


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[SinkOptions]:
    """The options of each check of a cluster; the check finds as many partitions as checks."""
    found: list[SinkOptions] = []

    def look(options: SinkOptions, *, has_headers: bool, again: bool) -> preflight._Found:
        found.append(options)
        return preflight._Found(time.monotonic(), None, len(found), None, ())

    monkeypatch.setattr(preflight, "_look", look)
    return found


def test_what_one_cluster_or_user_was_found_to_have_counts_for_no_other(
    monkeypatch: pytest.MonkeyPatch, looked: list[SinkOptions]
) -> None:
    monkeypatch.setattr(preflight, "_found", CheckCache())
    others: tuple[dict[str, str], ...] = (
        {},
        {"kafka.bootstrap.servers": "other:1"},
        {"kafka.client.id": "another"},
    )
    checked = [sink_options(NAMES | other) for other in others] * 2
    found = [check_cluster(each, has_headers=False, may_remember=True) for each in checked]
    assert [each.partitions for each in found] == [1, 2, 3, 1, 2, 3]


def test_what_one_user_of_a_token_file_was_found_to_have_counts_for_no_other(
    monkeypatch: pytest.MonkeyPatch, looked: list[SinkOptions], tmp_path: Path
) -> None:
    monkeypatch.setattr(preflight, "_found", CheckCache())
    file = tmp_path / "token"
    login = {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.oauthbearer.token.endpoint.url": file.as_uri(),
    }
    options = sink_options(NAMES | login)
    found = []
    for user in ("alice", "bob", "alice"):
        file.write_text(unsigned_token(user))
        found.append(check_cluster(options, has_headers=False, may_remember=True).partitions)
    assert found == [1, 2, 1]


def test_what_was_found_with_old_delegation_tokens_is_forgotten(
    monkeypatch: pytest.MonkeyPatch, looked: list[SinkOptions]
) -> None:
    results: CheckCache[Any, Any] = CheckCache()
    monkeypatch.setattr(preflight, "_found", results)
    options = sink_options(NAMES)
    for number in range(150):
        token = DelegationToken(
            token_id="id", hmac=Secret("hmac"), owner="User:a", issue_timestamp_ms=0,
            expiry_timestamp_ms=number, max_timestamp_ms=0,
        )  # fmt: skip
        config = with_delegation_token(options.producer, token, "SCRAM-SHA-256")
        checked = replace(options, producer=config)
        check_cluster(checked, has_headers=False, may_remember=True)
    assert len(results) == 100
    check_cluster(checked, has_headers=False, may_remember=True)
    assert len(looked) == 150, "the newest token's result is kept"


class SaidError(BaseException):
    """Ends a call that would go on waiting after its warning."""


@pytest.fixture
def silent_address() -> Iterator[str]:
    """The address of a listener that accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def sasl_address() -> Iterator[str]:
    """The address of a listener that closes connections at any request but ApiVersions."""
    with ScriptedBroker() as broker:
        broker.hangs_up_on.add(METADATA.key)
        yield broker.address


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("silent_address", r"no broker has answered for 0 s, still trying"),
        ("sasl_address", r"bootstrap \(127\.0\.0\.1:\d+\): .* it may expect SASL"),
    ],
)
@pytest.mark.parametrize("check", [check_batch_write, check_stream_write])
def test_a_check_that_waits_for_brokers_says_so_while_it_waits(
    check: Callable[[StructType, Mapping[str, str]], None],
    address: str,
    said: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nodes, "_NO_RESPONSE_S", 0.0 if address == "silent_address" else 60.0)
    options = NAMES | {"kafka.bootstrap.servers": request.getfixturevalue(address)}
    options["kafka.max.block.ms"] = "10000"

    class Ending(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno == logging.WARNING:
                raise SaidError(record.getMessage())

    handler, logger = Ending(), logging.getLogger(client.__name__)
    logger.addHandler(handler)
    try:
        with pytest.raises(SaidError, match=said):
            check(SCHEMA, options)
    finally:
        logger.removeHandler(handler)
