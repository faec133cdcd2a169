"""Waivers: findings that the operator accepts for a while, with a reason and a date."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from pdguard.cluster.model import Waiver
from pdguard.policy.model import Finding, Status


def apply_waivers(
    findings: Iterable[Finding], waivers: Sequence[Waiver], today: datetime.date, checks: Collection[str]
) -> tuple[list[Finding], list[str]]:
    """The findings with accepted ones marked as waived, and sentences about waivers that did nothing.

    Only failed and unknown findings can be waived. A waiver counts up to and including its last day. Nothing
    is said of checks that did not run (`checks` are the ids of those that did).
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
        if waiver.check not in checks:
            continue
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
        if waiver.check == finding.check and waiver.expires >= today and _fits(finding, waiver.target):
            return waiver
    return None


def _fits(finding: Finding, pattern: str) -> bool:
    """Whether a waiver's target is this finding's; one that stands for many pairs must fit them all."""
    pattern = pattern.replace("->", "→")
    if not fnmatchcase(finding.target, pattern):
        return False
    prefills, decodes = finding.members
    if pattern == "*" or len(prefills) * len(decodes) < 2:
        return True
    return all(fnmatchcase(f"{p}→{d}", pattern) for p in prefills for d in decodes)
