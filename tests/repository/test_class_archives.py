"""Archives of classes, which `make test` makes: where they cannot be kept, that is one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.brokers import class_archives


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cache folder that cannot be made, and an archive that is not there."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(class_archives, "_is_spark_missing", lambda: True)


@pytest.mark.usefixtures("missing")
def test_a_cache_that_cannot_be_written_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class_archives.make()
    assert capsys.readouterr().err == (
        f"Classes are not archived: the cache folder {tmp_path}/file/spark-kafka-sink cannot be "
        "written: Not a directory; make room or give access, or name another folder by the "
        "environment variable XDG_CACHE_HOME.\n"
    )


@pytest.mark.usefixtures("missing")
def test_a_cache_that_has_every_archive_need_not_be_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(class_archives, "_is_spark_missing", lambda: False)
    class_archives.make()
    assert capsys.readouterr().err == ""
