"""Without Kafka: a run that tested less says so, and REQUIRE_KAFKA=1 makes that a failure."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from job import kafka_jars
from support.brokers.fetch_kafka import put_empty_jars
from support.programs.inner_tests import TESTS, options

TIMEOUT_S = 120
NEEDS_KAFKA = """
import pytest

@pytest.mark.kafka
def test_on_a_broker(kafka):
    pass

@pytest.mark.kafka
def test_on_an_old_broker(old_kafka):
    pass

def test_without():
    pass
"""
NO_JARS = "Apache Kafka 4.3.1 and 3.9.2 is not there: run 'make kafka' to fetch it.\n"
NO_PEER = "Spark's Kafka sink 4.2.0 is not there: run 'make kafka' to fetch it.\n"
NO_JAVA = (
    "Apache Kafka 4.3.1 and 3.9.2 cannot run: Java is missing: there is none on the PATH; "
    "install a JDK or JRE of version 17 or newer.\n"
)
NO_NETWORK = "http://127.0.0.1:1/maven2"


def run(folder: Path, *command: str, has_java: bool = True, **environment: str) -> tuple[int, str]:
    """Run a module with nothing in the cache; return exit code and output."""
    path = folder / "path"
    path.mkdir()
    if has_java:
        (path / "java").write_text("#!/bin/sh\necho 'openjdk version \"21.0.1\"' >&2\n")
        (path / "java").chmod(0o755)
    given = {name: value for name, value in os.environ.items() if name != "REQUIRE_KAFKA"}
    given |= {
        "PATH": str(path),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent / 'jobs'}",
    }
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=TESTS.parent,
        env=given | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    return done.returncode, done.stdout


def run_tests(folder: Path, *, has_java: bool = True, **environment: str) -> tuple[int, str]:
    """Run tests that need Kafka, by the conftest.py of all tests."""
    test = folder / "test_needs_kafka.py"
    test.write_text(NEEDS_KAFKA)
    return run(folder, "pytest", *options(folder), str(test), has_java=has_java, **environment)


_ANOTHER_RUN = pytest.mark.long(reason="it runs pytest once more, to say another sentence")


@pytest.mark.parametrize(
    ("has_java", "reason"),
    [(True, NO_JARS), pytest.param(False, NO_JAVA, marks=_ANOTHER_RUN)],
)
def test_a_green_run_without_brokers_says_what_it_did_not_test(
    tmp_path: Path, *, has_java: bool, reason: str
) -> None:
    code, said = run_tests(tmp_path, has_java=has_java)
    assert code == 0, said
    assert " NOT TESTED =" in said
    assert f"\nNo test ran on real brokers. {reason}" in said
    assert "= 1 passed, 2 skipped in " in said


def test_brokers_that_are_required_and_missing_fail_the_run(tmp_path: Path) -> None:
    code, said = run_tests(tmp_path, REQUIRE_KAFKA="1")
    assert code == 1, said
    assert f"\nNo test ran on real brokers. {NO_JARS}" in said
    assert "= 1 passed, 2 errors in " in said
    assert "skipped" not in said


@pytest.mark.parametrize(("required", "code"), [("0", 0), ("1", 1)])
def test_a_run_without_a_kdc_says_so(tmp_path: Path, required: str, code: int) -> None:
    (tmp_path / "test_by_kerberos.py").write_text(
        "import conftest\ndef test_by_kerberos():\n    conftest.need_kdc()\n"
    )
    put_empty_jars(tmp_path / "cache", kafka_jars.KAFKA, kafka_jars.KAFKA_3)
    # No program is on the PATH, and none of the daemons' folders is looked at.
    ended, said = run(
        tmp_path,
        "pytest",
        *options(tmp_path),
        str(tmp_path / "test_by_kerberos.py"),
        REQUIRE_KDC=required,
        KRB5_PROGRAMS=str(tmp_path),
    )
    assert ended == code, said
    assert "No test logged in by Kerberos: krb5kdc, kdb5_util, kadmin.local, kinit, klist" in said
    assert ("= 1 failed in " if code else "= 1 skipped in ") in said


@pytest.mark.parametrize(("required", "code"), [("0", 0), ("1", 1)])
def test_jars_that_cannot_be_fetched_are_a_sentence_each(
    tmp_path: Path, required: str, code: int
) -> None:
    ended, said = run(
        tmp_path,
        "support.brokers.fetch_kafka",
        REQUIRE_KAFKA=required,
        KAFKA_JARS_MIRROR=NO_NETWORK,
    )
    assert ended == code
    for name in ("Apache Kafka 4.3.1", "Apache Kafka 3.9.2", "Spark's Kafka sink 4.2.0"):
        assert f"{name} could not be fetched from {NO_NETWORK}" in said


@_ANOTHER_RUN
@pytest.mark.parametrize(("required", "code"), [("0", 0), ("1", 1)])
def test_a_comparison_without_the_other_sink_is_told(
    tmp_path: Path, required: str, code: int
) -> None:
    put_empty_jars(tmp_path / "cache", kafka_jars.KAFKA, kafka_jars.KAFKA_3)
    # The report of an environment with that Spark.
    spark = tmp_path / "site" / "pyspark-4.2.0.dist-info" / "METADATA"
    spark.parent.mkdir(parents=True)
    spark.write_text("Metadata-Version: 2.1\nName: pyspark\nVersion: 4.2.0\n")
    (tmp_path / "test_both.py").write_text(
        "import pytest\ndef test_both(sink):\n    pass\n"
        "def test_other():\n    pytest.skip('there is no Kafka 0.10')\n"
    )
    code_found, said = run(
        tmp_path,
        "pytest",
        *options(tmp_path),
        *("-p", "parity.conftest"),
        f"{tmp_path / 'test_both.py'}::test_both[kafka]",
        f"{tmp_path / 'test_both.py'}::test_other",
        REQUIRE_KAFKA=required,
        PYTHONPATH=os.pathsep.join(map(str, (TESTS, TESTS.parent / "jobs", tmp_path / "site"))),
    )
    assert code_found == code, said
    # The other tests that were left out are named as well, each once.
    skip_line = f"{NO_PEER}Skipped: there is no Kafka 0.10\n"
    assert f"\nThis sink was compared with no other. {skip_line}" in said
    assert ("= 1 skipped, 1 error in " if code else "= 2 skipped in ") in said
