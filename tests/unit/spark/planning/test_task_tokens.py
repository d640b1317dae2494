"""Delegation tokens of the driver: how many there are, and where their secrets are.

The brokers are those of the test. Time passes only where a test says so.
"""

from __future__ import annotations

import base64
import errno
import fcntl
import io
import json
import os
import pickle
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any, Self

import msgspec
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from pyspark import SparkFiles
from pyspark.sql.types import StringType, StructType
from support.pure.planned_run import PLAN

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.auth.delegation_tokens import FRESH_MS, delegation_token
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.errors import (
    ConfigException,
    KafkaException,
    SaslAuthenticationException,
    TimeoutException,
    api_exception,
)
from spark_kafka_sink.logs import _warn
from spark_kafka_sink.model import DelegationToken, Secret
from spark_kafka_sink.network.oauth import user_of_file
from spark_kafka_sink.network.option_values import OptionValues
from spark_kafka_sink.spark import replays, session
from spark_kafka_sink.spark.committing import exactly_once_commit, job_commit, job_token
from spark_kafka_sink.spark.driver.hooks import delegation_token_renewal
from spark_kafka_sink.spark.driver.hooks.delegation_token_renewal import renew_token_of_query
from spark_kafka_sink.spark.micro_batch import MicroBatch, batch_id_option, query_option
from spark_kafka_sink.spark.options import SinkOptions, sink_options
from spark_kafka_sink.spark.planning import (
    datasource,
    encodings,
    run_plan,
    task_tokens,
    token_file,
)
from spark_kafka_sink.spark.planning.datasource import KafkaDataSource
from spark_kafka_sink.spark.planning.task_tokens import (
    checked_with_shared_token,
    forget_write,
    renew_for_write,
    with_job_token,
)
from spark_kafka_sink.spark.writer import (
    ExactlyOnceMicroBatchWriter,
    ExactlyOnceStreamWriter,
    ExactlyOnceWriter,
    KafkaArrowWriter,
    KafkaStreamArrowWriter,
    MicroBatchWriter,
)

HOUR_MS = 3_600_000
GIVEN = {
    "kafka.bootstrap.servers": "b:1",
    "kafka.security.protocol": "SASL_SSL",
    "kafka.sasl.mechanism": "PLAIN",
    "kafka.sasl.username": "alice",
    "kafka.sasl.password": "hunter2",
    "topic": "t",
    "delegationToken": "true",
}
PASSWORD = b"hunter2"
KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
    serialization.Encoding.PEM,
    serialization.PrivateFormat.PKCS8,
    serialization.NoEncryption(),
)


def user_of(config: ProducerConfig) -> str:
    """Return the user that logs in, as brokers see it."""
    values = OptionValues(config)
    if config.sasl_mechanism == "OAUTHBEARER":
        if config.sasl_oauthbearer_client_credentials_client_secret is not None:
            return "client"
        template = config.sasl_oauthbearer_assertion_template_file
        if template is not None:
            found: str = json.loads(Path(template).read_text())["payload"]["sub"]
            return found
        return user_of_file(config, values)
    if config.sasl_jaas_config is not None:
        entry = values.jaas(config.sasl_jaas_config.value, config.sasl_mechanism)
        return entry.options["username"]
    return values.resolved("sasl.username", config.sasl_username or "")


@dataclass
class Brokers:
    """The tokens of a cluster; its clock is behind the driver's.

    lives_ms: how long a token is valid without a renewal. later: the calls of Describe that do not
    show a new token yet. failure: what every call raises. meanwhile: called during every call.
    """

    now_ms: int = 1_000_000_000_000
    lives_ms: int = 24 * HOUR_MS
    passed_s: float = 0.0
    behind_ms: int = 5 * HOUR_MS
    later: int = 0
    failure: KafkaException | None = None
    meanwhile: Callable[[], object] = field(default=lambda: None)
    tokens: dict[str, tuple[str, DelegationToken]] = field(default_factory=dict)
    created: int = 0
    calls: list[str] = field(default_factory=list)

    def admin(self, config: ProducerConfig, **_: object) -> Admin:
        """Return an admin of a user."""
        assert delegation_token(config) is None
        return Admin(self, user_of(config))

    @property
    def here_ms(self) -> int:
        """The time by the clock of the brokers."""
        return self.now_ms - self.behind_ms

    def pass_time(self, seconds: float) -> None:
        """Let time pass."""
        self.now_ms += round(seconds * 1000)
        self.passed_s += seconds

    def set_clock_back(self, ms: int) -> None:
        """Set the driver's clock back, but not that of the brokers."""
        self.now_ms -= ms
        self.behind_ms -= ms


@dataclass
class Admin:
    """What `KafkaAdmin` does about tokens."""

    brokers: Brokers
    user: str

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def _call(self, name: str) -> None:
        self.brokers.calls.append(name)
        self.brokers.meanwhile()
        if self.brokers.failure is not None:
            raise self.brokers.failure

    def create_delegation_token(self) -> DelegationToken:
        """Create a token of the user."""
        self._call("create")
        brokers = self.brokers
        brokers.created += 1
        token_id = f"id-{brokers.created}"
        made = DelegationToken(
            token_id=token_id,
            hmac=Secret(base64.b64encode(token_id.encode() * 3).decode()),
            owner=f"User:{self.user}",
            issue_timestamp_ms=brokers.here_ms,
            expiry_timestamp_ms=brokers.here_ms + brokers.lives_ms,
            max_timestamp_ms=brokers.here_ms + 7 * 24 * HOUR_MS,
        )
        brokers.tokens[made.hmac.value] = self.user, made
        return made

    def renew_delegation_token(self, hmac: Secret) -> int:
        """Renew a token of the user."""
        self._call("renew")
        user, token = self._found(hmac)
        here_ms = self.brokers.here_ms
        expiry_ms = min(here_ms + self.brokers.lives_ms, token.max_timestamp_ms)
        self.brokers.tokens[hmac.value] = user, replace(token, expiry_timestamp_ms=expiry_ms)
        return expiry_ms

    def expire_delegation_token(self, hmac: Secret) -> None:
        """Delete a token."""
        self._call("expire")
        self._found(hmac)
        del self.brokers.tokens[hmac.value]

    def _found(self, hmac: Secret) -> tuple[str, DelegationToken]:
        found = self.brokers.tokens.get(hmac.value)
        if found is None:
            raise api_exception(codes.DELEGATION_TOKEN_NOT_FOUND, "gone")
        if found[0] != self.user:
            raise api_exception(codes.DELEGATION_TOKEN_OWNER_MISMATCH, "not yours")
        return found

    def describe_delegation_token(self) -> list[DelegationToken]:
        """Return the user's tokens."""
        self._call("describe")
        if self.brokers.later:
            self.brokers.later -= 1
            return []
        return [token for user, token in self.brokers.tokens.values() if user == self.user]


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Brokers]:
    """Brokers, in a process of a driver that knows no token yet."""
    made = Brokers()
    for module in (task_tokens, job_token):
        monkeypatch.setattr(module, "KafkaAdmin", made.admin)
    for module in (token_file, job_token):
        monkeypatch.setattr(module, "driver_folder", lambda: tmp_path)
    # Of these modules alone: threads that other tests have left sleep too, and would pass the time.
    clock = SimpleNamespace(
        time=lambda: made.now_ms / 1000, sleep=made.pass_time, monotonic=lambda: made.passed_s
    )
    for module in (task_tokens, job_token):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(task_tokens, "_shared", {})
    yield made
    task_tokens._shared.clear()


def new_process() -> dict[Any, Any]:
    """Go on as another planning process, which knows nothing yet; return what this one knows."""
    known = dict(task_tokens._shared)
    task_tokens._shared.clear()
    return known


def go_on_as(process: dict[Any, Any]) -> None:
    """Go on as an earlier planning process, by what it knows."""
    task_tokens._shared.clear()
    task_tokens._shared.update(process)


@contextmanager
def locked_by_another_process(folder: Path) -> Iterator[None]:
    """Lock the file of tokens."""
    with (folder / token_file._FILE).open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def options(**more: str) -> SinkOptions:
    """Return options with a token; names with _ for the dot."""
    return sink_options(GIVEN | {name.replace("_", "."): value for name, value in more.items()})


def shared(given: SinkOptions | None = None) -> DelegationToken:
    """Return the token of a micro-batch."""
    found = checked_with_shared_token(given or options(), lambda checked: checked)
    token = delegation_token(found.producer)
    assert token is not None
    return token


# -- micro-batches ---------------------------------------------------------------------------------


@pytest.mark.parametrize("lives_for", [5, 10_000])
@pytest.mark.parametrize("minutes", [1, 8])
def test_a_thousand_micro_batches_take_two_tokens_at_most(
    brokers: Brokers, lives_for: int, minutes: int
) -> None:
    given = options()
    for batch in range(1000):
        if batch % lives_for == 0:
            new_process()
        token = shared(given)
        valid = brokers.tokens[token.hmac.value][1]
        assert valid.expiry_timestamp_ms - brokers.here_ms >= 6 * HOUR_MS
        assert token.expiry_timestamp_ms == valid.expiry_timestamp_ms + brokers.behind_ms
        brokers.pass_time(minutes * 60)
    assert brokers.created == (1 if minutes == 1 else 2)
    assert "expire" not in brokers.calls


def test_a_process_that_knows_the_token_asks_nobody(brokers: Brokers) -> None:
    first = shared()
    brokers.calls.clear()
    assert shared() == first
    assert brokers.calls == []
    new_process()
    assert shared() == first
    assert brokers.calls == ["describe"]


def test_the_renewal_of_another_process_counts(brokers: Brokers) -> None:
    first = shared()
    brokers.pass_time(19 * 3600)
    mine = new_process()
    assert shared().token_id == first.token_id
    go_on_as(mine)
    assert shared().expiry_timestamp_ms == first.expiry_timestamp_ms + 19 * HOUR_MS
    assert brokers.calls == ["create", "describe", "renew"]


def test_a_token_that_brokers_do_not_show_yet_is_waited_for(brokers: Brokers) -> None:
    first = shared()
    new_process()
    brokers.later = 3
    assert shared() == first
    new_process()
    brokers.pass_time(FRESH_MS / 1000)
    brokers.later = 1
    assert shared() != first


def test_a_clock_that_was_set_back_delays_no_micro_batch_for_long(brokers: Brokers) -> None:
    first = shared()
    new_process()
    brokers.tokens.clear()
    brokers.set_clock_back(HOUR_MS)
    before_s = brokers.passed_s
    assert shared() != first
    assert brokers.passed_s - before_s == pytest.approx(FRESH_MS / 1000, abs=0.1)


def test_users_and_clusters_have_tokens_of_their_own(brokers: Brokers) -> None:
    given = [
        options(),
        options(kafka_sasl_username="bob"),
        options(kafka_bootstrap_servers="c:1"),
        options(kafka_sasl_password="another"),
    ]
    tokens = [shared(each) for each in given]
    assert len({token.token_id for token in tokens}) == len(given)
    new_process()
    assert [shared(each) for each in given] == tokens
    assert shared(options(kafka_linger_ms="7", topic="u")) == tokens[0]
    assert brokers.created == len(given)


def jaas(user: str) -> str:
    """Return the text of sasl.jaas.config for a user."""
    return f'x.PlainLoginModule required username="{user}" password="hunter2";'


def jwt(user: str) -> str:
    """Return a token of OAuth; nobody checks its signature."""
    claims = base64.urlsafe_b64encode(json.dumps({"sub": user}).encode()).decode().rstrip("=")
    return f"e30.{claims}.e30"


# By the name of a case: the options with the path of a file, and the content for a user.
CHANGED_FILES: dict[str, tuple[dict[str, str], Callable[[str], str]]] = {
    "file": (
        {"kafka.sasl.username": "${file:PATH:user}"}, "user={}".format
    ),
    "directory": ({"kafka.sasl.username": "${directory:FOLDER:NAME}"}, str),
    "jaas": ({"kafka.sasl.jaas.config": "${directory:FOLDER:NAME}"}, jaas),
    "in jaas": (
        {"kafka.sasl.jaas.config": jaas("${file:PATH:user}")}, "user={}".format
    ),
    "token": (
        {
            "kafka.sasl.mechanism": "OAUTHBEARER",
            "kafka.sasl.oauthbearer.token.endpoint.url": "file://PATH",
        },
        jwt,
    ),
    "assertion": (
        {
            "kafka.sasl.mechanism": "OAUTHBEARER",
            "kafka.sasl.oauthbearer.token.endpoint.url": "http://127.0.0.1:1/token",
            "kafka.sasl.oauthbearer.assertion.file": "PATH",
        },
        jwt,
    ),
    "template of assertions": (
        {
            "kafka.sasl.mechanism": "OAUTHBEARER",
            "kafka.sasl.oauthbearer.token.endpoint.url": "http://127.0.0.1:1/token",
            "kafka.sasl.oauthbearer.assertion.claim.iss": "issuer",
            "kafka.sasl.oauthbearer.assertion.private.key.file": "FOLDER/key.pem",
            "kafka.sasl.oauthbearer.assertion.template.file": "PATH",
        },
        '{{"payload": {{"sub": "{}"}}}}'.format,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CHANGED_FILES)
def test_a_file_with_another_user_gets_a_token_of_that_user(
    brokers: Brokers, tmp_path_factory: pytest.TempPathFactory, case: str
) -> None:
    file = tmp_path_factory.mktemp("secrets") / "content"
    (file.parent / "key.pem").write_bytes(KEY)
    names, content = CHANGED_FILES[case]
    given = dict(GIVEN)
    if "kafka.sasl.username" not in names:
        del given["kafka.sasl.username"], given["kafka.sasl.password"]
    for name, text in names.items():
        of_file = text.replace("PATH", str(file)).replace("NAME", file.name)
        given[name] = of_file.replace("FOLDER", str(file.parent))
    found = {}
    for user in ("alice", "bob"):
        file.write_text(content(user))
        found[user] = shared(sink_options(given))
        assert found[user].owner == f"User:{user}"
        new_process()
        assert shared(sink_options(given)) == found[user]
    file.write_text(content("alice"))
    assert shared(sink_options(given)) == found["alice"]
    assert brokers.created == 2


def test_a_variable_without_a_value_gets_no_token(brokers: Brokers, tmp_path: Path) -> None:
    given = options(kafka_sasl_username=f"${{file:{tmp_path}/none:user}}")
    with pytest.raises(
        ConfigException, match=r"kafka\.sasl\.username has \$\{file:.* cannot be read"
    ):
        shared(given)
    assert brokers.calls == []


def test_a_mechanism_in_the_wrong_case_is_named_before_anything_else(brokers: Brokers) -> None:
    given = GIVEN | {"kafka.sasl.mechanism": "plain", "kafka.sasl.jaas.config": jaas("alice")}
    del given["kafka.sasl.username"], given["kafka.sasl.password"]
    with pytest.raises(ConfigException, match="write it PLAIN"):
        shared(sink_options(given))
    assert brokers.calls == []


def test_expired_tokens_of_earlier_users_are_forgotten(brokers: Brokers, tmp_path: Path) -> None:
    for hour in range(100):
        shared(options(kafka_sasl_username=f"user{hour}"))
        brokers.pass_time(3600)
    (file,) = tmp_path.iterdir()
    with file.open("rb", buffering=0) as opened:
        assert len(token_file.Notes.read(opened).tokens) == 24
    assert len(task_tokens._shared) == 24


def test_a_token_that_somebody_has_expired_is_replaced(brokers: Brokers) -> None:
    first = shared()
    brokers.tokens.clear()
    brokers.pass_time(19 * 3600)
    second = shared()
    assert second.token_id != first.token_id
    assert brokers.calls[-2:] == ["renew", "create"]
    brokers.tokens.clear()
    brokers.pass_time(60)
    new_process()
    assert shared().token_id not in (first.token_id, second.token_id)


def test_a_token_that_brokers_refuse_is_replaced_unless_it_is_new(brokers: Brokers) -> None:
    refused: list[str] = []

    def check(checked: SinkOptions) -> SinkOptions:
        token = delegation_token(checked.producer)
        assert token is not None
        if token.token_id in refused:
            raise SaslAuthenticationException("refused")
        return checked

    first = shared()
    refused.append(first.token_id)
    with pytest.raises(SaslAuthenticationException):
        checked_with_shared_token(options(), check)
    brokers.pass_time(FRESH_MS / 1000)
    found = delegation_token(checked_with_shared_token(options(), check).producer)
    assert found is not None
    assert found != first
    new_process()
    assert shared() == found
    refused.append(found.token_id)
    refused.append("id-3")
    brokers.pass_time(FRESH_MS / 1000)
    with pytest.raises(SaslAuthenticationException):
        checked_with_shared_token(options(), check)


def test_while_a_token_cannot_be_renewed_it_is_used_until_it_expires(
    brokers: Brokers, caplog: pytest.LogCaptureFixture
) -> None:
    first = shared()
    brokers.failure = TimeoutException("no broker")
    brokers.pass_time(18 * 3600)
    brokers.calls.clear()
    for _ in range(30):
        assert shared() == first
        brokers.pass_time(10)
    # Once a minute.
    assert brokers.calls == ["renew"] * 5
    assert f"token {first.token_id} cannot be renewed now" in caplog.text
    brokers.failure = None
    brokers.pass_time(60)
    assert shared().expiry_timestamp_ms > first.expiry_timestamp_ms
    brokers.failure = TimeoutException("no broker")
    brokers.pass_time(24 * 3600)
    with pytest.raises(TimeoutException, match="no broker"):
        shared()


def test_a_first_token_that_cannot_be_created_is_an_error(brokers: Brokers) -> None:
    brokers.failure = api_exception(codes.DELEGATION_TOKEN_AUTH_DISABLED, "none here")
    with pytest.raises(KafkaException, match="none here"):
        shared()
    brokers.failure = None
    shared()


def test_the_file_is_the_driver_s_alone_and_has_no_secret(brokers: Brokers, tmp_path: Path) -> None:
    token = shared()
    (file,) = tmp_path.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    text = file.read_bytes()
    assert token.token_id.encode() in text
    assert not any(secret in text for secret in (PASSWORD, token.hmac.value.encode()))


def test_a_file_that_is_broken_off_is_begun_again(brokers: Brokers, tmp_path: Path) -> None:
    first = shared()
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-3])
    assert shared() == first
    new_process()
    second = shared()
    assert second != first
    new_process()
    assert shared() == second


def test_a_link_is_not_followed_and_the_process_goes_on_without_a_file(
    brokers: Brokers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target = tmp_path / "precious"
    target.write_text("content")
    (tmp_path / token_file._FILE).symlink_to(target)
    _warn.cache_clear()
    assert shared() == shared()
    assert target.read_text() == "content"
    assert "micro-batches creates its own token" in caplog.text
    assert str(tmp_path) not in caplog.text


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no disk here is always full")
def test_a_file_that_cannot_be_written_fails_no_micro_batch(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(token_file, "_open", lambda: os.open("/dev/full", os.O_RDWR))
    monkeypatch.setattr(token_file.Notes, "read", classmethod(lambda cls, _: cls("00", {}, {})))
    _warn.cache_clear()
    assert shared() == shared()
    assert "cannot be written on the driver" in caplog.text


def test_a_disk_that_is_full_for_a_moment_takes_no_token_from_the_file(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = shared()
    assert len(token_file.unlocked_notes().tokens) == 1

    class FullDisk(io.FileIO):
        is_full = True

        def write(self, data: Any) -> int:  # noqa: ANN401 - as FileIO takes it
            if FullDisk.is_full:
                FullDisk.is_full = False
                super().write(bytes(data)[:10])
                raise OSError(errno.ENOSPC, "no space")
            return super().write(data)

    with monkeypatch.context() as full:
        full.setattr(os, "fdopen", lambda descriptor, *_, **__: FullDisk(descriptor, "r+"))
        task_tokens._note_job(options().producer, "a job", None)
    assert not FullDisk.is_full
    assert len(token_file.unlocked_notes().tokens) == 1
    assert shared() == first


def test_a_file_system_without_locks_fails_no_write(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    _warn.cache_clear()
    assert shared() == shared()
    assert "No locks available" in caplog.text


@pytest.mark.parametrize("is_expired", [False, True])
def test_no_process_waits_for_ever_for_another_one(
    brokers: Brokers, tmp_path: Path, *, is_expired: bool
) -> None:
    if is_expired:
        shared()
        brokers.pass_time(24 * 3600)
    words = r"another process .* creating or renewing .* after kafka\.max\.block\.ms=10$"
    with locked_by_another_process(tmp_path), pytest.raises(TimeoutException, match=words):
        shared(options(kafka_max_block_ms="10"))


def test_a_valid_token_is_used_though_another_process_cannot_renew_it(
    brokers: Brokers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = options(kafka_max_block_ms="10")
    first = shared(given)
    brokers.pass_time(18 * 3600)
    brokers.calls.clear()
    with locked_by_another_process(tmp_path):
        for _ in range(6):  # during the minute to the next attempt
            assert shared(given) == first
            brokers.pass_time(10)
        assert len(caplog.messages) == 1
        assert f"token {first.token_id} cannot be renewed now" in caplog.text
        assert brokers.calls == []
        new_process()
        assert shared(given) == first
        assert brokers.calls == ["describe"]
        assert len(caplog.messages) == 2
    brokers.pass_time(60)
    assert shared(given).expiry_timestamp_ms > first.expiry_timestamp_ms


def test_a_new_process_uses_a_token_that_needs_nothing_though_the_file_is_locked(
    brokers: Brokers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = shared()
    new_process()
    with locked_by_another_process(tmp_path):
        assert shared(options(kafka_max_block_ms="10")) == first
    assert caplog.messages == []


def test_a_renewal_that_failed_is_not_tried_at_once_by_the_other_processes(
    brokers: Brokers,
) -> None:
    first = shared()
    brokers.pass_time(18 * 3600)
    mine = new_process()
    brokers.calls.clear()
    go_on_as(mine)
    brokers.failure = TimeoutException("no broker")
    assert shared() == first
    go_on_as(mine)
    assert shared() == first
    assert brokers.calls == ["renew"]
    brokers.failure = None
    new_process()
    assert shared() == first
    assert brokers.calls == ["renew", "describe"]
    brokers.pass_time(60)
    assert shared().expiry_timestamp_ms > first.expiry_timestamp_ms
    go_on_as(mine)
    assert shared().expiry_timestamp_ms > first.expiry_timestamp_ms
    assert brokers.calls == ["renew", "describe", "renew"]


def test_a_token_that_expires_soon_is_renewed_again_in_less_than_a_minute(brokers: Brokers) -> None:
    first = shared()
    brokers.pass_time(24 * 3600 - 40)
    brokers.failure = TimeoutException("no broker")
    assert shared() == first
    brokers.failure = None
    brokers.pass_time(9)
    assert shared() == first
    brokers.pass_time(1)
    assert shared().expiry_timestamp_ms > first.expiry_timestamp_ms


def test_without_brokers_the_renewal_of_another_process_is_not_forgotten(brokers: Brokers) -> None:
    given = options()
    first = shared(given)
    brokers.pass_time(20 * 3600)
    renew_for_write(given)
    brokers.failure = TimeoutException("no broker")
    stays_valid_s = 24 * 3600
    # The last two times, a renewal is due.
    for hours in (1, 4, 14, 4):
        brokers.pass_time(hours * 3600)
        stays_valid_s -= hours * 3600
        mine = dict(task_tokens._shared)
        token = shared(given)
        assert token.token_id == first.token_id
        assert token.expiry_timestamp_ms == brokers.now_ms + stays_valid_s * 1000
        go_on_as(mine)
    brokers.failure = None
    brokers.pass_time(50 * 60)
    new_process()
    assert shared(given).token_id == first.token_id


def test_without_brokers_a_process_does_not_bring_back_a_token_that_was_replaced(
    brokers: Brokers,
) -> None:
    given = options()
    for _ in range(7):
        old = shared(given)
        brokers.pass_time(18 * 3600)
        renew_for_write(given)
    mine = new_process()
    new = shared(given)
    assert new.token_id != old.token_id
    go_on_as(mine)
    brokers.failure = TimeoutException("no broker")
    brokers.pass_time(4 * 3600)
    assert shared(given).token_id == old.token_id
    brokers.failure = None
    new_process()
    assert shared(given).token_id == new.token_id
    assert brokers.created == 2


def test_without_a_spark_context_the_process_alone_knows_the_token(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_file, "driver_folder", lambda: None)
    first = shared()
    assert shared() == first


def test_without_a_spark_context_there_is_no_driver_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkFiles, "_sc", None)  # another test may have left one
    assert session.driver_folder() is None


# -- while a write runs ----------------------------------------------------------------------------


def of_job(given: SinkOptions) -> DelegationToken:
    """Return the token of a job."""
    token = delegation_token(with_job_token(given)[0].producer)
    assert token is not None
    return token


def of_micro_batch(given: SinkOptions) -> DelegationToken:
    """Return the token of a micro-batch."""
    return shared(given)


@pytest.mark.parametrize("planned", [of_job, of_micro_batch])
def test_the_token_of_a_running_write_is_renewed_up_to_its_maximum_life(
    brokers: Brokers, planned: Callable[[SinkOptions], DelegationToken]
) -> None:
    given = options(pykafka_write_id="one")
    assert renew_for_write(given) == 1.0  # nothing is planned yet
    token = planned(given)
    new_process()
    before_its_end = brokers.tokens[token.hmac.value][1].max_timestamp_ms - 1000
    while brokers.here_ms < before_its_end:
        assert brokers.here_ms < brokers.tokens[token.hmac.value][1].expiry_timestamp_ms
        wait_s = renew_for_write(given)
        assert 1.0 <= wait_s <= 60.0
        brokers.pass_time(wait_s)
    assert brokers.created == 1
    assert brokers.calls.count("renew") < 30
    brokers.calls.clear()
    brokers.pass_time(10)
    renew_for_write(given)
    assert brokers.calls == []


def test_the_tokens_of_a_running_write_are_renewed_after_its_password_has_changed(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = options(kafka_sasl_password="${env:PASSWORD_OF_A_TEST}")
    tokens = []
    for password in ("first", "second"):
        monkeypatch.setenv("PASSWORD_OF_A_TEST", password)
        tokens.append(shared(given))
        renew_for_write(given)
        brokers.pass_time(3600)
    # Of another user.
    other = shared(options(kafka_sasl_username="bob"))
    before_its_end = brokers.tokens[tokens[0].hmac.value][1].max_timestamp_ms - 1000
    while brokers.here_ms < before_its_end:
        for token in tokens:
            assert brokers.here_ms < brokers.tokens[token.hmac.value][1].expiry_timestamp_ms
        brokers.pass_time(renew_for_write(given))
    assert brokers.tokens[other.hmac.value][1].expiry_timestamp_ms < brokers.here_ms
    assert brokers.created == 3


def test_one_renewal_that_fails_lets_no_token_expire(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers.lives_ms = 100_000
    given = GIVEN | {"pykafka.write.id": "one"}
    token = of_job(sink_options(given))
    monkeypatch.setattr(delegation_token_renewal, "time", SimpleNamespace(sleep=brokers.pass_time))
    brokers.failure = TimeoutException("no controller")

    class Query:
        """A query that runs for ten minutes; the brokers are back after its first failure."""

        @property
        def isActive(self) -> bool:  # noqa: N802 - Spark's name
            if brokers.calls.count("describe") == 1:
                brokers.failure = None
            left_ms.append(
                brokers.tokens[token.hmac.value][1].expiry_timestamp_ms - brokers.here_ms
            )
            return brokers.passed_s < 600

    left_ms: list[int] = []
    renew_token_of_query(Query(), {name.lower(): value for name, value in given.items()})
    for each in threading.enumerate():
        if each.name == "kafka-delegation-token":
            each.join(60)
    assert brokers.passed_s >= 600
    assert min(left_ms) > 0


def test_a_job_whose_token_is_not_noted_says_so(
    brokers: Brokers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _warn.cache_clear()
    given = options(pykafka_write_id="one", kafka_max_block_ms="10")
    with locked_by_another_process(tmp_path):
        for _ in range(2):
            assert of_job(given).token_id in str(brokers.tokens)
        forget_write(given)
    (said,) = caplog.messages
    assert said.startswith("the delegation token of a job is not renewed while its tasks run: ")
    assert "another process of this application" in said


def test_a_job_renews_its_own_token_only(brokers: Brokers) -> None:
    first, second = (options(pykafka_write_id=name) for name in ("one", "two"))
    tokens = [of_job(first), of_job(second)]
    expiry = [brokers.tokens[token.hmac.value][1].expiry_timestamp_ms for token in tokens]
    brokers.pass_time(20 * 3600)
    renew_for_write(second)
    found = [brokers.tokens[token.hmac.value][1].expiry_timestamp_ms for token in tokens]
    assert found == [expiry[0], expiry[1] + 20 * HOUR_MS]
    forget_write(first)
    brokers.calls.clear()
    renew_for_write(first)
    assert brokers.calls == []


def test_a_replaced_token_is_renewed_too_because_running_tasks_use_it(brokers: Brokers) -> None:
    given = options()
    old = shared(given)
    ends_ms = brokers.tokens[old.hmac.value][1].max_timestamp_ms
    wait_s, current = 0.0, old
    while brokers.here_ms < ends_ms - 1000:
        assert brokers.here_ms < brokers.tokens[old.hmac.value][1].expiry_timestamp_ms
        assert brokers.here_ms < brokers.tokens[current.hmac.value][1].expiry_timestamp_ms
        if brokers.here_ms > ends_ms - 41 * HOUR_MS:
            current = shared(given)  # another query plans a micro-batch
        wait_s = renew_for_write(given, wait_s)
        brokers.pass_time(wait_s)
    assert current.token_id != old.token_id
    assert brokers.created == 2
    brokers.calls.clear()
    brokers.pass_time(10)
    renew_for_write(given)
    assert brokers.calls == []


@pytest.mark.parametrize("planned", [of_job, of_micro_batch])
def test_a_renewal_holds_up_nobody_who_plans_and_is_not_done_twice(
    brokers: Brokers, planned: Callable[[SinkOptions], DelegationToken]
) -> None:
    given = options(pykafka_write_id="one")
    planned(given)
    brokers.pass_time(20 * 3600)
    brokers.calls.clear()

    def meanwhile() -> None:
        brokers.meanwhile = lambda: None
        assert renew_for_write(given) == 60.0
        assert brokers.calls == ["describe"]
        shared(options(kafka_sasl_username="bob", kafka_max_block_ms="10"))

    brokers.meanwhile = meanwhile
    renew_for_write(given)
    assert brokers.calls == ["describe", "create", "renew"]


def test_a_renewal_that_fails_is_tried_again_after_a_minute(brokers: Brokers) -> None:
    given = options()
    shared(given)
    brokers.pass_time(20 * 3600)
    brokers.failure = TimeoutException("away")
    with pytest.raises(TimeoutException):
        renew_for_write(given)
    brokers.failure = None
    brokers.calls.clear()
    assert renew_for_write(given) == 60.0
    assert brokers.calls == []
    brokers.pass_time(60)
    renew_for_write(given)
    assert brokers.calls == ["describe", "renew"]


def test_the_renewal_of_a_process_that_plans_meanwhile_counts(brokers: Brokers) -> None:
    given = options()
    shared(given)
    brokers.pass_time(20 * 3600)

    def meanwhile() -> None:
        brokers.meanwhile = lambda: None
        new_process()
        shared(given)

    brokers.meanwhile = meanwhile
    renew_for_write(given)
    brokers.pass_time(17 * 3600)
    brokers.calls.clear()
    renew_for_write(given)
    assert brokers.calls == []


@pytest.mark.parametrize("others", [[], ["bob"]])
def test_a_write_without_an_entry_is_looked_for_less_and_less_often(
    brokers: Brokers, others: list[str]
) -> None:
    for user in others:
        shared(options(kafka_sasl_username=user))
    brokers.calls.clear()
    waits = [0.0]
    for _ in range(8):
        waits.append(renew_for_write(options(), waits[-1]))
    assert waits[1:] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert brokers.calls == []


def test_a_running_write_whose_token_somebody_has_expired_asks_no_more(brokers: Brokers) -> None:
    given = options(pykafka_write_id="one")
    of_job(given)
    brokers.tokens.clear()
    brokers.pass_time(20 * 3600)
    renew_for_write(given)
    assert brokers.calls == ["create", "describe"]
    renew_for_write(given)
    assert brokers.calls == ["create", "describe"]


# -- jobs ------------------------------------------------------------------------------------------


def committed_elsewhere(writer: KafkaArrowWriter) -> KafkaArrowWriter:
    """Return the writer as another process gets it."""
    copy: KafkaArrowWriter = pickle.loads(pickle.dumps(writer))
    return copy


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_the_token_of_a_job_ends_with_it(brokers: Brokers, tmp_path: Path, end: str) -> None:
    checked, token = with_job_token(options())
    writer = KafkaArrowWriter(checked, token)
    assert len(brokers.tokens) == 1
    # Brokers that do not know it yet learn of it soon.
    ended: Any = getattr(committed_elsewhere(writer), end)
    ended([])
    assert brokers.tokens == {}
    assert list(tmp_path.iterdir()) == []
    # A commit that fails is followed by an abort.
    brokers.calls.clear()
    committed_elsewhere(writer).abort([])
    assert brokers.calls == []


@pytest.mark.parametrize("is_exactly_once", [False, True])
def test_the_token_of_a_failed_job_ends_though_its_abort_or_its_report_fails(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch, *, is_exactly_once: bool
) -> None:
    def fails(*_: object, **__: object) -> None:
        message = "no report"
        raise RuntimeError(message)

    monkeypatch.setattr(job_commit, "failure_report", fails)
    monkeypatch.setattr(exactly_once_commit, "abort_batch", fails)
    checked, token = with_job_token(options())
    assert len(brokers.tokens) == 1
    writer: KafkaArrowWriter | ExactlyOnceWriter = KafkaArrowWriter(checked, token)
    if is_exactly_once:
        writer = ExactlyOnceWriter(checked, PLAN, token=token)
    with pytest.raises(RuntimeError, match="no report"):
        writer.abort([None])
    assert brokers.tokens == {}


def test_neither_a_task_nor_the_folder_has_the_driver_s_credentials(
    brokers: Brokers, tmp_path: Path
) -> None:
    checked, token = with_job_token(options())
    created = delegation_token(checked.producer)
    assert created is not None
    pickled = pickle.dumps(KafkaArrowWriter(checked, token))
    assert created.hmac.value.encode() in pickled
    (file,) = tmp_path.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert PASSWORD not in pickled
    assert PASSWORD not in file.read_bytes()
    assert PASSWORD in pickle.dumps(options())
    assert created.hmac.value not in f"{checked!r} {token!r}"


ONCE = {"exactlyOnce": "true", "txnAppId": "app"}
MICRO_BATCH = MicroBatch("query", 3, "run")
OF_STREAM = {"checkpointLocation": "/checkpoint"}
# The options that have each kind of writer planned.
WRITERS: dict[type, dict[str, str]] = {
    KafkaArrowWriter: {},
    KafkaStreamArrowWriter: OF_STREAM,
    MicroBatchWriter: batch_id_option(3),
    ExactlyOnceWriter: ONCE | {"txnVersion": "1"},
    ExactlyOnceStreamWriter: ONCE | OF_STREAM,
    ExactlyOnceMicroBatchWriter: ONCE | batch_id_option(3) | query_option(MICRO_BATCH),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_what_spark_sends_to_executors_has_none_of_the_driver_s_credentials(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch, kind: type
) -> None:
    monkeypatch.setattr(datasource, "check_cluster", lambda options, **_: options)
    monkeypatch.setattr(run_plan, "plan_run", lambda *_: PLAN)
    monkeypatch.setattr(run_plan, "plan_micro_batch", lambda *_: PLAN)
    monkeypatch.setattr(replays, "is_written", lambda *_: False)
    registry = {
        "valueFormat": "avro",
        "schema.registry.url": "http://127.0.0.1:1",
        "basic.auth.user.info": f"user:{PASSWORD.decode()}",
        "bearer.auth.logical.cluster": PASSWORD.decode(),
    }
    monkeypatch.setattr(encodings, "answers", lambda *_, **__: ())
    source = KafkaDataSource(GIVEN | registry | WRITERS[kind])
    # Spark puts the pickled writer into the command of the tasks, and broadcasts it if it is large.
    schema = StructType().add("value", StringType())
    is_stream = kind in (KafkaStreamArrowWriter, ExactlyOnceStreamWriter)
    plan = source.streamWriter if is_stream else source.writer
    writer = plan(schema, False)  # noqa: FBT003 - Spark's signature
    assert type(writer) is kind
    (token,) = [each for _, each in brokers.tokens.values()]
    sent = pickle.dumps(writer)
    assert token.hmac.value.encode() in sent
    assert PASSWORD in pickle.dumps(source)
    assert PASSWORD not in sent


@pytest.mark.parametrize(
    "login",
    [
        {"kafka_sasl_mechanism": "OAUTHBEARER",
         "kafka_sasl_oauthbearer_token_endpoint_url": "https://idp/token",
         "kafka_sasl_oauthbearer_client_credentials_client_secret": "${mine:/secrets:key}",
         "kafka_config_providers": "mine",
         "kafka_config_providers_mine_class":
             "org.apache.kafka.common.config.provider.FileConfigProvider",
         "kafka_config_providers_mine_param_allowed_paths": "/secrets"},
        {"kafka_sasl_jaas_config": 'ScramLoginModule required username="é" password="\\"\\\\";',
         "kafka_sasl_mechanism": "SCRAM-SHA-256", "kafka_ssl_truststore_password": "p"},
        {"kafka_sasl_mechanism": "GSSAPI", "kafka_sasl_kerberos_principal": "alice",
         "kafka_sasl_kerberos_keytab": "alice.keytab", "kafka_compression_type": "zstd"},
    ],
    ids=["OAuth", "JAAS", "Kerberos"],
)  # fmt: skip
def test_the_committing_process_logs_in_as_the_driver_does(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch, login: dict[str, str]
) -> None:
    given = {n: v for n, v in GIVEN.items() if not n.startswith("kafka.sasl.")}
    given |= {name.replace("_", "."): value for name, value in login.items()}
    driver = sink_options(given)
    checked, token = with_job_token(driver)
    seen: list[ProducerConfig] = []

    def admin(config: ProducerConfig) -> Admin:
        seen.append(config)
        return brokers.admin(config)

    monkeypatch.setattr(job_token, "KafkaAdmin", admin)
    committed_elsewhere(KafkaArrowWriter(checked, token)).commit([])
    (config,) = seen
    assert config.max_block_ms == 10_000
    assert replace_limit(config, driver.producer.max_block_ms) == driver.producer
    assert brokers.tokens == {}


def replace_limit(config: ProducerConfig, max_block_ms: int) -> ProducerConfig:
    """Return a configuration with another time limit."""
    return msgspec.structs.replace(config, max_block_ms=max_block_ms)


def test_each_job_has_another_token(brokers: Brokers) -> None:
    tokens = {delegation_token(with_job_token(options())[0].producer) for _ in range(3)}
    assert len(tokens) == 3
    assert shared() not in tokens


def test_an_end_that_fails_is_told_and_fails_no_job(
    brokers: Brokers, capsys: pytest.CaptureFixture[str]
) -> None:
    _, token = with_job_token(options())
    assert token is not None
    brokers.failure = TimeoutException("no broker")
    token.expire()
    said = capsys.readouterr().err
    assert "the delegation token id-1 could not be expired at the end of the job" in said
    assert "and expires later: no broker" in said


def test_a_new_token_that_brokers_do_not_know_yet_is_ended_all_the_same(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, token = with_job_token(options())
    assert token is not None
    known, brokers.tokens = brokers.tokens, {}

    def pass_time(seconds: float) -> None:
        brokers.pass_time(seconds)
        if brokers.calls.count("expire") == 5:
            brokers.tokens = known

    monkeypatch.setattr(f"{job_token.__name__}.time.sleep", pass_time)
    token.expire()
    assert brokers.tokens == {}
    assert brokers.calls.count("expire") == 6


def test_a_token_that_somebody_has_expired_delays_no_commit(
    brokers: Brokers, capsys: pytest.CaptureFixture[str]
) -> None:
    _, token = with_job_token(options())
    assert token is not None
    brokers.tokens.clear()
    brokers.pass_time(FRESH_MS / 1000)
    token.expire()
    assert brokers.calls == ["create", "expire"]
    assert capsys.readouterr().err == ""


def test_a_new_token_that_somebody_has_expired_is_no_failure(
    brokers: Brokers, capsys: pytest.CaptureFixture[str]
) -> None:
    _, token = with_job_token(options())
    assert token is not None
    brokers.tokens.clear()
    token.expire()
    assert brokers.passed_s == pytest.approx(FRESH_MS / 1000)
    assert capsys.readouterr().err == ""


def test_a_job_goes_on_where_its_credentials_cannot_be_kept(
    brokers: Brokers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tmp_path.rmdir()
    checked, token = with_job_token(options())
    assert token is None
    assert delegation_token(checked.producer) is not None
    assert "token id-1 stays valid after the job" in caplog.text
    os.mkdir(tmp_path)  # noqa: PTH102 - for pytest, which removes it


# -- options ---------------------------------------------------------------------------------------


def test_a_token_is_created_only_where_an_option_says_so() -> None:
    assert options().delegation_token_mechanism == "SCRAM-SHA-512"
    given = options(delegationToken_mechanism="SCRAM-SHA-256", delegationToken="TRUE")
    assert given.delegation_token_mechanism == "SCRAM-SHA-256"
    assert options(delegationToken="false").delegation_token_mechanism is None


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"delegationToken": "yes"}, "option delegationToken is 'yes': expected true or false"),
        (
            {"delegationToken": "false", "delegationToken_mechanism": "SCRAM-SHA-256"},
            "delegationToken.mechanism has no effect: set delegationToken to true",
        ),
        (
            {"delegationToken_mechanism": "PLAIN"},
            "option delegationToken.mechanism is 'PLAIN': expected SCRAM-SHA-256 or SCRAM-SHA-512",
        ),
        ({"delegationToken_mechanisms": "x"}, "did you mean delegationToken.mechanism?"),
        ({"kafka_delegationToken": "true"}, "did you mean delegationToken?"),
    ],
)
def test_options_that_mean_nothing_are_refused(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigException) as caught:
        options(**given)
    assert sentence in str(caught.value)


def test_tasks_need_a_listener_with_logins() -> None:
    given = {
        "kafka.bootstrap.servers": "b:1",
        "kafka.security.protocol": "SSL",
        "topic": "t",
        "delegationToken": "true",
    }
    with pytest.raises(ConfigException) as caught:
        sink_options(given)
    said = str(caught.value)
    assert "expected kafka.security.protocol SASL_SSL or SASL_PLAINTEXT, found SSL" in said
