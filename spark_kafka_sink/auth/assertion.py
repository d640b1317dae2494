"""Assertions: JWTs with which a client authenticates at a token endpoint (RFC 7523).

Claims come from options, from a template, and from the current time. If several of these sources
set the same claim, the last one in this order wins, as in the Java client. Signing needs the
library cryptography, which only this module and `pkcs12` import.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.errors import ConfigException, install_extra

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

RS256: Final = "RS256"
ES256: Final = "ES256"
_COORDINATE_BYTES: Final = 32
MISSING_LIBRARY: Final = (
    f"needs the library cryptography, which is not installed: {install_extra('pkcs12')}"
)


@dataclass(frozen=True, slots=True)
class AssertionClaims:
    """The options `sasl.oauthbearer.assertion.claim.*`. An option that is not set is None."""

    aud: str | None = None
    iss: str | None = None
    sub: str | None = None
    exp_s: int = 300
    nbf_s: int = 60
    has_jti: bool = False


def assertion(
    claims: AssertionClaims,
    template: Mapping[str, Mapping[str, object]],
    algorithm: str,
    key: PrivateKeyTypes,
    *,
    now: float,
    jti: str,
) -> str:
    """Return a signed JWT.

    template: the fields for its `header` and its `payload`. key: the result of `signing_key`.
    """
    begin = int(now)
    payload = {
        **lasting_claims(claims, template),
        "iat": begin,
        "exp": begin + claims.exp_s,
        "nbf": begin - claims.nbf_s,
        **({"jti": jti} if claims.has_jti else {}),
    }
    header = {**template.get("header", {}), "alg": algorithm, "typ": "JWT"}
    text = ".".join(_coded(json.dumps(part).encode()) for part in (header, payload))
    return f"{text}.{_coded(_signature(algorithm, key, text.encode()))}"


def lasting_claims(
    claims: AssertionClaims, template: Mapping[str, Mapping[str, object]]
) -> dict[str, object]:
    """Return the claims that all assertions have in common, from the options and the template."""
    fixed = {"aud": claims.aud, "iss": claims.iss, "sub": claims.sub}
    return {
        **{name: value for name, value in fixed.items() if value is not None},
        **template.get("payload", {}),
    }


def parse_template(text: str, origin: str) -> dict[str, Mapping[str, object]]:
    """Return the parsed assertion template. Raise ConfigException if it is invalid."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    parts: dict[str, Mapping[str, object]] = found if isinstance(found, dict) else {"": {}}
    if not parts.keys() <= {"header", "payload"} or not all(
        isinstance(part, dict) for part in parts.values()
    ):
        raise ConfigException(
            f'{origin} is not an assertion template: expected {{"header": {{…}}, "payload": {{…}}}}'
        )
    return parts


def signing_key(pem: str, passphrase: str | None, algorithm: str, origin: str) -> PrivateKeyTypes:
    """Return the private key in a PEM text.

    Raise ConfigException if the key cannot be read, or cannot be used with the algorithm.
    """
    try:
        from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - an extra
        from cryptography.hazmat.primitives.asymmetric import ec, rsa  # noqa: PLC0415
    except ImportError:
        raise ConfigException(
            f"{origin}: signing assertions with this key {MISSING_LIBRARY}"
        ) from None
    try:
        key = serialization.load_pem_private_key(
            pem.encode(), None if passphrase is None else passphrase.encode()
        )
    except TypeError:
        # A passphrase for a key that is not encrypted, or an encrypted key without a passphrase.
        why = "is encrypted: set" if passphrase is None else "is not encrypted: remove"
        why += " sasl.oauthbearer.assertion.private.key.passphrase"
    except Exception as error:  # noqa: BLE001 - several kinds, whose messages are OpenSSL's
        why = f"cannot be read as PEM of a private key ({type(error).__name__})"
        if passphrase is not None:
            why += ", or sasl.oauthbearer.assertion.private.key.passphrase does not open it"
    else:
        if algorithm == RS256 and isinstance(key, rsa.RSAPrivateKey):
            return key
        if algorithm == ES256 and isinstance(key, ec.EllipticCurvePrivateKey):
            if isinstance(key.curve, ec.SECP256R1):
                return key
            why = f"is on the curve {key.curve.name}: {ES256} requires P-256"
        else:
            required = "an RSA key" if algorithm == RS256 else "a key of the curve P-256"
            why = f"is not a key for {algorithm}, which requires {required}: see "
            why += "sasl.oauthbearer.assertion.algorithm"
    # Raised outside the handlers, because the caught exceptions may show a part of the key.
    raise ConfigException(f"{origin} {why}")


def _signature(algorithm: str, key: PrivateKeyTypes, data: bytes) -> bytes:
    from cryptography.hazmat.primitives import hashes  # noqa: PLC0415 - an extra
    from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa, utils  # noqa: PLC0415

    if algorithm == RS256 and isinstance(key, rsa.RSAPrivateKey):
        return key.sign(data, padding.PKCS1v15(), hashes.SHA256())
    if isinstance(key, ec.EllipticCurvePrivateKey):
        # A JWT signature is the two numbers one after the other, without ASN.1 (RFC 7518, 3.4).
        numbers = utils.decode_dss_signature(key.sign(data, ec.ECDSA(hashes.SHA256())))
        return b"".join(number.to_bytes(_COORDINATE_BYTES, "big") for number in numbers)
    raise ConfigException(f"the key cannot sign with {algorithm}")


def _coded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
