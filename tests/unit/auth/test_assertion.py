"""Assertions: what they claim, and that others take their signatures."""

from __future__ import annotations

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from support.brokers.token_server import private_pem, verified

from spark_kafka_sink.auth.assertion import (
    AssertionClaims,
    assertion,
    parse_template,
    signing_key,
)
from spark_kafka_sink.errors import ConfigException

RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
ORIGIN = "the file of the option"


@pytest.mark.parametrize(("algorithm", "key"), [("RS256", RSA_KEY), ("ES256", EC_KEY)])
def test_an_assertion_is_signed_as_jwts_are(
    algorithm: str, key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
) -> None:
    loaded = signing_key(private_pem(key, "pass ü"), "pass ü", algorithm, ORIGIN)
    claims = AssertionClaims("aud", "iss", "sub", 300, 60, has_jti=True)
    for _ in range(20):  # numbers of ES256 may begin with zeros
        made = assertion(claims, {}, algorithm, loaded, now=1000.7, jti="an id")
        header, payload = verified(made, key.public_key())
    assert header == {"alg": algorithm, "typ": "JWT"}
    assert payload == {
        "aud": "aud", "iss": "iss", "sub": "sub",
        "iat": 1000, "exp": 1300, "nbf": 940, "jti": "an id",
    }  # fmt: skip
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    if algorithm == "RS256":
        with pytest.raises(InvalidSignature):
            verified(made, other.public_key())


def test_a_template_lies_between_options_and_the_moment() -> None:
    template = parse_template(
        '{"header": {"kid": "k", "alg": "none"}, "payload": {"iss": "t", "x": [1], "exp": 5}}', ""
    )
    claims = AssertionClaims(aud="aud", iss="iss")
    made = assertion(claims, template, "RS256", RSA_KEY, now=1000.0, jti="unused")
    header, payload = verified(made, RSA_KEY.public_key())
    assert header == {"kid": "k", "alg": "RS256", "typ": "JWT"}
    assert payload == {
        "aud": "aud", "iss": "t", "x": [1], "iat": 1000, "exp": 1300, "nbf": 940
    }  # fmt: skip


@pytest.mark.parametrize(
    "text", ["", "[]", "x", '{"header": 1}', '{"payload": []}', '{"claims": {}}', "[" * 100_000]
)
def test_what_is_no_template_is_refused(text: str) -> None:
    with pytest.raises(ConfigException, match="the file is not an assertion template"):
        parse_template(text, "the file")


@pytest.mark.parametrize(
    ("pem", "passphrase", "algorithm", "sentence"),
    [
        (private_pem(RSA_KEY), "p", "RS256", "is not encrypted: remove"),
        (private_pem(RSA_KEY, "p"), None, "RS256", "is encrypted: set"),
        (private_pem(RSA_KEY, "p"), "q", "RS256", "does not open it"),
        (private_pem(RSA_KEY), None, "ES256", "not a key for ES256, which requires a key of"),
        (private_pem(EC_KEY), None, "RS256", "not a key for RS256, which requires an RSA key"),
        (
            private_pem(ec.generate_private_key(ec.SECP384R1())), None, "ES256",
            "on the curve secp384r1",
        ),
        ("-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----", None, "RS256",
         "cannot be read as PEM"),
        ("", None, "RS256", "cannot be read as PEM"),
    ],
    # The keys are random, and the workers of a run have to give a test the same name.
    ids=["not encrypted", "encrypted", "wrong passphrase", "RSA for ES256", "EC for RS256",
         "another curve", "no key", "empty"],
)  # fmt: skip
def test_a_key_that_cannot_sign_is_refused_without_a_word_of_it(
    pem: str, passphrase: str | None, algorithm: str, sentence: str
) -> None:
    with pytest.raises(ConfigException, match=sentence) as caught:
        signing_key(pem, passphrase, algorithm, ORIGIN)
    assert str(caught.value).startswith(ORIGIN)
    assert "c2VjcmV0" not in str(caught.value)
