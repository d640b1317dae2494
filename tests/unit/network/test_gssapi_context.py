"""The errors of the Kerberos library, without the library: which of them a retry may overcome."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import NoReturn

import pytest

from spark_kafka_sink.auth.gssapi import KerberosOptions
from spark_kafka_sink.errors import KafkaException, NetworkException, SaslAuthenticationException
from spark_kafka_sink.network.gssapi_context import _failure, gssapi_exchange


class GssError(Exception):
    """An error of the library. code: as in krb5.h, such as -1765328228 for KRB5_KDC_UNREACH."""

    maj_code = 851968

    def __init__(self, code: int) -> None:
        super().__init__()
        self.min_code = code + (1 << 32)

    def get_all_statuses(self, code: int, is_major: bool) -> list[str]:  # noqa: FBT001 - as there
        """Return the texts of the code."""
        assert (code, is_major) == (self.min_code, False)
        return ["Words of the library"]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (-1765328228, NetworkException),  # KRB5_KDC_UNREACH
        (-1765328230, SaslAuthenticationException),  # KRB5_REALM_UNKNOWN
        (-1765328164, SaslAuthenticationException),  # KRB5_REALM_CANT_RESOLVE: an empty realm
        (-1765328378, SaslAuthenticationException),  # KRB5KDC_ERR_C_PRINCIPAL_UNKNOWN
    ],
)
def test_a_kdc_that_cannot_be_reached_is_tried_again(code: int, kind: type[KafkaException]) -> None:
    failure = _failure(GssError(code), KerberosOptions("kafka", "u@REALM"), "no ticket")
    assert type(failure) is kind
    assert str(failure).startswith("no ticket: Words of the library")
    is_hint = "is its KDC in krb5.conf or in DNS?" in str(failure)
    assert is_hint == (code == -1765328230)


def library(code: int) -> dict[str, SimpleNamespace]:
    """Return the modules of a library whose security contexts raise an error."""

    def refuse() -> NoReturn:
        raise GssError(code)

    return {
        "gssapi": SimpleNamespace(
            MechType=SimpleNamespace(kerberos=0),
            Name=lambda *_: "name",
            NameType=SimpleNamespace(hostbased_service=0),
            RequirementFlag=SimpleNamespace(mutual_authentication=1, integrity=2),
            SecurityContext=lambda **_: SimpleNamespace(step=refuse),
        ),
        "gssapi.exceptions": SimpleNamespace(GSSError=GssError),
    }


@pytest.mark.parametrize("code", [-1765328243, -1765328189])  # KRB5_CC_NOTFOUND, KRB5_FCC_NOFILE
@pytest.mark.parametrize(
    ("keytab", "kind", "text"),
    [
        ("k", NetworkException, "kafka@h: Words of the library$"),
        (None, SaslAuthenticationException, "kafka@h: Words of the library; run kinit"),
    ],
)
def test_a_ticket_that_is_renewed_for_another_client_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    keytab: str | None,
    kind: type[KafkaException],
    text: str,
) -> None:
    for name, module in library(code).items():
        monkeypatch.setitem(sys.modules, name, module)
    options = KerberosOptions("kafka", "u", keytab=keytab)
    with pytest.raises(KafkaException, match=text) as caught:
        gssapi_exchange(options, "h", object())
    assert type(caught.value) is kind
