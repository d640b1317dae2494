"""`make audit` reports what is known, and never calls unchecked what it could not check clean."""

from __future__ import annotations

import json
from collections.abc import Mapping

from support.programs.audit import CLEAN, FOUND, UNCHECKED, verdict

NUMPY = {"name": "numpy", "version": "2.3.0", "vulns": []}
BROKEN = {
    "name": "lz4",
    "version": "4.0.0",
    "vulns": [{"id": "PYSEC-1", "fix_versions": ["4.0.1"]}, {"id": "PYSEC-2", "fix_versions": []}],
}
SKIPPED = {"name": "pyarrow", "skip_reason": "Dependency not found on PyPI"}
OWN = {"name": "spark-kafka-sink", "skip_reason": "Dependency not found on PyPI"}


def outcome(*packages: Mapping[str, object]) -> tuple[int, str]:
    code, lines = verdict(json.dumps({"dependencies": packages, "fixes": []}), "")
    return code, "\n".join(lines)


def test_what_is_known_is_listed_with_the_versions_that_fix_it() -> None:
    code, said = outcome(NUMPY, BROKEN, OWN)
    assert code == FOUND
    assert "lz4 4.0.0: PYSEC-1, fixed in 4.0.1" in said
    assert "lz4 4.0.0: PYSEC-2, fixed in no version" in said
    assert "2 package(s) checked" in said


def test_nothing_known_is_said() -> None:
    assert outcome(NUMPY, OWN) == (CLEAN, "1 package(s) checked: no vulnerability is known")


def test_what_has_no_advisories_counts_as_unchecked() -> None:
    code, said = outcome(NUMPY, SKIPPED, OWN)
    assert code == UNCHECKED
    assert "Not checked, without a list of advisories: pyarrow\n1 package(s) checked" in said


def test_a_list_that_cannot_be_reached_is_said() -> None:
    assert outcome(SKIPPED, OWN)[0] == UNCHECKED
    code, lines = verdict("", "INFO: x\nERROR:pip_audit: Connection refused\n")
    assert code == UNCHECKED
    assert lines == [
        "The list of advisories cannot be reached, nothing was checked: "
        "ERROR:pip_audit: Connection refused"
    ]
