"""Secrets in options are nowhere to be seen: no message, log, event, plan, REST answer or report.

A process of its own writes with a marker in every option that may hold a secret, in every way that
is refused, by the sink or by Spark, and in one that is not; then everything it left is searched.
Spark itself prints options with plans: spark.redaction.regex of conf/spark-defaults.conf is for it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import NewTopic
from support.kafka_cluster import KafkaCluster
from support.readers import read_with_confluent

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

_MARKER = "hunter2"
_SECRETS = [
    "kafka.sasl.jaas.config",
    "kafka.sasl.oauthbearer.assertion.private.key.passphrase",
    "kafka.sasl.oauthbearer.client.credentials.client.secret",
    "kafka.sasl.password",  # not an option of Java's; people write it
    "kafka.ssl.key.password",
    "kafka.ssl.keystore.key",
    "kafka.ssl.keystore.password",
    "kafka.ssl.truststore.password",
]
# Nobody knows it: with unknownOptions=warn, a write goes through with it.
_UNKNOWN_SECRET = "kafka.my.password"

_DEFAULTS = Path(__file__).parents[2] / "conf" / "spark-defaults.conf"


def _redaction_regex() -> str:
    """What the settings that users copy have Spark mask."""
    lines = _DEFAULTS.read_text().splitlines()
    return dict(line.split(None, 1) for line in lines if line[:6] == "spark.")[
        "spark.redaction.regex"
    ]


_SCRIPT = '''
"""Writes with secrets in options, and tells what is refused; the log is this process's output."""
import sys
import urllib.request

from pyspark.sql import SparkSession

bootstrap, topic, folder, redacted, marker, unknown, *secrets = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.port", "0")
    .config("spark.log.level", "INFO")
    .config("spark.eventLog.enabled", "true")
    .config("spark.eventLog.compress", "false")
    .config("spark.eventLog.dir", "file://" + folder + "/events")
    .config("spark.sql.warehouse.dir", folder + "/warehouse")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.redaction.regex", redacted)
    .getOrCreate()
)
where = {"kafka.bootstrap.servers": bootstrap, "topic": topic}
every = {name: marker for name in secrets}
frame = spark.sql("SELECT 'v' AS value")
unsendable = spark.sql("SELECT 'v' AS value, make_interval(1) AS unsendable")


def writer(options, frame=frame):
    return frame.write.format("pykafka").options(**where, **options)


def stream(mode, options):
    query = (
        spark.readStream.format("text").load(folder + "/source")
        .writeStream.format("pykafka").outputMode(mode).options(**where, **options)
        .option("checkpointLocation", folder + "/checkpoint").trigger(availableNow=True).start()
    )
    query.awaitTermination()
    print(query.lastProgress)


def refused(call):
    try:
        call()
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
        return str(error)
    raise AssertionError("not refused")


refused(lambda: writer(every).mode("append").save())
refused(lambda: writer(every).mode("overwrite").save())
refused(lambda: writer(every).save())
refused(lambda: writer(every).mode("append").partitionBy("value").save())
printed = refused(lambda: writer(every, unsendable).mode("append").save())
assert "AppendData" in printed and "kafka.sasl.jaas.config=" in printed
refused(lambda: stream("append", every))
refused(lambda: stream("update", every))
lenient = {unknown: marker, "unknownOptions": "warn", "reportPath": folder + "/report.json"}
writer(lenient).mode("append").save()
stream("append", {unknown: marker, "unknownOptions": "warn"})

address = spark.sparkContext.uiWebUrl
api = f"{address}/api/v1/applications/{spark.sparkContext.applicationId}"
for page in (
    f"{api}/sql?details=true&planDescription=true&length=1000",
    f"{api}/environment",
    f"{api}/jobs",
    f"{api}/stages",
    f"{address}/SQL/execution/?id=0",
    f"{address}/StreamingQuery/",
):
    print(urllib.request.urlopen(page).read().decode())
spark.stop()
print("all tried")
'''


def test_a_secret_is_nowhere_to_be_seen(
    kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic(1)
    for name in ("events", "source"):
        (tmp_path / name).mkdir()
    (tmp_path / "source" / "a.txt").write_text("v\n")
    script = tmp_path / "secrets.py"
    script.write_text(_SCRIPT)
    arguments = [kafka.bootstrap, topic, str(tmp_path), _redaction_regex()]
    arguments += [_MARKER, _UNKNOWN_SECRET, *_SECRETS]
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert done.stdout.endswith("all tried\n"), done.stderr[-5000:]
    assert [record.value for record in read_with_confluent(kafka.bootstrap, topic)] == [b"v", b"v"]
    left = {
        str(path.relative_to(tmp_path)): path.read_bytes()
        for path in sorted(tmp_path.rglob("*"))
        if path.is_file()
    }
    assert any(name.startswith("events/") for name in left)
    assert "report.json" in left
    left |= {"its output": done.stdout.encode(), "its log": done.stderr.encode()}
    for name, text in left.items():
        place = text.find(_MARKER.encode())
        assert place < 0, f"in {name}: {text[max(0, place - 300) : place + 20]!r}"
