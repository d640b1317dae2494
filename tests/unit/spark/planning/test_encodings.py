"""Keys and values in Avro: what the driver decides, and what it refuses before any row."""

# ruff: noqa: E501 - messages stand in one piece

from __future__ import annotations

import inspect
import json
import pickle
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T  # noqa: N812 - as everywhere
from pyspark.sql.pandas.types import to_arrow_type

from spark_kafka_sink.errors import ConfigException, DataException
from spark_kafka_sink.schema_registry.schemas import SchemaReference
from spark_kafka_sink.serde.arrow_types import column_type as column_type_of_arrow
from spark_kafka_sink.serde.avro_plan import fit
from spark_kafka_sink.serde.avro_schema import parse_schema
from spark_kafka_sink.serde.column_types import ColumnType, Kind
from spark_kafka_sink.spark.formats import as_converted, as_metadata, format_options
from spark_kafka_sink.spark.options import SinkOptions
from spark_kafka_sink.spark.planning.datasource import (
    KafkaDataSource,
    check_options_and_columns,
    check_options_and_columns_of_stream,
)
from spark_kafka_sink.spark.planning.spark_types import column_type

ORDER = T.StructType().add("id", T.LongType(), nullable=False).add("name", T.StringType())
SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "name", "type": ["string", "null"]}, {"name": "id", "type": "long"}],
}
DERIVED = """
    {"type": "record", "name": "%s", "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"], "default": null}]}
"""


def checked(schema: T.StructType, **options: str) -> SinkOptions:
    """Return the options of a batch write, as the driver checks them; no broker is asked."""
    given = {"kafka.bootstrap.servers": "b:1", "topic": "t", **options}
    return KafkaDataSource(given).check(schema)[0]


def plan_of(text: str, kind: T.DataType = ORDER, column: str = "value") -> object:
    """Return the plan of a column with a schema."""
    return fit(column_type(kind), parse_schema(text), column)


def rows(value: T.DataType = ORDER, key: T.DataType | None = None) -> T.StructType:
    """Return the schema of the data."""
    schema = T.StructType().add("value", value)
    return schema if key is None else schema.add("key", key)


def test_a_derived_schema_has_the_name_of_the_options() -> None:
    (encoding,) = checked(rows(), valueFormat="Avro").encodings
    assert (encoding.column, encoding.prefix) == ("value", b"")
    assert encoding.plan == plan_of(DERIVED % "Value")
    names = {"recordName": "Order", "recordNamespace": "com.shop"}
    key, value = checked(rows(key=ORDER), keyFormat="avro", valueFormat="avro", **names).encodings
    assert value.plan == plan_of(DERIVED % "com.shop.Order")
    assert key.plan == plan_of(DERIVED % "com.shop.Order_key", column="key")


def test_a_given_schema_is_an_option_or_a_file(tmp_path: Path) -> None:
    text = json.dumps(SCHEMA)
    file = tmp_path / "order.avsc"
    file.write_text(text)
    for given in (text, str(file), f"file://{file}"):
        (encoding,) = checked(rows(), valueFormat="avro", valueSchema=given).encodings
        assert encoding.plan == plan_of(text)
    (tmp_path / "with-mark.avsc").write_text(text, "utf-8-sig")
    for given in (f"\ufeff{text}", str(tmp_path / "with-mark.avsc")):
        (with_mark,) = checked(rows(), valueFormat="avro", valueSchema=given).encodings
        assert with_mark == encoding
    tasks = pickle.loads(pickle.dumps(checked(rows(), valueFormat="avro", valueSchema=text)))
    assert tasks.encodings == (encoding,)


@pytest.mark.parametrize(
    "text", ["password=hunter2", '{"type": "hunter2"}', '"hunter2"', "hunter2\xe9"]
)
def test_an_error_does_not_show_the_text_of_a_file(text: str, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(text, "latin-1")
    with pytest.raises(ConfigException, match="option valueSchema") as caught:
        checked(rows(), valueFormat="avro", valueSchema=str(file))
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("format_name", ["avro", "json_sr"])
@pytest.mark.parametrize("look", [check_options_and_columns, check_options_and_columns_of_stream])
def test_a_client_of_spark_connect_leaves_schemas_in_files_to_the_server(
    look: Callable[[T.StructType, dict[str, str]], None], format_name: str
) -> None:
    given = {
        "kafka.bootstrap.servers": "b:1",
        "topic": "t",
        "schema.registry.url": "http://r",
        "valueFormat": format_name,
        "checkpointLocation": "/c",
    }
    schema = rows(ORDER if format_name == "avro" else T.StringType())
    look(schema, {**given, "valueSchema": "/only/on/the/server.json"})
    with pytest.raises(ConfigException, match="option valueSchema: a"):
        look(schema, {**given, "valueSchema": '{"type":'})
    with pytest.raises(ConfigException, match="option recordName has no effect"):
        look(schema, {**given, "valueSchema": "/only/on/the/server.json", "recordName": "R"})
    with pytest.raises(ConfigException, match="which cannot be read as a file"):
        checked(schema, **{**given, "valueSchema": "/only/on/the/server.json"})


def test_files_of_the_kernel_are_not_read_as_schemas() -> None:
    with pytest.raises(ConfigException, match=r"\(it is not a regular file on a disk\)"):
        checked(rows(), valueFormat="avro", valueSchema="/proc/self/environ")


def test_to_kafka_marks_a_column_so_that_no_option_is_needed() -> None:
    marked = T.StructType().add("value", ORDER, metadata=as_metadata("avro"))
    assert checked(marked).encodings == checked(rows(), valueFormat="avro").encodings
    checked(marked, valueSchema=json.dumps(SCHEMA))
    later = T.StructType().add("value", ORDER, metadata=as_metadata("later"))
    for options in ({}, {"valueFormat": "avro"}):
        with pytest.raises(ConfigException, match="to_kafka has made the column value for the for"):
            checked(later, **options)


def test_a_text_that_to_kafka_has_made_is_not_avro() -> None:
    mark = as_converted("bigint")
    schema = T.StructType().add("key", T.StringType(), metadata=mark).add("value", ORDER)
    with pytest.raises(ConfigException) as refused:
        checked(schema, keyFormat="avro", valueFormat="avro")
    assert str(refused.value) == (
        "option keyFormat is avro, but to_kafka has converted the column key from bigint to a "
        'string: call to_kafka with key_format="avro"; or, if Avro strings are what you want, cast '
        "the column to string before to_kafka"
    )
    checked(schema, valueFormat="avro")
    row = T.StructType().add("value", T.StringType(), metadata=mark)
    with pytest.raises(ConfigException, match='call to_kafka with value="avro"'):
        checked(row, valueFormat="avro")


@pytest.mark.parametrize("column", ["key", "value"])
def test_a_text_that_to_kafka_has_made_is_json_only_for_some_types(column: str) -> None:
    given = {
        f"{column}Format": "json_sr",
        f"{column}Schema": "{}",
        "schema.registry.url": "http://r",
    }

    def check(from_type: str) -> None:
        mark = as_converted(from_type)
        schema = T.StructType().add("key", T.StringType(), metadata=mark)
        checked(schema.add("value", T.StringType(), metadata=mark), **given)

    for kind in ("tinyint", "bigint", "boolean", "decimal(38,18)", "struct", "array", "variant"):
        check(kind)
    check("void")  # all rows are null
    for kind in ("date", "timestamp", "double", "interval day to second", "time(6)"):
        with pytest.raises(ConfigException) as refused:
            check(kind)
        how = {"key": 'a struct as key and key_format="json_sr"', "value": 'value="json_sr"'}
        assert str(refused.value) == (
            f"option {column}Format is json_sr, but to_kafka has converted the column {column} from "
            f"{kind} to strings, which are not always JSON: call to_kafka with {how[column]}, or "
            "pass strings of JSON"
        )


def test_strings_may_be_avro_and_without_a_format_stay_as_they_are() -> None:
    (encoding,) = checked(rows(key=T.StringType()), valueFormat="avro").encodings
    assert encoding.column == "value"
    (encoding,) = checked(rows(T.StringType(), T.LongType()), keyFormat="avro").encodings
    assert encoding.plan == plan_of('"long"', T.LongType(), "key")
    assert checked(rows(T.StringType())).encodings == ()


WRONG: dict[str, tuple[T.StructType, dict[str, str], type[Exception], str]] = {
    "format": (rows(), {"valueFormat": "avr"}, ConfigException, "option valueFormat is 'avr': expected avro"),
    "no format": (rows(), {}, DataException, "value attribute unsupported type struct"),
    "only the key": (rows(key=ORDER), {"keyFormat": "avro"}, DataException, "value attribute unsupported type struct"),
    "schema alone": (rows(), {"valueSchema": "{}"}, ConfigException, "option valueSchema has no effect: set valueFormat"),
    "references of nothing": (rows(), {"valueFormat": "avro", "valueReferences": "[]"}, ConfigException, "option valueReferences has no effect: set valueSchema"),
    "references without a registry": (rows(), {"valueFormat": "avro", "valueSchema": json.dumps(SCHEMA), "valueReferences": "[]"}, ConfigException, "option valueReferences has no effect: set schema.registry.url"),
    "no key": (rows(), {"valueFormat": "avro", "keyFormat": "avro"}, ConfigException, "option keyFormat is set, but the data has no column key"),
    "Value": (T.StructType().add("Value", ORDER), {"valueFormat": "avro", "recordName": "R"}, DataException, "Column names are case-sensitive: rename Value to value."),
    "Key": (T.StructType().add("Key", ORDER).add("value", T.StringType()), {"keyFormat": "avro", "recordName": "R"}, ConfigException, "option keyFormat is set, but the data has no column key (names are case-sensitive: there is Key)"),
    "no value": (T.StructType().add("key", ORDER), {"valueFormat": "avro"}, DataException, "Required attribute 'value' not found"),
    "invalid schema": (rows(), {"valueFormat": "avro", "valueSchema": '{"type": "recor"}'}, ConfigException, "option valueSchema: Avro schema: the schema: found 'recor', which is not defined before"),
    "no file": (rows(), {"valueFormat": "avro", "valueSchema": "/not/there"}, ConfigException, "option valueSchema is '/not/there', which cannot be read as a file (No such file or directory): expected an Avro schema as JSON, or a file"),
    "elsewhere": (rows(), {"valueFormat": "avro", "valueSchema": "s3://a/b"}, ConfigException, "which is not on the driver"),
    "misfit": (rows(T.StructType().add("id", T.DoubleType()).add("name", T.StringType())), {"valueFormat": "avro", "valueSchema": json.dumps(SCHEMA)}, DataException, "column value.id is of type double, and the Avro schema expects long there; the column fits the Avro type double"),
    "record name": (rows(), {"valueFormat": "avro", "recordName": "a.b"}, ConfigException, "option recordName is 'a.b': expected a name of letters"),
    "primitive name": (rows(), {"valueFormat": "avro", "recordName": "string"}, ConfigException, "option recordName is 'string', which is a primitive type in Avro: expected another name, or set recordNamespace"),
    "namespace": (rows(), {"valueFormat": "avro", "recordNamespace": "a..b"}, ConfigException, "option recordNamespace is 'a..b'"),
    "name without effect": (rows(), {"valueFormat": "avro", "valueSchema": json.dumps(SCHEMA), "recordName": "R"}, ConfigException, "option recordName has no effect"),
    "variant": (rows(T.StructType().add("v", T.VariantType())), {"valueFormat": "avro"}, DataException, "column value.v is of type variant, for which there is no Avro schema"),
    "interval": (rows(T.DayTimeIntervalType()), {"valueFormat": "avro"}, DataException, "column value is of type interval day to second, for which no Avro schema can be derived"),
    "void": (rows(T.StructType().add("a", T.ArrayType(T.NullType()))), {"valueFormat": "avro"}, DataException, "column value.a[] is of type void, for which no Avro schema can be derived: cast it to another type, or set a schema that accepts null in this field"),
    "name of a field": (rows(T.StructType().add("a b", T.StringType())), {"valueFormat": "avro"}, DataException, "column value.a b: a field of an Avro record is expected to have a name of letters"),
}  # fmt: skip


REFERENCE = {"name": "com.Id", "subject": "ids", "version": 1}
BROKEN = [
    [7],
    {},
    REFERENCE,
    [{"name": "com.Id", "subject": "ids"}],
    *([{**REFERENCE, **each}] for each in ({"version": 0}, {"version": True}, {"version": "1"})),
    *([{**REFERENCE, **each}] for each in ({"name": ""}, {"subject": None}, {"more": 1})),
    *([{**REFERENCE, **each}] for each in ({"name": "\ud800"}, {"subject": "\ud800"})),
]


@pytest.mark.parametrize("text", ["", "[", *map(json.dumps, BROKEN)])
def test_references_that_are_invalid_are_refused(text: str) -> None:
    expected = r"option keyReferences is .*: expected a JSON list of references, such as \[\{"
    with pytest.raises(ConfigException, match=expected):
        format_options({"keyreferences": text})
    for mark in ("", "\ufeff"):
        found = format_options({"valuereferences": mark + json.dumps([REFERENCE])})
        assert found.references == {"value": (SchemaReference("com.Id", "ids", 1),)}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_refused_on_the_driver(name: str) -> None:
    schema, options, kind, words = WRONG[name]
    with pytest.raises(kind) as refused:
        checked(schema, **options)
    assert words in str(refused.value)


ALL: dict[str, T.DataType] = {
    "void": T.NullType(),
    "boolean": T.BooleanType(),
    "byte": T.ByteType(),
    "short": T.ShortType(),
    "int": T.IntegerType(),
    "long": T.LongType(),
    "float": T.FloatType(),
    "double": T.DoubleType(),
    "string": T.StringType(),
    "collated": T.StringType("UTF8_LCASE"),
    "binary": T.BinaryType(),
    "decimal": T.DecimalType(20, 3),
    "date": T.DateType(),
    "timestamp": T.TimestampType(),
    "timestamp_ntz": T.TimestampNTZType(),
    "interval": T.DayTimeIntervalType(),
    "array": T.ArrayType(T.StringType(), containsNull=False),
    "map": T.MapType(T.StringType(), T.LongType(), valueContainsNull=False),
    "struct": ORDER,
}


@pytest.mark.parametrize("name", ALL)
def test_types_are_the_same_from_spark_and_from_what_tasks_get(name: str) -> None:
    def bare(found: ColumnType) -> Any:  # noqa: ANN401 - without the words of Spark and Arrow
        fields = [(each.name, bare(each.type), each.is_nullable) for each in found.fields]
        return found.kind, found.precision, found.scale, fields

    is_given = "timezone" in inspect.signature(to_arrow_type).parameters
    utc: dict[str, Any] = {"timezone": "UTC"} if is_given else {}  # the only one in Spark 4.0
    of_arrow = to_arrow_type(ALL[name], **utc)
    assert bare(column_type(ALL[name])) == bare(column_type_of_arrow(of_arrow))


def test_times_of_day_have_a_type_where_spark_has_it() -> None:
    time = getattr(T, "TimeType", None)
    if time is not None:
        assert column_type(time()).kind is Kind.TIME
    assert column_type_of_arrow(pa.time64("ns")).kind is Kind.TIME
