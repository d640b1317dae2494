"""``make dist`` builds a release only from what is committed, and with packages of one version."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from support.programs import dist


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    subprocess.run(["git", "-C", folder, *identity, *arguments], check=True, capture_output=True)


def test_a_checkout_with_changes_that_are_not_committed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dist, "ROOT", tmp_path)
    git(tmp_path, "init")
    (tmp_path / "a.py").write_text("x = 1\n")
    (tmp_path / ".gitignore").write_text("built\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    (tmp_path / "built").write_text("")
    dist.check_committed(tmp_path)
    for name in ("a.py", "new.py"):
        (tmp_path / name).write_text("x = 2\n")
        assert dist.main() == 1
        assert f"not as in the last commit, the first is {name}: commit" in capsys.readouterr().err
        git(tmp_path, "add", ".")
        git(tmp_path, "commit", "-m", "next")


def test_one_exact_hatchling_builds_a_release_on_every_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[tuple[object, ...]] = []

    def run(*command: object, **_environment: str) -> str:
        if "build" in command:
            built.append(command)
            Path(str(command[command.index("--outdir") + 1])).mkdir()
        return "0"

    (tmp_path / "checkout").mkdir()
    monkeypatch.setattr(dist, "ROOT", tmp_path / "checkout")
    monkeypatch.setattr(dist, "_run", run)
    dist.build(tmp_path)
    (command,) = built
    constraints = command[command.index("--dependency-constraints-txt") + 1]
    lines = Path(str(constraints)).read_text().splitlines()
    pins = [line.partition("==") for line in lines if not line.startswith("#")]
    assert "hatchling" in [name for name, _, _ in pins]
    assert all(re.fullmatch(r"[0-9]+(\.[0-9]+)+", version) for _, _, version in pins), pins
