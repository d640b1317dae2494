"""The mutants as data, and the way a mutant gets into the code and out of it again."""

from __future__ import annotations

import os
import signal
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import cache_from_source
from pathlib import Path
from typing import Final

import msgspec

ROOT: Final = Path(__file__).parents[2]
_PACKAGE: Final = "spark_kafka_sink"
_SHIPPED: Final = (f"{_PACKAGE}/**/*.py", "pyspark_pykafka.py")
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class MutantError(Exception):
    """A mutant that cannot be run, or an environment in which none can."""


class Mutant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fault: `old` becomes `new` in `file`.

    breaks: the promise to users that no longer holds. tests: the files and folders nearest to it.
    """

    name: str
    file: str
    old: str
    new: str
    breaks: str
    tests: list[str]

    def mutated(self, text: str) -> str:
        """Return the text of the file with the fault. Raise MutantError if `old` is not there."""
        count = text.count(self.old)
        if count != 1:
            message = (
                f"mutant {self.name}: the old text is {count} times in {self.file}, expected once: "
                "adapt the mutant to the code"
            )
            raise MutantError(message)
        return text.replace(self.old, self.new)


def mutants() -> list[Mutant]:
    """Return all mutants, in the order of the files that hold them."""
    found: list[Mutant] = []
    for path in sorted(Path(__file__).parent.glob("*.toml")):
        content = msgspec.toml.decode(path.read_bytes(), type=dict[str, list[Mutant]])
        found += content["mutant"]
    return found


def chosen(names: list[str]) -> list[Mutant]:
    """Return the mutants with these names, or all. Raise MutantError for an unknown name."""
    known = {mutant.name: mutant for mutant in mutants()}
    unknown = [name for name in names if name not in known]
    if unknown:
        message = f"no mutant is named {', '.join(unknown)}: --list shows the names"
        raise MutantError(message)
    return [known[name] for name in names] or list(known.values())


def installed() -> Path:
    """Return the folder that Python and Spark's workers import the package from."""
    return Path(sysconfig.get_path("purelib"))


def check_installed(checkout: Path = ROOT, packages: Path | None = None) -> None:
    """Raise MutantError if the installed package is not the one of the checkout."""
    packages = packages or installed()
    here, there = _texts(checkout), _texts(packages)
    different = sorted(name for name in here.keys() | there if here.get(name) != there.get(name))
    if different:
        message = (
            f"{different[0]} is not the same in {packages} and in {checkout}: install the checkout "
            "again (touch pyproject.toml; make .venv/.test)"
        )
        raise MutantError(message)


def _texts(folder: Path) -> dict[str, bytes]:
    paths = (path for pattern in _SHIPPED for path in folder.glob(pattern))
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def places(mutant: Mutant) -> list[Path]:
    """Return the files that tests see.

    Tests import the package that is installed. Workers of Spark look into the folder in which Spark
    was started first, which is the checkout. Jobs are only there.
    """
    folders = [ROOT, installed()] if mutant.file.startswith(f"{_PACKAGE}/") else [ROOT]
    return [folder / mutant.file for folder in folders]


@contextmanager
def applied(mutant: Mutant, paths: list[Path]) -> Iterator[None]:
    """Put the fault into a file, and its copies, for the time of the `with` block.

    The files' old times come back with their text, so that no bytecode of the fault is used later.
    """
    before = [(path, path.read_bytes(), path.stat()) for path in paths]
    try:
        for path, text, _ in before:
            path.write_text(mutant.mutated(text.decode()))
            _forget_bytecode(path)
        yield
    finally:
        with _undisturbed():
            for path, text, status in before:
                path.write_bytes(text)
                os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
                _forget_bytecode(path)


def _forget_bytecode(path: Path) -> None:
    Path(cache_from_source(str(path))).unlink(missing_ok=True)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ignore signals: a second Ctrl-C must not leave the fault in the code."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
