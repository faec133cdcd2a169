"""Puts findings that say the same on many targets together, and unknowns that miss the same."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pdguard.facts.catalogue import HOW, spec
from pdguard.facts.interface import Grade, Subject
from pdguard.policy.model import Finding, Severity, Status
from pdguard.report._matrix import natural
from pdguard.report.summary import ordered

_NUMBER = re.compile(r"[0-9]+(?:[.,][0-9]+)*")
_FACT = re.compile(r"([a-z]+)\.([a-z0-9_]+)(?![\w.])")
_NO_ADVICE = (HOW["derived"], HOW["both"])


@dataclass(slots=True)
class Group:
    """Findings of one check whose messages differ in names and numbers only."""

    first: Finding
    targets: list[str]
    alike: bool = True
    """All messages are the same to the letter."""
    one_fix: bool = True
    """All fixes are the same to the letter."""

    @property
    def severity(self) -> Severity:
        """Severity of every finding in it."""
        return self.first.severity

    @property
    def grade(self) -> Grade | None:
        """Grade of every finding in it: a stronger one never lends its weight to others."""
        return self.first.grade


def shape(finding: Finding) -> str:
    """The message and fixes with the target, its engines and all numbers taken out."""
    text = "\n".join((finding.message, *finding.fix))
    for name in sorted({finding.target, *finding.engines}, key=lambda n: (-len(n), n)):
        if name:
            text = text.replace(name, "\0")
    return _NUMBER.sub("#", text)


def failing(findings: Iterable[Finding]) -> list[Group]:
    """Groups of failing findings, worst first, then by check."""
    return _grouped(ordered(f for f in findings if f.status is Status.FAIL))


def waived(findings: Iterable[Finding]) -> list[Group]:
    """Groups of waived findings that share a waiver's text."""
    return _grouped(ordered(f for f in findings if f.status is Status.WAIVED))


def _grouped(findings: Sequence[Finding]) -> list[Group]:
    groups: dict[tuple[object, ...], Group] = {}
    for f in findings:
        key = (f.check, f.severity, f.grade, f.waiver, shape(f))
        group = groups.get(key)
        if group is None:
            groups[key] = Group(f, [f.target])
            continue
        group.targets.append(f.target)
        group.alike = group.alike and f.message == group.first.message
        group.one_fix = group.one_fix and f.fix == group.first.fix
    for group in groups.values():
        named = group.first.target
        group.targets = sorted(dict.fromkeys(group.targets), key=lambda n: (n != named, natural(n)))
    return list(groups.values())


@dataclass(slots=True)
class Gap:
    """One reason why checks stayed unknown, and how to remove it."""

    reason: str
    how: str
    names: dict[str, None] = field(default_factory=dict)
    targets: dict[str, None] = field(default_factory=dict)
    checks: dict[str, None] = field(default_factory=dict)
    findings: set[int] = field(default_factory=set)
    worst: Severity = Severity.LOW

    @property
    def step(self) -> str:
        """What the operator can do, or nothing where the advice only points to other facts."""
        return "" if self.how in _NO_ADVICE else self.how


def gaps(findings: Iterable[Finding], engines: Sequence[Subject]) -> list[Gap]:
    """What unknown findings miss, together where reason and way out are the same; biggest first."""
    known = {s.name: s for s in engines}
    found: dict[tuple[str, str], Gap] = {}
    for number, f in enumerate(ordered(f for f in findings if f.status is Status.UNKNOWN)):
        for text in f.missing or (f.message,):
            name, reason, how = _explained(text, f, known) if f.missing else ("", text, "")
            gap = found.setdefault((reason, how), Gap(reason, how))
            if name:
                gap.names[name] = None
            gap.targets[f.target] = None
            gap.checks[f.check] = None
            gap.findings.add(number)
            gap.worst = max(gap.worst, f.severity)
    return sorted(found.values(), key=lambda g: (-len(g.findings), g.reason, g.how))


def _explained(text: str, finding: Finding, engines: Mapping[str, Subject]) -> tuple[str, str, str]:
    """Name, reason and way out behind one entry of `missing`.

    An entry reads `engine.t_hold: why it is missing; how to get it`. The collectors' own reason and the
    catalogue's advice fill in what it does not say. Anything else stands for itself.
    """
    match = _FACT.match(text)
    known = spec(match[1], match[2]) if match else None
    if match is None or known is None:
        return "", text, ""
    mine = (engines[n].facts.why_missing(match[2]) for n in finding.engines if n in engines)
    missing = next((m for m in mine if m is not None), None) if known.subject == "engine" else None
    advice = (missing.how if missing else "") or known.how
    said = text[match.end() :].removeprefix(":").strip()
    if said.endswith(advice):
        reason, how = said.removesuffix(advice).rstrip("; "), advice
    else:
        reason, _, how = said.partition("; ")
    reason = reason or (missing.reason if missing else "")
    # Policy's words for a fact that nobody gave a reason for; the name alone says as much.
    if reason == f"{known.meaning}: not known":
        reason = ""
    return f"{match[1]}.{match[2]}", reason, how or advice
