"""Plan and apply on one installed engine, against `patch` with the equivalent diff in the same run."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.harden.packages import contents
from tests.wheels import wheel

pytestmark = [pytest.mark.bench, pytest.mark.wheels, pytest.mark.timeout(1200)]
VERSION = "0.5.20"
ROUNDS = 3


def timed(command: Sequence[str], cwd: Path, data: str = "") -> tuple[float, float, str]:
    """Seconds of wall and of CPU, and what it printed."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, cwd=cwd, input=data, capture_output=True, text=True, check=True)
    wall, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, cpu, done.stdout


def test_plan_and_apply_against_patch(tmp_path: Path) -> None:
    for name in ("hardened", "patched"):
        with zipfile.ZipFile(wheel(VERSION)) as archive:
            archive.extractall(tmp_path / name)
    here, there = tmp_path / "hardened", tmp_path / "patched"
    harden = [sys.executable, "-m", "pdguard", "harden", "--target", str(here)]
    diff = timed([*harden, "--backport", VERSION, "--emit", "diff"], here)[2]
    rows = []
    for _ in range(ROUNDS):
        plan = timed([*harden, "--backport", VERSION, "--no-diff"], here)
        apply = timed([*harden, "--backport", VERSION, "--apply", "--yes"], here)
        patch = timed(["patch", "-p1", "-s"], there, diff)
        assert contents(here / "sglang") == contents(there / "sglang")
        back = timed([*harden, "--rollback", "--yes"], here)
        timed(["patch", "-p1", "-s", "-R"], there, diff)
        rows.append((plan, apply, back, patch))
    print(f"\n{VERSION}, the whole set, {len(diff.splitlines()):,} lines of diff; without the exercise")
    for plan, apply, back, patch in rows:
        told = (
            f"{name} {one[0]:.2f} s wall, {one[1]:.2f} s cpu = {one[0] / patch[0]:.0f} times patch"
            for name, one in (("plan", plan), ("apply", apply), ("rollback", back))
        )
        print(f"  {'; '.join(told)}; patch {patch[0] * 1000:.0f} ms")
