"""Add bytecode to Spark's Python zip, from which its workers import.

Python does not cache bytecode of modules in a zip. Each daemon and many workers would compile these
modules again, which takes most of their start. As a script, it adds the bytecode of each module
except Spark's own tests to the zips of this environment, next to the source.
"""

from __future__ import annotations

import py_compile
import signal
import sysconfig
import tempfile
import warnings
import zipfile
from pathlib import Path

from job import lock


def compile_archives(folder: Path) -> None:
    """Add bytecode to the zips of a folder that have none.

    Two processes may do so at the same time.
    """
    with lock.locked(folder, f"waiting for another process that compiles {folder} …"):
        for archive in sorted(folder.glob("*.zip")):
            with zipfile.ZipFile(archive) as source:
                names = source.namelist()
            if not any(name.endswith(".pyc") for name in names):
                print(f"compiling {archive.name} …", flush=True)
                _compile(archive)


def _compile(archive: Path) -> None:
    partial = archive.with_suffix(".partial")
    with (
        zipfile.ZipFile(archive) as source,
        zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as target,
        tempfile.TemporaryDirectory() as folder,
        warnings.catch_warnings(action="ignore"),  # they are for developers of Spark
    ):
        module, code = Path(folder, "module.py"), Path(folder, "module.pyc")
        for entry in source.infolist():
            name, text = entry.filename, source.read(entry)
            target.writestr(entry, text)
            if name.endswith(".py") and "/tests/" not in name:
                module.write_bytes(text)
                # Its source is next to it in the zip; do not compare their times.
                mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
                place = f"{archive}/{name}"
                py_compile.compile(str(module), str(code), place, invalidation_mode=mode)
                target.write(code, f"{name}c")
    partial.rename(archive)


if __name__ == "__main__":
    # Ctrl-C ends it at once; the next run removes the leftovers.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    compile_archives(Path(sysconfig.get_path("purelib")) / "pyspark" / "python" / "lib")
