"""What policy reads and produces: checks, findings, and the result of an audit."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from pdguard.facts.interface import Evidence, Grade, Subject, Value

GATES = ("pool", "admission", "transfer", "lifetime", "router", "visibility")
"""The four gates and two more, in the order of reports. The hundreds digit of a check id is the gate."""


class Severity(enum.IntEnum):
    """How much a finding matters, mildest first."""

    LOW = 1
    MEDIUM = 2
    HIGH = 3
    CRITICAL = 4

    @property
    def label(self) -> str:
        """The word used in checks and reports."""
        return self.name.lower()

    @property
    def exit_code(self) -> int:
        """The exit code of an audit whose worst counted finding is this."""
        return 9 + int(self)


class Status(enum.StrEnum):
    """The outcome of one check on one target."""

    FAIL = "fail"
    PASS = "pass"  # noqa: S105
    UNKNOWN = "unknown"
    SKIPPED = "skipped"
    WAIVED = "waived"


@dataclass(frozen=True, slots=True)
class Examples:
    """Recorded inputs of a check, by the status that they must give. They are its tests."""

    fail: tuple[Mapping[str, Mapping[str, object]], ...] = ()
    pass_: tuple[Mapping[str, Mapping[str, object]], ...] = ()
    unknown: tuple[Mapping[str, Mapping[str, object]], ...] = ()
    skipped: tuple[Mapping[str, Mapping[str, object]], ...] = ()


@dataclass(frozen=True, slots=True)
class Check:
    """One check, as its YAML file states it."""

    id: str
    title: str
    gate: str
    severity: Severity
    for_each: str
    fail_if: str
    message: str
    explain: str
    fix: tuple[str, ...]
    refs: tuple[str, ...]
    examples: Examples
    when: str = "true"
    tags: tuple[str, ...] = ()
    file: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """One check on one target. `grade` is None where nothing was known."""

    check: str
    title: str
    gate: str
    severity: Severity
    status: Status
    grade: Grade | None
    target: str
    message: str
    missing: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    fix: tuple[str, ...] = ()
    refs: tuple[str, ...] = ()
    engines: tuple[str, ...] = ()
    """Names of the engines that the target stands for (for the matrix engine × gate)."""
    members: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    """For a pair that stands for many: the names of its prefills and of its decodes."""
    waiver: str = ""
    """Reason and expiry of the waiver, where one applies."""


@dataclass(frozen=True, slots=True)
class AuditResult:
    """A whole audit, ready to be rendered. `engines` are the subjects whose facts the report shows."""

    cluster: str
    generated_at: str
    findings: tuple[Finding, ...]
    engines: tuple[Subject, ...]
    notes: tuple[str, ...] = ()
    """Sentences about the audit itself: expired waivers, the run's deadline."""
    policy: Mapping[str, Value] = field(default_factory=dict)
