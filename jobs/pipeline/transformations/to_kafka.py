"""A flow of a declarative pipeline: JSON files become records, with the carrier as the key."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

dp.create_sink(
    "kafka_topic",
    "pykafka",
    {"kafka.bootstrap.servers": "127.0.0.1:9092", "topic": "flights"},
)


@dp.append_flow(target="kafka_topic")
def flights_to_kafka() -> DataFrame:
    """Return the columns of the sink."""
    source = SparkSession.active().readStream.format("json").schema("carrier STRING, flight INT")
    flights = source.load("file:///data/incoming")
    return flights.selectExpr("carrier AS key", "to_json(struct(*)) AS value")
