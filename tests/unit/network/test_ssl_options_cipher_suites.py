"""Names of cipher suites: this Python's OpenSSL is the judge."""

from __future__ import annotations

import re
import ssl

import pytest
from support.brokers.certificates import Authority

from spark_kafka_sink.errors import ConfigException
from spark_kafka_sink.network.ssl_options import TLS_1_2_SUITES, TLS_1_3_SUITES, cipher_suites
from spark_kafka_sink.network.tls import TlsSettings, client_context

GOOD = "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"


# The codes and names of the TLS 1.2 suites in the registry of IANA that Kafka's keys fit.
REGISTERED = {
    0x002F: "TLS_RSA_WITH_AES_128_CBC_SHA",
    0x0032: "TLS_DHE_DSS_WITH_AES_128_CBC_SHA",
    0x0033: "TLS_DHE_RSA_WITH_AES_128_CBC_SHA",
    0x0035: "TLS_RSA_WITH_AES_256_CBC_SHA",
    0x0038: "TLS_DHE_DSS_WITH_AES_256_CBC_SHA",
    0x0039: "TLS_DHE_RSA_WITH_AES_256_CBC_SHA",
    0x003C: "TLS_RSA_WITH_AES_128_CBC_SHA256",
    0x003D: "TLS_RSA_WITH_AES_256_CBC_SHA256",
    0x0040: "TLS_DHE_DSS_WITH_AES_128_CBC_SHA256",
    0x0067: "TLS_DHE_RSA_WITH_AES_128_CBC_SHA256",
    0x006A: "TLS_DHE_DSS_WITH_AES_256_CBC_SHA256",
    0x006B: "TLS_DHE_RSA_WITH_AES_256_CBC_SHA256",
    0x009C: "TLS_RSA_WITH_AES_128_GCM_SHA256",
    0x009D: "TLS_RSA_WITH_AES_256_GCM_SHA384",
    0x009E: "TLS_DHE_RSA_WITH_AES_128_GCM_SHA256",
    0x009F: "TLS_DHE_RSA_WITH_AES_256_GCM_SHA384",
    0x00A2: "TLS_DHE_DSS_WITH_AES_128_GCM_SHA256",
    0x00A3: "TLS_DHE_DSS_WITH_AES_256_GCM_SHA384",
    0xC009: "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    0xC00A: "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    0xC013: "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    0xC014: "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    0xC023: "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    0xC024: "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA384",
    0xC027: "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    0xC028: "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA384",
    0xC02B: "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    0xC02C: "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    0xC02F: "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    0xC030: "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    0xCCA8: "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
    0xCCA9: "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    0xCCAA: "TLS_DHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
}


def test_openssl_has_the_same_suites_for_the_standard_s_names() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_ciphers("ALL:@SECLEVEL=0")
    # Others need keys that Kafka cannot configure, or are hardly ever used.
    unusual = re.compile("PSK|SRP|ARIA|CAMELLIA|CCM|ADH|AECDH|NULL")
    theirs = {
        REGISTERED.get(suite["id"] & 0xFFFF): suite["name"]
        for suite in context.get_ciphers()
        if suite["protocol"] != "TLSv1.3" and not unusual.search(suite["name"])
    }
    assert theirs == TLS_1_2_SUITES


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
    with pytest.raises(
        ConfigException, match=r"cannot enable only some of the suites of TLS 1\.3: list"
    ):
        cipher_suites([GOOD, "TLS_AES_256_GCM_SHA384"])


@pytest.mark.parametrize("name", ["TLS_RSA_WITH_NULL_SHA256", "ALL", "", "AES128-SHA:NULL", "@X"])
def test_what_is_no_suite_is_refused(name: str) -> None:
    with pytest.raises(ConfigException, match=r"has .*, which is unknown"):
        cipher_suites([name])


def test_the_context_has_the_suites_and_none_that_openssl_lacks() -> None:
    root = Authority("anybody").root.certificate
    context = client_context(TlsSettings(root, ciphers=cipher_suites([GOOD]).openssl)).context
    suites = [each["name"] for each in context.get_ciphers() if each["protocol"] == "TLSv1.2"]
    assert suites == ["ECDHE-RSA-AES256-GCM-SHA384"]
    with pytest.raises(ConfigException, match=r"ssl\.cipher\.suites has no suite that this "):
        client_context(TlsSettings(root, ciphers="AES-OF-THE-FUTURE"))
