"""``register(spark)``: the sink by name, the bare ``save()``, and nothing lost or shown.

What it has Spark's writers do is in `batch_save` and `stream_start`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.spark.arrow_batches import limit_arrow_batches
from spark_kafka_sink.spark.batch_save import hook_save
from spark_kafka_sink.spark.connect import check_session, is_connect
from spark_kafka_sink.spark.datasource import KafkaDataSource
from spark_kafka_sink.spark.redaction import mask_secrets
from spark_kafka_sink.spark.stream_start import check_starts
from spark_kafka_sink.spark.worker_python import choose_worker_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make ``format("pykafka")`` known to a session, and let its bare ``save()`` append.

    From then on the session masks Kafka's secrets where Spark itself shows options, and hands rows
    to Python in smaller batches, unless it was told how large they may be.

    In local mode, the workers run the driver's Python, unless PYSPARK_PYTHON or
    spark.pyspark.python names another one. Raise ConfigException if that one lacks the sink or is
    of another minor version, and IllegalArgumentException if `spark` is no session.

    For classic sessions and Spark Connect; calling it again is harmless. Call it before
    ``df.write``: a classic writer that is older keeps Spark's meaning of a bare save. After
    ``pip install`` the name is known without it; ``save()`` then needs ``.mode("append")``.
    """
    check_session("register", spark)
    if not is_connect(spark):
        choose_worker_python(spark)
    spark.dataSource.register(KafkaDataSource)
    hook_save(KafkaDataSource.name(), is_connect=is_connect(spark))
    check_starts(KafkaDataSource.name(), is_connect=is_connect(spark))
    mask_secrets(spark)
    limit_arrow_batches(spark)
