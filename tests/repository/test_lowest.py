"""Which lower bounds `make test-lowest` checks: those of the packages that a machine installs."""

from __future__ import annotations

import tomllib

import pytest
from support.documents.named_tests import ROOT
from support.programs import lowest

LINES = (
    "lz4>=4",
    "pandas<3,>=2; extra == 'demo'",
    "pyspark[connect]>=4.0; extra == 'test'",
    "arrow-kafka-pyo3>=0.2; platform_machine == 'x86_64' and extra == 'bench'",
    "gssapi>=1.12; extra == 'kerberos'",
    "spark-kafka-sink[spark]; extra == 'demo'",
)


@pytest.mark.parametrize(
    ("machine", "more"), [("x86_64", {"arrow-kafka-pyo3": "0.2"}), ("aarch64", {})]
)
def test_only_what_the_machine_installs_is_checked(machine: str, more: dict[str, str]) -> None:
    found = lowest.lower_bounds(LINES, ("demo", "test", "bench"), {"platform_machine": machine})
    assert found == {"lz4": "4", "pandas": "2", "pyspark": "4.0"} | more


def test_every_requirement_of_the_project_has_a_lower_bound() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *(line for each in extras.values() for line in each)]
    assert "pandas" in lowest.lower_bounds(lines, ())
    with pytest.raises(ValueError, match="the requirement pandas<3 has no lower bound"):
        lowest.lower_bounds(["pandas<3"], ())
