"""Proposals as lines for people and as JSON; every engine that needs the same change stands together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pdguard.harden.settings.diffs import describe, render_diff
from pdguard.harden.settings.model import Proposal

_SHOWN = 6


def as_lines(proposals: Sequence[Proposal]) -> Iterator[str]:
    """The section about settings: each once, what it closes and costs, then the engines and their diffs."""
    if not proposals:
        return
    yield "SETTINGS  proposed, never applied: change them where you launch the engines"
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
