"""AWS_MSK_IAM: the OAUTHBEARER token for Amazon MSK is a URL with an AWS signature.

The query of the URL is signed with Signature Version 4. The signature is computed here, without a
request to AWS. The User-Agent in the query is not signed.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from spark_kafka_sink.auth.oauthbearer import OAuthBearerToken
from spark_kafka_sink.errors import ConfigException, Option

_SERVICE: Final = "kafka-cluster"
_ALGORITHM: Final = "AWS4-HMAC-SHA256"
_LIFE_S: Final = 900
_UNRESERVED: Final = frozenset((string.ascii_letters + string.digits + "-_.~").encode())
_REGION: Final = re.compile(r"[a-z]{2,}(?:-[a-z]+)+-\d+")
# The domains of AWS's partitions, as in botocore's endpoints.json.
_DOMAINS: Final = (
    "amazonaws.com", "amazonaws.com.cn", "amazonaws.eu", "c2s.ic.gov", "sc2s.sgov.gov",
    "cloud.adc-e.uk", "csp.hci.ic.gov",
)  # fmt: skip
# For example b-1.name.abc123.c2.kafka.us-east-1.amazonaws.com or boot-abc.c1.kafka-serverless.….
_BROKER: Final = re.compile(
    rf".*\.kafka(?:-serverless)?\.(?P<region>{_REGION.pattern})"
    rf"\.(?:{'|'.join(map(re.escape, _DOMAINS))})\.?",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class AwsCredentials:
    """AWS access keys. expires_at: in seconds since 1970, or None if unknown."""

    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)
    expires_at: float | None = None


@dataclass(frozen=True, slots=True)
class AwsOptions:
    """Which AWS credentials to use, from the JAAS options of IAMLoginModule.

    As in Java, the role is assumed only if the profile has no credentials. If neither a profile
    nor a role is set, AWS's default credential provider chain is used.

    role_keys: the access keys with which to assume the role; None to assume it with the credentials
    of the default chain.
    """

    profile: str | None = None
    role: str | None = None
    session_name: str | None = None
    sts_region: str | None = None
    external_id: str | None = None
    role_keys: AwsCredentials | None = field(default=None, repr=False)

    @property
    def is_of_environment(self) -> bool:
        """True if neither profile nor role is set: environment variables may then set the keys."""
        return self.profile is None and self.role is None

    @property
    def user(self) -> tuple[str | None, ...]:
        """The options that identify the user. They contain no secret keys."""
        return self.profile, self.role, self.session_name


_OPTIONS: Final = {
    "awsProfileName": "profile",
    "awsRoleArn": "role",
    "awsRoleSessionName": "session_name",
    "awsStsRegion": "sts_region",
    "awsRoleExternalId": "external_id",
}
_ROLE_KEYS: Final = ("awsRoleAccessKeyId", "awsRoleSecretAccessKey", "awsRoleSessionToken")
# JAAS options about logs, retries and other sources of credentials. They are accepted, and have no
# effect.
_NO_EFFECT: Final = frozenset(
    {"awsDebugCreds", "awsMaxRetries", "awsMaxBackOffTimeMs", "awsAddDefaultProviders"}
)


def aws_options(jaas: Mapping[str, str]) -> AwsOptions:
    """Return the options of a JAAS entry.

    As in Java, the options about a role have no effect without awsRoleArn. Raise ConfigException
    for an unknown option, or if the keys with which to assume the role are incomplete.
    """
    for name in jaas:
        if name not in _OPTIONS and name not in _ROLE_KEYS and name not in _NO_EFFECT:
            raise ConfigException(
                f"{Option('sasl.jaas.config')} has an option of IAMLoginModule that is not "
                f"supported: expected {', '.join((*_OPTIONS, *_ROLE_KEYS))}"
            )
    given = {_OPTIONS[name]: value for name, value in jaas.items() if name in _OPTIONS and value}
    if "role" not in given:
        return AwsOptions(given.get("profile"))
    return AwsOptions(**given, role_keys=_role_keys(jaas))


def _role_keys(jaas: Mapping[str, str]) -> AwsCredentials | None:
    """Return the keys with which to assume the role, or None if the JAAS entry has no such keys."""
    access_key, secret_key, session_token = (jaas.get(name) or None for name in _ROLE_KEYS)
    if access_key is not None and secret_key is not None:
        return AwsCredentials(access_key, secret_key, session_token)
    if (access_key, secret_key, session_token) == (None, None, None):
        return None
    # If only some of the keys are set, the Java client ignores them, and assumes the role with the
    # credentials of a different user.
    raise ConfigException(
        f"{Option('sasl.jaas.config')} has only some of the keys that assume awsRoleArn: set "
        "both awsRoleAccessKeyId and awsRoleSecretAccessKey, or remove awsRoleAccessKeyId, "
        "awsRoleSecretAccessKey and awsRoleSessionToken"
    )


def region_of_host(host: str) -> str | None:
    """Return the AWS region in the host name of an Amazon MSK broker, or None for other hosts."""
    found = _BROKER.fullmatch(host)
    return None if found is None else found["region"].lower()


def checked_region(region: str) -> str:
    """Return the name of an AWS region. Raise ConfigException if it is invalid."""
    if not _REGION.fullmatch(region):
        raise ConfigException(f"{region!r} is not the name of an AWS region, such as us-east-1")
    return region


def endpoint(region: str) -> str:
    """Return the URL to sign, without its query."""
    return f"https://kafka.{region}.amazonaws.com/"


def msk_token(
    credentials: AwsCredentials, region: str, now: float, user_agent: str
) -> OAuthBearerToken:
    """Return a token that is valid from `now` on. now: in seconds since 1970.

    The token expires with its signature. If the credentials expire before that, the token expires
    with them, because brokers then end the session.
    """
    url = f"{endpoint(region)}?{_signed_query(credentials, region, now)}"
    url += f"&User-Agent={_encoded(user_agent)}"
    value = base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")
    begin = float(int(now))
    expires_at = begin + _LIFE_S
    if credentials.expires_at is not None:
        expires_at = min(expires_at, credentials.expires_at)
    return OAuthBearerToken(value, expires_at, begin)


def _signed_query(credentials: AwsCredentials, region: str, now: float) -> str:
    time = datetime.fromtimestamp(int(now), UTC).strftime("%Y%m%dT%H%M%SZ")
    scope = f"{time[:8]}/{region}/{_SERVICE}/aws4_request"
    fields = {
        "Action": "kafka-cluster:Connect",
        "X-Amz-Algorithm": _ALGORITHM,
        "X-Amz-Credential": f"{credentials.access_key}/{scope}",
        "X-Amz-Date": time,
        "X-Amz-Expires": str(_LIFE_S),
        "X-Amz-SignedHeaders": "host",
    }
    if credentials.session_token:
        fields["X-Amz-Security-Token"] = credentials.session_token
    # The URL contains the fields in the order of AWS's own signer. The signature is computed over
    # the fields sorted by name.
    pairs = [f"{_encoded(name)}={_encoded(value)}" for name, value in fields.items()]
    query = "&".join(sorted(pairs))
    host = f"kafka.{region}.amazonaws.com"
    empty = hashlib.sha256(b"").hexdigest()
    request = "\n".join(("GET", "/", query, f"host:{host}", "", "host", empty))
    digest = hashlib.sha256(request.encode()).hexdigest()
    text = f"{_ALGORITHM}\n{time}\n{scope}\n{digest}"
    key = f"AWS4{credentials.secret_key}".encode()
    for part in (*scope.split("/"), text):
        key = hmac.digest(key, part.encode(), "sha256")
    return "&".join((*pairs, f"X-Amz-Signature={key.hex()}"))


def _encoded(text: str) -> str:
    return "".join(chr(byte) if byte in _UNRESERVED else f"%{byte:02X}" for byte in text.encode())
