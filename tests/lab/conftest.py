"""Fixtures of the lab tests. Outside `python -m tests.lab.run` these tests are skipped."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from . import netns
from .cache import Cache
from .hardened import Engines, harden_engine
from .lab import Lab
from .progress import to_stderr
from .session import LabSession, versions_from_env
from .spec import pair

LIVE_POOLS = (1024, 4096)

EXERCISED = ("0.5.20",)
"""Versions that are hardened with their exercises, which take two minutes; others have tests of those."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "lab: runs real SGLang engines on the CPU (make lab)")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if netns.isolated():
        return
    skip = pytest.mark.skip(reason="needs the lab's network namespace: python -m tests.lab.run")
    for item in items:
        if item.get_closest_marker("lab"):
            item.add_marker(skip)


@pytest.fixture(scope="session")
def lab_session(pytestconfig: pytest.Config) -> Iterator[LabSession]:
    """At most one running deployment, reused while tests ask for the same spec."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")

    def progress(message: str) -> None:
        if capture is None:
            to_stderr(message)
            return
        with capture.global_and_fixture_disabled():
            to_stderr(message)

    def end(_signum: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    session = LabSession(progress)
    try:
        yield session
    finally:
        session.close()
        signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="session")
def lab(request: pytest.FixtureRequest, lab_session: LabSession) -> Lab:
    """The deployment of the spec that the test is parametrized with.

    `@pytest.mark.parametrize("lab", [pair("0.5.20", (1024, 4096))], indirect=True, scope="session")`
    """
    return lab_session.get(request.param)


@pytest.fixture(scope="session")
def hardened(tmp_path_factory: pytest.TempPathFactory) -> Engines:
    """The hardened engine of a version; made once."""
    made: dict[str, Path] = {}

    def get(version: str) -> Path:
        if version not in made:
            folder = tmp_path_factory.mktemp("hardened")
            target, exercise = folder / version, version in EXERCISED
            made[version] = harden_engine(Cache.default(), version, target, exercise=exercise)
        return made[version]

    return get


@pytest.fixture(scope="session", params=versions_from_env())
def live_pair(request: pytest.FixtureRequest, lab_session: LabSession) -> Lab:
    """For audit tests: a pair with unequal pools behind sglang-router, for every chosen version."""
    return lab_session.get(pair(request.param, LIVE_POOLS, router="sglang-router"))
