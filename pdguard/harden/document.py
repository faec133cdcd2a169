"""`pdguard.harden/1`: the result of harden as JSON. The same input gives the same bytes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pdguard import __version__
from pdguard.harden.plan import Plan, after_sha
from pdguard.harden.results import Outcome
from pdguard.harden.settings.model import SettingsPlan
from pdguard.harden.settings.present import as_document

SCHEMA = "pdguard.harden/1"


def as_json(did: str, wanted: str, outcomes: Sequence[Outcome], settings: SettingsPlan, step: str) -> str:
    """The document of one run; `did` is plan, apply, status, verify or rollback."""
    document = {
        "schema": SCHEMA,
        "pdguard": __version__,
        "did": did,
        "backport": wanted or None,
        "packages": [_package(o) for o in outcomes],
        "settings": [as_document(p) for p in settings.proposals],
        "settings_unknown": [
            {"engine": s.engine, "setting": s.setting, "reason": s.reason} for s in settings.skipped
        ],
        "next": step,
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _package(outcome: Outcome) -> dict[str, Any]:
    return {
        "node": outcome.site.node or None,
        "root": outcome.site.root,
        "engines": list(outcome.site.engines),
        "python": outcome.site.python,
        "status": outcome.status,
        "why": outcome.why,
        "fixes": list(outcome.fixes),
        "details": list(outcome.lines),
        "processes": [
            {"pid": r.pid, "title": r.title, "stale": r.stale, "sure": r.sure} for r in outcome.running
        ],
        "plan": None if outcome.plan is None else _plan(outcome.plan),
    }


def _plan(plan: Plan) -> dict[str, Any]:
    return {
        "version": plan.version,
        "base": plan.base,
        "fixes": [
            {"id": c.fix.id, "action": c.action, "state": c.state.value, "why": c.why, "title": c.fix.title}
            for c in plan.choices
        ],
        "refusals": [
            {
                "fix": r.fix,
                "seam": r.seam,
                "file": r.file,
                "path": r.path,
                "reason": r.reason,
                "nearest": r.nearest,
            }
            for r in plan.refusals
        ],
        "files": [{"path": c.path, "before": c.before, "after": after_sha(c)} for c in plan.changes],
        "diff": plan.diff(),
    }
