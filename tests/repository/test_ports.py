"""Ports of the tests' brokers: two runs of the tests at once never have the same."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from support.brokers import kafka_cluster

ROOT = Path(__file__).parents[2]
PORTS = range(31_000, 31_060)
# Another run of the tests, which claims ports until a line arrives.
OTHER = """
import sys
from support.brokers import kafka_cluster
kafka_cluster._PORTS = range(int(sys.argv[1]), int(sys.argv[2]))
print(*kafka_cluster.free_ports(10), flush=True)
sys.stdin.readline()
"""


def test_a_port_is_claimed_though_nothing_listens_there_yet(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Claims of their own: the few ports suffice, whatever other runs of the tests have claimed.
    monkeypatch.setattr(kafka_cluster, "_PORTS", PORTS)
    monkeypatch.setattr(kafka_cluster, "_returned", set())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    claims = functools.cache(kafka_cluster._claims.__wrapped__)
    monkeypatch.setattr(kafka_cluster, "_claims", claims)
    command = [sys.executable, "-c", OTHER, str(PORTS.start), str(PORTS.stop)]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": "tests:jobs", "TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        theirs = [int(port) for port in other.stdout.readline().split()]
        ours = [*kafka_cluster.free_ports(5), *kafka_cluster.free_ports(5)]
        other.communicate("\n")
    os.close(claims())
    assert len(theirs) == 10
    assert len({*ours, *theirs}) == 20
