"""Files of properties: java.util.Properties has the last word."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Final

import pytest
from support.brokers.jvm import run_java

from spark_kafka_sink.auth.java_properties import properties

PIECES: Final = (
    *"ab=: \t\f\n\r\\#!\"'",
    *(
        "\r\n",
        "\\\n",
        "\\\r\n",
        "\\\\",
        "\\u0041",
        "\\u00",
        "\\ud83d\\ude00",
        "\\n",
        "\u00e9",
        "\n",
    ),
)


def _hex(text: str) -> str:
    return text.encode("utf-16-be", "surrogatepass").hex() + "."


def _ours(text: str) -> str:
    try:
        found = properties(text)
    except ValueError:
        return "refused"
    pairs = sorted(found.items(), key=lambda pair: pair[0].encode("utf-16-be", "surrogatepass"))
    return " ".join(["found", *(_hex(each) for pair in pairs for each in pair)])


def test_java_reads_the_same_in_every_text(tmp_path: Path) -> None:
    seed = Random().randrange(2**32)
    print(f"seed {seed}")
    random = Random(seed)
    texts = ["".join(random.choices(PIECES, k=random.randint(1, 20))) for _ in range(5_000)]
    lines = tmp_path / "texts"
    lines.write_text("\n".join(_hex(text).rstrip(".") for text in texts))
    java = run_java("ReadReferences", lines).splitlines()
    for text, java_value in zip(texts, java, strict=True):
        assert (text, _ours(text)) == (text, java_value)


def test_what_people_write() -> None:
    text = "# secrets\n! of us\n\nuser = alice\npassword:a=b\\\n   c\\u00e9\nempty\nuser=bob"
    assert properties(text) == {"user": "bob", "password": "a=bc\u00e9", "empty": ""}


def test_a_broken_escape_is_refused_without_the_text() -> None:
    with pytest.raises(ValueError, match="not followed by four hexadecimal digits") as caught:
        properties("password=hush\\u12")
    assert "hush" not in str(caught.value)
