"""AWS_MSK_IAM: where credentials come from, and a broker that computes the signature itself.

No real service of AWS is asked: STS is a server of the test's own.
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from botocore.credentials import AssumeRoleProvider
from support.brokers.msk_broker import MskBroker
from support.brokers.scripted_broker import describe
from support.pure.interrupts import InterruptError

from spark_kafka_sink.admin import KafkaAdmin
from spark_kafka_sink.auth.aws import AwsCredentials, AwsOptions
from spark_kafka_sink.auth.token_renewal import TokenException
from spark_kafka_sink.config import ProducerConfig, producer_config
from spark_kafka_sink.errors import (
    ConfigException,
    KafkaException,
    SaslAuthenticationException,
)
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.aws_credentials import AwsTokens, _botocore_credentials
from spark_kafka_sink.network.login import SOURCES
from spark_kafka_sink.network.option_values import OptionValues
from spark_kafka_sink.network.security import Security, login_identity
from spark_kafka_sink.network.selector import Selector
from spark_kafka_sink.spark.tasks.producer_pool import ProducerPool

SECRET = "of-the-key/+"
REGION = "eu-north-1"
IAM = "software.amazon.msk.auth.iam"
MODULE = f"{IAM}.IAMLoginModule required"
WRITER = "arn:aws:iam::000000000000:role/writer"
FORBIDDEN = "arn:aws:iam::000000000000:role/forbidden"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keys in the environment, and nothing else of AWS's; no test takes another one's tokens."""
    for name in ("AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "KEY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_REGION", REGION)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    SOURCES.forget()


@pytest.fixture
def broker() -> Iterator[MskBroker]:
    """A broker that knows two keys."""
    running = MskBroker({"KEY": SECRET, "ROLEKEY": "of-the-role", "FILEKEY": "of-file"}, REGION)
    running.metadata = describe(running.port, "t")
    yield running
    running.stop()


def config(broker: MskBroker, **more: str) -> Any:  # noqa: ANN401 - a configuration
    """Return a configuration; more: options with _ for the dot."""
    return producer_config(
        {
            "bootstrap.servers": broker.address,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "AWS_MSK_IAM",
            # No test waits for it; botocore alone takes long to import on a busy machine.
            "max.block.ms": "60000",
        }
        | {name.replace("_", "."): value for name, value in more.items()}
    )


def log_in(broker: MskBroker, **more: str) -> None:
    """Log in and read the metadata of a topic."""
    with KafkaAdmin(config(broker, **more)) as admin:
        assert admin.topics(["t"])["t"].partitions == 1


@pytest.mark.parametrize(
    "options",
    [
        {},
        {
            "sasl_jaas_config": f"{MODULE} awsDebugCreds=true;",
            "sasl_client_callback_handler_class": f"{IAM}.IAMClientCallbackHandler",
        },
        {
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_login_callback_handler_class": f"{IAM}.IAMOAuthBearerLoginCallbackHandler",
        },
    ],
)
def test_keys_of_the_environment_sign_a_token_that_the_broker_takes(
    broker: MskBroker, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # They need nothing of AWS's.
    monkeypatch.setattr("spark_kafka_sink.network.aws_credentials.find_spec", lambda name: None)
    log_in(broker, **options)
    assert set(broker.mechanisms) == {"OAUTHBEARER"}
    assert len(set(broker.tokens)) == 1, "connections share a token"


def test_a_profile_that_is_written_out_never_gets_a_token_of_a_reference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PROFILE_OF_TEST", "kafka")
    sources = []
    for name in ("${env:PROFILE_OF_TEST}", "kafka", "kafka"):
        jaas = f'{MODULE} awsProfileName="{name}";'
        options = producer_config(
            {
                "bootstrap.servers": "h:1",
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "AWS_MSK_IAM",
                "sasl.jaas.config": jaas,
            }
        )
        sources.append(AwsTokens(options, OptionValues(options)).source)
    assert sources[0] is not sources[1]
    assert sources[1] is sources[2]


def test_a_wrong_secret_is_an_error_at_once(
    broker: MskBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "WRONG-SECRET")
    with pytest.raises(SaslAuthenticationException, match="invalid_token") as refused:
        log_in(broker)
    assert "by AWS_MSK_IAM" in str(refused.value)
    assert "WRONG-SECRET" not in str(refused.value)
    assert broker.tokens[0] not in str(refused.value)


def test_a_profile_s_keys_are_read_by_botocore(broker: MskBroker, tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text(
        "[kafka]\naws_access_key_id = FILEKEY\naws_secret_access_key = of-file\n"
    )
    log_in(broker, sasl_jaas_config=f'{MODULE} awsProfileName="kafka";')
    with pytest.raises(KafkaException, match="there is no profile 'other'"):
        log_in(broker, sasl_jaas_config=f'{MODULE} awsProfileName="other";')


def test_a_profile_that_is_named_elsewhere_is_not_shown(
    broker: MskBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROFILE_OF_TEST", "hunter2")
    jaas = f'{MODULE} awsProfileName="${{env:PROFILE_OF_TEST}}";'
    with pytest.raises(KafkaException, match=r"no profile '\$\{env:PROFILE_OF_TEST\}'") as caught:
        log_in(broker, sasl_jaas_config=jaas)
    assert "hunter2" not in str(caught.value)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_PROFILE", "hunter2")
    with pytest.raises(KafkaException, match="no profile that AWS_PROFILE names") as caught:
        log_in(broker)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("file", ["config", "credentials"])
@pytest.mark.parametrize("name", ["kafka", "role"])
def test_no_command_of_a_profile_is_run(tmp_path: Path, file: str, name: str) -> None:
    ran = tmp_path / "ran"
    prefix = "profile " if file == "config" else ""
    (tmp_path / file).write_text(
        f"[{prefix}kafka]\ncredential_process = touch {ran}\n"
        f"[{prefix}role]\nrole_arn = arn:aws:iam::000000000000:role/writer\n"
        "source_profile = kafka\n"
    )
    with pytest.raises(TokenException, match="credential_process of a profile is not run"):
        _botocore_credentials(AwsOptions(profile=name), REGION, "profile")
    assert not ran.exists()


MFA = "arn:aws:iam::000000000000:mfa/alice"
MFA_PROFILES = f"""
[profile kafka]
role_arn = {WRITER}
source_profile = keys
mfa_serial = {MFA}
[profile above]
role_arn = {WRITER}
source_profile = kafka
[profile keys]
aws_access_key_id = FILEKEY
aws_secret_access_key = of-file
mfa_serial = {MFA}
[profile plain]
role_arn = {WRITER}
source_profile = keys
[profile self]
role_arn = {WRITER}
source_profile = self
aws_access_key_id = FILEKEY
aws_secret_access_key = of-file
mfa_serial = {MFA}
[profile both]
role_arn = {WRITER}
source_profile = self
"""


@pytest.fixture
def prompts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The prompts on the terminal; each one gets the same code."""
    shown: list[str] = []

    def prompter(text: str) -> str:
        shown.append(text)
        return "123456"

    # botocore keeps the function as a default argument.
    make = partial(AssumeRoleProvider, prompter=prompter)
    monkeypatch.setattr("botocore.credentials.AssumeRoleProvider", make)
    return shown


@pytest.mark.parametrize("name", ["kafka", "above", "self"])
def test_a_profile_that_needs_an_mfa_code_is_an_error_without_a_prompt(
    sts: Sts, tmp_path: Path, prompts: list[str], name: str
) -> None:
    (tmp_path / "config").write_text(MFA_PROFILES)
    with pytest.raises(TokenException) as caught:
        _botocore_credentials(AwsOptions(name), REGION, f"profile {name!r}")
    assert str(caught.value) == (
        f"the profile {name!r} needs an MFA code, and this client does not prompt: use a profile "
        "without mfa_serial, also as source_profile, or remove awsProfileName from "
        "sasl.jaas.config and put session credentials into the environment (AWS_ACCESS_KEY_ID, "
        "AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN)"
    )
    assert caught.value.is_final
    assert prompts == []
    assert sts.asked == []


@pytest.mark.parametrize("name", ["keys", "plain", "both"])
def test_a_profile_that_needs_no_mfa_code_is_used_beside_one_that_does(
    sts: Sts, tmp_path: Path, prompts: list[str], name: str
) -> None:
    (tmp_path / "config").write_text(MFA_PROFILES)
    found = _botocore_credentials(AwsOptions(name), REGION, f"profile {name!r}")
    assert found.access_key == ("FILEKEY" if name == "keys" else "ROLEKEY")
    assert prompts == []


@pytest.mark.parametrize("role", [None, WRITER])
@pytest.mark.parametrize("is_named", [False, True])
def test_an_mfa_code_of_the_default_chain_is_an_error_without_a_prompt(
    sts: Sts,
    tmp_path: Path,
    prompts: list[str],
    monkeypatch: pytest.MonkeyPatch,
    role: str | None,
    is_named: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    profiles = MFA_PROFILES if is_named else MFA_PROFILES.replace("profile kafka", "default")
    (tmp_path / "config").write_text(profiles)
    if is_named:
        monkeypatch.setenv("AWS_PROFILE", "kafka")
    # The keys of the environment come first.
    if role is not None:
        _botocore_credentials(AwsOptions(role=role), REGION, "profile")
        assert sts.keys == ["KEY"]
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(TokenException, match="default profile, needs an MFA code") as caught:
        _botocore_credentials(AwsOptions(role=role), REGION, "profile")
    assert "awsProfileName" not in str(caught.value)
    assert prompts == []
    # The keys in JAAS assume the role.
    if role is not None:
        keys = AwsCredentials("OFJAAS", "s")
        _botocore_credentials(AwsOptions(role=role, role_keys=keys), REGION, "profile")
        assert sts.keys == ["KEY", "OFJAAS"]


class Sts(HTTPServer):
    """Returns a role's keys, valid for `life_s`, or an error."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.life_s = 3600
        self.asked: list[dict[str, list[str]]] = []
        self.keys: list[str] = []
        """The access key that signed each request."""
        self.containers = 0
        """How often the credentials of a container were asked for."""
        self.has_container = False


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, Sts)
        server.containers += 1
        if not server.has_container:
            self.send_error(404)
            return
        end = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + server.life_s))
        names = ("AccessKeyId", "SecretAccessKey", "Token")
        body = json.dumps({**dict.fromkeys(names, "OFCONTAINER"), "Expiration": end}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, Sts)
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        server.asked.append(form)
        signed = self.headers.get("Authorization", "").partition("Credential=")[2]
        server.keys.append(signed.partition("/")[0])
        end = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + server.life_s))
        (action,) = form["Action"]
        status, body = 200, (
            f'<{action}Response xmlns="https://sts.amazonaws.com/doc/2011-06-15/">'
            f"<{action}Result><Credentials><AccessKeyId>ROLEKEY</AccessKeyId>"
            "<SecretAccessKey>of-the-role</SecretAccessKey><SessionToken>of/session+=</SessionToken>"
            f"<Expiration>{end}</Expiration></Credentials></{action}Result></{action}Response>"
        )  # fmt: skip
        if form["RoleArn"] == [FORBIDDEN]:
            status, body = (
                403,
                (
                    "<ErrorResponse><Error><Type>Sender</Type><Code>AccessDenied</Code>"
                    "<Message>SECRET WORDS</Message></Error></ErrorResponse>"
                ),
            )
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def sts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sts]:
    """STS on loopback."""
    with Sts() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://127.0.0.1:{server.server_port}")
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("name", ["awsProfileName", "awsRoleArn"])
def test_a_token_of_one_user_is_never_refreshed_as_another_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sts: Sts, name: str
) -> None:
    (tmp_path / "credentials").write_text(
        "[kafka]\naws_access_key_id = FILEKEY\naws_secret_access_key = of-file\n"
    )
    monkeypatch.setenv("USER_OF_TEST", "kafka" if name == "awsProfileName" else WRITER)
    options = producer_config(
        {
            "bootstrap.servers": "h:1",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "AWS_MSK_IAM",
            "sasl.jaas.config": f'{MODULE} {name}="${{env:USER_OF_TEST}}";',
        }
    )
    tokens = AwsTokens(options, OptionValues(options))
    assert tokens.source._fetch().value
    asked = len(sts.asked)
    monkeypatch.setenv("USER_OF_TEST", "other")
    with pytest.raises(TokenException, match="has changed since this client was created") as caught:
        tokens.source._fetch()
    assert "other" not in str(caught.value)
    assert len(sts.asked) == asked


class Users:
    """Changes the user of AWS's credentials, in one of several places.

    place: the keys of the environment or of a profile, or the role of a profile, of a web identity
    or of single sign-on.
    """

    def __init__(self, place: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._place = place
        self._folder = folder
        self._monkeypatch = monkeypatch
        jaas = f'{MODULE} awsProfileName="kafka";'
        if place in ("environment", "default profile", "web identity"):
            jaas = f"{MODULE};"
        if place != "environment":
            for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
                monkeypatch.delenv(name, raising=False)
        self.config = producer_config(
            {
                "bootstrap.servers": "127.0.0.1:1",
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "AWS_MSK_IAM",
                "sasl.jaas.config": jaas,
            }
        )

    def set(self, user: str, *, secret: str = "s", session: str = "") -> None:
        """Set the user. session: a session token."""
        keys = {
            "AWS_ACCESS_KEY_ID": user,
            "AWS_SECRET_ACCESS_KEY": secret,
            **({"AWS_SESSION_TOKEN": session} if session else {}),
        }
        profile = "default" if self._place == "default profile" else "kafka"
        lines = "\n".join(f"{name.lower()} = {value}" for name, value in keys.items())
        if self._place == "environment":
            for name, value in keys.items():
                self._monkeypatch.setenv(name, value)
        elif self._place == "web identity":
            (self._folder / "token").write_text("of-the-pod")
            self._monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(self._folder / "token"))
            self._monkeypatch.setenv("AWS_ROLE_ARN", f"{WRITER}-{user}")
        elif self._place == "role of a profile":
            (self._folder / "credentials").write_text(
                f"[kafka]\nrole_arn = {WRITER}-{user}\nsource_profile = source\n"
                f"[source]\naws_access_key_id = FILEKEY\naws_secret_access_key = {secret}\n"
            )
        elif self._place == "single sign-on":
            (self._folder / "config").write_text(
                f"[profile kafka]\nsso_start_url = http://127.0.0.1:1/\nsso_region = {REGION}\n"
                f"sso_account_id = 1\nsso_role_name = {user}\n"
            )
        else:
            (self._folder / "credentials").write_text(f"[{profile}]\n{lines}\n")


PLACES = ["environment", "profile", "default profile", "role of a profile", "web identity"]


@pytest.mark.parametrize("place", [*PLACES, "single sign-on"])
def test_tasks_of_two_users_of_aws_do_not_share_a_producer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sts: Sts, place: str
) -> None:
    users = Users(place, tmp_path, monkeypatch)

    class Timer:
        def cancel(self) -> None:
            pass

    pool = ProducerPool(lambda _seconds, _close: Timer())
    used = []
    for user, secret in (("ALICE", "s"), ("ALICE", "new"), ("BOB", "s"), ("ALICE", "s")):
        users.set(user, secret=secret)
        with pool.producer(users.config) as producer:
            used.append(producer)
        assert user not in login_identity(users.config)
    for each in {*used}:
        each.close(0)
    assert used[0] is used[1] is used[3]
    assert used[2] is not used[0]
    wait_for_fetches()


@pytest.mark.parametrize("place", PLACES)
def test_a_client_never_gets_a_token_of_another_user_of_aws(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sts: Sts, place: str
) -> None:
    users = Users(place, tmp_path, monkeypatch)
    users.set("ALICE")
    tokens = AwsTokens(users.config, OptionValues(users.config))
    assert tokens.source._fetch().value
    users.set("ALICE", secret="new")
    assert tokens.source._fetch().value
    users.set("BOB")
    with pytest.raises(TokenException, match="the role or the source of AWS's credentials has"):
        tokens.source._fetch()
    other = AwsTokens(users.config, OptionValues(users.config))
    assert other.source is not tokens.source
    assert other.source._fetch().value


def test_a_client_with_credentials_of_a_container_never_gets_a_token_of_a_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sts: Sts
) -> None:
    sts.has_container = True
    url = f"http://127.0.0.1:{sts.server_port}/"
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", url)
    users = Users("default profile", tmp_path, monkeypatch)
    tokens = AwsTokens(users.config, OptionValues(users.config))
    # It may be another key each time.
    for fetches in (1, 2):
        assert "OFCONTAINER" in _signed(tokens.source._fetch().value)
        assert sts.containers == fetches
    users.set("BOB")
    with pytest.raises(TokenException, match="source of AWS's credentials has changed") as caught:
        tokens.source._fetch()
    assert caught.value.is_final
    other = AwsTokens(users.config, OptionValues(users.config))
    assert other.source is not tokens.source
    assert "BOB" in _signed(other.source._fetch().value)
    (tmp_path / "credentials").unlink()
    assert "OFCONTAINER" in _signed(tokens.source._fetch().value)


def _signed(token: str) -> str:
    """Return the URL that a token contains."""
    return base64.urlsafe_b64decode(token + "==").decode()


def test_a_client_keeps_its_user_of_aws_after_an_interrupt(
    broker: MskBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_selector: Selector, _timeout_s: float) -> list[object]:
        raise InterruptError

    with KafkaAdmin(config(broker)) as admin:
        assert admin.topics(["t"])["t"].partitions == 1
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "FILEKEY")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-file")
        with monkeypatch.context() as patch:
            patch.setattr(Selector, "poll", interrupt)
            with pytest.raises(InterruptError):
                admin.topics(["t"])
        assert admin.topics(["t"])["t"].partitions == 1
        (source,) = SOURCES._sources.values()
        assert source.is_in_use, "nothing refreshes the token after the interrupt"
    assert not source.is_in_use
    assert len(broker.tokens) == 2, "no connection was made after the interrupt"
    assert all("X-Amz-Credential=KEY%2F" in _signed(each) for each in broker.tokens)


@pytest.mark.parametrize("place", ["environment", "profile"])
def test_another_session_token_may_be_of_the_same_role(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str
) -> None:
    users = Users(place, tmp_path, monkeypatch)
    users.set("ASIA1", session="first")
    tokens = AwsTokens(users.config, OptionValues(users.config))
    identity = login_identity(users.config)
    assert tokens.source._fetch().value
    users.set("ASIA2", session="second")
    assert login_identity(users.config) == identity
    assert tokens.source._fetch().value


def test_a_user_of_aws_is_found_without_a_request(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sts: Sts
) -> None:
    found = []
    for place in ("role of a profile", "web identity"):
        with monkeypatch.context() as patch:
            users = Users(place, tmp_path, patch)
            users.set("ALICE")
            found.append(login_identity(users.config))
            (tmp_path / "credentials").unlink(missing_ok=True)
    assert all(found)
    assert sts.asked == []


def test_a_profile_that_is_missing_is_no_user_of_aws(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    users = Users("profile", tmp_path, monkeypatch)
    assert login_identity(users.config) == ""
    (tmp_path / "credentials").write_text("no section = here\n")
    assert login_identity(users.config) == ""
    with monkeypatch.context() as patch:
        patch.setenv("AWS_PROFILE", "missing")
        patch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
        assert login_identity(Users("default profile", tmp_path, patch).config) == ""
    with monkeypatch.context() as patch:
        patch.setattr("spark_kafka_sink.network.aws_credentials.find_spec", lambda name: None)
        assert login_identity(users.config) == ""


@pytest.mark.parametrize("place", ["profile", "default profile"])
def test_a_client_of_one_user_of_aws_is_never_made_without_this_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str
) -> None:
    users = Users(place, tmp_path, monkeypatch)
    users.set("ALICE")
    identity = login_identity(users.config)
    assert identity
    # AWS's default chain would go on with the role of the machine.
    (tmp_path / "credentials").unlink()
    with pytest.raises(SaslAuthenticationException, match="a client cannot change its user"):
        Security.of(users.config, identity=identity)


def test_a_role_is_assumed_by_a_session_whose_name_stays(broker: MskBroker, sts: Sts) -> None:
    role = 'awsRoleArn="arn:aws:iam::000000000000:role/writer"'
    log_in(broker, sasl_jaas_config=f"{MODULE} {role};")
    log_in(broker, sasl_jaas_config=f'{MODULE} {role} awsRoleSessionName="mine";')
    assert [each["RoleSessionName"] for each in sts.asked] == [["spark-kafka-sink"], ["mine"]]
    url = base64.urlsafe_b64decode(broker.tokens[0] + "==").decode()
    assert "X-Amz-Security-Token=of%2Fsession%2B%3D" in url


@pytest.mark.parametrize(("named", "name"), [(None, "spark-kafka-sink"), ("mine", "mine")])
def test_a_web_identity_s_session_has_a_name_that_stays(
    broker: MskBroker,
    sts: Sts,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    named: str | None,
    name: str,
) -> None:
    (tmp_path / "token").write_text("of-the-pod")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("AWS_ROLE_ARN", WRITER)
    if named is not None:
        monkeypatch.setenv("AWS_ROLE_SESSION_NAME", named)
    log_in(broker)
    (asked,) = sts.asked
    assert asked["Action"] == ["AssumeRoleWithWebIdentity"]
    assert asked["RoleSessionName"] == [name]


@pytest.mark.parametrize(
    ("more", "name"), [("", "spark-kafka-sink"), ("role_session_name = mine\n", "mine")]
)
def test_a_session_of_a_profile_s_role_has_a_name_that_stays(
    broker: MskBroker, sts: Sts, tmp_path: Path, more: str, name: str
) -> None:
    (tmp_path / "config").write_text(
        f"[profile writer]\nrole_arn = {WRITER}\nsource_profile = kafka\n{more}"
        "[profile kafka]\naws_access_key_id = FILEKEY\naws_secret_access_key = of-file\n"
    )
    log_in(broker, sasl_jaas_config=f'{MODULE} awsProfileName="writer";')
    assert [each["RoleSessionName"] for each in sts.asked] == [[name]]


def test_the_keys_in_jaas_assume_the_role_and_are_not_shown(
    broker: MskBroker, sts: Sts, caplog: pytest.LogCaptureFixture
) -> None:
    keys = (
        'awsRoleAccessKeyId="OFJAAS" awsRoleSecretAccessKey="hunter2" '
        'awsRoleSessionToken="of-hunter3" awsRoleExternalId="mine"'
    )
    jaas = f'{MODULE} awsRoleArn="{WRITER}" {keys};'
    with caplog.at_level(logging.DEBUG):
        log_in(broker, sasl_jaas_config=jaas)
    assert sts.keys == ["OFJAAS"]
    assert sts.asked[0]["ExternalId"] == ["mine"]
    shown = f"{caplog.text} {config(broker, sasl_jaas_config=jaas)!r}"
    assert not any(each in shown for each in ("OFJAAS", "hunter2", "of-hunter3"))


def test_a_profile_is_asked_before_the_role(broker: MskBroker, sts: Sts, tmp_path: Path) -> None:
    jaas = f'{MODULE} awsProfileName="kafka" awsRoleArn="{WRITER}";'
    # There is no profile, then one without keys.
    log_in(broker, sasl_jaas_config=jaas)
    (tmp_path / "credentials").write_text("[kafka]\nregion = eu-north-1\n")
    SOURCES.forget()
    log_in(broker, sasl_jaas_config=jaas)
    assert sts.keys == ["KEY", "KEY"]
    (tmp_path / "credentials").write_text(
        "[kafka]\naws_access_key_id = FILEKEY\naws_secret_access_key = of-file\n"
    )
    SOURCES.forget()
    log_in(broker, sasl_jaas_config=jaas)
    assert len(sts.asked) == 2


def test_a_profile_with_a_command_does_not_lead_to_the_role(sts: Sts, tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text("[kafka]\ncredential_process = false\n")
    with pytest.raises(TokenException, match="credential_process of a profile is not run"):
        _botocore_credentials(AwsOptions("kafka", WRITER), REGION, "profile 'kafka'")
    assert sts.asked == []


@pytest.mark.parametrize("options", [AwsOptions("kafka"), AwsOptions(role=FORBIDDEN)])
def test_no_other_credentials_stand_in_for_those_that_options_name(
    sts: Sts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: AwsOptions
) -> None:
    # The credentials of a container, which botocore asks after the profile.
    url = f"http://127.0.0.1:{sts.server_port}/"
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", url)
    (tmp_path / "credentials").write_text("[kafka]\nregion = eu-north-1\n")
    with pytest.raises(TokenException, match=r"'kafka' has no credentials|AccessDenied"):
        _botocore_credentials(options, REGION, "profile 'kafka'")
    assert sts.containers == 0


def test_a_profile_of_the_environment_that_is_not_there_is_told_as_such(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "hunter2")
    with pytest.raises(TokenException, match="no profile that AWS_PROFILE names") as caught:
        _botocore_credentials(AwsOptions("other", WRITER), REGION, "profile 'other'")
    assert "hunter2" not in str(caught.value)


def test_the_keys_of_a_role_are_not_logged(
    broker: MskBroker, sts: Sts, caplog: pytest.LogCaptureFixture
) -> None:
    role = 'awsRoleArn="arn:aws:iam::000000000000:role/writer"'
    with caplog.at_level(logging.DEBUG):
        log_in(broker, sasl_jaas_config=f"{MODULE} {role};")
        # The requests of a user's own code are logged as usual.
        logging.getLogger("botocore.parsers").debug("of another caller")
    assert len(sts.asked) == 1
    assert "of another caller" in caplog.text
    for secret in ("of-the-role", "of/session", SECRET, broker.tokens[0]):
        assert secret not in caplog.text


def test_a_role_that_is_refused_and_one_that_ends_are_told(broker: MskBroker, sts: Sts) -> None:
    forbidden = f'{MODULE} awsRoleArn="arn:aws:iam::000000000000:role/forbidden";'
    with pytest.raises(KafkaException, match="STS refuses the role: AccessDenied") as refused:
        log_in(broker, sasl_jaas_config=forbidden)
    assert "SECRET WORDS" not in str(refused.value)
    sts.life_s = 30
    role = f'{MODULE} awsRoleArn="arn:aws:iam::000000000000:role/writer";'
    # Clients with equal options share a source. If the first one knows the reason, so does the next
    # one, whose time is short; without it, the next one would have to be as fast as the machine.
    known = refused_source(config(broker, sasl_jaas_config=role))
    with known, pytest.raises(KafkaException, match="expire within a minute"):
        log_in(broker, sasl_jaas_config=role, max_block_ms="500")
    assert broker.tokens == []


@contextlib.contextmanager
def refused_source(given: ProducerConfig) -> Iterator[None]:
    """Make the source of a configuration ask for credentials, until it is refused once."""
    made = Security(given)
    refused = threading.Event()
    made.wake = refused.set
    try:
        assert not made.has_login(Node(id=1, host="h", port=1))
        assert refused.wait(60)
        assert made.problem
        yield
    finally:
        made.close()
        wait_for_fetches()


def wait_for_fetches() -> None:
    """Wait until the sources without clients have ended, so that no other test gets a request."""
    sources = SOURCES._sources.values()
    ends_at = time.monotonic() + 60
    while any(source._thread is not None for source in sources):
        assert time.monotonic() < ends_at
        time.sleep(0.01)


def test_what_is_missing_is_told_before_any_connection(
    broker: MskBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.delenv("AWS_SECRET_ACCESS_KEY")
        patch.setattr("spark_kafka_sink.network.aws_credentials.find_spec", lambda name: None)
        with pytest.raises(ConfigException, match=r'pip install "path/to/spark-kafka-sink\[msk\]"'):
            log_in(broker)
    with monkeypatch.context() as patch:
        patch.delenv("AWS_REGION")
        with pytest.raises(ConfigException, match="set the variable AWS_REGION"):
            log_in(broker)
    with monkeypatch.context() as patch:
        patch.setenv("PYKAFKA_OAUTH_ALLOWED_URLS", "https://kafka.us-east-1.amazonaws.com/")
        with pytest.raises(ConfigException) as caught:
            log_in(broker)
        assert str(caught.value).endswith(
            "does not allow https://kafka.eu-north-1.amazonaws.com/, the URL for which "
            "AWS_MSK_IAM tokens are signed"
        )
    assert broker.asked == []


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"sasl_login_callback_handler_class": "com.acme.Handler"}, "a Java class: expected"),
        ({"sasl_client_callback_handler_class": "com.acme.Handler"}, "a Java class: expected"),
        (
            {"sasl_login_callback_handler_class": f"{IAM}.IAMOAuthBearerLoginCallbackHandler"},
            "with sasl.mechanism=OAUTHBEARER",
        ),
        ({"sasl_username": "u", "sasl_password": "p"}, "has no effect with AWS_MSK_IAM"),
        ({"sasl_jaas_config": f"{MODULE} x=y;"}, "an option of IAMLoginModule that is not"),
    ],
)
def test_options_that_cannot_be_are_refused(
    broker: MskBroker, options: dict[str, str], sentence: str
) -> None:
    with pytest.raises(ConfigException, match=sentence):
        log_in(broker, **options)
