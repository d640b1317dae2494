"""AWS_MSK_IAM: the AWS credentials that sign the login tokens, and the sources of the credentials.

Access keys in environment variables need no additional package. botocore (the extra ``msk``) also
reads profiles, assumes roles, and reads the credentials of EC2 instances, pods and containers. Only
this module imports botocore. To get credentials, botocore may send requests to servers, so the
thread of a `TokenSource` calls it. `aws_identity` calls it in any thread, and only reads files.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from importlib.util import find_spec
from pkgutil import iter_modules
from random import Random
from typing import Any, Final

from spark_kafka_sink.auth.aws import (
    AwsCredentials,
    AwsOptions,
    aws_options,
    checked_region,
    endpoint,
    msk_token,
    region_of_host,
)
from spark_kafka_sink.auth.mechanisms import OTHER_USER, printable
from spark_kafka_sink.auth.oauthbearer import OAuthBearerToken
from spark_kafka_sink.auth.token_renewal import TokenException, TokenRenewal
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.errors import ConfigException, Option, install_extra
from spark_kafka_sink.logs import shown_value
from spark_kafka_sink.model import __version__
from spark_kafka_sink.network.login import SOURCES, TokenSource
from spark_kafka_sink.network.oauth import renewal_options
from spark_kafka_sink.network.option_values import OptionValues

_USER_AGENT: Final = f"spark-kafka-sink/{__version__}"
# The session name is a part of the principal, and a re-authentication must not change the
# principal.
_SESSION_NAME: Final = "spark-kafka-sink"
_LEAST_LIFE_S: Final = 60.0
_OF_ENVIRONMENT: Final = "profile that AWS_PROFILE names"
# The sources that botocore tries after the profile: the container, the EC2 instance, and legacy
# files.
_NOT_OF_PROFILE: Final = ("container-role", "iam-role", "ec2-credentials-file", "boto-config")


class _MfaNeededError(Exception):
    """The profile of a session needs an MFA code. profile: its name; None if nothing names it."""

    def __init__(self, profile: str | None) -> None:
        super().__init__()
        self.profile = profile


class AwsTokens:
    """The AWS_MSK_IAM tokens of one client configuration.

    Raise ConfigException if no token can be made from the configuration.
    """

    def __init__(self, config: ProducerConfig, values: OptionValues) -> None:
        self._config = config
        self._values = values
        if config.sasl_username is not None:
            raise ConfigException(
                f"{Option('sasl.username')} has no effect with AWS_MSK_IAM: remove it"
            )
        options, region = _options(config, values), self._region()
        self._user = options.user
        self._identity = _identity(options)
        url = endpoint(region)
        values.check_url(url, f"{url}, the URL for which AWS_MSK_IAM tokens are signed")
        if _environment_credentials(options) is None and find_spec("botocore") is None:
            raise ConfigException(
                f"{Option('sasl.mechanism')}: the credentials of AWS are not in the environment "
                "(AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY); to find credentials elsewhere, the "
                "driver and each executor need the Python package botocore: "
                f"{install_extra('msk')}"
            )
        self.source = SOURCES.source(
            # The key also contains the options with unresolved references. A reference may resolve
            # to a different identity at the next fetch. So a client with references must not share
            # its source with a client that has the same values without references.
            (
                *(options, region, self._region_of_hosts()),
                *(config.sasl_jaas_config, config.config_providers, self._identity),
                renewal_options(config),
            ),
            lambda: TokenSource(
                f"AWS's credentials for {region}",
                self._fetch,
                TokenRenewal(*renewal_options(config)),
                Random(),  # noqa: S311 - jitter, not secrets
            ),
        )

    @property
    def _profile(self) -> str:
        """The AWS profile as error messages show it, with references unresolved."""
        jaas = self._config.sasl_jaas_config
        name = "" if jaas is None else self._values.shown_jaas(jaas.value, "awsProfileName")
        return f"profile {shown_value(name)}" if name else _OF_ENVIRONMENT

    def _region(self) -> str:
        """Return the AWS region of the cluster.

        The region comes from the broker's host name, or else from the environment.
        """
        found = self._region_of_hosts()
        if found is None:
            found = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        if found is None:
            raise ConfigException(
                f"{Option('bootstrap.servers')} has no Amazon MSK host name with a region: "
                "set the variable AWS_REGION on the driver and on each executor"
            )
        return checked_region(found)

    def _region_of_hosts(self) -> str | None:
        hosts = [node.host for node in self._config.bootstrap_nodes]
        return next(filter(None, map(region_of_host, hosts)), None)

    def _fetch(self) -> OAuthBearerToken:
        """Return a new token. This may take a long time.

        Raise TokenException if there are no credentials.
        """
        try:
            options, region = _options(self._config, self._values), self._region()
            if options.user != self._user:
                # Otherwise, the other clients that share the token would log in as a different
                # user.
                raise TokenException(
                    f"the profile, the role or the session in {Option('sasl.jaas.config')} has "
                    f"changed since this client was created: {OTHER_USER}",
                    is_final=True,
                )
            credentials = _environment_credentials(options)
            if credentials is None:
                with _without_debug_logs():
                    credentials = _botocore_credentials(options, region, self._profile)
        except ConfigException as error:
            raise TokenException(str(error), is_final=True) from None
        # Compare the identity after the credentials were read, because their file may be replaced
        # at any time. The identity is always empty for some credentials, such as those of an EC2
        # instance.
        if self._identity != _identity(options):
            raise TokenException(
                "the access key, the role or the source of AWS's credentials has changed since "
                f"this client was created: {OTHER_USER}",
                is_final=True,
            )
        now = time.time()
        if credentials.expires_at is not None and credentials.expires_at < now + _LEAST_LIFE_S:
            raise TokenException(
                "AWS's credentials expire within a minute, and there are no new ones yet"
            )
        return msk_token(credentials, region, now, _USER_AGENT)


def aws_identity(config: ProducerConfig, values: OptionValues) -> str:
    """Return a digest that identifies the user of the AWS credentials. Send no request to AWS.

    For a long-term access key, the digest is made from the id of the key. For a role that a profile
    or a web identity assumes, it is made from the names of the role and the session. For single
    sign-on, it is made from the account and the role. The result is an empty string if the options
    themselves name the user. It is also empty if only a request to AWS could identify the user, for
    example with the role of an EC2 instance. Raise ConfigException if an option is invalid.
    """
    return _identity(_options(config, values))


def _identity(options: AwsOptions) -> str:
    found: list[str | None] = []
    keys = _environment_credentials(options)
    if keys is not None:
        # The session token of a role does not identify its user.
        found = ["session"] if keys.session_token else [keys.access_key]
    elif (options.profile or options.role is None) and find_spec("botocore") is not None:
        with _without_debug_logs():
            found = _identity_of_profile(options)
    return hashlib.sha256(json.dumps(found).encode()).hexdigest() if any(found) else ""


def _identity_of_profile(options: AwsOptions) -> list[str | None]:
    """Return the values that identify the user of a profile.

    If the options set no profile, the values are those of AWS's default credential provider chain.
    """
    from botocore.exceptions import BotoCoreError  # noqa: PLC0415 - slow, and may be absent

    try:
        # The region "none" is a placeholder, because no region is needed here.
        session = _session(options.profile, "none", [])
        profiles = session.full_config["profiles"]
    except BotoCoreError:
        # There is no such profile, or a file is invalid.
        return []
    profile = profiles.get(session.profile or "default", {})
    if "role_arn" in profile:
        return [profile["role_arn"], profile["role_session_name"]]
    if options.is_of_environment and "AWS_WEB_IDENTITY_TOKEN_FILE" in os.environ:
        names = [os.environ.get(f"AWS_ROLE_{each}") for each in ("ARN", "SESSION_NAME")]
        return [*names, profile.get("role_session_name")]
    if "sso_role_name" in profile:
        return [profile.get("sso_account_id"), profile["sso_role_name"]]
    if "aws_session_token" in profile or "aws_security_token" in profile:
        return ["session", session.profile]
    return [profile.get("aws_access_key_id")]


def _options(config: ProducerConfig, values: OptionValues) -> AwsOptions:
    jaas = config.sasl_jaas_config
    if jaas is None:
        return AwsOptions()
    return aws_options(values.jaas(jaas.value, config.sasl_mechanism).options)


def _environment_credentials(options: AwsOptions) -> AwsCredentials | None:
    """Return the AWS keys in the environment.

    Return None if the environment has no keys, or if an option sets another source of credentials.
    """
    access, secret = (os.environ.get(f"AWS_{n}") for n in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"))
    if not options.is_of_environment or not access or not secret:
        return None
    return AwsCredentials(access, secret, os.environ.get("AWS_SESSION_TOKEN") or None)


_is_asking: Final[ContextVar[bool]] = ContextVar("is_asking", default=False)


@contextmanager
def _without_debug_logs() -> Iterator[None]:
    """Context manager: suppress botocore's DEBUG logs, because they contain access keys."""
    import botocore  # noqa: PLC0415 - an extra

    names = [f"botocore.{module.name}" for module in iter_modules(botocore.__path__)]
    for name in (*names, "urllib3.connectionpool"):
        logging.getLogger(name).addFilter(_is_logged)
    before = _is_asking.set(True)
    try:
        yield
    finally:
        _is_asking.reset(before)


def _is_logged(record: logging.LogRecord) -> bool:
    return record.levelno > logging.DEBUG or not _is_asking.get()


def _botocore_credentials(options: AwsOptions, region: str, profile: str) -> AwsCredentials:
    """Return the AWS credentials that botocore finds.

    Raise TokenException if it finds no credentials. profile: the name of the profile in error
    messages. A `credential_process` of the profile is never run.
    """
    from botocore.exceptions import (  # noqa: PLC0415 - slow, and may be absent
        BotoCoreError,
        ClientError,
        ProfileNotFound,
    )

    commands: list[str] = []
    try:
        found = _first_credentials(options, region, commands)
        if found is not None:
            return found
    except ProfileNotFound as error:
        is_named = error.kwargs.get("profile") == options.profile
        why, is_final = f"there is no {profile if is_named else _OF_ENVIRONMENT}", True
    except _MfaNeededError as error:
        is_named = options.profile is not None and error.profile == options.profile
        why, is_final = _mfa_message(profile if is_named else ""), True
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", ""))
        why, is_final = f"STS refuses the role: {printable(code)}", code.startswith("Access")
    except BotoCoreError as error:
        # The message of the exception may contain a URL with a token.
        why, is_final = f"botocore raised {type(error).__name__}", False
    else:
        why, is_final = "no variables, profile, role or metadata service has credentials", False
        if options.profile is not None:
            why = (
                f"the {profile} has no credentials: add them to it, or remove awsProfileName from "
                f"{Option('sasl.jaas.config')} to use AWS's default chain"
            )
    if commands:
        why += "; credential_process of a profile is not run"
    raise TokenException(why, is_final=is_final)


def _first_credentials(
    options: AwsOptions, region: str, commands: list[str]
) -> AwsCredentials | None:
    """Return the credentials of the first source that has credentials, or None if there is none.

    As in the Java client, the profile is tried first, and then the role is assumed. The Java client
    then tries AWS's default chain, unless awsAddDefaultProviders is false. This client uses the
    default chain only if neither a profile nor a role is set. Otherwise, a worker without the
    profile, or without permission to assume the role, would log in as a different user.

    Append to `commands` the name of each profile that has a `credential_process`. This client never
    runs a `credential_process`.
    """
    from botocore.exceptions import ProfileNotFound  # noqa: PLC0415 - slow, and may be absent

    if options.profile is not None:
        found = None
        try:
            session = _session(options.profile, region, commands)
            found = _found(session, only_profile=True)
        except ProfileNotFound:
            if options.role is None:
                raise
        # In the Java client, the profile's credential_process would return credentials, so the role
        # is not assumed.
        if found is not None or options.role is None or options.profile in commands:
            return found
    session = _session(None, region, commands)
    if options.role is None:
        return _found(session)
    # botocore takes the keys of the environment before those of a profile.
    if options.role_keys is None and not os.environ.get("AWS_ACCESS_KEY_ID"):
        _check_no_mfa(session)
    return _assumed(options, session, region)


def _session(profile: str | None, region: str, commands: list[str]) -> Any:  # noqa: ANN401 - of botocore, which may be absent
    """Return a session of botocore.

    Append to `commands` the name of each profile that has a `credential_process`. This client never
    runs a `credential_process`.
    """
    from botocore.session import Session  # noqa: PLC0415 - slow, and may be absent

    session = Session(profile=profile)
    commands += _remove_commands(session.full_config)
    _name_role_sessions(session.full_config)
    if session.get_config_variable("region") is None:
        # botocore assumes the roles of profiles in this region.
        session.set_config_variable("region", region)
    return session


def _found(
    session: Any,  # noqa: ANN401 - of botocore, which may be absent
    *,
    only_profile: bool = False,
) -> AwsCredentials | None:
    """Return the credentials of a session, or None if it has none.

    only_profile: whether the credentials must be those of the session's profile. If not, botocore
    also looks for the credentials of the container or the EC2 instance. Raise _MfaNeededError if
    the profile needs an MFA code.
    """
    _check_no_mfa(session)
    if only_profile:
        resolver = session.get_component("credential_provider")
        for name in _NOT_OF_PROFILE:
            resolver.remove(name)
    found = session.get_credentials()
    if found is None:
        return None
    keys = found.get_frozen_credentials()
    # botocore has no public attribute for the expiry time.
    expires_at = getattr(found, "_expiry_time", None)
    return AwsCredentials(
        keys.access_key,
        keys.secret_key,
        keys.token,
        expires_at.timestamp() if isinstance(expires_at, datetime) else None,
    )


def _check_no_mfa(session: Any) -> None:  # noqa: ANN401 - of botocore, which may be absent
    """Raise _MfaNeededError if the session's profile assumes a role that needs an MFA code.

    Also check the roles of its source profiles. botocore would ask for the code on the terminal.
    Then a program in the background, such as a Python worker of Spark, would stop without an error.
    """
    profiles = session.full_config["profiles"]
    name = session.profile or "default"
    is_source = False
    checked: set[str] = set()
    while name in profiles and name not in checked:
        profile = profiles[name]
        # botocore does not assume the role of a source profile that has keys.
        if is_source and ("aws_access_key_id" in profile or "aws_secret_access_key" in profile):
            return
        if "role_arn" not in profile or "web_identity_token_file" in profile:
            return
        if "mfa_serial" in profile:
            raise _MfaNeededError(session.profile)
        checked.add(name)
        name, is_source = profile.get("source_profile"), True


def _mfa_message(profile: str) -> str:
    """Return the error message for a profile that needs an MFA code.

    profile: the name of the profile in error messages; empty if no option names it.
    """
    remove = f"remove awsProfileName from {Option('sasl.jaas.config')} and " if profile else ""
    return (
        f"the {profile or 'profile of AWS_PROFILE, or else the default profile,'} needs an MFA "
        "code, and this client does not prompt: use a profile without mfa_serial, also as "
        f"source_profile, or {remove}put session credentials into the environment "
        "(AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN)"
    )


def _remove_commands(config: Mapping[str, Any]) -> list[str]:
    """Remove `credential_process` from botocore's profiles. Return the names of the changed ones.

    botocore would run these commands to get credentials. It is not enough to remove the session's
    own provider of such credentials, because botocore would still run the commands of source
    profiles.
    """
    profiles = config.get("profiles", {})
    return [name for name, each in profiles.items() if each.pop("credential_process", None)]


def _name_role_sessions(config: Mapping[str, Any]) -> None:
    """Set a role session name in each of botocore's profiles that has none.

    Without a name in the profile, botocore would use the current time as the name of each session.
    botocore reads this name from the profile even if environment variables configure a web
    identity.
    """
    profiles = config.get("profiles", {})
    # Without AWS_PROFILE, botocore uses this profile even if no file contains it.
    profiles.setdefault("default", {})
    for each in profiles.values():
        each["role_session_name"] = each.get("role_session_name") or _SESSION_NAME


def _assumed(
    options: AwsOptions,
    session: Any,  # noqa: ANN401 - of botocore, which may be absent
    region: str,
) -> AwsCredentials:
    """Request the credentials of the role from STS, and return them."""
    keys = options.role_keys
    given: dict[str, str | None] = {}
    if keys is not None:
        given = {
            "aws_access_key_id": keys.access_key,
            "aws_secret_access_key": keys.secret_key,
            "aws_session_token": keys.session_token,
        }
    client = session.create_client("sts", region_name=options.sts_region or region, **given)
    # The Java client does not send the external id if `role_keys` are set. This client does.
    more = {} if options.external_id is None else {"ExternalId": options.external_id}
    answer = client.assume_role(
        RoleArn=options.role, RoleSessionName=options.session_name or _SESSION_NAME, **more
    )["Credentials"]
    expires_at = answer.get("Expiration")
    return AwsCredentials(
        answer["AccessKeyId"],
        answer["SecretAccessKey"],
        answer["SessionToken"],
        expires_at.timestamp() if isinstance(expires_at, datetime) else None,
    )
