"""Convert the columns of users' Arrow batches to columns of records, in pure functions."""

from typing import Final

COLUMNS: Final = ("key", "value", "topic", "partition", "headers", "timestamp")
HEADERS_TYPE: Final = (
    "array<struct<key:string,value:binary>> or map<string,binary>, values binary or string"
)
NO_TOPIC: Final = (
    "topic option required when no 'topic' attribute is present. "
    "Use the topic option for setting a topic."
)
NO_VALUE: Final = "Required attribute 'value' not found: the data has no column named value"
