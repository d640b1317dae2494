"""Convert the columns of users' Arrow batches to columns of records, in pure functions."""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from spark_kafka_sink.errors import DataException

COLUMNS: Final = ("key", "value", "topic", "partition", "headers", "timestamp")
HEADERS_TYPE: Final = (
    "array<struct<key:string,value:binary>> or map<string,binary>, values binary or string"
)
NO_TOPIC: Final = (
    "topic option required when no 'topic' attribute is present. "
    "Use the topic option for setting a topic."
)
NO_VALUE: Final = "Required attribute 'value' not found: the data has no column named value"


def check_each_once(names: Iterable[str]) -> None:
    """Raise DataException if a column name occurs twice."""
    for name, count in Counter(names).items():
        if count > 1:
            message = (
                f"the data has {count} columns named {name}: expected each name once; "
                "drop or rename the others"
            )
            raise DataException(message)
