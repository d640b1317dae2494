"""``make test-lowest``: an environment with the lowest versions that pyproject.toml allows.

``python -m support.programs.lowest make FOLDER`` makes it; the lowest hatchling builds the wheel.
``python -m support.programs.lowest versions``, run in it, prints the installed versions of the
packages that the sink and its extras require. It fails if one of them is not the lowest version.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Final

from support.programs.matrix import ROOT, find_python

PYTHON: Final = "3.11"
_PACKAGE: Final = "spark-kafka-sink"
# An extra whose package is compiled with libkrb5-dev. It is left out where that is missing.
_COMPILED: Final = "kerberos"


def make(folder: Path) -> None:
    """Replace the environment: all extras that can be installed here, and the checkout's wheel."""
    python = find_python(PYTHON)
    if python is None:
        raise SystemExit(f"The lowest versions are tested on Python {PYTHON}: it is not installed.")
    _run(python, "-m", "venv", "--clear", folder)
    own_python = folder / "bin" / "python"
    pip = (own_python, "-m", "pip", "--quiet", "--disable-pip-version-check")
    uv = (own_python, "-m", "uv", "--quiet")
    install = (*uv, "pip", "install", "--python", own_python)
    project = ROOT / "pyproject.toml"
    _run(*pip, "install", "uv")
    extras = tomllib.loads(project.read_text())["project"]["optional-dependencies"]
    installed = [name for name in extras if name != _COMPILED or shutil.which("krb5-config")]
    chosen = [word for name in installed for word in ("--extra", name)]
    _run(*install, "--resolution", "lowest-direct", *chosen, "-r", project)
    with tempfile.TemporaryDirectory() as wheels:
        lowest = Path(wheels, "lowest.txt")
        needed = tomllib.loads(project.read_text())["build-system"]["requires"]
        lowest.write_text("\n".join(needed).replace(">=", "=="))
        _run(*uv, "build", "--wheel", "--build-constraints", lowest, "--out-dir", wheels, ROOT)
        (wheel,) = Path(wheels).glob("*.whl")
        # The installed versions are kept, because they satisfy the wheel's requirements.
        _run(*install, wheel)


def _run(*command: str | Path) -> None:
    if subprocess.run(command, check=False).returncode != 0:
        raise SystemExit("The environment could not be made, for what is said above.")


def lower_bounds(
    lines: Iterable[str], extras: Iterable[str], machine: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the lower bounds of those requirements that this machine has, by package name.

    lines: the requirements of a wheel. extras: the extras that are installed. machine: values of
    environment markers in place of this machine's. Raise ValueError for a requirement without `>=`.
    """
    from packaging.requirements import Requirement

    environments = [{**(machine or {}), "extra": extra} for extra in ("", *extras)]
    found = {}
    for each in map(Requirement, lines):
        if each.name == _PACKAGE or not any(
            each.marker is None or each.marker.evaluate(environment) for environment in environments
        ):
            continue
        bounds = [part.version for part in each.specifier if part.operator == ">="]
        if not bounds:
            message = f"the requirement {each} has no lower bound, which would be tested"
            raise ValueError(message)
        found[each.name] = bounds[0]
    return found


def requirements() -> dict[str, str]:
    """Return the lower bounds of the sink and its extras, by the names of packages."""
    extras = metadata.metadata(_PACKAGE).get_all("Provides-Extra") or []
    has_kerberos = shutil.which("krb5-config") is not None
    return lower_bounds(
        metadata.requires(_PACKAGE) or (),
        [extra for extra in extras if extra != _COMPILED or has_kerberos],
    )


def versions() -> int:
    """Print the installed versions; return 1 if one is not the lowest allowed version."""
    from packaging.version import Version

    print(f"Python {sys.version.split()[0]}")
    wrong = []
    for name, bound in requirements().items():
        found = metadata.version(name)
        print(f"{name} {found}")
        if Version(found) != Version(bound):
            wrong.append(f"{name} is {found}, and its lower bound is {bound}")
    if wrong:
        print(f"Not tested: {'; '.join(wrong)}. Raise the bound.", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["make", folder]:
            make(Path(folder).absolute())
        case ["versions"]:
            sys.exit(versions())
