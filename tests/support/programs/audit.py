"""`make audit`: known vulnerabilities of what the package installs, as pip-audit finds them.

Advisories come from PyPI. Where they cannot be had, that is said, and nothing counts as checked.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Final

OWN: Final = "spark-kafka-sink"
# Exit codes: nothing is known, a vulnerability is known, not everything could be checked.
CLEAN, FOUND, UNCHECKED = 0, 1, 2


def verdict(stdout: str, stderr: str) -> tuple[int, list[str]]:
    """Return the exit code and the lines for what pip-audit has printed."""
    try:
        packages: list[dict[str, Any]] = json.loads(stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        said = (stderr.strip().splitlines() or ["pip-audit printed nothing"])[-1]
        return UNCHECKED, [f"The list of advisories cannot be reached, nothing was checked: {said}"]
    others = [each for each in packages if each["name"] != OWN]
    checked = [each for each in others if "skip_reason" not in each]
    skipped = sorted(each["name"] for each in others if "skip_reason" in each)
    if not checked:
        return UNCHECKED, ["The list of advisories cannot be reached: nothing was checked."]
    lines = [
        f"{each['name']} {each['version']}: {found['id']}, fixed in "
        f"{', '.join(found.get('fix_versions') or ['no version'])}"
        for each in checked
        for found in each.get("vulns", ())
    ]
    code = FOUND if lines else CLEAN
    if skipped:
        lines.append(f"Not checked, without a list of advisories: {', '.join(skipped)}")
        code = code or UNCHECKED
    count = f"{len(checked)} package(s) checked"
    return code, [*lines, count if code else f"{count}: no vulnerability is known"]


def main() -> int:
    """Run pip-audit in this environment, and print what it found."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pip_audit",
            "--local",
            "--format",
            "json",
            "--progress-spinner=off",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    code, lines = verdict(done.stdout, done.stderr)
    print(*lines, sep="\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
