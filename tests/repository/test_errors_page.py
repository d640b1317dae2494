"""docs/reference/errors.md has each error and warning that users can cause; tests provoke them."""

from __future__ import annotations

import pytest
from support.documents.error_catalogue import CATALOGUE, INTERNAL, Entry
from support.documents.error_messages import Site, messages, sites, warning_sites
from support.documents.errors_page import COMMAND, PAGE, messages_of, page, shared_causes
from support.documents.named_tests import exists
from support.documents.warning_catalogue import UNLISTED, WARNINGS

ENTRIES = [entry for entries in CATALOGUE.values() for entry in entries]
PLACES = {place.partition("~")[0] for entry in ENTRIES for place in entry.places}


def is_internal(site: Site) -> bool:
    """Return whether no user can cause the errors of a place."""
    if all("this is a bug" in message for message in site.messages):
        return True
    return site.place.startswith(tuple(INTERNAL))


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), f"docs/reference/errors.md is stale: {COMMAND}"


def test_each_error_that_the_code_makes_is_in_the_catalogue() -> None:
    missing = {site.place for site in sites() if site.place not in PLACES and not is_internal(site)}
    missing |= shared_causes().keys() - PLACES
    assert missing == set(), "add them to tests/support/documents/error_catalogue.py"


def test_the_catalogue_names_nothing_that_makes_no_error() -> None:
    made = {site.place for site in sites()}
    assert [place for place in PLACES if place not in made and not messages(place)] == []
    assert [each for each in INTERNAL if not any(place.startswith(each) for place in made)] == []
    assert [each for each in INTERNAL if any(place.startswith(each) for place in PLACES)] == []


def test_each_warning_that_the_code_logs_or_prints_is_in_the_catalogue() -> None:
    logged = {site.place for site in warning_sites()}
    listed = {place.partition("~")[0] for entry in WARNINGS for place in entry.places}
    missing = {place for place in logged - listed if not place.startswith(tuple(UNLISTED))}
    assert missing == set(), "add them to tests/support/documents/warning_catalogue.py"
    assert [each for each in listed if not messages(each, are_warnings=True)] == []
    assert [each for each in UNLISTED if not any(place.startswith(each) for place in logged)] == []
    assert [each for each in UNLISTED if any(place.startswith(each) for place in listed)] == []


@pytest.mark.parametrize(
    "words",
    [
        "the report could not be written to reportPath …: …",
        "the delegation token … could not be expired at the end of the job",
        "the delegation token … stays valid after the job",
        "the trace of a write could not be exported",
        "a trace is not exported",
        "the write of … is not aborted now",
        "another attempt follows in … s",
    ],
)
def test_what_a_user_reads_on_stderr_is_on_the_page(words: str) -> None:
    assert words in PAGE.read_text().partition("## Warnings and lines on stderr")[2]


@pytest.mark.parametrize("entry", [*ENTRIES, *WARNINGS], ids=lambda entry: entry.title)
def test_an_entry_has_a_message_a_cause_what_to_do_and_a_test(entry: Entry) -> None:
    found = messages_of(entry, are_warnings=entry in WARNINGS)
    assert found
    own_words = [text.replace("option", "").strip("… :;") for text in found]
    assert all(own_words), "a message of details alone is found for each error"
    assert entry.cause.endswith(".")
    assert entry.what_to_do.endswith(".")
    assert entry.tests
    assert [name for name in entry.tests if not exists(name)] == []


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ("is older than micro-batch", "Do not set another `txnAppId`"),
        ("needs to know the run of the query", "Another `txnAppId` does not help"),
        ("returned other rows for the same offsets", "Another `txnAppId` would write the rows"),
        ("does not store which versions below", "a higher `txnVersion` writes them a second time"),
        ("for the second save", "Do not change the first one"),
    ],
)
def test_the_advice_says_which_change_would_write_rows_twice(words: str, advice: str) -> None:
    found = [e for e in ENTRIES if any(words in text for text in messages_of(e))]
    assert found
    assert all(advice in entry.what_to_do for entry in found)
