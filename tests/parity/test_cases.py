"""Columns and options: each case is written once, and run with this sink and with Spark's own.

A case has the records in the topic afterwards, or the error. If the two sinks are meant to differ,
the case has both results, and docs/contributing/differences.md has a row that names it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from conftest import NewTopic
from pyspark.sql import SparkSession
from support.documents.named_tests import ROOT
from support.oracles.readers import read_with_confluent
from support.spark.peer import SOON, WRITE_FAILED, Sink

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True)
class Written:
    """The contents of the topic: key, value and headers of each record, in any order."""

    records: tuple[tuple[bytes | None, bytes | None, Headers], ...]


@dataclass(frozen=True)
class Refused:
    """Parts of the error message, in any case."""

    words: str


@dataclass(frozen=True)
class Case:
    """A frame of one row or several, and the expected result.

    select: SQL, in which {topic} is the topic. topic: the option, or None for none. theirs: the
    result of Spark's own sink, if it differs.
    """

    name: str
    select: str
    expected: Written | Refused
    theirs: Written | Refused | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    topic: str | None = "{topic}"


def one(value: bytes | None = b"v", key: bytes | None = None, headers: Headers = ()) -> Written:
    """Return the outcome with one record."""
    return Written(((key, value, headers),))


def wrong(column: str, found: str, expected: str) -> Refused:
    """Return the rejection of a column's type."""
    return Refused(f"{column} attribute unsupported type {found}. {column} must be a(n) {expected}")


STRING_OR_BINARY = "string or binary"
HEADERS = "array<struct<key:string,value:binary>>"
HEADER = "named_struct('key', 'h', 'value', CAST('1' AS BINARY))"
NO_TOPIC = Refused("topic option required when no 'topic' attribute is present.")

COLUMNS = [
    Case("value-of-strings", "'значение ☃' AS value", one("значение ☃".encode())),
    Case("value-of-bytes", "X'00FF' AS value", one(b"\x00\xff")),
    Case("value-of-varchar", "CAST('v' AS VARCHAR(3)) AS value", one()),
    Case("null-value", "CAST(NULL AS STRING) AS value, 'k' AS key", one(None, b"k")),
    Case("null-and-empty-keys",
         "'v' AS value, key FROM VALUES (CAST(NULL AS STRING)), ('') AS t(key)",
         Written(((None, b"v", ()), (b"", b"v", ())))),
    Case("key-of-bytes", "'v' AS value, X'80' AS key", one(key=b"\x80")),
    Case("one-header", f"'v' AS value, array({HEADER}) AS headers", one(headers=(("h", b"1"),))),
    Case("several-headers-twice-the-same-key",
         f"'v' AS value, array({HEADER}, named_struct('key', 'g', 'value', X''), {HEADER}) "
         "AS headers",
         one(headers=(("h", b"1"), ("g", b""), ("h", b"1")))),
    Case("header-with-null-value",
         "'v' AS value, array(named_struct('key', 'h', 'value', CAST(NULL AS BINARY))) AS headers",
         one(headers=(("h", None),))),
    Case("header-key-that-is-no-text",
         "'v' AS value, array(named_struct('key', CAST(X'61FFEDA080' AS STRING), 'value', X'80')) "
         "AS headers",
         one(headers=(("a\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}", b"\x80"),))),
    Case("null-headers", f"'v' AS value, CAST(NULL AS {HEADERS}) AS headers", one()),
    Case("no-headers", f"'v' AS value, CAST(array() AS {HEADERS}) AS headers", one()),
    Case("header-fields-in-other-letters",
         "'v' AS value, array(named_struct('KEY', 'h', 'Value', CAST('1' AS BINARY))) AS headers",
         one(headers=(("h", b"1"),))),
    Case("topic-column", "'v' AS value, '{topic}' AS topic", one(), topic=None),
    Case("topic-option-wins", "'v' AS value, 'foo' AS topic", one()),
    Case("topic-option-wins-over-null", "'v' AS value, CAST(NULL AS STRING) AS topic", one()),
    Case("topic-option-wins-over-other-types", "'v' AS value, 1 AS topic", one()),
    Case("topic-option-is-trimmed", "'v' AS value", one(), topic="  {topic} "),
    Case("null-partition", "'v' AS value, CAST(NULL AS INT) AS partition", one()),
    Case("other-columns",
         "'v' AS value, 'K' AS Key, 'V' AS VALUE, 1L AS offset, 0 AS timestampType", one()),
    Case("other-columns-of-many-kinds",
         "'v' AS value, map('k', 1) AS a, struct() AS b, CAST(1 AS DECIMAL(38, 10)) AS c, "
         "DATE'2024-02-29' AS d, array(named_struct('a', 1, 'A', 2)) AS e", one()),
    Case("analyzed-plan", "to_json(struct(*)) AS value FROM (SELECT 1 AS a)", one(b'{"a":1}')),
    Case("empty-frame", "'v' AS value WHERE false", Written(())),
    # Refused by both, with the same words.
    Case("no-topic", "'v' AS value", NO_TOPIC, topic=None),
    Case("topic-in-other-letters", "'v' AS value, '{topic}' AS Topic", NO_TOPIC, topic=None),
    Case("no-value", "'v' AS wert", Refused("Required attribute 'value' not found")),
    Case("value-in-other-letters", "'v' AS Value", Refused("Required attribute 'value' not found")),
    Case("topic-of-ints", "'v' AS value, 1 AS topic", wrong("topic", "int", "string"), topic=None),
    Case("topic-of-bytes", "'v' AS value, X'41' AS topic", wrong("topic", "binary", "string"),
         topic=None),
    Case("value-of-ints", "1 AS value", wrong("value", "int", STRING_OR_BINARY)),
    Case("value-of-nothing", "NULL AS value", wrong("value", "void", STRING_OR_BINARY)),
    Case("value-of-a-struct", "struct(1 AS a) AS value",
         wrong("value", "struct<a:int>", STRING_OR_BINARY)),
    Case("value-with-collation", "'v' COLLATE UTF8_LCASE AS value",
         wrong("value", "string collate UTF8_LCASE", STRING_OR_BINARY)),
    Case("key-of-ints", "'v' AS value, 1 AS key", wrong("key", "int", STRING_OR_BINARY)),
    Case("partition-of-strings", "'v' AS value, '1' AS partition",
         wrong("partition", "string", "int")),
    Case("partition-of-bigints", "'v' AS value, 1L AS partition",
         wrong("partition", "bigint", "int")),
    Case("headers-of-strings", "'v' AS value, array('h') AS headers",
         wrong("headers", "array<string>", HEADERS)),
    Case("header-fields-in-other-order",
         "'v' AS value, array(named_struct('value', X'41', 'key', 'h')) AS headers",
         wrong("headers", "array<struct<value:binary,key:string>>", HEADERS)),
    Case("wrong-type-in-an-empty-frame", "1 AS value WHERE false",
         wrong("value", "int", STRING_OR_BINARY)),
    Case("null-topic", "'v' AS value, CAST(NULL AS STRING) AS topic",
         Refused("The Kafka message data sent to the producer contains a null topic"), topic=None),
    Case("negative-partition", "'v' AS value, -1 AS partition", Refused("Invalid partition: -1")),
    Case("topic-that-is-not-there", "'v' AS value", Refused("Topic nope not present in metadata"),
         topic="nope", options=SOON),
    Case("topic-of-a-column-that-is-not-there", "'v' AS value, 'nope' AS topic",
         Refused("Topic nope not present in metadata"), topic=None, options=SOON),
    Case("bad-topic-name", "'v' AS value", Refused("InvalidTopicException"), topic="bad topic!"),
    Case("topic-column-is-not-trimmed", "'v' AS value, ' {topic} ' AS topic",
         Refused("InvalidTopicException"), topic=None),
    # Differences.
    Case("empty-frame-to-a-topic-that-is-not-there", "'v' AS value WHERE false",
         Refused("Topic nope not present in metadata"), theirs=Written(()), topic="nope",
         options=SOON),
    Case("headers-as-a-map", "'v' AS value, map('h', X'31') AS headers",
         one(headers=(("h", b"1"),)),
         theirs=wrong("headers", "map<string,binary>", HEADERS)),
    Case("two-columns-of-one-name", "'v' AS value, 'w' AS value",
         Refused("the data has 2 columns named value"), theirs=one()),
    Case("struct-with-two-fields-of-one-name",
         "'v' AS value, array(named_struct('a', 1, 'a', 2)) AS other",
         Refused("column other has two fields named a in the struct other.element and cannot be"),
         theirs=one()),
    Case("year-month-interval", "'v' AS value, INTERVAL '1' YEAR AS other",
         Refused("column other is of type interval year and cannot be passed to Python"),
         theirs=Refused("doesn't support the column `other` of the type \"INTERVAL YEAR\"")),
    Case("day-time-interval-and-variant",
         "'v' AS value, INTERVAL '1' DAY AS other, parse_json('1') AS b, NULL AS c", one(),
         theirs=Refused("doesn't support the column `other` of the type \"INTERVAL DAY\"")),
    Case("timestamp-of-strings", "'v' AS value, '2024' AS timestamp",
         wrong("timestamp", "string", "timestamp or bigint"), theirs=one()),
    Case("partition-beyond-the-topic", "'v' AS value, 9 AS partition",
         Refused("has 3 partitions, 0 to 2"),
         theirs=Refused("with partition count 3 is not present in metadata"), options=SOON),
    Case("header-with-null-key",
         "'v' AS value, array(named_struct('key', CAST(NULL AS STRING), 'value', X'')) AS headers",
         Refused("headers has a header whose key is null"), theirs=Refused("NullPointerException")),
    Case("empty-topic-option", "'v' AS value", NO_TOPIC,
         theirs=Refused("InvalidTopicException"), topic=" "),
]  # fmt: skip

OPTIONS = [
    Case("names-in-other-letters", "'v' AS value", one(), options={"KAFKA.Linger.MS": "1"}),
    Case("options-of-the-source", f"'v' AS value, array({HEADER}) AS headers",
         one(headers=(("h", b"1"),)),
         options={"includeHeaders": "false", "startingOffsets": "earliest", "minPartitions": "3",
                  "failOnDataLoss": "false", "kafka.group.id": "g"}),
    Case("partitioner-by-its-java-name", "'v' AS value", one(),
         options={"kafka.partitioner.class":
                  "org.apache.kafka.clients.producer.RoundRobinPartitioner"}),
    Case("compression-and-acks", "'v' AS value", one(),
         options={"kafka.compression.type": "zstd", "kafka.acks": "-1"}),
    Case("serializer-of-keys", "'v' AS value",
         Refused("Kafka option 'key.serializer' is not supported as keys are serialized with "
                 "ByteArraySerializer"),
         options={"kafka.key.serializer": "org.example.Mine"}),
    Case("serializer-of-values", "'v' AS value",
         Refused("Kafka option 'value.serializer' is not supported as value are serialized with "
                 "ByteArraySerializer"),
         options={"kafka.value.serializer": "org.example.Mine"}),
    # Refused by both; this sink's words name the option as the user wrote it.
    Case("acks-of-2", "'v' AS value", Refused("kafka.acks is '2': expected one of all, -1, 0, 1"),
         theirs=Refused("Invalid value 2 for configuration acks"), options={"kafka.acks": "2"}),
    Case("linger-that-is-no-number", "'v' AS value", Refused("kafka.linger.ms is 'soon'"),
         theirs=Refused("Invalid value soon for configuration linger.ms"),
         options={"kafka.linger.ms": "soon"}),
    Case("address-without-port", "'v' AS value",
         Refused("kafka.bootstrap.servers has 'localhost', which is not an address"),
         theirs=Refused("Invalid url in bootstrap.servers: localhost"),
         options={"kafka.bootstrap.servers": "localhost"}),
    # Differences.
    Case("partitioner-of-ones-own", "'v' AS value",
         Refused("'com.example.Mine', which cannot be imported "
                 "(ModuleNotFoundError: No module named 'com'): Java classes cannot run here; use "
                 "roundrobin, uniformsticky, or module.Name of a Python callable"),
         theirs=Refused("Class com.example.Mine could not be found"),
         options={"kafka.partitioner.class": "com.example.Mine"}),
    Case("unknown-option", "'v' AS value", Refused("did you mean topic?"), theirs=one(),
         options={"topc": "foo"}),
    Case("unknown-option-of-the-producer", "'v' AS value",
         Refused("did you mean kafka.batch.size?"), theirs=one(),
         options={"kafka.btch.size": "1"}),
]  # fmt: skip


@pytest.mark.parametrize("case", [*COLUMNS, *OPTIONS], ids=lambda case: case.name)
def test_case(
    spark: SparkSession,
    new_topic: NewTopic,
    untouched: str,
    sink: Sink,
    case: Case,
) -> None:
    expected = case.expected if sink.is_ours or case.theirs is None else case.theirs
    topic = new_topic(3) if isinstance(expected, Written) else untouched
    option = None if case.topic is None else case.topic.format(topic=topic)
    frame = spark.sql("SELECT " + case.select.replace("{topic}", topic))
    if isinstance(expected, Refused):
        with pytest.raises(WRITE_FAILED) as refused:
            sink.append(frame, option, case.options)
        assert expected.words.lower() in str(refused.value).lower()
    else:
        sink.append(frame, option, case.options)
    found = Counter((r.key, r.value, r.headers) for r in read_with_confluent(sink.bootstrap, topic))
    assert found == Counter(expected.records if isinstance(expected, Written) else ())


def test_header_fields_in_other_letters_are_taken_here_also_where_letters_count(
    spark: SparkSession, new_topic: NewTopic, sink: Sink
) -> None:
    topic = new_topic(1)
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        frame = spark.sql(
            "SELECT 'v' AS value, array(named_struct('KEY', 'h', 'VALUE', X'31')) AS headers"
        )
        if sink.is_ours:
            sink.append(frame, topic)
        else:
            with pytest.raises(WRITE_FAILED, match="headers attribute unsupported type"):
                sink.append(frame, topic)
    finally:
        spark.conf.unset("spark.sql.caseSensitive")
    found = [record.headers for record in read_with_confluent(sink.bootstrap, topic)]
    assert found == ([(("h", b"1"),)] if sink.is_ours else [])


def test_every_difference_has_its_row_in_the_document() -> None:
    text = (ROOT / "docs" / "contributing" / "differences.md").read_text()
    different = [case.name for case in [*COLUMNS, *OPTIONS] if case.theirs is not None]
    assert [name for name in different if f"[{name}]" not in text] == []
