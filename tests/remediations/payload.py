"""The payload as a package of its own, as it lies in the repo: the engine is not needed for it."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parents[2] / "remediations" / "payload"
_PACKAGE = "pdguard_payload_under_test"


@functools.cache
def payload(name: str) -> ModuleType:
    """One module of the payload."""
    if _PACKAGE not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            _PACKAGE, FOLDER / "__init__.py", submodule_search_locations=[str(FOLDER)]
        )
        assert spec is not None
        assert spec.loader is not None
        package = sys.modules[_PACKAGE] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(package)
    return importlib.import_module(f"{_PACKAGE}.{name}")
