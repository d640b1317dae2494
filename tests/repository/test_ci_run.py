"""`.ci/run`: as root with apt-get, CI does not go on without the KDC of the tests of Kerberos."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

import pytest

RUN: Final = Path(__file__).parents[2] / ".ci" / "run"


@pytest.mark.parametrize(
    ("user", "programs", "code", "said"),
    [
        ("0", {"dpkg": 1, "apt-get": 0}, 0, "make test with KDC 1"),
        ("0", {"dpkg": 0, "apt-get": 1}, 0, "make test with KDC 1"),
        ("0", {"dpkg": 1, "apt-get": 1}, 1, "apt-get could not install krb5-kdc "),
        ("1000", {"dpkg": 1, "apt-get": 1}, 0, "make test with KDC \n"),
    ],
    ids=["installs", "installed", "cannot install", "no root"],
)
def test_a_kdc_that_root_cannot_install_is_a_failure(
    user: str, programs: dict[str, int], code: int, said: str, tmp_path: Path
) -> None:
    scripts = {name: f"exit {ended}" for name, ended in programs.items()}
    scripts["id"] = f"echo {user}"
    scripts["make"] = 'echo "make $1 with KDC $REQUIRE_KDC"'
    for name, script in scripts.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    given = {name: value for name, value in os.environ.items() if name != "REQUIRE_KDC"}
    done = subprocess.run(
        ["bash", str(RUN)],
        env=given | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == code, done.stdout
    assert said in done.stdout
