"""Secrets are never visible: in no message, log, event, plan, page, report or temporary file.

A process of its own writes to a secured broker with real credentials, in ways that succeed and in
each way that is refused; then all that is left of it is searched. Python, Spark and this package
log at DEBUG. Spark itself prints options with plans, and a Connect server keeps requests as text:
they are masked by the settings of `register` or of conf/spark-defaults.conf.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.brokers import keys
from support.brokers.access import allow_only
from support.brokers.registry_server import RegistryServer, basic, registry_server
from support.brokers.secured_kafka import MARKED_PASSWORD, MARKED_USER, USER, SecuredKafka, quoted
from support.brokers.token_server import CLIENT_ID, Answer, Asked, TokenServer
from support.oracles.readers import create_topic, read_with_confluent
from support.spark.spark_processes import connect_server, standalone_cluster

from spark_kafka_sink.admin import KafkaAdmin
from spark_kafka_sink.config import producer_config

# Each test tries some hundred writes; beside other tests, that may take minutes.
pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(600)]

# In each secret, right or wrong, as in MARKED_PASSWORD.
_MARKER = "hunter2"
_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
_SECRETS = [
    "basic.auth.user.info",
    "bearer.auth.client.secret",
    "bearer.auth.token",
    "kafka.sasl.jaas.config",
    "kafka.sasl.oauthbearer.assertion.private.key.passphrase",
    "kafka.sasl.oauthbearer.client.credentials.client.secret",
    "kafka.sasl.password",  # not an option of Java's; people write it
    "kafka.ssl.key.password",
    "kafka.ssl.key.pem",  # librdkafka's
    "kafka.ssl.keystore.certificate.chain",
    "kafka.ssl.keystore.key",
    "kafka.ssl.keystore.password",
    "kafka.ssl.truststore.certificates",
    "kafka.ssl.truststore.password",
    "schema.registry.ssl.keystore.key",
    "schema.registry.url",
]
# The client whose tokens have expired.
_OF_EXPIRED_TOKENS = "client-of-expired-tokens"
# It is unknown: with unknownOptions=warn, a write goes through with it.
_UNKNOWN_SECRET = "kafka.my.password"
# The environment of the driver and of the executors has the password, and a wrong one.
_IN_ENVIRONMENT = {
    "KAFKA_PASSWORD_OF_TEST": MARKED_PASSWORD,
    "WRONG_PASSWORD_OF_TEST": f"{_MARKER}-wrong",
}

_DEFAULTS = Path(__file__).parents[2] / "conf" / "spark-defaults.conf"


def _redaction_regex() -> str:
    """Return the redaction regex of the settings that users copy."""
    lines = _DEFAULTS.read_text().splitlines()
    return dict(line.split(None, 1) for line in lines if line[:6] == "spark.")[
        "spark.redaction.regex"
    ]


# Each Python process of the test begins with this code, also Spark's workers.
_SITE = """
import logging
logging.basicConfig(level=logging.DEBUG)
"""

_SCRIPT = '''
"""Writes with secrets in options, and tells what is refused; the log is this process's output."""
import faulthandler
import html
import inspect
import json
import logging
import pickle
import re
import sys
import traceback
import urllib.request
import uuid
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pyarrow
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

from spark_kafka_sink import KafkaDataSource, KafkaProducer, register
from spark_kafka_sink.config import producer_config
from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.spark.options import sink_options

# Less than who started this waits.
faulthandler.dump_traceback_later(570, exit=True)
folder, given = sys.argv[1], json.loads(Path(sys.argv[2]).read_text())
settings, unknown, marker = given["settings"], given["unknown"], given["marker"]
builder = SparkSession.builder
for name, value in settings.items():
    builder = builder.config(name, value)
is_registered = "spark.redaction.regex" not in settings
if not is_registered:
    # Only register masks it there.
    logging.getLogger("py4j").setLevel(logging.INFO)
spark = builder.getOrCreate()
if is_registered:
    register(spark)
where = {"kafka.bootstrap.servers": given["bootstrap"], "topic": given["topic"]}
every = {name: marker for name in given["secrets"]}
frame = spark.sql("SELECT 'v' AS value")
unsendable = spark.sql("SELECT 'v' AS value, make_interval(1) AS unsendable")


def writer(options, frame=frame):
    return frame.write.format("pykafka").options(**{**where, **options})


def stream(mode, options):
    query = (
        spark.readStream.format("text").load(folder + "/source")
        .writeStream.format("pykafka").outputMode(mode).options(**{**where, **options})
        .option("checkpointLocation", f"{folder}/checkpoint-{uuid.uuid4()}")
        .trigger(availableNow=True).start()
    )
    query.awaitTermination()
    print(query.lastProgress)
    query.explain(True)


def refused(call):
    try:
        call()
    except Exception as error:
        show(error)
        return str(error)
    raise AssertionError("not refused")


def show(error):
    """Print an error with all that it comes from, also what a traceback leaves out."""
    traceback.print_exception(error, file=sys.stdout)
    while error is not None:
        print(type(error).__name__, str(error), repr(error), repr(vars(error)))
        error = error.__cause__ or error.__context__


def unanalysed():
    printed = refused(lambda: writer(every, unsendable).mode("append").save())
    # After register, options are refused before Spark looks at the plan.
    assert is_registered or ("AppendData" in printed and "kafka.sasl.jaas.config=" in printed)


def lenient():
    options = {unknown: marker, "unknownOptions": "warn", "reportPath": folder + "/report.json"}
    writer(options).mode("append").save()
    # Spark's own error shows its plan; after register, only without what register puts before a
    # save.
    # Spark itself masks neither the name nor the value of a key.
    name_of_key = "kafka.ssl.keystore.key"
    (by_key,) = [each for each in given["succeed"] if name_of_key in each]
    bare = writer({**by_key, **options}, unsendable).mode("append")
    printed = refused(lambda: inspect.unwrap(type(bare).save)(bare))
    for name in (unknown, name_of_key):
        assert "AppendData" in printed and name + "=" in printed


# With real credentials.
def succeed(options):
    writer(options).mode("append").save()


def fail(options, sentence, frame=frame):
    printed = refused(lambda: writer(options, frame).mode("append").save())
    assert sentence in printed, printed


@udf("string")
def of_user(value):
    raise ValueError("of the user's own code")


in_tasks = [
    (spark.sql("SELECT 'v' AS value, -2 AS partition"), "Invalid partition: -2"),
    (spark.range(1).select(of_user("id").alias("value")), "of the user's own code"),
]


calls = [
    lambda: refused(lambda: writer(every).mode("append").save()),
    lambda: refused(lambda: writer(every).mode("overwrite").save()),
    lambda: refused(lambda: writer(every).save()),
    lambda: refused(lambda: writer(every).mode("append").partitionBy("value").save()),
    unanalysed,
    lambda: refused(lambda: stream("append", every)),
    lambda: refused(lambda: stream("update", every)),
    lenient,
    lambda: stream("append", {unknown: marker, "unknownOptions": "warn"}),
    lambda: stream("append", given["by_token"]),
    *(partial(succeed, options) for options in given["succeed"]),
    *(partial(fail, *each) for each in given["fail"]),
    *(partial(fail, given["succeed"][0], text, rows) for rows, text in in_tasks),
    *(partial(succeed, options) for options in given["by_registry"]),
    *(partial(fail, options, "it answered 401") for options in given["refused_by_registry"]),
]
if is_registered:
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(call) for call in calls]:
            done.result()
else:
    # Spark finds the source in the main thread alone.
    for call in calls:
        call()
# And by a producer in this process.
row = pyarrow.record_batch({"value": ["v"]})
for options, _ in given["fail"]:
    options = {**where, **options}
    own = {k.removeprefix("kafka."): v for k, v in options.items() if k.startswith("kafka.")}
    try:
        print(repr(producer_config(own)), repr(sink_options(options)))
        with KafkaProducer(own) as producer:
            producer.append(options["topic"], row)
            producer.flush()
    except KafkaException as error:
        show(error)
    else:
        raise AssertionError("not refused")
for options in given["refused_by_registry"]:
    print(repr(sink_options({**where, **options})))
planned = KafkaDataSource({**where, **given["succeed"][0]}).writer(frame.schema, False)
message = planned.write(iter([row]))
Path(folder, "commit message").write_bytes(pickle.dumps(message))
print(repr(planned), repr(message))


def read(page):
    return urllib.request.urlopen(page, timeout=60).read().decode()


address = given["address"] or spark.sparkContext.uiWebUrl
api = f"{address}/api/v1/applications"
api = f"{api}/{json.loads(read(api))[0]['id']}"
executions = json.loads(read(f"{api}/sql?details=true&planDescription=true&length=1000"))
assert any("SaveIntoDataSource" in str(each) or "AppendData" in str(each) for each in executions)
print(executions)
for page in ("environment", "jobs", "stages", "allexecutors", "storage/rdd"):
    print(read(f"{api}/{page}"))
for each in executions:
    print(read(f"{address}/SQL/execution/?id={each['id']}"))
for page in ("SQL", "StreamingQuery", "jobs", "stages", "environment", "executors"):
    print(read(f"{address}/{page}/"))
if "spark.remote" in settings:
    sessions = read(f"{address}/connect/")
    print(sessions)
    session = html.unescape(re.search('/connect/session/[^"]*', sessions)[0])
    print(read(address + session))
# Spark removes its files when it ends.
for path in [*Path(folder, "tmp").rglob("*"), *Path(folder, "local").rglob("*")]:
    if path.is_file():
        content = path.read_bytes()
        for form in given["forms"]:
            assert form.encode() not in content, path
spark.stop()
print("all tried")
'''


class Scene:
    """A folder in which everything is left, and what the script writes."""

    def __init__(
        self,
        folder: Path,
        kafka: SecuredKafka,
        server: TokenServer,
        registry: RegistryServer,
        given: Path,
    ) -> None:
        self.folder = folder
        self._registry = registry
        self._kafka = kafka
        self._server = server
        self._given = given
        self._topic, self._avro_topic = self._new_topic(), self._new_topic()
        self._kdc = kafka.kdc
        self._keys_of_keytabs: list[bytes] = []
        self._key = keys.pkcs8(kafka.client.key, f"{_MARKER}-key")
        kafka.set_scram_user(MARKED_USER, MARKED_PASSWORD)
        with self._admin() as admin:
            self._expired_token = admin.create_delegation_token(max_lifetime_ms=1)
        server.answer = self._answer
        registry.authorization = basic("user", f"{_MARKER}-registry")

    def _new_topic(self) -> str:
        name = f"topic-{uuid.uuid4().hex[:12]}"
        create_topic(self._kafka.bootstrap, name, 1)
        return name

    def _answer(self, asked: Asked) -> Answer:
        client, secret = asked.credentials
        if secret != f"{_MARKER}-oauth":
            return Answer(401, {"error": "invalid_client", "error_description": "no such client"})
        return self._server.token(**({"exp": 1} if client == _OF_EXPIRED_TOKENS else {}))

    @property
    def settings(self) -> dict[str, str]:
        """Settings with which Spark keeps and shows as much as possible."""
        folder = self.folder
        return {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={folder}/tmp",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": (folder / "events").as_uri(),
            "spark.eventLog.enabled": "true",
            "spark.log.level": "DEBUG",
            "spark.sql.pyspark.jvmStacktrace.enabled": "true",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.ui.enabled": "true",
            "spark.ui.port": "0",
        }

    def _plain(self, password: str = MARKED_PASSWORD) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self._kafka.address("SASL_SSL"),
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.username": MARKED_USER,
            "kafka.sasl.password": password,
            "kafka.ssl.truststore.location": str(self._kafka.ca),
        }

    def _scram(
        self, password: str = MARKED_PASSWORD, user: str = MARKED_USER, **more: str
    ) -> dict[str, str]:
        jaas = f"{_MODULE} required username={quoted(user)} password={quoted(password)};"
        return {
            "kafka.bootstrap.servers": self._kafka.address("SASL_SSL"),
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "SCRAM-SHA-512",
            "kafka.sasl.jaas.config": jaas,
            "kafka.ssl.truststore.location": str(self._kafka.ca),
        } | {name.replace("_", "."): value for name, value in more.items()}

    def _tls(self, listener: str) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self._kafka.address(listener),
            "kafka.security.protocol": "SSL",
            "kafka.ssl.truststore.location": str(self._kafka.ca),
        }

    def _kerberos(self, principal: str, keytab: Path, *, by_jaas: bool) -> dict[str, str]:
        """Return the options of a login by a keytab, whose key is searched for, too."""
        assert self._kdc is not None
        shown = self._kdc.run("klist", "-k", "-K", str(keytab))
        keys = re.findall(r"\(0x([0-9a-f]+)\)", shown)
        assert keys
        self._keys_of_keytabs += map(bytes.fromhex, keys)
        login = {
            "kafka.sasl.kerberos.principal": principal,
            "kafka.sasl.kerberos.keytab": str(keytab),
        }
        if by_jaas:
            jaas = (
                f"com.sun.security.auth.module.Krb5LoginModule required /* {_MARKER} */ "
                f'useKeyTab=true keyTab="{keytab}" principal="{principal}";'
            )
            login = {"kafka.sasl.jaas.config": jaas}
        return login | {
            "kafka.bootstrap.servers": self._kafka.address("SASL_SSL"),
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "GSSAPI",
            "kafka.sasl.kerberos.service.name": "kafka",
            "kafka.ssl.truststore.location": str(self._kafka.ca),
        }

    def _by_expired_ticket(self) -> tuple[dict[str, str], str]:
        assert self._kdc is not None
        keytab = self._kdc.keytab(USER)
        cache = self._kdc.tickets(USER, keytab, "-l", "1s")
        self._kdc.wait_until_expired(cache)
        jaas = (
            f"com.sun.security.auth.module.Krb5LoginModule required /* {_MARKER} */ "
            f'useTicketCache=true ticketCache="{cache}";'
        )
        options = self._kerberos(USER, keytab, by_jaas=True) | {"kafka.sasl.jaas.config": jaas}
        return options, "has expired: run kinit again"

    def _by_kerberos(self) -> tuple[list[dict[str, str]], list[tuple[dict[str, str], str]]]:
        """Return as `_writes` does, nothing where there is no KDC."""
        if self._kdc is None:
            return [], []
        keytab, principal = self._kdc.keytab(USER), f"wrong-{uuid.uuid4().hex[:8]}"
        wrong = self._kdc.add(principal)
        content = wrong.read_bytes()
        self._kdc.change_key(principal)
        wrong.write_bytes(content)
        return (
            [self._kerberos(USER, keytab, by_jaas=by_jaas) for by_jaas in (True, False)],
            [
                (self._kerberos(principal, wrong, by_jaas=True), "has an old or wrong key"),
                (self._kerberos("nobody", keytab, by_jaas=True), "no ticket for principal"),
                self._by_expired_ticket(),
            ],
        )

    def _admin(self) -> KafkaAdmin:
        options = {name.removeprefix("kafka."): value for name, value in self._scram().items()}
        return KafkaAdmin(producer_config(options))

    def _by_expired_token(self) -> tuple[dict[str, str], str]:
        token = self._expired_token
        jaas = (
            f"{_MODULE} required username={quoted(token.token_id)} "
            f'password={quoted(token.hmac.value)} tokenauth="true";'
        )
        said = f"refused the login of the delegation token {token.token_id!r}"
        return self._scram() | {"kafka.sasl.jaas.config": jaas}, said

    def _hmacs(self) -> list[str]:
        """Return what delegation tokens log in with."""
        with self._admin() as admin:
            tokens = admin.describe_delegation_token([f"User:{MARKED_USER}"])
        expired = self._expired_token
        found = [token.hmac.value for token in tokens if token.token_id != expired.token_id]
        assert found
        return found

    def _writes(self) -> tuple[list[dict[str, str]], list[tuple[dict[str, str], str]]]:
        """Return options that succeed, and those that fail, with what is said then."""
        kafka, scram, tls = self._kafka, self._scram, self._tls
        mutual = tls("MUTUAL") | {
            "kafka.ssl.keystore.key": self._key,
            "kafka.ssl.keystore.certificate.chain": kafka.client.chain,
            "kafka.ssl.key.password": f"{_MARKER}-key",
        }
        client = "kafka.sasl.oauthbearer.client.credentials.client"
        oauth = {
            "kafka.bootstrap.servers": kafka.address("JWT"),
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "OAUTHBEARER",
            "kafka.sasl.oauthbearer.token.endpoint.url": self._server.url,
            f"{client}.id": CLIENT_ID,
            f"{client}.secret": f"{_MARKER}-oauth",
            "kafka.ssl.truststore.location": str(kafka.ca),
        }
        denied = self._new_topic()
        allow_only(kafka.bootstrap, denied, "DESCRIBE")
        unquoted = f"{_MODULE} required username={MARKED_USER} password=9{_MARKER};"
        without_tls = scram(kafka_security_protocol="SASL_PLAINTEXT")
        del without_tls["kafka.ssl.truststore.location"]
        fail = [
            (scram(f"{_MARKER}-wrong"), "refused the login"),
            (self._plain(f"{_MARKER}-wrong"), "refused the login"),
            (self._plain("${env:WRONG_PASSWORD_OF_TEST}"), "refused the login"),
            (self._plain("${env:NOT_SET_OF_TEST}"), "'NOT_SET_OF_TEST' is not set on the driver"),
            (
                scram(kafka_ssl_truststore_location=str(kafka.other_ca)),
                "unable to get local issuer certificate",
            ),
            (scram(topic=denied), "TOPIC_AUTHORIZATION_FAILED"),
            (scram(kafka_acks="many"), "kafka.acks"),
            (scram() | {"kafka.sasl.jaas.config": unquoted}, "in double quotes"),
            (
                mutual | {"kafka.ssl.key.password": f"{_MARKER}-wrong"},
                "ssl.key.password does not decrypt",
            ),
            (oauth | {f"{client}.secret": f"{_MARKER}-wrong"}, "answered 401"),
            (scram(topic="missing", kafka_max_block_ms="2000"), "UNKNOWN_TOPIC_OR_PARTITION"),
            # Nobody listens at the port.
            (
                scram(kafka_bootstrap_servers="localhost:1", kafka_max_block_ms="1000"),
                "no broker has answered within",
            ),
            (
                self._plain() | {"kafka.bootstrap.servers": kafka.address("SCRAM")},
                "it offers SCRAM-SHA-512",
            ),
            (without_tls, "expects TLS"),
            (mutual | tls("EXPIRED"), "has expired"),
            (mutual | tls("OTHERNAME"), "subject alternative names"),
            (mutual | tls("NOINTERMEDIATE"), "intermediate"),
            (tls("MUTUAL"), "requires a client certificate"),
            (
                tls("MUTUAL") | {"kafka.ssl.keystore.location": str(kafka.expired_client_pem)},
                "the client's certificate, which has expired",
            ),
            (scram(user="nobody"), "refused the login of user 'nobody'"),
            (
                self._plain() | {"kafka.sasl.username": "nobody"},
                "refused the login of user 'nobody'",
            ),
            (oauth | {f"{client}.id": _OF_EXPIRED_TOKENS}, "invalid_token"),
            self._by_expired_token(),
        ]
        by_kerberos, not_by_kerberos = self._by_kerberos()
        succeed = [scram(), self._plain(), mutual, oauth, *by_kerberos]
        succeed += [
            self._plain("${env:KAFKA_PASSWORD_OF_TEST}"),
            scram(exactlyOnce="true", txnAppId=self._topic, txnVersion="1"),
        ]
        return succeed, fail + not_by_kerberos

    def _writes_by_registry(self) -> list[dict[str, str]]:
        """Return options with the credentials of a schema registry, the last two wrong."""
        url = self._registry.url
        options = self._scram(topic=self._avro_topic)
        options |= {"valueFormat": "avro", "valueSchema": '"bytes"', "schema.registry.url": url}
        user = f"user:{_MARKER}-registry"
        return [
            options | {"basic.auth.user.info": user},
            options | {"schema.registry.url": url.replace("//", f"//{user}@")},
            options | {"basic.auth.user.info": f"user:{_MARKER}-wrong"},
            options | {"bearer.auth.token": f"{_MARKER}-token"},
        ]

    def check_every_way(self, settings: dict[str, str], address: str = "") -> None:
        """Run the script; leave its output in the folder. address: of Spark's pages, if known."""
        succeed, fail = self._writes()
        by_registry = self._writes_by_registry()
        given = {
            "settings": settings,
            "address": address,
            "bootstrap": self._kafka.bootstrap,
            "topic": self._topic,
            "marker": _MARKER,
            "unknown": _UNKNOWN_SECRET,
            "secrets": _SECRETS,
            "succeed": succeed,
            "by_token": self._scram(delegationToken="true"),
            "fail": fail,
            "by_registry": by_registry[:-2],
            "refused_by_registry": by_registry[-2:],
            "forms": self._forms,
        }
        # Secrets are in it: it is not searched.
        self._given.write_text(json.dumps(given))
        script = self.folder / "write_secrets.py"
        script.write_text(_SCRIPT)
        done = subprocess.run(
            [sys.executable, script, self.folder, self._given],
            capture_output=True,
            text=True,
            check=False,
            timeout=585,
        )
        (self.folder / "its output").write_text(done.stdout)
        (self.folder / "its log").write_text(done.stderr)
        assert done.stdout.endswith("all tried\n"), done.stdout[-3000:] + done.stderr[-5000:]
        rows = [record.value for record in read_with_confluent(self._kafka.bootstrap, self._topic)]
        assert rows == [b"v"] * (3 + len(succeed) + 1)
        encoded = read_with_confluent(self._kafka.bootstrap, self._avro_topic)
        assert [record.value for record in encoded] == [b"\0\0\0\0\x01v"] * 2

    @property
    def _forms(self) -> list[str]:
        """The forms in which secrets could be seen."""
        coded = [
            base64.b64encode(b"\0" * before + _MARKER.encode()).decode() for before in range(3)
        ]
        # The characters that all their bits are of it.
        ends = [(8 * before + 8 * len(_MARKER)) // 6 for before in range(3)]
        inner = [coded[each][-(-8 * each // 6) : ends[each]] for each in range(3)]
        expired_key = self._kafka.expired_client_pem.read_text().partition("-----END")[0]
        key = [*self._key.splitlines()[1:-1], *expired_key.splitlines()[1:]]
        tokens = [token.rpartition(".")[2] for token in self._server.tokens]
        return [_MARKER, *inner, *key, *tokens, self._expired_token.hmac.value]

    def search(self) -> dict[str, bytes]:
        """Return the contents of all files by name; no secret is in any."""
        left = {
            str(path.relative_to(self.folder)): path.read_bytes()
            for path in sorted(self.folder.rglob("*"))
            if path.is_file()
        }
        assert "report.json" in left
        assert "commit message" in left
        assert self._server.tokens
        log = b"".join(text for name, text in left.items() if name.endswith(("log", "stderr")))
        assert b"(localhost:" in log, "the sink logs at DEBUG"
        assert b" DEBUG " in log, "Spark logs at DEBUG"
        forms = [form.encode() for form in self._forms + self._hmacs()]
        for key in self._keys_of_keytabs:
            forms += [key, key.hex().encode(), base64.b64encode(key)]
        for name, text in left.items():
            # What a ticket cache in a file, or a copy of a keytab, begins with.
            assert text[:2] not in (b"\5\4", b"\5\2"), name
            for form in forms:
                place = text.find(form)
                assert place < 0, f"in {name}: {text[max(0, place - 300) : place + 20]!r}"
        return left


@pytest.fixture
def scene(
    secured_kafka: SecuredKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Scene]:
    """A folder with a source for streams, one for events, and those for temporary files."""
    folder = tmp_path / "searched"
    for name in ("events", "source", "tmp", "local", "site"):
        (folder / name).mkdir(parents=True)
    (folder / "source" / "a.txt").write_text("v\n")
    (folder / "site" / "sitecustomize.py").write_text(_SITE)
    paths = [str(folder / "site"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    monkeypatch.setenv("TMPDIR", str(folder / "tmp"))
    for name, value in _IN_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(folder / "local"))
    with (
        TokenServer(secured_kafka.jwt_key.read_text()) as server,
        registry_server() as registry,
    ):
        yield Scene(folder, secured_kafka, server, registry, tmp_path / "given.json")


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
def test_a_secret_is_nowhere_to_be_seen(scene: Scene, masked_by: str) -> None:
    settings = scene.settings | {"spark.master": "local[1]"}
    if masked_by == "settings":
        settings["spark.redaction.regex"] = _redaction_regex()
    scene.check_every_way(settings)
    assert b"SparkListenerSQLExecutionStart" in _events(scene.search())


@pytest.mark.long(reason="a standalone cluster of its own; above, driver and executor are one")
def test_a_secret_is_nowhere_to_be_seen_of_executors(scene: Scene) -> None:
    with standalone_cluster(scene.folder, Path(sys.executable)) as master:
        scene.check_every_way(scene.settings | {"spark.master": master})
    left = scene.search()
    assert any(b"(localhost:" in text for name, text in left.items() if "work-" in name)


def test_a_secret_is_nowhere_to_be_seen_of_a_connect_server(scene: Scene) -> None:
    # A server prints plans that it cannot analyse outside of any session; register covers the rest.
    # The port for its pages is a free one at that time.
    settings = scene.settings | {"spark.redaction.regex": _redaction_regex()}
    with connect_server(scene.folder, settings) as remote:
        log = (scene.folder / "connect.log").read_text()
        port = re.findall(r"'SparkUI' on port (\d+)", log)[-1]
        scene.check_every_way({"spark.remote": remote}, f"http://127.0.0.1:{port}")
    assert b"SparkListenerConnectOperationStarted" in _events(scene.search())
