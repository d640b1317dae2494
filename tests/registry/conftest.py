"""Apicurio Registry, which `make test-registry` fetches: each release, and each of its APIs."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from support.brokers.apicurio import RELEASES, Apicurio, Registry, not_run

GetApicurio = Callable[[str], Apicurio]

ALL_APIS: Final = [(version, api) for version, each in RELEASES.items() for api in each.apis]
NEWEST_APIS: Final = [(version, each.apis[-1]) for version, each in RELEASES.items()]


@pytest.fixture(scope="session")
def get_apicurio(scratch: Path) -> Iterator[GetApicurio]:
    """Returns the server of a release, which is started once."""
    with contextlib.ExitStack() as stack:

        @functools.cache
        def started(version: str) -> Apicurio:
            return stack.enter_context(Apicurio(version, scratch / f"apicurio-{version}"))

        yield started


def _registry(chosen: tuple[str, str], get_apicurio: GetApicurio) -> Registry:
    version, api = chosen
    if (problem := not_run(version)) is not None:
        pytest.skip(problem)
    return Registry(get_apicurio(version), api)


def _name(chosen: tuple[str, str]) -> str:
    return f"{chosen[0]}-{chosen[1].rpartition('/')[2]}"


@pytest.fixture(params=ALL_APIS, ids=_name)
def any_registry(request: pytest.FixtureRequest, get_apicurio: GetApicurio) -> Registry:
    """Each API of each release."""
    return _registry(request.param, get_apicurio)


@pytest.fixture(params=NEWEST_APIS, ids=_name)
def registry(request: pytest.FixtureRequest, get_apicurio: GetApicurio) -> Registry:
    """The newest API of each release."""
    return _registry(request.param, get_apicurio)


@pytest.fixture
def new_name() -> str:
    """A name that no other test has, for a record and for a subject."""
    return f"com.shop.Order{os.urandom(6).hex()}"
