"""Archives of classes: a JVM writes one, the next JVM uses it, and no place for it is no error."""

from __future__ import annotations

import subprocess
from pathlib import Path

from job import class_archive


def ran(*options: str) -> bool:
    """Return whether a JVM ran with these options, and printed nothing but its version."""
    done = subprocess.run(
        ["java", *options, "-version"], capture_output=True, text=True, check=False
    )
    return done.returncode == 0 and done.stdout == "" and "version" in done.stderr


def test_a_jvm_writes_an_archive_that_the_next_jvm_uses(tmp_path: Path) -> None:
    made, archive = tmp_path / "made.jsa", tmp_path / "place" / "kept.jsa"
    archive.parent.mkdir()
    assert class_archive.using(archive) == class_archive.SHORT_LIVED
    assert ran(*class_archive.making(made))
    class_archive.keep(made, archive)
    assert list(archive.parent.iterdir()) == [archive]
    assert ran(*class_archive.using(archive), "-Xshare:on")


def test_a_jvm_starts_without_an_archive_that_does_not_fit(tmp_path: Path) -> None:
    archive = tmp_path / "kept.jsa"
    archive.write_bytes(b"of another Java")
    assert ran(*class_archive.using(archive))


def test_an_archive_without_a_place_is_dropped(tmp_path: Path) -> None:
    made = tmp_path / "made.jsa"
    made.write_bytes(b"classes")
    class_archive.keep(made, tmp_path / "missing" / "kept.jsa")
    (tmp_path / "taken.jsa" / "more").mkdir(parents=True)
    class_archive.keep(made, tmp_path / "taken.jsa")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["made.jsa", "taken.jsa"]
