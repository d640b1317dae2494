"""Python environments for executors: one without the sink, and one packed into an archive."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import spark_kafka_sink

_OURS = ("spark_kafka_sink", "pyspark_pykafka")
# What an executor needs besides Spark's own Python, which Spark itself puts on the path.
_NEEDED = ("numpy", "pyarrow", "crc32c", "lz4", "msgspec")


def _site_packages() -> Path:
    return Path(sysconfig.get_path("purelib"))


def python_without_the_sink(folder: Path) -> Path:
    """Make an environment with everything that this one has but the sink; give its Python."""
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
    """Make what a user ships by --py-files: the package in a zip."""
    package = Path(spark_kafka_sink.__file__).parent
    with zipfile.ZipFile(path, "w") as archive:
        for source in sorted(package.rglob("*.py")):
            archive.write(source, source.relative_to(package.parent))
    return path


def archive_of_an_environment(path: Path) -> Path:
    """Make what a user ships by --archives: an environment that has the sink.

    Its python is a link to this machine's, as venv-pack's is; an archive for other machines would
    carry an interpreter (conda-pack does).
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
