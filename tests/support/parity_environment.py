"""Makes of the bare virtual environment that runs it the one of tests/parity.

The Spark that Spark's own Kafka sink is published for is all that is installed; everything else is
found in the tests' environment, whose folder is named, behind it on the path.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

from support.fetch_kafka import JVM_SINK_SPARK


def main() -> int:
    """Fill the environment; give pip's exit code."""
    (tests,) = sys.argv[1:]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    code = subprocess.run([*command, f"pyspark=={JVM_SINK_SPARK}"], check=False).returncode
    if code == 0:
        behind = sysconfig.get_path("purelib", vars={"base": str(Path(tests).resolve())})
        Path(sysconfig.get_path("purelib"), "tests.pth").write_text(f"{behind}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
