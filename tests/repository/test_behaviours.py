"""docs/contributing/behaviours.md: no row is missing, and its files and tests exist."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import NamedTuple

from support.documents.named_tests import ROOT, cells, exists, named_tests

from spark_kafka_sink.config import NO_EFFECT, NOT_YET, OFF_ONLY, REFUSED, option_fields

DOCUMENT = ROOT / "docs" / "contributing" / "behaviours.md"

BEHAVIOURS = [str(number) for number in range(1, 99)]
# The KIPs that say something of producers, up to Kafka 4.4.
KIPS = [
    *(91, 110, 152, 219, 360, 368, 390, 405, 447, 467, 480, 482, 511, 516, 526, 580, 584, 588, 601),
    *(602, 654, 679, 714, 724, 768, 794, 848, 890, 896, 899, 909, 932, 939, 951, 1030, 1050, 1102),
    *(1123, 1139, 1242, 1319, 1332),
]
# Options of the Java client that are not in the tables of config.py; * stands for several.
OTHER_OPTIONS = {
    "bootstrap.resolve.timeout.ms",
    "buffer.memory.allocation.strategy",
    "metadata.cluster.check.enable",
    "sasl.oauthbearer.assertion.*",
    "sasl.oauthbearer.client.credentials.*",
    "sasl.oauthbearer.header.urlencode",
    "sasl.oauthbearer.jwks.endpoint.*",
    "sasl.oauthbearer.jwt.retriever.class",
    "sasl.oauthbearer.jwt.validator.class",
    "sasl.oauthbearer.scope",
}
OPTIONS = {
    *(field.encode_name for field in option_fields()),
    *NOT_YET,
    *NO_EFFECT,
    *OFF_ONLY,
    *REFUSED,
    *OTHER_OPTIONS,
}

_NAME = re.compile(r"\w+")
# A file in quotes, followed by a name of code: with a dot, a capital letter or a _.
_PLACE = re.compile(r"`([\w/]+\.py)`(?: (\w+\.\w+|[A-Z]\w+|\w*_\w+)\b)?")


class Row(NamedTuple):
    """One row: its key, its implementation, its proof."""

    key: str
    implemented: str
    proved: str

    @property
    def is_elsewhere(self) -> bool:
        """Whether the row has a reason why it does not apply."""
        return self.implemented.startswith("Not here: ")

    @property
    def is_open(self) -> bool:
        """Whether something is still to come."""
        return bool(re.search(r"\bopen\b", self.proved))

    @property
    def tests(self) -> list[str]:
        """The tests that the row names."""
        return named_tests(self.proved)


@cache
def rows() -> list[Row]:
    """Read the tables of the document."""
    found = []
    for line in DOCUMENT.read_text().splitlines():
        row = cells(line)
        is_heading = row[-1] == "Proved by" or line.startswith("|---")
        if line.startswith("|") and not is_heading:
            found.append(Row(row[0].strip("` "), row[-2], row[-1]))
    return found


@cache
def words_of(path: Path) -> set[str]:
    """Return every name in a file; empty if there is no such file."""
    return set(_NAME.findall(path.read_text())) if path.is_file() else set()


def test_every_behaviour_kip_and_option_has_its_row_and_no_row_is_there_twice() -> None:
    keys = [row.key for row in rows()]
    assert len(keys) == len(set(keys))
    expected = {*BEHAVIOURS, *(f"KIP-{number}" for number in KIPS)}
    assert expected - set(keys) == set()
    named = [key for key in keys if key not in expected and not key.startswith("KAFKA-")]
    assert {name for name in OPTIONS if not any(fnmatch(name, key) for key in named)} == set()
    assert set(named) - OPTIONS == set()


def test_a_row_is_proved_or_open_or_says_why_it_is_not_here() -> None:
    unclear = [
        row.key
        for row in rows()
        if (row.proved != "—" if row.is_elsewhere else not row.tests and not row.is_open)
    ]
    assert unclear == []


def test_the_tests_that_a_row_names_exist() -> None:
    missing = [(row.key, name) for row in rows() for name in row.tests if not exists(name)]
    assert missing == []


def test_the_files_that_a_row_names_have_what_it_says() -> None:
    missing = []
    for row in rows():
        for path, name in _PLACE.findall(row.implemented.replace("\\_", "_")):
            words = words_of(ROOT / "spark_kafka_sink" / path)
            missing += [(row.key, path, w) for w in _NAME.findall(name) if w not in words]
            missing += [] if words else [(row.key, path, "no such file")]
    assert missing == []


def test_what_is_open_is_counted() -> None:
    remaining = [row.key for row in rows() if row.is_open]
    print(f"open: {len(remaining)} of {len(rows())} rows: {', '.join(remaining)}")
    # A document without any open row has no use for the word.
    assert len(remaining) < len(rows())
