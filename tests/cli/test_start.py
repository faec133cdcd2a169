"""`pdguard --help` stays quick: nothing heavy is imported to print it."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("httpx", "pydantic", "yaml", "cel_expr_python", "prometheus_client", "jinja2", "asyncio", "h11")


def test_help_imports_nothing_heavy() -> None:
    code = f"""
import sys
sys.argv = ["pdguard", "--help"]
from pdguard.cli.app import main
try:
    main()
except SystemExit as end:
    assert end.code == 0, end.code
print("HEAVY", [m for m in {HEAVY!r} if m in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("HEAVY []")
    assert "audit" in done.stdout
