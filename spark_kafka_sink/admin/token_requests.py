"""Send the requests of `KafkaAdmin` about delegation tokens (KIP-48)."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import TypeVar

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.admin.admin_requests import AdminRequests
from spark_kafka_sink.errors import (
    ApiException,
    IllegalArgumentException,
    ProtocolError,
    advice,
    api_exception,
    error_code,
)
from spark_kafka_sink.model import DelegationToken, Secret, check_text
from spark_kafka_sink.network.request_client import RequestFuture
from spark_kafka_sink.wire.delegation_token_messages import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribedDelegationToken,
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from spark_kafka_sink.wire.messages import Request

_TokenResponse = TypeVar(
    "_TokenResponse",
    CreateDelegationTokenResponse,
    RenewDelegationTokenResponse,
    ExpireDelegationTokenResponse,
    DescribeDelegationTokenResponse,
)


class TokenRequests:
    """Sends requests about delegation tokens, and repeats each until a broker responds."""

    def __init__(self, requests: AdminRequests) -> None:
        self._requests = requests

    def create(self, max_lifetime_ms: int | None) -> DelegationToken:
        """Create a token for the principal of this client, and return it."""
        request = CreateDelegationTokenRequest(max_lifetime_ms=max_lifetime_ms or -1)
        made = self._about_tokens("created", request, CreateDelegationTokenResponse)
        return _token(
            made, made.issue_timestamp_ms, made.expiry_timestamp_ms, made.max_timestamp_ms
        )

    def renew(self, hmac: Secret) -> int:
        """Renew a token, and return its new expiry time in ms since 1970."""
        request = RenewDelegationTokenRequest(hmac=_bytes(hmac))
        return self._about_tokens(
            "renewed", request, RenewDelegationTokenResponse
        ).expiry_timestamp_ms

    def expire(self, hmac: Secret) -> None:
        """Expire a token now."""
        request = ExpireDelegationTokenRequest(hmac=_bytes(hmac))
        self._about_tokens("expired", request, ExpireDelegationTokenResponse)

    def describe(self, owners: Sequence[object] | None) -> list[DelegationToken]:
        """Return the tokens of `owners` that this client may see; None means all owners."""
        asked = None if owners is None else [_owner(owner) for owner in owners]
        request = DescribeDelegationTokenRequest(owners=asked)
        found = self._about_tokens("described", request, DescribeDelegationTokenResponse)
        return [
            _token(each, each.issue_timestamp, each.expiry_timestamp, each.max_timestamp)
            for each in found.tokens
        ]

    def _about_tokens(
        self, done: str, request: Request, kind: type[_TokenResponse]
    ) -> _TokenResponse:
        """Send a request, and repeat it until a broker responds. Raise the broker's error."""

        def answer(future: RequestFuture) -> _TokenResponse | None:
            response = future.response
            if not isinstance(response, kind):
                raise ProtocolError(f"a broker answered with {type(response).__name__}")
            row = error_code(response.error_code)
            if row.code == codes.NONE:
                return response
            raise _token_error(done, row.code)

        return self._requests.until_answered(request, answer)


def _token(
    answer: CreateDelegationTokenResponse | DescribedDelegationToken,
    issue_timestamp_ms: int,
    expiry_timestamp_ms: int,
    max_timestamp_ms: int,
) -> DelegationToken:
    """Return the token in a response.

    answer: a response that contains one token. The caller passes the token's times, because the two
    types of response name these fields differently.
    """
    return DelegationToken(
        token_id=answer.token_id,
        hmac=Secret(base64.b64encode(answer.hmac).decode()),
        owner=f"{answer.principal_type}:{answer.principal_name}",
        issue_timestamp_ms=issue_timestamp_ms,
        expiry_timestamp_ms=expiry_timestamp_ms,
        max_timestamp_ms=max_timestamp_ms,
    )


def _owner(owner: object) -> DescribeDelegationTokenOwner:
    what = f"one of owners, {owner!r:.60},"
    check_text(what, owner)
    kind, colon, name = str(owner).partition(":")
    if not (kind and colon and name):
        message = f"{what} is not a principal: expected a type and a name, such as User:alice"
        raise IllegalArgumentException(message)
    return DescribeDelegationTokenOwner(principal_type=kind, principal_name=name)


def _bytes(hmac: Secret) -> bytes:
    if not isinstance(hmac, Secret):  # another value may also be a secret, so it is not shown
        kind = type(hmac).__name__
        message = f"hmac is of type {kind}: expected the hmac of a DelegationToken"
        raise IllegalArgumentException(message)
    return base64.b64decode(hmac.value)


def _token_error(done: str, code: int) -> ApiException:
    row = error_code(code)
    message = f"the delegation token cannot be {done}: {row.name} ({row.code})"
    hint = advice(row.code)
    return api_exception(row.code, f"{message}; {hint}" if hint else message)
