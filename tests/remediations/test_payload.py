"""What holds for every module of the payload: it runs on old interpreters and imports nothing early."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from tests.remediations.payload import FOLDER

MODULES = sorted(FOLDER.glob("*.py"))


def test_there_is_a_payload() -> None:
    assert {"__init__.py", "doors.py", "results.py", "requests.py", "batches.py"} <= {m.name for m in MODULES}


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.name)
def test_it_is_python_310_and_imports_only_the_standard_library(module: Path) -> None:
    tree = ast.parse(module.read_text("utf-8"), feature_version=(3, 10))
    assert ast.get_docstring(tree)
    for node in tree.body:
        if isinstance(node, ast.Import):
            assert {alias.name.partition(".")[0] for alias in node.names} <= sys.stdlib_module_names
        elif isinstance(node, ast.ImportFrom) and not node.level:
            assert str(node.module).partition(".")[0] in sys.stdlib_module_names
