"""What a topic's name has to be: for a request to carry it, and for a broker to make such a topic.

The producer asks for what a request can carry: which topics there are, brokers say. Before a topic
is made, and where bad rows are told apart, a name has to be one that brokers take.
"""

from __future__ import annotations

import re
from typing import Final

from spark_kafka_sink.errors import DataException

LONGEST_NAME: Final = 249
# What brokers take (Topic.validate).
TOPIC_NAME: Final = re.compile(rf"(?!\.{{1,2}}\Z)[A-Za-z0-9._-]{{1,{LONGEST_NAME}}}\Z")


def check_topic_name(name: object) -> None:
    """Raise DataException for what no request can carry as a topic's name, or no topic has."""
    if not isinstance(name, str):
        message = f"Topic cannot be {name!r}: expected a str"
        raise DataException(message)
    if len(name) > LONGEST_NAME:
        message = (
            f"Topic cannot be {name[:20]!r}...: found a name of {len(name)} characters, expected "
            f"at most {LONGEST_NAME}"
        )
        raise DataException(message)
    try:
        name.encode()
    except UnicodeEncodeError as error:
        message = f"Topic cannot be {name!r}: it cannot be written as UTF-8 ({error.reason})"
        raise DataException(message) from None
