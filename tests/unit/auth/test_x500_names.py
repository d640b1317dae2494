"""The subjects of certificates, as Java's X500Principal.getName() writes them."""

from __future__ import annotations

from contextlib import suppress

import pytest
from cryptography.x509 import (
    Name,
    NameAttribute,
    ObjectIdentifier,
    RelativeDistinguishedName,
    load_der_x509_certificate,
)
from cryptography.x509.oid import NameOID
from support.brokers.certificates import Authority

from spark_kafka_sink.auth.pem import certificates
from spark_kafka_sink.auth.x500_names import certificate_subject, distinguished_name


def test_the_subject_of_a_certificate_is_found() -> None:
    authority = Authority()
    for block in certificates(authority.leaf("client", authority.intermediate()).chain, "chain"):
        expected = load_der_x509_certificate(block.data).subject.public_bytes()
        assert certificate_subject(block.data) == expected
        for end in range(len(block.data) // 2):
            with suppress(ValueError):
                certificate_subject(block.data[:end])
    with pytest.raises(ValueError, match="not a certificate"):
        certificate_subject(b"")


# The names are those that X500Principal.getName() of a JDK 17 gave for the same bytes.
@pytest.mark.parametrize(
    ("attributes", "name"),
    [
        ([], ""),
        (
            [
                (NameOID.COUNTRY_NAME, "DE"),
                (NameOID.STATE_OR_PROVINCE_NAME, "Bayern"),
                (NameOID.LOCALITY_NAME, "M\u00fcnchen"),
                (NameOID.STREET_ADDRESS, "Weg 1"),
                (NameOID.ORGANIZATION_NAME, "Acme, Inc."),
                (NameOID.ORGANIZATIONAL_UNIT_NAME, 'a+b="c"<d>;#e\\'),
                (NameOID.COMMON_NAME, "alice"),
            ],
            r"CN=alice,OU=a\+b\=\"c\"\<d\>\;\#e\\,O=Acme\, Inc.,STREET=Weg 1,L=M"
            "\u00fcnchen,ST=Bayern,C=DE",
        ),
        (
            [
                (NameOID.DOMAIN_COMPONENT, "org"),
                (NameOID.USER_ID, "u1"),
                (NameOID.EMAIL_ADDRESS, "a@b.c"),
                (NameOID.SERIAL_NUMBER, "77"),
                (NameOID.COMMON_NAME, "  two blanks  "),
            ],
            r"CN=\ \ two blanks\ \ ,2.5.4.5=#13023737,1.2.840.113549.1.9.1=#16056140622e63,"
            "UID=u1,DC=org",
        ),
        ([(NameOID.COMMON_NAME, " ")], r"CN=\ "),
        ([(NameOID.COMMON_NAME, "a\0b")], r"CN=a\00b"),
        ([(NameOID.COMMON_NAME, "#x")], r"CN=\#x"),
        ([(NameOID.TITLE, "Dr")], "2.5.4.12=#0c024472"),
    ],
)
def test_a_subject_is_shown_as_java_shows_it(
    attributes: list[tuple[ObjectIdentifier, str]], name: str
) -> None:
    parts = [RelativeDistinguishedName([NameAttribute(*each)]) for each in attributes]
    assert distinguished_name(Name(parts).public_bytes()) == name


def test_a_part_of_a_subject_may_have_several_attributes() -> None:
    attributes = (NameOID.COMMON_NAME, "x"), (NameOID.USER_ID, "y")
    part = RelativeDistinguishedName([NameAttribute(*each) for each in attributes])
    assert distinguished_name(Name([part]).public_bytes()) == "CN=x+UID=y"
