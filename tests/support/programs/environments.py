"""Python environments for executors: one without the sink, and one packed as an archive."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import spark_kafka_sink

_OURS = ("spark_kafka_sink", "pyspark_pykafka")
# The modules that an executor needs in addition to pyspark, which Spark adds to the path.
_NEEDED = ("numpy", "pyarrow", "crc32c", "lz4", "msgspec")


def _site_packages() -> Path:
    return Path(sysconfig.get_path("purelib"))


def python_without_the_sink(folder: Path) -> Path:
    """Make an environment with all packages of this one except the sink; return its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (target,) = folder.glob("lib/python3.*/site-packages")
    for entry in _site_packages().iterdir():
        if not entry.name.startswith(_OURS):
            (target / entry.name).symlink_to(entry)
    python = folder / "bin" / "python"
    found = subprocess.run(
        [python, "-I", "-c", "import pyspark, crc32c, spark_kafka_sink"],
        capture_output=True,
        check=False,
    )
    assert b"No module named 'spark_kafka_sink'" in found.stderr
    return python


def zip_of_the_sink(path: Path) -> Path:
    """Make the zip of the package that a user ships with --py-files, and return its path."""
    package = Path(spark_kafka_sink.__file__).parent
    with zipfile.ZipFile(path, "w") as archive:
        for source in sorted(package.rglob("*.py")):
            archive.write(source, source.relative_to(package.parent))
    return path


def archive_of_an_environment(path: Path) -> Path:
    """Make the archive of an environment with the sink that a user ships with --archives.

    As with venv-pack, its python is a link to this machine's. An archive for other machines would
    contain an interpreter (as those of conda-pack do).
    """
    site = _site_packages()
    home = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    with tarfile.open(path, "w:gz", compresslevel=0) as archive:
        config = path.with_name("pyvenv.cfg")
        config.write_text(f"home = {Path(sys.base_prefix) / 'bin'}\n")
        archive.add(config, "pyvenv.cfg")
        link = tarfile.TarInfo("bin/python")
        link.type, link.linkname = tarfile.SYMTYPE, str(Path(sys.base_prefix) / "bin" / "python3")
        archive.addfile(link)
        for entry in site.iterdir():
            if entry.name.startswith((*_OURS, *_NEEDED)):
                archive.add(entry, f"{home}/{entry.name}", filter=_without_tests)
    return path


def _without_tests(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    skipped = ("/tests", "/include/")
    return None if any(part in info.name for part in skipped) else info
