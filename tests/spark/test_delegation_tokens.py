"""Jobs and streams whose tasks log in with a delegation token that the driver creates."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from support.brokers.secured_kafka import PASSWORD, SecuredKafka
from support.brokers.token_server import CLIENT_ID, CLIENT_SECRET, TokenServer
from support.oracles.readers import create_topic, read_with_confluent
from support.spark.sink import registered_for_now, save

from spark_kafka_sink import write_batch
from spark_kafka_sink.admin import KafkaAdmin
from spark_kafka_sink.config import producer_config
from spark_kafka_sink.model import DelegationToken
from spark_kafka_sink.spark.planning import task_tokens

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

ROWS = 3000


@pytest.fixture
def topic(secured_kafka: SecuredKafka) -> str:
    """A topic of three partitions."""
    name = f"topic-{uuid.uuid4().hex[:12]}"
    create_topic(secured_kafka.bootstrap, name, 3)
    return name


class Driver:
    """Whom the driver logs in as: a user whose tokens no other test creates."""

    def __init__(self, kafka: SecuredKafka) -> None:
        self.name = f"driver-{uuid.uuid4().hex[:8]}"
        self.address = kafka.address("SASL_SSL")
        self._login = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": self.name,
            "sasl.password": PASSWORD,
            "ssl.truststore.location": str(kafka.ca),
        }
        self.options = {f"kafka.{name}": value for name, value in self._login.items()}
        self.options["delegationToken"] = "true"

    def save(self, frame: DataFrame, topic: str, **more: str) -> None:
        """Append a DataFrame by a token."""
        given = {name.replace(".", "_"): value for name, value in self.options.items()}
        save(frame, self.address, topic, **given, **more)

    def tokens(self) -> list[DelegationToken]:
        """Return the tokens that there are."""
        config = producer_config({"bootstrap.servers": self.address, **self._login})
        with KafkaAdmin(config) as admin:
            return admin.describe_delegation_token([f"User:{self.name}"])


@pytest.fixture
def driver(secured_kafka: SecuredKafka) -> Iterator[Driver]:
    """A user for a test."""
    made = Driver(secured_kafka)
    secured_kafka.set_scram_user(made.name, PASSWORD)
    yield made
    secured_kafka.delete_scram_user(made.name)


def rows(spark: SparkSession) -> DataFrame:
    """Return numbered rows."""
    return spark.range(0, ROWS, numPartitions=3).selectExpr("CAST(id AS STRING) AS value")


def test_tasks_write_every_row_once_and_the_token_ends_with_the_job(
    spark: SparkSession, secured_kafka: SecuredKafka, topic: str, driver: Driver
) -> None:
    driver.save(rows(spark), topic)
    secured_kafka.check_rows(topic, ROWS)
    assert driver.tokens() == []
    driver.save(rows(spark).limit(0), topic, delegationToken_mechanism="SCRAM-SHA-256")
    assert driver.tokens() == []


def test_the_token_of_a_job_that_fails_ends_too(
    spark: SparkSession, secured_kafka: SecuredKafka, topic: str, driver: Driver
) -> None:
    bad = rows(spark).selectExpr("IF(value = '2500', raise_error('broken row'), value) AS value")
    with pytest.raises(PySparkException, match="broken row"):
        driver.save(bad, topic)
    assert driver.tokens() == []
    with pytest.raises(PySparkException, match="create the topic"):
        driver.save(rows(spark), f"no-{topic}", kafka_max_block_ms="3000")
    assert driver.tokens() == []


class Gate:
    """Rows that wait in their task until a test has looked around."""

    def __init__(self, folder: Path) -> None:
        self._open = folder / "open"
        self._reached = folder / "reached"

    def held(self, frame: DataFrame) -> DataFrame:
        """Return a frame whose tasks wait at the gate."""
        is_open, reached = str(self._open), str(self._reached)

        def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import time
            from pathlib import Path

            Path(reached).touch()
            while not Path(is_open).exists():
                time.sleep(0.02)
            yield from batches

        return frame.mapInArrow(wait, frame.schema)

    def run(self, job: Callable[[], None], look: Callable[[], None]) -> None:
        """Run a job, and look around in another thread while its tasks wait."""
        failed: list[BaseException] = []
        is_over = threading.Event()

        def work() -> None:
            while not self._reached.exists() and not is_over.wait(0.02):
                pass
            try:
                look()
            except BaseException as error:  # noqa: BLE001 - for the test to raise
                failed.append(error)
            finally:
                self._open.touch()

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            job()
        finally:
            is_over.set()
            thread.join(60)
        if failed:
            raise failed[0]


class Broadcasts:
    """What the driver broadcasts to executors from now on: the code of tasks, among others."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._first = self._next()

    def _next(self) -> int:
        return int(self._spark.sparkContext._jsc.broadcast("").id())

    def contents(self) -> list[bytes]:
        """Return them, as far as they are still there."""
        jvm: Any = self._spark.sparkContext._jvm
        blocks = jvm.org.apache.spark.SparkEnv.get().blockManager()
        found = []
        for number in range(self._first, self._next()):
            block = jvm.org.apache.spark.storage.BroadcastBlockId(number, "")
            values = blocks.getLocalValues(block)
            value = values.get().data().next() if values.isDefined() else None
            if isinstance(value, bytes | bytearray):
                found.append(bytes(value))
        return found


def test_what_goes_to_tasks_has_the_token_and_no_credentials_of_the_driver(
    spark: SparkSession, secured_kafka: SecuredKafka, topic: str, driver: Driver, tmp_path: Path
) -> None:
    broadcasts = Broadcasts(spark)
    seen: list[bool] = []

    def look() -> None:
        (token,) = driver.tokens()
        contents = broadcasts.contents()
        seen.append(any(token.hmac.value.encode() in each for each in contents))
        assert not any(PASSWORD.encode() in each for each in contents)

    gate = Gate(tmp_path)
    gate.run(lambda: driver.save(gate.held(rows(spark)), topic), look)
    assert seen == [True]
    secured_kafka.check_rows(topic, ROWS)


def test_the_token_of_a_job_is_renewed_while_its_tasks_run(
    spark: SparkSession,
    secured_kafka: SecuredKafka,
    topic: str,
    driver: Driver,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    renewed: list[int] = []
    monkeypatch.setattr(task_tokens, "_LOOK_S", 1.0)

    def look() -> None:
        (token,) = driver.tokens()
        # By this process's clock, most of the time to the token's expiry is over.
        monkeypatch.setattr(
            task_tokens, "_now_ms", lambda: int(time.time() * 1000) + 20 * 3_600_000
        )
        until = time.monotonic() + 60
        while time.monotonic() < until and driver.tokens() == [token]:
            pass
        (after,) = driver.tokens()
        assert after.token_id == token.token_id
        renewed.append(after.expiry_timestamp_ms - token.expiry_timestamp_ms)

    gate = Gate(tmp_path)
    with registered_for_now(spark):
        gate.run(lambda: driver.save(gate.held(rows(spark)), topic), look)
    assert renewed[0] > 0
    assert driver.tokens() == []
    secured_kafka.check_rows(topic, ROWS)


def test_all_micro_batches_of_an_application_share_a_token(
    spark: SparkSession, secured_kafka: SecuredKafka, topic: str, driver: Driver, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    batches = 4
    for number in range(batches):
        lines = (f"{row}\n" for row in range(number * 10, number * 10 + 10))
        (source / f"{number}.txt").write_text("".join(lines))
    stream = (
        spark.readStream.format("text")
        .option("maxFilesPerTrigger", 1)
        .load(str(source))
        .selectExpr("CAST(CAST(value AS INT) AS STRING) AS value")
    )
    given = {**driver.options, "kafka.bootstrap.servers": driver.address, "topic": topic}
    to_kafka = stream.writeStream.format("pykafka").options(**given)
    to_kafka = to_kafka.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = to_kafka.trigger(availableNow=True).start()
    query.awaitTermination()
    assert len(query.recentProgress) >= batches
    (token,) = driver.tokens()
    later = stream.selectExpr("CAST(CAST(value AS INT) + 40 AS STRING) AS value").writeStream
    each = later.foreachBatch(partial(write_batch, options=given))
    each = each.option("checkpointLocation", str(tmp_path / "each"))
    each.trigger(availableNow=True).start().awaitTermination()
    assert driver.tokens() == [token]

    def save(frame: DataFrame, _: int) -> None:
        frame.write.format("pykafka").mode("append").options(**given).save()

    last = stream.selectExpr("CAST(CAST(value AS INT) + 80 AS STRING) AS value").writeStream
    saved = last.foreachBatch(save).option("checkpointLocation", str(tmp_path / "saved"))
    with registered_for_now(spark):
        saved.trigger(availableNow=True).start().awaitTermination()
    assert driver.tokens() == [token]
    secured_kafka.check_rows(topic, 3 * batches * 10)


def test_a_listener_that_takes_no_tokens_is_known_before_a_task_starts(
    spark: SparkSession, secured_kafka: SecuredKafka, topic: str
) -> None:
    client = "kafka_sasl_oauthbearer_client_credentials_client"
    group = f"refused-{topic}"
    spark.sparkContext.setJobGroup(group, "a write that is refused")
    with TokenServer(secured_kafka.jwt_key.read_text()) as server:
        given = {
            "kafka_security_protocol": "SASL_SSL",
            "kafka_sasl_mechanism": "OAUTHBEARER",
            "kafka_sasl_oauthbearer_token_endpoint_url": server.url,
            f"{client}_id": CLIENT_ID,
            f"{client}_secret": CLIENT_SECRET,
            "kafka_ssl_truststore_location": str(secured_kafka.ca),
            "delegationToken": "true",
        }
        with pytest.raises(
            PySparkException,
            match="does not offer the mechanism SCRAM-SHA-512: it offers OAUTHBEARER; set "
            r"delegationToken\.mechanism to one",
        ):
            save(rows(spark), secured_kafka.address("JWT"), topic, **given)
    assert spark.sparkContext.statusTracker().getJobIdsForGroup(group) == []
    assert read_with_confluent(secured_kafka.bootstrap, topic) == []
