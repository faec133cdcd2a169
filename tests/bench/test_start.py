"""`pdguard --help` against a bare typer program, in the same run. Prints, never gates."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.bench
BARE = """
import typer
app = typer.Typer(rich_markup_mode=None)
@app.command()
def one(name: str) -> None:
    "Say it."
@app.command()
def two(name: str) -> None:
    "Say it again."
app()
"""


def best(command: list[str]) -> float:
    def once() -> float:
        start = time.perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        return time.perf_counter() - start

    return statistics.median(once() for _ in range(15))


def test_help(tmp_path: Path) -> None:
    program = tmp_path / "bare.py"
    program.write_text(BARE)
    ours = best([sys.executable, "-m", "pdguard", "--help"])
    bare = best([sys.executable, str(program), "--help"])
    print(f"\npdguard --help {ours:.3f} s, bare typer {bare:.3f} s, ratio {ours / bare:.2f}")
