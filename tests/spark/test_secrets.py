"""Secrets in options are never visible: in no message, log, event, plan, REST response or report.

A process of its own writes with a marker in every option that may hold a secret, in every way that
the sink or Spark rejects, and in one that succeeds; then all its output is searched. Spark itself
prints options with plans, and a Connect server keeps requests as text: they are masked by the
settings of `register` or of conf/spark-defaults.conf.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import NewTopic
from support.brokers.kafka_cluster import KafkaCluster
from support.oracles.readers import read_with_confluent
from support.spark.spark_processes import connect_server

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
# It is unknown: with unknownOptions=warn, a write goes through with it.
_UNKNOWN_SECRET = "kafka.my.password"

_DEFAULTS = Path(__file__).parents[2] / "conf" / "spark-defaults.conf"


def _redaction_regex() -> str:
    """Return the redaction regex of the settings that users copy."""
    lines = _DEFAULTS.read_text().splitlines()
    return dict(line.split(None, 1) for line in lines if line[:6] == "spark.")[
        "spark.redaction.regex"
    ]


_SCRIPT = '''
"""Writes with secrets in options, and tells what is refused; the log is this process's output."""
import faulthandler
import html
import inspect
import json
import re
import sys
import urllib.request

from pyspark.sql import SparkSession

from spark_kafka_sink import register

# Less than who started this waits.
faulthandler.dump_traceback_later(200, exit=True)
folder, address, settings, bootstrap, topic, marker, unknown, *secrets = sys.argv[1:]
builder = SparkSession.builder
settings = json.loads(settings)
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
is_registered = "spark.redaction.regex" not in settings
if is_registered:
    register(spark)
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
# After register, options are refused before Spark looks at the plan.
assert is_registered or ("AppendData" in printed and "kafka.sasl.jaas.config=" in printed)
refused(lambda: stream("append", every))
refused(lambda: stream("update", every))
lenient = {unknown: marker, "unknownOptions": "warn", "reportPath": folder + "/report.json"}
writer(lenient).mode("append").save()
# Spark's own error shows its plan; after register, only without what register puts before a save.
bare = writer(lenient, unsendable).mode("append")
printed = refused(lambda: inspect.unwrap(type(bare).save)(bare))
assert "AppendData" in printed and unknown + "=" in printed
stream("append", {unknown: marker, "unknownOptions": "warn"})


def read(page):
    return urllib.request.urlopen(page, timeout=60).read().decode()


address = address or spark.sparkContext.uiWebUrl
api = f"{address}/api/v1/applications"
api = f"{api}/{json.loads(read(api))[0]['id']}"
pages = (
    f"{api}/sql?details=true&planDescription=true&length=1000",
    f"{api}/environment",
    f"{api}/jobs",
    f"{api}/stages",
    f"{address}/SQL/execution/?id=0",
    f"{address}/StreamingQuery/",
)
for page in pages:
    print(read(page))
if "spark.remote" in settings:
    sessions = read(f"{address}/connect/")
    print(sessions)
    session = html.unescape(re.search('/connect/session/[^"]*', sessions)[0])
    print(read(address + session))
spark.stop()
print("all tried")
'''


def _settings(folder: Path) -> dict[str, str]:
    """Return settings with which Spark keeps and shows as much as possible."""
    return {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": (folder / "events").as_uri(),
        "spark.eventLog.enabled": "true",
        "spark.log.level": "INFO",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "true",
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a source for streams, and with one for events."""
    for name in ("events", "source"):
        (tmp_path / name).mkdir()
    (tmp_path / "source" / "a.txt").write_text("v\n")
    return tmp_path


def _check_every_way(
    folder: Path, settings: dict[str, str], kafka: KafkaCluster, topic: str, address: str = ""
) -> None:
    """Run the script; leave its output in the folder. address: of Spark's pages, if known."""
    script = folder / "write_secrets.py"
    script.write_text(_SCRIPT)
    arguments = [str(folder), address, json.dumps(settings), kafka.bootstrap, topic]
    arguments += [_MARKER, _UNKNOWN_SECRET, *_SECRETS]
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    (folder / "its output").write_text(done.stdout)
    (folder / "its log").write_text(done.stderr)
    assert done.stdout.endswith("all tried\n"), done.stderr[-5000:]
    assert [record.value for record in read_with_confluent(kafka.bootstrap, topic)] == [b"v", b"v"]


def _search(folder: Path) -> dict[str, bytes]:
    """Return all files with the marker, by name."""
    left = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    assert "report.json" in left
    for name, text in left.items():
        place = text.find(_MARKER.encode())
        assert place < 0, f"in {name}: {text[max(0, place - 300) : place + 20]!r}"
    return left


def _events(left: dict[str, bytes]) -> bytes:
    return b"".join(text for name, text in left.items() if name.startswith("events/"))


@pytest.mark.parametrize(
    "masked_by",
    [
        "register",
        pytest.param(
            "settings", marks=pytest.mark.long(reason="the server below has the same settings")
        ),
    ],
)
def test_a_secret_is_nowhere_to_be_seen(
    kafka: KafkaCluster, new_topic: NewTopic, folder: Path, masked_by: str
) -> None:
    settings = _settings(folder) | {"spark.master": "local[1]", "spark.ui.port": "0"}
    if masked_by == "settings":
        settings["spark.redaction.regex"] = _redaction_regex()
    _check_every_way(folder, settings, kafka, new_topic(1))
    assert b"SparkListenerSQLExecutionStart" in _events(_search(folder))


def test_a_secret_is_nowhere_to_be_seen_of_a_connect_server(
    kafka: KafkaCluster, new_topic: NewTopic, folder: Path
) -> None:
    # A server prints plans that it cannot analyse outside of any session; register covers the rest.
    # The port for its pages is a free one at that time.
    more = {"spark.ui.port": "0", "spark.redaction.regex": _redaction_regex()}
    with connect_server(folder, _settings(folder) | more) as remote:
        log = (folder / "connect.log").read_text()
        port = re.findall(r"'SparkUI' on port (\d+)", log)[-1]
        page = f"http://127.0.0.1:{port}"
        _check_every_way(folder, {"spark.remote": remote}, kafka, new_topic(1), page)
    assert b"SparkListenerConnectOperationStarted" in _events(_search(folder))
