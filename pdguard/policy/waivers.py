"""Waivers: findings that the operator accepts for a while, with a reason and a date."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from pdguard.cluster.model import Waiver
from pdguard.policy.model import Finding, Status


def apply_waivers(
    findings: Iterable[Finding], waivers: Sequence[Waiver], today: datetime.date
) -> tuple[list[Finding], list[str]]:
    """The findings with accepted ones marked as waived, and sentences about waivers that did nothing.

    Only failed and unknown findings can be waived. A waiver counts up to and including its last day.
    """
    used: list[Waiver] = []
    result = []
    for finding in findings:
        waiver = _waiver_for(finding, waivers, today)
        if waiver is None:
            result.append(finding)
            continue
        used.append(waiver)
        text = f"{waiver.reason} (until {waiver.expires.isoformat()})"
        result.append(replace(finding, status=Status.WAIVED, waiver=text))
    notes = []
    for waiver in waivers:
        name = f"waiver of {waiver.check} on {waiver.target}"
        if waiver.expires < today:
            notes.append(f"{name} expired on {waiver.expires.isoformat()}: it no longer counts")
        elif waiver not in used:
            notes.append(f"{name} matches no finding")
    return result, notes


def _waiver_for(finding: Finding, waivers: Sequence[Waiver], today: datetime.date) -> Waiver | None:
    if finding.status not in (Status.FAIL, Status.UNKNOWN):
        return None
    for waiver in waivers:
        fits = waiver.check == finding.check and fnmatchcase(finding.target, waiver.target)
        if fits and waiver.expires >= today:
            return waiver
    return None
