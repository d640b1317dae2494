"""Tokens for Amazon MSK: AWS's signature, and whose credentials options name."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from urllib.parse import parse_qs, urlsplit

import botocore.auth
import botocore.credentials
import pytest
from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.auth.aws import (
    AwsCredentials,
    AwsOptions,
    aws_options,
    checked_region,
    msk_token,
    region_of_host,
)
from spark_kafka_sink.errors import ConfigException

KEY, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
NEW_YEAR = 1_767_225_600.0


def url_of(token: str) -> str:
    """Return the URL that a token is."""
    return base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()


@pytest.mark.parametrize(
    ("session_token", "signature"),
    [
        (None, "0d00d0824363d898b8c5b68c5b122a49965fb7a9c758194315de10accbb1b9a0"),
        ("SESSION/TOKEN+=", "4262e366ee332c92f1b3affb40c7c0f864512d30669591e28efa68e9f340ee11"),
    ],
)
def test_signatures_are_those_of_the_vectors(session_token: str | None, signature: str) -> None:
    token = msk_token(AwsCredentials(KEY, SECRET, session_token), "us-east-1", NEW_YEAR, "a/1")
    fields = parse_qs(urlsplit(url_of(token.value)).query)
    assert fields["X-Amz-Signature"] == [signature]
    assert (token.issued_at, token.expires_at) == (NEW_YEAR, NEW_YEAR + 900)
    assert SECRET not in repr(token)
    assert SECRET not in repr(AwsCredentials(KEY, SECRET))


@given(
    access=st.text("ABCXYZ019", min_size=1),
    secret=st.text("aZ0+/=", min_size=1),
    session=st.none() | st.text("aZ09+/=% ~-_.", min_size=1),
    region=st.sampled_from(
        ["us-east-1", "eu-central-1", "cn-north-1", "us-gov-west-1", "eusc-de-east-1"]
    ),
    now=st.integers(1_000_000_000, 3_000_000_000),
)
def test_tokens_equal_those_of_the_official_signer(
    access: str, secret: str, session: str | None, region: str, now: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        moment = datetime.fromtimestamp(now, UTC)
        patch.setattr(botocore.auth, "get_current_datetime", lambda: moment)
        provider = Provider(access, secret, session)
        official, expires_ms = MSKAuthTokenProvider.generate_auth_token_from_credentials_provider(
            region, provider
        )
    agent = parse_qs(urlsplit(url_of(official)).query)["User-Agent"][0]
    token = msk_token(AwsCredentials(access, secret, session), region, now + 0.9, agent)
    assert url_of(token.value) == url_of(official)
    assert token.value == official
    assert token.expires_at == expires_ms / 1000


class Provider(botocore.credentials.CredentialProvider):  # type: ignore[misc] # is Any
    """Returns the credentials of a test."""

    def __init__(self, *keys: str | None) -> None:
        super().__init__()
        self._keys = keys

    def load(self) -> object:
        """Return them."""
        return botocore.credentials.Credentials(*self._keys)


def test_a_token_ends_with_its_credentials() -> None:
    ending = AwsCredentials(KEY, SECRET, expires_at=NEW_YEAR + 100)
    assert msk_token(ending, "us-east-1", NEW_YEAR, "a/1").expires_at == NEW_YEAR + 100
    later = AwsCredentials(KEY, SECRET, expires_at=NEW_YEAR + 10_000)
    assert msk_token(later, "us-east-1", NEW_YEAR, "a/1").expires_at == NEW_YEAR + 900


@pytest.mark.parametrize(
    ("host", "region"),
    [
        ("b-1.demo.abc123.c2.kafka.us-east-1.amazonaws.com", "us-east-1"),
        ("b-1-public.demo.abc123.c2.kafka.eu-central-1.amazonaws.com", "eu-central-1"),
        ("boot-abc.c1.kafka-serverless.us-gov-west-1.amazonaws.com", "us-gov-west-1"),
        ("b-1.demo.abc.c2.kafka.cn-north-1.amazonaws.com.cn.", "cn-north-1"),
        ("b-1.demo.abc123.c2.kafka.eusc-de-east-1.amazonaws.eu", "eusc-de-east-1"),
        ("b-1.demo.abc123.c2.kafka.us-iso-east-1.c2s.ic.gov", "us-iso-east-1"),
        ("b-1.demo.abc123.c2.kafka.us-isob-east-1.sc2s.sgov.gov", "us-isob-east-1"),
        ("b-1.demo.abc123.c2.kafka.eu-isoe-west-1.cloud.adc-e.uk", "eu-isoe-west-1"),
        ("b-1.demo.abc123.c2.kafka.us-isof-south-1.csp.hci.ic.gov", "us-isof-south-1"),
        ("B-1.DEMO.ABC.C2.KAFKA.US-EAST-1.AMAZONAWS.COM", "us-east-1"),
        ("localhost", None),
        ("kafka.us-east-1.amazonaws.com.evil.test", None),
        ("b-1.kafka.nowhere.amazonaws.com", None),
        ("b-1.kafka.us-east-1.amazonaws.example", None),
    ],
)
def test_the_region_is_that_of_the_broker_s_name(host: str, region: str | None) -> None:
    assert region_of_host(host) == region


def test_a_region_becomes_no_other_part_of_the_url() -> None:
    for region in ("us-east-1", "us-gov-west-1", "eusc-de-east-1"):
        assert checked_region(region) == region
    for wrong in ("", "us-east-1.evil.test/", "US-EAST-1", "us-east-1\n"):
        with pytest.raises(ConfigException, match="not the name of an AWS region"):
            checked_region(wrong)


def test_jaas_names_whose_credentials_are_used() -> None:
    assert aws_options({"awsDebugCreds": "true"}) == AwsOptions()
    given = {"awsRoleArn": "arn:aws:iam::1:role/x", "awsRoleSessionName": "s", "awsStsRegion": "r"}
    assert aws_options(given) == AwsOptions(
        role="arn:aws:iam::1:role/x", session_name="s", sts_region="r"
    )
    unknown = "option of IAMLoginModule that is not supported: expected awsProfileName"
    with pytest.raises(ConfigException, match=unknown) as caught:
        aws_options({"awsSecret": "hunter2"})
    assert "hunter2" not in str(caught.value)


def test_options_of_a_role_have_no_effect_without_it() -> None:
    given = {
        "awsRoleSessionName": "s",
        "awsStsRegion": "r",
        "awsRoleExternalId": "e",
        "awsRoleAccessKeyId": KEY,
        "awsAddDefaultProviders": "false",
    }
    assert aws_options(given) == AwsOptions()
    assert aws_options(given | {"awsProfileName": "p"}) == AwsOptions("p")


def test_jaas_may_have_the_keys_that_assume_the_role() -> None:
    given = {
        "awsRoleArn": "arn:aws:iam::1:role/x",
        "awsRoleAccessKeyId": KEY,
        "awsRoleSecretAccessKey": SECRET,
    }
    assert aws_options(given).role_keys == AwsCredentials(KEY, SECRET)
    given["awsRoleSessionToken"] = "hunter2"
    found = aws_options(given)
    assert found.role_keys == AwsCredentials(KEY, SECRET, "hunter2")
    assert not any(each in repr(found) for each in (KEY, SECRET, "hunter2"))
    for lacking in ("awsRoleAccessKeyId", "awsRoleSecretAccessKey"):
        with pytest.raises(ConfigException, match="has only some of the keys") as caught:
            aws_options(given | {lacking: ""})
        assert not any(each in str(caught.value) for each in (KEY, SECRET, "hunter2"))
