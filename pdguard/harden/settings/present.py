"""Proposals as lines for people and as JSON; every engine that needs the same change stands together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pdguard.harden.settings.diffs import describe, render_diff
from pdguard.harden.settings.model import Proposal, SettingsPlan

_SHOWN = 6


def as_lines(settings: SettingsPlan) -> Iterator[str]:
    """The section about settings: each once, what it closes and costs, then the engines and their diffs."""
    proposals = settings.proposals
    if not proposals and not settings.skipped:
        return
    yield "SETTINGS  proposed, never applied: change them where you launch the engines"
    yield "  The orders below are for a setting alone; with a patch in the same restart, prefill goes first."
    for name in dict.fromkeys(p.setting for p in proposals):
        same = [p for p in proposals if p.setting == name]
        first = same[0]
        yield ""
        yield f"  {name}: {first.title}"
        closes = dict.fromkeys(check for p in same for check, _ in p.closes)
        eases = dict.fromkeys(check for p in same for check, _ in p.eases)
        if closes:
            yield f"    closes {', '.join(closes)}"
        if eases:
            yield f"    eases {', '.join(eases)}"
        if any(p.closes_admission_alone for p in same):
            yield "    by itself this closes the admission gate, without a patch"
        for text in dict.fromkeys((first.why, first.cost, first.order)):
            if text:
                yield f"    {' '.join(text.split())}"
        if first.optional:
            yield "    optional"
        for proposal in same[:_SHOWN]:
            yield f"    {describe(proposal)}"
            yield from (f"      {line}" for line in _short(render_diff(proposal)))
        if len(same) > _SHOWN:
            more = ", ".join(p.engine for p in same[_SHOWN:][:40])
            yield f"    the same for {len(same) - _SHOWN} more: {more}"
    unknown = dict.fromkeys((s.setting, s.reason) for s in settings.skipped)
    if unknown:
        yield ""
        yield "  not proposed:"
    for name, reason in unknown:
        engines = [s.engine for s in settings.skipped if (s.setting, s.reason) == (name, reason)]
        more = f" and {len(engines) - _SHOWN} more" if len(engines) > _SHOWN else ""
        yield f"    {name} for {', '.join(engines[:_SHOWN])}{more}: {reason}"
    yield ""


def _short(diff: str) -> Iterator[str]:
    """Only the changed lines; the whole diff is in the JSON."""
    for line in diff.splitlines():
        if line[:1] in "+-" and line[:3] not in ("---", "+++"):
            yield line


def as_document(proposal: Proposal) -> dict[str, Any]:
    """One proposal as JSON."""
    return {
        "engine": proposal.engine,
        "setting": proposal.setting,
        "title": proposal.title,
        "target": proposal.target,
        "current": proposal.current,
        "current_from": proposal.current_from,
        "new": proposal.new,
        "sure": proposal.sure,
        "why": proposal.why,
        "closes": [{"check": check, "target": target} for check, target in proposal.closes],
        "eases": [{"check": check, "target": target} for check, target in proposal.eases],
        "closes_admission_alone": proposal.closes_admission_alone,
        "together": list(proposal.together),
        "optional": proposal.optional,
        "cost": proposal.cost,
        "order": proposal.order,
        "diff": render_diff(proposal),
        "notes": list(proposal.notes),
    }
