"""The published JSON Schema of the JSON report."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

SCHEMA_ID = "pdguard.report/1"
"""Name and version of the report: a change that breaks readers gets a new number."""


def report_schema() -> dict[str, Any]:
    """The schema (draft 2020-12), read from the package; a new dictionary at every call."""
    text = (files("pdguard.report") / "report.schema.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema
