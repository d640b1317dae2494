"""Names of cipher suites: OpenSSL's own list is the judge."""

from __future__ import annotations

import re

import pytest
from support.brokers.certificates import openssl

from spark_kafka_sink.errors import ConfigException
from spark_kafka_sink.network.ssl_options import TLS_1_2_SUITES, TLS_1_3_SUITES, cipher_suites
from spark_kafka_sink.network.tls import TlsSettings, client_context

GOOD = "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"


def test_openssl_has_the_same_names_for_the_standard_s() -> None:
    lines = openssl("ciphers", "-stdname", "-s", "-tls1_2", "ALL").splitlines()
    theirs = {line.split()[0]: line.split()[2] for line in lines}
    # Others need keys that Kafka cannot configure, or are hardly ever used.
    unusual = re.compile("PSK|SRP|ARIA|CAMELLIA|CCM|_anon_|_NULL_")
    assert {n: each for n, each in theirs.items() if not unusual.search(n)} == TLS_1_2_SUITES


def test_names_of_java_and_openssl_mean_the_same() -> None:
    java = cipher_suites([GOOD, "TLS_RSA_WITH_AES_128_CBC_SHA"])
    assert java == cipher_suites(["ECDHE-RSA-AES256-GCM-SHA384", "AES128-SHA"])
    assert java.openssl == "ECDHE-RSA-AES256-GCM-SHA384:AES128-SHA"


def test_a_version_without_a_suite_is_off() -> None:
    both = frozenset({"TLSv1.2", "TLSv1.3"})
    assert cipher_suites([]).protocols == both
    assert cipher_suites([]).openssl is None
    assert cipher_suites([GOOD]).protocols == {"TLSv1.2"}
    assert cipher_suites(TLS_1_3_SUITES).protocols == {"TLSv1.3"}
    assert cipher_suites([GOOD, *reversed(TLS_1_3_SUITES)]).protocols == both


def test_some_of_tls_1_3_s_suites_are_refused() -> None:
    with pytest.raises(ConfigException, match=r"cannot choose among the suites of TLS 1\.3: list"):
        cipher_suites([GOOD, "TLS_AES_256_GCM_SHA384"])


@pytest.mark.parametrize("name", ["TLS_RSA_WITH_NULL_SHA256", "ALL", "", "AES128-SHA:NULL", "@X"])
def test_what_is_no_suite_is_refused(name: str) -> None:
    with pytest.raises(ConfigException, match=r"has .*, which is unknown"):
        cipher_suites([name])


def test_the_context_has_the_suites_and_none_that_openssl_lacks() -> None:
    root = openssl(
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
        *("-keyout", "/dev/null", "-subj", "/CN=anybody", "-days", "36500"),
    )
    context = client_context(TlsSettings(root, ciphers=cipher_suites([GOOD]).openssl)).context
    suites = [each["name"] for each in context.get_ciphers() if each["protocol"] == "TLSv1.2"]
    assert suites == ["ECDHE-RSA-AES256-GCM-SHA384"]
    with pytest.raises(ConfigException, match=r"ssl\.cipher\.suites has no suite that this "):
        client_context(TlsSettings(root, ciphers="AES-OF-THE-FUTURE"))
