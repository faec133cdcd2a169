"""What the tests of the payload share."""

from __future__ import annotations

import sys

import pytest

from tests.remediations.engine import modules


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins in the place of the engine's modules."""
    for name, module in modules().items():
        monkeypatch.setitem(sys.modules, name, module)
