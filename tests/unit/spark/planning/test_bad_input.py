"""Every wrong option and column ends the planning of a write, on the driver: no broker is asked.

The sentence names the option or the column, what was found, and what is expected or nearest.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CalendarIntervalType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
    YearMonthIntervalType,
)
from support.brokers import fetch_kafka
from support.brokers.jvm import run_java

from spark_kafka_sink.config import NO_EFFECT, NOT_YET, OFF_ONLY, REFUSED, option_fields
from spark_kafka_sink.errors import ConfigException, DataException
from spark_kafka_sink.spark import options as sink
from spark_kafka_sink.spark.planning.datasource import KafkaDataSource, check_options_and_columns
from spark_kafka_sink.spark.planning.schema import check_schema

VALUE = StructType().add("value", StringType())
# No value of theirs is wrong by itself.
FREE_TEXT = {
    "config.providers",
    "client.rack",
    "client.id",
    "sasl.jaas.config",
    "sasl.kerberos.keytab",
    "sasl.kerberos.principal",
    "sasl.kerberos.service.name",
    "sasl.mechanism",
    "sasl.oauthbearer.assertion.claim.aud",
    "sasl.oauthbearer.assertion.claim.iss",
    "sasl.oauthbearer.assertion.claim.sub",
    "sasl.oauthbearer.assertion.file",
    "sasl.oauthbearer.assertion.private.key.file",
    "sasl.oauthbearer.assertion.private.key.passphrase",
    "sasl.oauthbearer.assertion.template.file",
    "sasl.oauthbearer.client.credentials.client.id",
    "sasl.oauthbearer.client.credentials.client.secret",
    "sasl.oauthbearer.jwt.retriever.class",
    "sasl.oauthbearer.sub.claim.name",
    "sasl.oauthbearer.scope",
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.password",
    "sasl.username",
    "ssl.cipher.suites",
    "ssl.key.password",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.truststore.certificates",
    "ssl.truststore.location",
    "ssl.truststore.password",
}
NAMES = sorted(
    {field.encode_name for field in option_fields()}
    - {"transactional.id", "transaction.timeout.ms"}
)
HEADER = StructType().add("key", StringType()).add("value", BinaryType())
REVERSED = StructType().add("value", StringType()).add("key", StringType())
TYPES: list[DataType] = [
    ArrayType(HEADER), ArrayType(REVERSED), ArrayType(StringType()), BinaryType(), BooleanType(),
    ByteType(), DateType(), DecimalType(20, 0), DoubleType(), HEADER, IntegerType(), LongType(),
    NullType(), ShortType(), StringType("UNICODE"), StringType(), TimestampNTZType(),
    TimestampType(), VariantType(),
]  # fmt: skip
ACCEPTED: Mapping[str, tuple[DataType, ...]] = {
    "value": (StringType(), BinaryType()),
    "key": (StringType(), BinaryType()),
    "topic": (StringType(),),
    "partition": (IntegerType(),),
    "headers": (ArrayType(HEADER),),
    "timestamp": (TimestampType(), LongType()),
}


def refusal(
    options: Mapping[str, str],
    schema: StructType = VALUE,
    *,
    overwrite: bool = False,
    omitted: str = "",
) -> str:
    """Return why a write cannot be planned; a network error would be of another type."""
    given = {
        "kafka.bootstrap.servers": "127.0.0.1:1",
        "kafka.max.block.ms": "1",
        **options,
    }
    given.pop(omitted, None)
    with pytest.raises((ConfigException, DataException)) as refused:
        KafkaDataSource({"topic": "t"} | given).writer(schema, overwrite)
    return str(refused.value)


def is_sentence_about(text: str, *words: str) -> bool:
    return all(word in text for word in words) and "\n" not in text and "Traceback (" not in text


def used(name: str) -> dict[str, str]:
    """Return the protocol with which an option has an effect."""
    secured = name.startswith(("sasl.", "ssl."))
    return {"kafka.security.protocol": "SASL_SSL"} if secured else {}


@pytest.mark.parametrize("name", sorted(set(NAMES) - FREE_TEXT))
def test_a_value_that_is_none_is_refused_by_its_name(name: str) -> None:
    said = refusal(used(name) | {f"kafka.{name}": "x!"})
    assert is_sentence_about(said, f"kafka.{name}", "'x!'")
    assert "expected" in said or "write host:port" in said


@pytest.mark.parametrize(
    "name", sorted(f.encode_name for f in option_fields() if isinstance(f.default, int))
)
def test_a_number_that_is_too_large_is_refused_by_its_name(name: str) -> None:
    said = refusal(used(name) | {f"kafka.{name}": "99999999999999999999"})
    assert is_sentence_about(said, f"kafka.{name}", "99999999999999999999", "expected")


@pytest.mark.parametrize("name", sorted(NOT_YET))
def test_what_is_not_there_yet_is_refused(name: str) -> None:
    protocol = {"kafka.security.protocol": "SASL_SSL"}
    for more in ({}, {"unknownoptions": "warn"}):
        said = refusal({f"kafka.{name}": "MARKER"} | protocol | more)
        assert is_sentence_about(said, f"kafka.{name}", "is not supported yet", "remove it")
        assert "MARKER" not in said


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_is_not_offered_is_refused_with_the_reason(name: str) -> None:
    said = refusal({f"kafka.{name}": "MARKER", "unknownoptions": "warn"})
    assert is_sentence_about(said, name)
    assert "is not supported: " in said or "is not supported as " in said
    assert "MARKER" not in said


@pytest.mark.parametrize("name", sorted(OFF_ONLY))
def test_what_can_only_be_off_is_refused_if_it_is_on(name: str) -> None:
    said = refusal({f"kafka.{name}": "true"})
    assert is_sentence_about(said, f"kafka.{name} is 'true': expected false, since ")


def test_every_option_of_java_s_consumers_is_ignored_and_reaches_no_producer() -> None:
    names = {
        name
        for version in (fetch_kafka.OLD, fetch_kafka.NEWEST)
        for name in run_java("ConsumerOptions", version=version).splitlines()
        if not name.startswith("internal.")
    } - {*NOT_YET, *NAMES}
    assert len(names) > 20
    given = {"kafka.bootstrap.servers": "h:1", "includeTimestamp": "true"}
    found = sink.sink_options(given | {f"kafka.{name}": "MARKER" for name in names})
    assert found == sink.sink_options({"kafka.bootstrap.servers": "h:1"})


def misspelt(name: str) -> str:
    """Return a name with a typo: without its last letter but one."""
    return name[:-2] + name[-1]


@pytest.mark.parametrize("name", sorted({*NAMES, *NO_EFFECT, *OFF_ONLY}))
def test_a_misspelt_option_is_answered_with_the_right_one(name: str) -> None:
    said = refusal({f"kafka.{misspelt(name)}": "MARKER"}, omitted=f"kafka.{name}")
    assert is_sentence_about(said, f"kafka.{misspelt(name)} ", f"did you mean kafka.{name}?")
    assert "MARKER" not in said


@pytest.mark.parametrize("name", sorted(sink._OWN.values()))
def test_a_misspelt_option_of_the_sink_is_answered_with_the_right_one(name: str) -> None:
    said = refusal({misspelt(name).lower(): "MARKER"})
    assert is_sentence_about(said, f"option {misspelt(name).lower()} ", f"did you mean {name}?")
    assert "MARKER" not in said


@pytest.mark.parametrize("name", sorted(sink._SOURCE_ONLY.values()))
def test_an_option_of_the_source_is_never_what_was_meant(name: str) -> None:
    """It would be ignored."""
    said = refusal({misspelt(name).lower(): "MARKER"})
    hint = said.partition("did you mean ")[2].partition("?")[0]
    assert hint.lower() not in sink._SOURCE_ONLY
    assert f"{misspelt(name).lower()} is not an option of the " in said
    assert "MARKER" not in said


@pytest.mark.parametrize("name", sorted({*NAMES, *NO_EFFECT, *OFF_ONLY}))
def test_an_option_of_the_producer_without_its_prefix_is_answered_with_it(name: str) -> None:
    said = refusal({name: "MARKER"})
    assert is_sentence_about(said, f"option {name} is not", f"did you mean kafka.{name}?")
    assert "MARKER" not in said
    said = refusal({misspelt(name): "MARKER"})
    assert is_sentence_about(said, f"option {misspelt(name)} is not", f"mean kafka.{name}?")


@pytest.mark.parametrize("name", sorted({*NOT_YET, *REFUSED, "transactional.id"}))
def test_what_is_not_offered_is_never_what_was_meant(name: str) -> None:
    """The suggested option would be refused, too."""
    reason = refusal({f"kafka.{name}": "MARKER"})
    for written in (name, misspelt(name), f"kafka.{misspelt(name)}"):
        said = refusal({written: "MARKER"})
        assert is_sentence_about(said, f"{written} is not an option of the ")
        assert said.endswith(f", and {reason}")
        options = {"kafka.bootstrap.servers": "h:1"}
        ignored = sink.sink_options(options | {written: "MARKER", "unknownoptions": "warn"})
        assert ignored == sink.sink_options(options)


@pytest.mark.parametrize("name", [*sink._OWN.values(), "topic.config.cleanup.policy"])
def test_an_option_of_the_sink_behind_the_producer_s_prefix_is_answered_without(name: str) -> None:
    given = {f"kafka.{name.lower()}": "MARKER"}
    said = refusal(given)
    assert is_sentence_about(said, f"kafka.{name.lower()} is not an option of the Kafka producer")
    assert said.endswith(f"; did you mean {name}?")
    address = {"kafka.bootstrap.servers": "h:1"}
    ignored = sink.sink_options(address | given | {"unknownoptions": " Warn "})
    assert ignored == sink.sink_options(address)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("truststore.location", "kafka.ssl.truststore.location"),
        ("partitions", "topic.partitions"),
        ("compression", "kafka.compression.type"),
        ("topic.configs.retention.ms", "topic.config.retention.ms"),
        ("topic.cofnig.max.message.bytes", "topic.config.max.message.bytes"),
        ("topics.config.cleanup.policy", "topic.config.cleanup.policy"),
        ("topic.retention.ms", "topic.config.retention.ms"),
        ("topic.replication.factor", "topic.replication"),
        ("topic.replicaton.factor", "topic.replication"),
        ("topic.partition.count", "topic.partitions"),
        ("topic.max.request.size", "kafka.max.request.size"),
        ("topic.compression.type", "topic.config.compression.type"),
        ("bootstrap.server", "kafka.bootstrap.servers"),
        *((name, "") for name in ("header", "mode", "partition")),
        ("password", "kafka.sasl.password"),
        ("username", "kafka.sasl.username"),
        *((name, "") for name in ("session.timeout.ms", "key.deserializer", "checkpointpath")),
        *((name, "") for name in ("repartition", "topic.name", "retry")),
    ],
)
def test_what_is_like_no_option_is_answered_with_none(name: str, nearest: str) -> None:
    said = refusal({name: "MARKER"})
    assert is_sentence_about(said, f"option {name} is not an option of the pykafka sink")
    assert said.partition("did you mean ")[2].partition("?")[0] == nearest


@pytest.mark.parametrize("value", ["7", "x", "", "write_batch", "none"])
def test_the_number_of_a_micro_batch_is_no_option_of_users(value: str) -> None:
    said = refusal({"pykafka.batch.id": value})
    assert is_sentence_about(said, "option pykafka.batch.id is not an option of the pykafka sink")


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.simpleString())
@pytest.mark.parametrize("column", ACCEPTED)
def test_a_column_of_any_other_type_is_refused(column: str, kind: DataType) -> None:
    if kind in ACCEPTED[column]:
        return
    schema = StructType().add(column, kind)
    for needed in {"topic", "value"} - {column}:
        schema.add(needed, StringType())
    said = refusal({"topic": ""}, schema)
    found = f"{column} attribute unsupported type {kind.simpleString()}. "
    assert is_sentence_about(said, found, f"{column} must be a(n) ")


def test_a_column_that_is_missing_or_there_twice_is_named() -> None:
    assert "Required attribute 'value' not found" in refusal({}, StructType())
    no_topic = "topic option required when no 'topic' attribute is present"
    assert no_topic in refusal({"topic": " "})
    # The subject of a schema also needs the topic, but is not what is missing.
    registry = {"valueFormat": "avro", "schema.registry.url": "http://127.0.0.1:1"}
    assert refusal({"topic": " ", **registry}).startswith(no_topic)
    twice = StructType().add("value", StringType()).add("value", StringType())
    assert "the data has 2 columns named value" in refusal({}, twice)
    others = StructType().add("x", LongType()).add("x", MapType(StringType(), StringType()))
    assert "the data has 2 columns named x" in refusal({}, others)


TWICE = StructType().add("a", LongType()).add("a", LongType())


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (YearMonthIntervalType(), "is of type interval year to month"),
        (CalendarIntervalType(), "is of type interval"),
        (ArrayType(CalendarIntervalType()), "is of type array<interval>"),
        (StructType().add("s", CalendarIntervalType()), "is of type struct<s:interval>"),
        (TWICE, "has two fields named a in the struct other"),
        (ArrayType(TWICE), "has two fields named a in the struct other.element"),
        (MapType(StringType(), TWICE), "has two fields named a in the struct other.value"),
        (MapType(TWICE, StringType()), "has two fields named a in the struct other.key"),
        (StructType().add("s", TWICE), "has two fields named a in the struct other.s"),
    ],
    ids=str,
)
def test_a_column_that_cannot_be_handed_to_python_is_refused_though_it_is_not_sent(
    kind: DataType, reason: str
) -> None:
    said = refusal({}, StructType().add("value", StringType()).add("other", kind))
    advice = "drop it" if "two fields" in reason else "cast it to string, or drop it,"
    assert said == f"column other {reason} and cannot be passed to Python: {advice} before writing"


@pytest.mark.parametrize(
    "kind",
    [
        *TYPES, DayTimeIntervalType(), ArrayType(YearMonthIntervalType()),
        StructType().add("y", YearMonthIntervalType()), MapType(StringType(), HEADER), StructType(),
        StructType().add("a", LongType()).add("A", LongType()),
    ],
    ids=str,
)  # fmt: skip
def test_any_other_column_may_stand_beside_those_that_are_sent(kind: DataType) -> None:
    # Not raising is what a user sees: the write goes on.
    check_schema(StructType().add("value", StringType()).add("other", kind), "t")


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        (ArrayType(YearMonthIntervalType()), "other.element is of type interval year to month"),
        (MapType(YearMonthIntervalType(), LongType()), "other.key is of type interval year to m"),
        (MapType(LongType(), StructType()), "other.value is of type struct<>"),
        (ArrayType(StructType().add("y", StructType())), "other.element.y is of type struct<>"),
        (StructType(), "other is of type struct<>"),
    ],
    ids=str,
)
def test_a_column_that_dead_letters_in_a_folder_cannot_have_is_refused(
    kind: DataType, found: str
) -> None:
    schema = StructType().add("value", StringType()).add("other", kind)
    said = refusal({"onError": "deadLetter", "deadLetterPath": "/dead"}, schema)
    assert is_sentence_about(said, f"column {found}", "or set deadLetterTopic in place of")
    # A dead letter in a topic has no such column.
    in_topic = {"topic": "t", "onError": "deadLetter", "deadLetterTopic": "dead"}
    check_options_and_columns(schema, {"kafka.bootstrap.servers": "b:1", **in_topic})


def test_a_column_that_is_encoded_is_in_dead_letters_in_another_type() -> None:
    schema = StructType().add("value", StructType().add("nothing", StructType()))
    given = {
        "kafka.bootstrap.servers": "b:1", "topic": "t", "valueFormat": "avro",
        "schema.registry.url": "http://127.0.0.1:1", "onError": "deadLetter",
        "deadLetterPath": "/dead",
    }  # fmt: skip
    check_options_and_columns(schema, given)


def test_overwriting_is_refused() -> None:
    assert is_sentence_about(refusal({}, overwrite=True), "Save mode Overwrite", '.mode("append")')


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kafka.bootstrap.servers": " "}, "bootstrap.servers is not set"),
        ({"kafka.bootstrap.servers": "h"}, "has 'h', which is not an address"),
        ({"kafka.bootstrap.servers": "h:0"}, "has 'h:0', which is not an address"),
        ({"kafka.bootstrap.servers": "h:1,h2:70000"}, "has 'h2:70000', which is not an address"),
        ({"kafka.transactional.id": "t"}, "a task of Spark cannot own a transactional id"),
        ({"kafka.enable.idempotence": "true", "kafka.acks": "1"}, "acks is 1 and must be all"),
        ({"kafka.enable.idempotence": "true", "kafka.retries": "0"}, "kafka.retries is 0"),
        ({"kafka.max.in.flight.requests.per.connection": "6"}, "allows at most 5"),
        ({"kafka.delivery.timeout.ms": "7"}, "kafka.delivery.timeout.ms is 7: expected at least"),
        ({"reportpath": ""}, "option reportPath is empty: expected a file on the driver"),
        ({"reportpath": "s3://b/r"}, "'s3://b/r', which is not on the driver"),
        ({"unknownoptions": "maybe"}, "option unknownOptions is 'maybe': expected error or warn"),
        ({"nothing.like.it": "1"}, "option nothing.like.it is not an option of the pykafka sink"),
        ({"kafka.": "1"}, "kafka. is not an option of the Kafka producer"),
    ],
)  # fmt: skip
def test_options_that_are_wrong_together_or_by_their_own_rules(
    options: dict[str, str], words: str
) -> None:
    assert is_sentence_about(refusal(options), words)
