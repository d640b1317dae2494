"""Reads the options keySchema and valueSchema, recordName and recordNamespace."""

from __future__ import annotations

from typing import Final

from spark_kafka_sink.errors import ConfigException
from spark_kafka_sink.logs import masked
from spark_kafka_sink.spark.formats import FormatOptions
from spark_kafka_sink.spark.on_error import local_path

# The names of derived records if recordName is not set.
_RECORD_NAMES: Final = {"key": "Key", "value": "Value"}


def given_schema(column: str, options: FormatOptions, what: str) -> str | None:
    """Return the schema that keySchema or valueSchema sets, None if the option is not set.

    The option has the schema itself, or the path of a file that contains the schema. what: the kind
    of schema, for messages. Raise ConfigException if the file cannot be read.
    """
    text = options.schemas.get(column)
    if text is None or text.lstrip()[:1] in ("{", "[", '"'):
        return text
    option, expected = (
        f"{column}Schema",
        f"{what} as JSON, or a file on the driver that contains one",
    )
    path = local_path(option, text, "which is not on the driver", expected)
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        message = (
            f"option {option} is {masked(text)!r}, which cannot be read as a file ({reason}): "
            f"expected {expected}"
        )
        raise ConfigException(message) from None


def record_name(column: str, options: FormatOptions) -> str:
    """Return the name of a column's derived record, without its namespace."""
    if options.record_name is None:
        return _RECORD_NAMES[column]
    return options.record_name if column == "value" else f"{options.record_name}_{column}"


def full_record_name(column: str, options: FormatOptions) -> str:
    """Return the name of a column's derived record, with its namespace."""
    parts = (options.record_namespace, record_name(column, options))
    return ".".join(part for part in parts if part)
