"""Makes of a bare virtual environment the one of tests/parity: this one, with another Spark.

The Spark that Spark's own Kafka sink is published for is all that is installed; everything else is
found where it is, behind it on the path.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

from support.fetch_kafka import JVM_SINK_SPARK


def main() -> int:
    """Fill the environment that is named; give pip's exit code."""
    (environment,) = sys.argv[1:]
    command = [sys.executable, "-m", "pip", "--python", environment, "install", "--quiet"]
    command += ["--disable-pip-version-check", f"pyspark=={JVM_SINK_SPARK}"]
    code = subprocess.run(command, check=False).returncode
    if code == 0:
        (packages,) = Path(environment).glob("lib/python3.*/site-packages")
        (packages / "tests.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
