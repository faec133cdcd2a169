"""Compares a report with its golden file; `PDGUARD_GOLDEN=write` renews the files."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).with_name("golden")


def check(name: str, text: str) -> None:
    path = FOLDER / name
    if os.environ.get("PDGUARD_GOLDEN") == "write":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{path} differs; PDGUARD_GOLDEN=write renews it"
