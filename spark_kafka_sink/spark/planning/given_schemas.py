"""Reads the options keySchema and valueSchema, recordName and recordNamespace."""

from __future__ import annotations

from typing import Final

from spark_kafka_sink.admin import allowed_content
from spark_kafka_sink.errors import ConfigException, DataException
from spark_kafka_sink.logs import masked
from spark_kafka_sink.serde.avro_schema import PRIMITIVES
from spark_kafka_sink.spark.formats import FormatOptions
from spark_kafka_sink.spark.local_path import local_path

# The names of the Avro records in derived schemas if recordName is not set.
_RECORD_NAMES: Final = {"key": "Key", "value": "Value"}


def given_schema(column: str, options: FormatOptions, what: str) -> str | None:
    """Return the schema that keySchema or valueSchema sets, or None if the option is not set.

    The option is the schema itself, or the path of a file that contains the schema. what: the kind
    of schema, for error messages. Raise ConfigException if the file cannot be read.
    """
    text = options.schemas.get(column)
    if text is None or not is_schema_in_file(column, options):
        return text
    option, expected = (
        f"{column}Schema",
        f"{what} as JSON, or a file on the driver that contains one",
    )
    path = local_path(option, text, "which is not on the driver", expected)
    try:
        return allowed_content(str(path)).decode("utf-8-sig")
    except ConfigException as error:
        reason = str(error)
    except UnicodeDecodeError:
        reason = "it is not UTF-8"
    # Raise outside the handler, because the caught exception may contain a part of the file.
    message = (
        f"option {option} is {masked(text)!r}, which cannot be read as a file ({reason}): "
        f"expected {expected}"
    )
    raise ConfigException(message)


def invalid_schema(
    column: str, options: FormatOptions, what: str, error: DataException
) -> ConfigException:
    """Return the error to raise for an invalid schema.

    what: the kind of schema. error: what is wrong. For a schema in a file, the message does not
    contain `error`, because `error` quotes the file. A file that is not a schema may contain, for
    example, a password.
    """
    if column not in options.schemas:
        return ConfigException(error.message)
    option = f"option {column}Schema"
    if not is_schema_in_file(column, options):
        return ConfigException(f"{option}: {error.message}")
    return ConfigException(
        f"the file of {option} has no valid schema: expected {what} as JSON. To see what is wrong, "
        f"set the option to the text of the schema"
    )


def is_schema_in_file(column: str, options: FormatOptions) -> bool:
    """Return whether keySchema or valueSchema is the path of a file."""
    text = options.schemas.get(column)
    return text is not None and text.lstrip()[:1] not in ("{", "[", '"')


def record_name(column: str, options: FormatOptions) -> str:
    """Return the name of the Avro record in a column's derived schema, without namespace."""
    if options.record_name is None:
        return _RECORD_NAMES[column]
    return options.record_name if column == "value" else f"{options.record_name}_{column}"


def check_record_name(column: str, options: FormatOptions) -> None:
    """Raise ConfigException if the Avro record has the name of a primitive type."""
    name = full_record_name(column, options)
    if name in PRIMITIVES:
        message = (
            f"option recordName is {name!r}, which is a primitive type in Avro: expected another "
            "name, or set recordNamespace"
        )
        raise ConfigException(message)


def full_record_name(column: str, options: FormatOptions) -> str:
    """Return the name of the Avro record in a column's derived schema, with namespace."""
    parts = (options.record_namespace, record_name(column, options))
    return ".".join(part for part in parts if part)
