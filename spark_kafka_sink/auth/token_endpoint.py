"""The requests to an OAuth token endpoint, and its responses (RFC 6749; KIP-768, 1139, 1258).

Messages show only ``error`` and ``error_description`` of a response, without the secrets that the
client has sent.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from spark_kafka_sink.auth.mechanisms import printable
from spark_kafka_sink.auth.oauthbearer import OAuthBearerToken, bearer_token
from spark_kafka_sink.auth.token_renewal import TokenException
from spark_kafka_sink.errors import SaslAuthenticationException

_BASIC: Final = "Basic"
_JWT_BEARER: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_CLIENT_ASSERTION: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
# A retry may succeed after Request Timeout, Precondition Failed, Too Early, Too Many Requests.
_RETRIABLE: Final = frozenset({408, 412, 425, 429})
_REDIRECTS: Final = frozenset({301, 302, 307, 308})
_NOT_RETRIABLE: Final = frozenset({501, 505})
# The names of the token in responses. The first name that is present is used.
_TOKEN_NAMES: Final = ("access_token", "id_token")


def by_secret(scope: str | None) -> dict[str, str]:
    """Return the form for a client that sends its secret in a header (`basic_authorization`)."""
    return {"grant_type": "client_credentials", **_scope(scope)}


def basic_authorization(client_id: str, secret: str, encode: Callable[[str], str] | None) -> str:
    """Return the Authorization header of a client.

    encode: a function that is applied to id and secret before they are joined, or None.
    """
    pair = [client_id, secret] if encode is None else [encode(client_id), encode(secret)]
    return f"{_BASIC} {base64.b64encode(':'.join(pair).encode()).decode()}"


def by_client_assertion(assertion: str, client_id: str | None, scope: str | None) -> dict[str, str]:
    """Return the form for a client that sends an assertion instead of a secret (KIP-1258)."""
    return {
        "grant_type": "client_credentials",
        "client_assertion_type": _CLIENT_ASSERTION,
        "client_assertion": assertion,
        **({} if client_id is None else {"client_id": client_id}),
        **_scope(scope),
    }


def by_jwt_bearer(assertion: str, scope: str | None) -> dict[str, str]:
    """Return the form that exchanges an assertion for a token (KIP-1139)."""
    return {"grant_type": _JWT_BEARER, "assertion": assertion, **_scope(scope)}


def assertion_in(form: Mapping[str, str]) -> str:
    """Return the assertion in a form, or an empty string if the form contains none."""
    return form.get("client_assertion") or form.get("assertion") or ""


def secrets_in(headers: Mapping[str, str]) -> tuple[str, ...]:
    """Return the secrets in the Authorization header of a request.

    These are the text after the scheme and, if the scheme is Basic, the password in that text. If
    the password is empty, the user is a secret instead, because some servers accept a token as the
    user name.
    """
    scheme, _, sent = headers.get("Authorization", "").partition(" ")
    if scheme != _BASIC:
        return (sent,)
    user, _, password = base64.b64decode(sent).decode().partition(":")
    return sent, password or user


def _scope(scope: str | None) -> dict[str, str]:
    return {"scope": scope} if scope else {}


def token_of_answer(
    status: int,
    body: bytes,
    now: float,
    *,
    secrets: Iterable[str] = (),
    retry_after_s: float | None = None,
    extensions: Mapping[str, str] | None = None,
) -> OAuthBearerToken:
    """Return the token in a response. Raise TokenException if it has no valid token.

    now: when the response was received. secrets: the secrets that the client has sent, such as its
    client secret.
    """
    found = _object(body)
    if not 200 <= status < 300:
        is_final = status not in _RETRIABLE and (status < 500 or status in _NOT_RETRIABLE)
        advice = "; set the URL of the token endpoint to the one that it redirects to"
        raise TokenException(
            f"it answered {status}{_described(found, secrets)}"
            + (advice if status in _REDIRECTS else ""),
            is_final=is_final,
            retry_after_s=None if is_final else retry_after_s,
        )
    if found is None:
        # For example the page of a gateway while the endpoint behind it is being maintained.
        raise TokenException(
            f"it answered {status} without a JSON object", retry_after_s=retry_after_s
        )
    value = next((found[name] for name in _TOKEN_NAMES if name in found), None)
    if not isinstance(value, str):
        raise TokenException(f"it answered {status} without an access_token", is_final=True)
    try:
        return bearer_token(value, now, expires_in=_seconds(found), extensions=extensions)
    except SaslAuthenticationException as error:
        raise TokenException(str(error), is_final=True) from None


def _object(body: bytes) -> Mapping[str, object] | None:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _described(found: Mapping[str, object] | None, secrets: Iterable[str]) -> str:
    sent = tuple(secrets)
    texts = [(found or {}).get(name) for name in ("error", "error_description")]
    said = ": ".join(printable(text, sent) for text in texts if isinstance(text, str) and text)
    return f" ({said})" if said else ""


def _seconds(found: Mapping[str, object]) -> float | None:
    """Return `expires_in` in seconds, or None if it is invalid. Some endpoints send a string."""
    value = found.get("expires_in")
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        seconds = float(value)
    except (ValueError, OverflowError):
        return None
    return seconds if 0 <= seconds < 1e10 else None
