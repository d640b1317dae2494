"""`sasl.jaas.config` is parsed as by the Java client's parser, on every text."""

from __future__ import annotations

import traceback
from pathlib import Path
from random import Random
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.brokers.jvm import run_java

from spark_kafka_sink.auth.jaas import LOGIN_MODULES, JaasEntry, check_module, parse_jaas
from spark_kafka_sink.auth.mechanisms import GSSAPI, MECHANISMS
from spark_kafka_sink.errors import ConfigException

BEGIN: Final = "x.PlainLoginModule required username=u "
EVENT_HUBS: Final = "Endpoint=sb://ns/;SharedAccessKeyName=k;SharedAccessKey=abc="
# The text after BEGIN, and the resulting password.
GIVES: Final = {
    "password=abc123;": "abc123",
    "password=ab.cd;": "ab.cd",
    "password=$x;": "$x",
    "password=\u20acx;": "\u20acx",
    "password=_a-b;": "_a-b",
    r'password="a\"b\\c\td\101";': 'a"b\\c\tdA',
    r"""password='a\'b"c';""": "a'b\"c",
    r'password="\a\b\f\n\r\v\q\0\08\377\477\7";': "\a\b\f\n\r\vq\0\x008\xff'7\x07",
    'password="a\'b;c=d//e/*f*/g";': "a'b;c=d//e/*f*/g",
    "password='a\"b';": 'a"b',
    f'password="{EVENT_HUBS}";': EVENT_HUBS,
    r'password="tr\u0041il";': "tru0041il",
    'password="";': "",
    'password = "p";': "p",
    'password="p"\n\ttokenauth="true"\r\n;': "p",
    'password /* = */ = // "no";\n "p"; // behind': "p",
    "password='p'; /* a * / ** */": "p",
    'password="no" password="p";': "p",
    'password="p" 5="x" ;': "p",
    'password="${env:A}";': "${env:A}",
}
# The text after BEGIN, and the message.
REFUSED: Final = {
    **dict.fromkeys(
        ["password=123abc;", "password=-abc;", "password=.abc;"],
        "the option password has no valid value",
    ),
    "n=12;": "an option has no valid value",
    **dict.fromkeys(
        [f"password=ab{mark}cd;" for mark in ":@+="],
        "the option password is not followed by name=value",
    ),
    'password="ab\ncd";': "the option password is not followed by name=value",
    "password=;": "the option password has no valid value",
    "password;": "the option username is not followed by name=value",
    "password=ab/cd;": "not terminated by a semi-colon",
    'password="p"': "not terminated by a semi-colon",
    'password="p;': "not terminated by a semi-colon",
    'password="p" /* ;': "not terminated by a semi-colon",
    'password="p\\': "not terminated by a semi-colon",
    'password="p"; x.PlainLoginModule required;': "has 2 login modules",
}
FULL_REFUSED: Final = {
    "": "sasl.jaas.config is empty",
    " \n// nothing": "sasl.jaas.config is empty",
    "x.PlainLoginModule": "has no control flag",
    "x.PlainLoginModule;": "has no control flag",
    "x.PlainLoginModule needed;": "has no control flag",
    'x.PlainLoginModule username="u";': "has no control flag",
    '"" required;': "does not begin with a module",
    "= required;": "does not begin with a module",
    "; required;": "does not begin with a module",
}
FULL_TEXTS: Final = (
    "x.PlainLoginModule REQUIRED;",
    "x.PlainLoginModule Requisite;",
    "\"x.PlainLoginModule\" 'sufficient';",
    "/**/x.PlainLoginModule/*\n*/optional;",
)
# Java's tokenizer treats each of these in its own way.
PIECES: Final = (
    *"\"\"''==;;//**\\\\\n\r\t -_$.:@+{}#,",
    *(
        "username",
        "password",
        "tokenauth",
        "required",
        "x.PlainLoginModule",
        "${env:A}",
        "/*",
        "*/",
    ),
    *('="', '";', '="p" ', "\\n", "\\1", "\\12", "\\777", "12", "-1.5.2", "1e3", "\x00", "\x7f"),
    *("\x85", "\xa0", "\u00e9", "\u20ac", "\U0001f600", "optional", "a=b "),
)


@pytest.mark.parametrize("text", GIVES)
def test_what_java_takes_gives_the_same(text: str) -> None:
    entry = parse_jaas(BEGIN + text)
    assert entry.module == "x.PlainLoginModule"
    assert entry.simple_name == "PlainLoginModule"
    assert entry.options["username"] == "u"
    assert entry.options["password"] == GIVES[text]


@pytest.mark.parametrize("text", FULL_TEXTS)
def test_flags_and_modules_may_be_in_quotes_and_flags_in_any_case(text: str) -> None:
    assert parse_jaas(text) == JaasEntry("x.PlainLoginModule", {})


@pytest.mark.parametrize("text", REFUSED)
def test_what_java_refuses_is_refused_with_what_to_do(text: str) -> None:
    with pytest.raises(ConfigException, match=REFUSED[text]) as caught:
        parse_jaas(BEGIN + text)
    if "login modules" not in REFUSED[text]:
        assert "put each value in double quotes" in str(caught.value)


@pytest.mark.parametrize("text", FULL_REFUSED)
def test_what_is_no_entry_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigException, match=FULL_REFUSED[text]) as caught:
        parse_jaas(text)
    assert 'PlainLoginModule required username="…" password="…";' in str(caught.value)


@pytest.mark.parametrize(
    "text", ["password=${env:A};", "password=x${env:A};", "${env:A}=x;", "password=${file:/a:b}"]
)
def test_a_reference_outside_of_quotes_is_refused_and_told_so(text: str) -> None:
    with pytest.raises(ConfigException, match=r'references too, as "\$\{env:NAME\}"'):
        parse_jaas(BEGIN + text)
    with pytest.raises(ConfigException, match="references too"):
        parse_jaas("x.PlainLoginModule ${env:A};")


def test_references_are_put_in_after_the_parsing() -> None:
    entry = parse_jaas(BEGIN + 'password="${env:A}";')
    found = entry.resolved(lambda text: text.replace("${env:A}", 'x" username="admin'))
    assert found.options == {"username": "u", "password": 'x" username="admin'}
    assert found.module == entry.module


@given(st.text(max_size=4), st.text("hushHUSH0123 :=/;\"'\\${}\n", min_size=8))
def test_no_word_of_a_secret_is_in_a_message(before: str, secret: str) -> None:
    for text in (
        f"{BEGIN}password={before}hush{secret}",
        f"hush {secret}",
        f"x.M required {secret}",
    ):
        shown = ""
        try:
            parse_jaas(text)
        except ConfigException as error:
            shown = "".join(traceback.format_exception(error))
        assert "hush" not in shown


def test_an_entry_shows_no_option() -> None:
    assert repr(parse_jaas(BEGIN + 'password="hush";')) == "JaasEntry(module='x.PlainLoginModule')"


def _java(texts: list[str], folder: Path) -> list[str]:
    lines = folder / "texts"
    lines.write_text("\n".join(text.encode("utf-16-be", "surrogatepass").hex() for text in texts))
    return run_java("ParseJaas", lines).splitlines()


def _hex(text: str) -> str:
    return text.encode("utf-16-be", "surrogatepass").hex() + "."


def _ours(text: str) -> str | None:
    try:
        entry = parse_jaas(text)
    except ConfigException:
        return None
    pairs = sorted(entry.options.items(), key=lambda pair: pair[0].encode("utf-16-be"))
    return " ".join(_hex(each) for each in (entry.module, *(e for pair in pairs for e in pair)))


def _random_text(random: Random) -> str:
    """Return random pieces in a row, or options that may be complete."""
    begin = random.choice([BEGIN, BEGIN, "x.M required ", ""])
    if random.random() < 0.5:
        end = random.choice([";", "", '";', "*/;", "\n;"])
        return begin + "".join(random.choices(PIECES, k=random.randint(0, 8))) + end
    options = []
    for _ in range(random.randint(0, 3)):
        quote = random.choice('""\'')
        inside = "".join(random.choices(PIECES, k=random.randint(0, 4))).replace(
            quote, "\\" + quote
        )
        gap = random.choice(["", "", " ", "/*\n*/", "//\r"])
        options.append(f"password{gap}={gap}{quote}{inside}{quote}")
    return begin + " ".join(options) + ";"


def test_the_java_client_agrees_on_every_text(tmp_path: Path) -> None:
    seed = Random().randrange(2**32)
    print(f"seed {seed}")
    random = Random(seed)
    texts = [BEGIN + text for text in (*GIVES, *REFUSED)] + [*FULL_TEXTS, *FULL_REFUSED]
    texts += [_random_text(random) for _ in range(2_000)]
    # Without a text, Java looks for a file that the JVM was started with.
    texts = [text for text in texts if text.strip()]
    ours = {text: _ours(text) for text in texts}
    for text, java in zip(texts, _java(texts, tmp_path), strict=True):
        assert (text, ours[text]) == (text, None if java == "refused" else java)
    assert sum(each is not None for each in ours.values()) > 200


@pytest.mark.parametrize("module", LOGIN_MODULES)
def test_a_module_serves_its_mechanisms_whatever_stands_before_its_name(module: str) -> None:
    for prefix in ("", "org.apache.kafka.", "kafkashaded.org.apache.kafka."):
        entry = parse_jaas(f"{prefix}{module} required;")
        for mechanism in MECHANISMS:
            if mechanism in LOGIN_MODULES[module]:
                check_module(entry, mechanism)
            else:
                with pytest.raises(ConfigException, match=f"{module}, which supports") as caught:
                    check_module(entry, mechanism)
                advice = "name" if mechanism != GSSAPI else "set sasl.mechanism"
                assert f"sasl.mechanism is {mechanism}: {advice}" in str(caught.value)


def test_every_mechanism_has_a_module() -> None:
    assert {each for served in LOGIN_MODULES.values() for each in served} == set(MECHANISMS)


@pytest.mark.parametrize(
    ("module", "shown"),
    [
        (
            "com.sun.security.auth.module.JndiLoginModule",
            "the unknown module com.sun.security.auth.module.Jndi",
        ),
        ("hush", "names an unknown module: expected"),
    ],
)
def test_other_modules_are_refused_with_those_that_are_known(module: str, shown: str) -> None:
    with pytest.raises(ConfigException, match=shown) as caught:
        check_module(parse_jaas(f"{module} required;"), "PLAIN")
    assert "expected one of PlainLoginModule, ScramLoginModule" in str(caught.value)
    assert "hush" not in str(caught.value)


def test_tokens_that_nobody_signed_are_refused() -> None:
    entry = parse_jaas('OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="alice";')
    with pytest.raises(ConfigException, match="unsecuredLogin…, which makes unsigned tokens"):
        check_module(entry, "OAUTHBEARER")
