"""Runs the real promtool, or says why it cannot."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None and os.environ.get("PDGUARD_NEEDS_PROMETHEUS") != "1",
    reason="promtool is not installed (Debian: prometheus); PDGUARD_NEEDS_PROMETHEUS=1 makes this a failure",
)


def promtool(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    assert PROMTOOL is not None, "promtool is not installed"
    return subprocess.run(
        [PROMTOOL, *arguments], cwd=cwd, capture_output=True, text=True, check=False, timeout=120
    )
