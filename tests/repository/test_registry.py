"""``make test-registry``: a release that needs a newer Java is named, and it is not fetched.

The tutorial about Avro starts a release that it tests.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from job import kafka_jars
from support.brokers import apicurio
from support.brokers.fetch_kafka import put_empty_jars
from support.documents.named_tests import ROOT

NOT_RUN = (
    "Apicurio Registry 3.3.3 is not run: it needs Java 21 or newer, and neither {java} nor a Java "
    "in {folder} is as new"
)


def put_java(path: Path, version: int) -> Path:
    """Put a program that says that it is a version of Java."""
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}.0.1\"' >&2\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder for other Javas than that of JAVA_HOME, which is 17. Nothing is in the cache."""
    put_java(tmp_path / "home" / "bin" / "java", 17)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(apicurio, "_JAVAS", tmp_path / "others")
    return tmp_path / "others"


def test_a_release_without_its_java_is_named_and_not_fetched(
    others: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put_java(others / "old" / "bin" / "java", 8)
    fetched: list[str] = []
    monkeypatch.setattr(kafka_jars, "fetch", lambda jars: fetched.append(jars.name))
    assert apicurio.main() == 0
    assert fetched == ["Apicurio Registry 2.6.13"]
    java = others.parent / "home" / "bin" / "java"
    expected = NOT_RUN.format(java=java, folder=others)
    assert apicurio.not_run("3.3.3") == expected
    assert capsys.readouterr().out == f"{expected}\n"
    assert apicurio.java_for(apicurio.RELEASES["2.6.13"]) == str(java)


def test_a_new_java_beside_an_older_one_is_found(others: Path, tmp_path: Path) -> None:
    newest = put_java(others / "new" / "bin" / "java", 25)
    release = apicurio.RELEASES["3.3.3"]
    assert apicurio.java_for(release) == str(newest)
    assert apicurio.not_run("3.3.3") == (
        "Apicurio Registry 3.3.3 is not run: make test-registry fetches it"
    )
    put_empty_jars(tmp_path / "cache", release.archive)
    assert apicurio.not_run("3.3.3") is None


def test_a_release_that_cannot_be_fetched_fails_the_run(
    others: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fetch(jars: kafka_jars.Jars) -> None:
        raise kafka_jars.JarsError(f"{jars.name} could not be fetched")

    monkeypatch.setattr(kafka_jars, "fetch", fetch)
    assert apicurio.main() == 1
    assert capsys.readouterr().err == "Apicurio Registry 2.6.13 could not be fetched\n"


def test_the_tutorial_starts_a_release_that_is_tested() -> None:
    page = (ROOT / "docs" / "tutorials" / "avro.md").read_text()
    release = apicurio.RELEASES["2.6.13"]
    (archive,) = release.archive.file_names
    assert f"tar xf {archive}\n" in page
    assert f" -jar {release.program}\n" in page
    assert f"http://127.0.0.1:8080{release.apis[-1]}" in page
