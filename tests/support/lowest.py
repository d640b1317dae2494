"""``make test-lowest``: an environment with the lowest versions that pyproject.toml allows.

``python -m support.lowest make FOLDER`` makes it. ``python -m support.lowest versions``, run in it,
prints what is installed of what the sink and its extra ``spark`` ask for. It fails if one of these
is not the lowest version.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Final

from support.matrix import ROOT, find_python

PYTHON: Final = "3.11"
# The name and the lower bound of a requirement.
_BOUND: Final = re.compile(r"([\w.-]+)(?:\[[\w,]+\])?>=([\w.]+)")


def make(folder: Path) -> None:
    """Make the environment anew, with the tests' extra and the checkout's wheel."""
    python = find_python(PYTHON)
    if python is None:
        raise SystemExit(f"The lowest versions are tested on Python {PYTHON}: it is not installed.")
    _run(python, "-m", "venv", "--clear", folder)
    own_python = folder / "bin" / "python"
    pip = (own_python, "-m", "pip", "--quiet", "--disable-pip-version-check")
    uv = (own_python, "-m", "uv", "--quiet", "pip", "install", "--python", own_python)
    _run(*pip, "install", "uv")
    lowest = ("--resolution", "lowest-direct", "--extra", "spark", "--extra", "test")
    _run(*uv, *lowest, "-r", ROOT / "pyproject.toml")
    with tempfile.TemporaryDirectory() as wheels:
        _run(*pip, "wheel", "--no-deps", "--wheel-dir", wheels, ROOT)
        (wheel,) = Path(wheels).glob("*.whl")
        # What is installed by now is kept, since it is all that the wheel asks for.
        _run(*uv, f"{wheel}[spark,test]")


def _run(*command: str | Path) -> None:
    if subprocess.run(command, check=False).returncode != 0:
        raise SystemExit("The environment could not be made, for what is said above.")


def requirements() -> dict[str, str]:
    """Return the lower bounds of the sink and its extra ``spark``, by the names of packages."""
    wanted = [
        line
        for line in metadata.requires("spark-kafka-sink") or ()
        if "extra ==" not in line or re.search(r"extra == .spark.$", line)
    ]
    return {match[1]: match[2] for line in wanted if (match := _BOUND.match(line))}


def versions() -> int:
    """Print what is installed; return 1 if one is not the lowest version that is allowed."""
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
