"""Sessions and frames of Spark Connect, and sessions of either kind, told by their classes.

Nothing is imported that only Spark Connect has and needs.
"""

from __future__ import annotations

from spark_kafka_sink.errors import IllegalArgumentException


def is_connect(of: object) -> bool:
    """Tell whether a session or a frame is one of Spark Connect."""
    return ".connect." in type(of).__module__


def check_session(call: str, spark: object) -> None:
    """Refuse what is no session, classic or of Spark Connect; raises IllegalArgumentException."""
    # By name, since that of Spark Connect is another class.
    if not any(kind.__name__ == "SparkSession" for kind in type(spark).__mro__):
        kind = type(spark).__name__
        message = f"{call}: spark is of type {kind}: expected a SparkSession"
        raise IllegalArgumentException(message)
