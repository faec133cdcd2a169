"""Counts, the order of findings, the verdict in one line, and the exit code of an audit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from pdguard.policy.model import AuditResult, Finding, Severity, Status

SEVERITIES = (Severity.CRITICAL, Severity.HIGH, Severity.MEDIUM, Severity.LOW)
"""Worst first: the order of every report."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Findings counted by status, and the failing ones by severity (worst first, no zeros)."""

    status: dict[Status, int]
    by_severity: dict[Severity, int]

    def count(self, status: Status) -> int:
        """How many findings have this status."""
        return self.status.get(status, 0)

    @property
    def worst(self) -> Severity | None:
        """The worst failing severity, or None where nothing fails."""
        return next(iter(self.by_severity), None)

    def as_dict(self) -> dict[str, object]:
        """The summary as the JSON report has it."""
        order = (Status.FAIL, Status.PASS, Status.UNKNOWN, Status.SKIPPED, Status.WAIVED)
        counts: dict[str, object] = {s.value: self.count(s) for s in order}
        counts["by_severity"] = {s.label: n for s, n in self.by_severity.items()}
        return counts


@dataclass(frozen=True, slots=True)
class Verdict:
    """The first line of a report: one word, and what stands behind it."""

    word: str
    text: str


def summarise(findings: Iterable[Finding]) -> Summary:
    """Count findings."""
    status: Counter[Status] = Counter()
    severity: Counter[Severity] = Counter()
    for f in findings:
        status[f.status] += 1
        if f.status is Status.FAIL:
            severity[f.severity] += 1
    return Summary(dict(status), {s: severity[s] for s in SEVERITIES if severity[s]})


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """Findings in the order of reports: worst severity, then what a probe saw, check id, target."""
    return sorted(
        findings, key=lambda f: (-f.severity, not probed(f), f.check, f.target, f.status, f.message)
    )


def probed(finding: Finding) -> bool:
    """Whether a finding rests on what a probe saw."""
    return any(one.source == "probe" for one in finding.evidence)


def exit_code(findings: Iterable[Finding], fail_on: Severity = Severity.LOW, strict: bool = False) -> int:
    """0 when nothing counts, else 10 to 13 by the worst severity that is at or above `fail_on`.

    With `strict` an unknown counts as high, and so does an audit in which nothing was judged at all. Waived
    and skipped never count.
    """
    findings = tuple(findings)
    if strict and fail_on <= Severity.HIGH and all(f.status is Status.SKIPPED for f in findings):
        return Severity.HIGH.exit_code
    counted = (
        f.severity if f.status is Status.FAIL else Severity.HIGH
        for f in findings
        if f.status is Status.FAIL or (strict and f.status is Status.UNKNOWN)
    )
    worst = max((s for s in counted if s >= fail_on), default=None)
    return 0 if worst is None else worst.exit_code


def plural(number: int, one: str, many: str = "") -> str:
    """`1 check`, `2 checks`."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def verdict(result: AuditResult, summary: Summary | None = None) -> Verdict:
    """The verdict on a whole audit. CLEAN needs something that was judged; unknown is never clean."""
    counts = summarise(result.findings) if summary is None else summary
    unknown = counts.count(Status.UNKNOWN)
    ids = len({f.check for f in result.findings if f.status is Status.UNKNOWN})
    open_ = f"{plural(unknown, 'verdict')} unknown ({plural(ids, 'check')})"
    tail = f"; {open_}" if unknown else ""
    if counts.worst is not None:
        word = {Severity.CRITICAL: "EXPOSED", Severity.HIGH: "AT RISK"}.get(counts.worst, "FINDINGS")
        what = ", ".join(f"{n} {s.label}" for s, n in counts.by_severity.items())
        return Verdict(word, f"{result.cluster}: {what} {_where(result)}{tail}")
    if unknown:
        return Verdict("UNKNOWN", f"{result.cluster}: nothing failed, but {open_}")
    waived = counts.count(Status.WAIVED)
    passed = counts.count(Status.PASS)
    if not passed and not waived:
        return Verdict("UNKNOWN", f"{result.cluster}: nothing failed, but no check was judged")
    text = f"{result.cluster}: {plural(passed, 'check')} passed on {plural(len(result.engines), 'engine')}"
    if waived:
        worst = max(f.severity for f in result.findings if f.status is Status.WAIVED)
        accepted = f"{plural(waived, 'finding')} accepted by waiver (up to {worst.label})"
        return Verdict("WAIVED", f"{text}; {accepted}")
    return Verdict("CLEAN", text)


def _where(result: AuditResult) -> str:
    """`on 2 of 5 engines and 1 other` (router, node, cluster), for the failing findings."""
    known = {s.name for s in result.engines}
    hit: set[str] = set()
    other: set[str] = set()
    for f in result.findings:
        if f.status is Status.FAIL:
            mine = known.intersection(f.engines)
            hit.update(mine)
            if not mine:
                other.add(f.target)
    if not other:
        return f"on {len(hit)} of {plural(len(known), 'engine')}"
    beside = plural(len(other), "other")
    if hit:
        return f"on {len(hit)} of {plural(len(known), 'engine')} and {beside}"
    return f"on {next(iter(other))}" if len(other) == 1 else f"on {plural(len(other), 'target')}"
