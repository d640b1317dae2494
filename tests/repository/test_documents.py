"""README.md and the pages of docs/: what they name exists, and the README stays short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.brokers import fetch_kafka
from support.brokers.jvm import run_java
from support.documents import pages
from support.documents.migration_table import DEFAULTS_OF_3_9, DOCUMENT, with_table
from support.documents.named_tests import ROOT, cells, exists, named_tests
from support.programs.matrix import TESTS

from spark_kafka_sink.config import option_fields, producer_config

FEATURES = ROOT / "docs" / "contributing" / "features.md"
DIFFERENCES = ROOT / "docs" / "contributing" / "differences.md"
GUARANTEES = ROOT / "docs" / "contributing" / "guarantees.md"
CONTRIBUTING = ROOT / "docs" / "contributing" / "README.md"
SECURITY = ROOT / "docs" / "how-to" / "secure.md"
_NOWHERE = "—"
README_BYTES = 7_000
# The average number of words in a sentence of the README.
FEWEST_WORDS, MOST_WORDS = 12, 15
# The average number of words in a sentence of a page for users.
MOST_WORDS_OF_A_PAGE = 20
# The largest size of pages that readers want to be short. Both pages of performance together have
# at most 20,000 bytes.
MOST_BYTES = {
    "decisions.md": 28_500,
    "how-to/migrate.md": 6_000,
    "explanation/performance.md": 3_000,
    "contributing/performance.md": 16_928,
}
PICTURE_BYTES = 100_000


def rows(document: Path) -> list[list[str]]:
    """Return the cells of all rows of a document's tables."""
    lines = [line for line in document.read_text().splitlines() if line.startswith("|")]
    heads = {i for i, line in enumerate(lines[1:]) if line.startswith("|---")}
    return [cells(line) for i, line in enumerate(lines) if not heads & {i, i - 1}]


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_to_a_file_or_a_heading_leads_somewhere(page: Path) -> None:
    assert list(pages.broken_links(page)) == []


def test_a_link_to_no_file_or_no_heading_is_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# A `title`, twice\n\n# A title, twice\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](other.md) [b](none.md) [c](other.md#a-title-twice) [d](other.md#a-title-twice-1)\n"
        "[e](other.md#a-title) [f](#here) [g](#nowhere) [h](https://kafka.apache.org)\n\n## Here\n"
        "```\n[i](in-code.md)\n```\n"
    )
    assert list(pages.broken_links(page)) == ["none.md", "other.md#a-title", "#nowhere"]


def test_pages_of_the_site_link_to_pages_of_the_site_only() -> None:
    docs = ROOT / "docs"
    outside = [
        (str(page.relative_to(docs)), link)
        for page in pages.PAGES
        if page.is_relative_to(docs)
        for link in pages.links(page)
        if not (page.parent / link.partition("#")[0]).resolve().is_relative_to(docs)
    ]
    assert outside == []


def test_the_readme_and_the_index_lead_to_each_kind_of_page() -> None:
    index = ROOT / "docs" / "README.md"
    for kind in ("Tutorials", "How-to", "Reference", "Explanation"):
        assert re.search(rf"\*\*{kind}\b", pages.README.read_text())
        assert f"\n## {kind}: " in index.read_text()


def test_the_index_links_to_every_page_for_users() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {index.parent / link for link in pages.links(index)}
    assert [page for page in pages.USER_PAGES if page not in linked] == []


def test_the_first_screen_of_the_readme_names_exactly_once_security_and_avro() -> None:
    first_screen = pages.README.read_text().partition("\n## ")[0]
    assert "exactlyOnce" in first_screen
    assert "docs/reference/avro.md" in first_screen
    assert "docs/how-to/secure.md" in first_screen


def test_the_readme_is_short() -> None:
    assert pages.README.stat().st_size <= README_BYTES


@pytest.mark.parametrize("name", MOST_BYTES)
def test_a_page_is_short(name: str) -> None:
    assert (ROOT / "docs" / name).stat().st_size <= MOST_BYTES[name]


def test_pages_for_users_name_no_tests() -> None:
    assert [page for page in pages.USER_PAGES if named_tests(page.read_text())] == []


@pytest.mark.parametrize(
    "page", pages.USER_PAGES, ids=lambda page: str(page.relative_to(ROOT / "docs"))
)
def test_the_sentences_of_a_page_for_users_are_short(page: Path) -> None:
    counts = [len(sentence.split()) for sentence in pages.sentences(page.read_text())]
    assert sum(counts) / len(counts) < MOST_WORDS_OF_A_PAGE


def test_the_sentences_of_the_readme_are_short() -> None:
    counts = [len(sentence.split()) for sentence in pages.sentences(pages.README.read_text())]
    assert FEWEST_WORDS <= sum(counts) / len(counts) <= MOST_WORDS


def test_sentences_are_those_of_paragraphs_and_lists() -> None:
    text = (
        "# A heading. It is none.\n\nOne has\na [link of words](a.md). "
        "`Two` is 1.2 or 1.3. No list.\n"
        "\n```\nNo. Code.\n```\n| a. | b. |\n|---|---|\n\n![A picture. None.](a.svg)\n\n"
        "- **Three:** a point. 4 is another.\n- [links](b.md), and more\n\nIt begins:\n"
    )
    assert list(pages.sentences(text)) == [
        *("One has a link of words.", "`Two` is 1.2 or 1.3.", "No list."),
        *("**Three:** a point.", "4 is another.", "It begins:"),
    ]


@pytest.mark.parametrize("command", ["make broker", "make demo", "make test"])
def test_the_readme_shows_the_commands_to_begin_with(command: str) -> None:
    assert re.search(rf"^{command}( |$)", pages.README.read_text(), re.MULTILINE)


def test_pictures_are_small_and_load_nothing() -> None:
    for picture in (ROOT / "docs" / "pictures").glob("*.svg"):
        assert picture.stat().st_size < PICTURE_BYTES, picture
        assert not re.search(r"url\(.?http|href", picture.read_text()), picture


def test_features_are_numbered_from_1_to_87() -> None:
    numbers = [row[0] for row in rows(FEATURES) if not row[0].startswith("F")]
    assert numbers == [str(number) for number in range(1, 88)]


def test_each_report_from_the_field_has_its_test() -> None:
    reports = [row for row in rows(FEATURES) if row[0].startswith("F")]
    assert [row[0] for row in reports] == [f"F{number}" for number in range(1, 37)]
    assert {row[2] for row in reports} == {"yes"}


def test_a_feature_is_proved_or_says_why_it_is_not_there() -> None:
    unclear = []
    for number, _, here, how, tests in rows(FEATURES):
        if here == "yes":
            is_clear = bool(named_tests(tests))
        elif here == "(open)":
            is_clear = how == tests == _NOWHERE
        else:
            is_clear = here in ("no", "later") and how not in ("", _NOWHERE)
        if not is_clear:
            unclear.append(number)
    assert unclear == []


def test_open_features_are_those_listed_at_the_end() -> None:
    opened = [row[0] for row in rows(FEATURES) if row[2] == "(open)"]
    last = FEATURES.read_text().splitlines()[-1]
    assert last == f"Open: {', '.join(opened)}." if opened else not last.startswith("Open")


@pytest.mark.parametrize(
    "document", [FEATURES, DIFFERENCES, GUARANTEES], ids=lambda path: path.stem
)
def test_the_tests_that_a_document_names_exist(document: Path) -> None:
    names = named_tests(document.read_text())
    assert names
    assert [name for name in names if not exists(name)] == []


def test_the_files_of_tests_that_the_contributors_page_names_exist() -> None:
    names = re.findall(r"`(tests/[^`:]+\.py)`", CONTRIBUTING.read_text())
    assert names
    assert [name for name in names if not (ROOT / name).is_file()] == []


def test_what_is_said_of_every_spark_is_shown_by_tests_that_run_on_each() -> None:
    (names,) = (named_tests(row[-1]) for row in rows(FEATURES) if row[1].endswith("every Spark 4"))
    assert [name for name in names if not f"tests/{name}".startswith(TESTS)] == []


def test_every_difference_names_the_test_that_shows_it() -> None:
    assert [row[0] for row in rows(DIFFERENCES) if not named_tests(row[-1])] == []


def test_the_guide_to_migrating_has_the_options_of_today() -> None:
    text = DOCUMENT.read_text()
    assert with_table(text) == text, (
        f"{DOCUMENT.relative_to(ROOT)} is stale: "
        "PYTHONPATH=tests:jobs python -m support.documents.migration_table"
    )


def test_the_defaults_that_the_guide_gives_for_the_older_client_are_its_own() -> None:
    old, new = (
        dict(line.split("\t") for line in run_java("ProducerConfigs", version=each).splitlines())
        for each in (fetch_kafka.OLD, fetch_kafka.NEXT_CLIENTS)
    )
    required = {"bootstrap.servers"}
    own = {
        *("sasl.username", "sasl.password"),
        *("sasl.kerberos.principal", "sasl.kerberos.keytab"),
    }
    names = {each.encode_name for each in option_fields()} - required - own
    # A list that is not set and one that is empty are the same.
    others = {name for name in names if (old.get(name) or "") not in (new[name], "null")}
    others |= {name for name in names if name not in old}
    assert {name: str(old.get(name)) for name in others} == {
        name: str(default) for name, default in DEFAULTS_OF_3_9.items()
    }


def test_the_options_of_each_example_of_security_make_a_configuration() -> None:
    blocks = re.findall(r"```python\n(.*?)```", SECURITY.read_text(), flags=re.DOTALL)
    examples = [
        dict(re.findall(r'\.option\("kafka\.([^"]+)", "([^"]*)"\)', block)) for block in blocks
    ]
    secured = [each for each in examples if "security.protocol" in each]
    assert len(secured) > 10
    for each in secured:
        config = producer_config({"bootstrap.servers": "broker:9092"} | each)
        assert config.has_tls
