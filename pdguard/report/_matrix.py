"""The matrix engine × gate: the worst state of each cell as a word that needs no colour."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from pdguard.policy.model import GATES, AuditResult, Severity, Status
from pdguard.report._paper import Paper, Span, cells

COLLAPSE_ABOVE = 40
"""From so many engines on, rows that say the same share a line."""

WORDS = {Severity.CRITICAL: "CRIT", Severity.HIGH: "HIGH", Severity.MEDIUM: "MED", Severity.LOW: "low"}
_SHORT = {
    "admission": "admit",
    "transfer": "xfer",
    "lifetime": "life",
    "router": "route",
    "visibility": "visib",
}
_NAME_ROOM = 20


@dataclass(slots=True)
class Cell:
    """What the checks of one gate said about one row."""

    fails: list[int] = field(default_factory=lambda: [0] * (Severity.CRITICAL + 1))
    unknown: int = 0
    waived: int = 0
    passed: int = 0

    def add(self, status: Status, severity: Severity) -> None:
        """Count one finding. Skipped ones did not apply, so they leave no trace."""
        if status is Status.FAIL:
            self.fails[severity] += 1
        elif status is Status.UNKNOWN:
            self.unknown += 1
        elif status is Status.WAIVED:
            self.waived += 1
        elif status is Status.PASS:
            self.passed += 1

    def text(self, limit: int) -> tuple[str, str]:
        """The cell's word with counts up to `limit` (0: no counts), and its style."""
        for severity, word in WORDS.items():
            if self.fails[severity]:
                text = _counted(word, self.fails[severity], limit)
                return text + (" ?" if self.unknown else ""), severity.label
        if self.unknown:
            return _counted("?", self.unknown, limit), "unknown"
        if self.waived:
            return _counted("waived", self.waived, limit), "waived"
        return ("ok", "ok") if self.passed else ("-", "dim")


def _counted(word: str, number: int, limit: int) -> str:
    if number < 2 or not limit:
        return word
    return f"{word} {number}" if number <= limit else f"{word} {limit}+"


@dataclass(slots=True)
class Row:
    """One engine, or another target, or several engines whose rows are the same."""

    names: list[str]
    role: str
    version: str
    gates: list[Cell] = field(default_factory=lambda: [Cell() for _ in GATES])

    def label(self, paper: Paper, width: int) -> str:
        """The name, or `p0 … p499 (500)`, in at most `width` columns."""
        if len(self.names) == 1:
            return paper.fit(self.names[0], width)
        count = f" ({len(self.names)})"
        between = f" {paper.ellipsis} "
        first, last = paper.clean(self.names[0]), paper.clean(self.names[-1])
        if cells(first) + cells(between) + cells(last) + len(count) > width:
            half = (width - len(between) - len(count)) // 2
            if half < 3:
                return paper.fit(first, width - len(count)) + count
            first, last = paper.fit(first, half), paper.fit(last, half)
        return first + between + last + count


def natural(name: str) -> list[tuple[int, int, str]]:
    """A sort key that puts p2 before p10."""
    parts = re.split(r"([0-9]{1,18})", name)
    return [(0, int(p), p) if place % 2 else (1, 0, p) for place, p in enumerate(parts)]


def rows(result: AuditResult) -> list[Row]:
    """Engines by name, then every other target that a finding is about."""
    engines: dict[str, Row] = {}
    for s in result.engines:
        role = s.facts.text("role") or s.facts.text("declared_role") or "?"
        engines[s.name] = Row([s.name], role, s.facts.text("version") or "?")
    others: dict[str, Row] = {}
    column = {gate: place for place, gate in enumerate(GATES)}
    for f in result.findings:
        for name in dict.fromkeys(f.engines or (f.target,)):
            row = engines.get(name) if f.engines else None
            if row is None:
                row = others.setdefault(name, Row([name], "", ""))
            row.gates[column[f.gate]].add(f.status, f.severity)
    return [*_collapsed(engines), *_collapsed(others)]


def _collapsed(found: dict[str, Row]) -> list[Row]:
    """Rows in natural order; where there are many, those that say the same as one."""
    ordered = [found[name] for name in sorted(found, key=natural)]
    if len(ordered) <= COLLAPSE_ABOVE:
        return ordered
    groups: dict[tuple[object, ...], Row] = {}
    for row in ordered:
        key = (row.role, row.version, *(cell.text(999) for cell in row.gates))
        if key in groups:
            groups[key].names += row.names
        else:
            groups[key] = row
    return list(groups.values())


@dataclass(frozen=True, slots=True)
class _Level:
    """How much a table of limited width can show."""

    heads: Sequence[str]
    limit: int
    columns: int
    gap: int


_HEADS = tuple(_SHORT.get(g, g) for g in GATES)
_LEVELS = (
    _Level(GATES, 999, 3, 2),
    _Level(_HEADS, 999, 3, 2),
    _Level(_HEADS, 99, 3, 1),
    _Level(_HEADS, 99, 2, 1),
    _Level(_HEADS, 9, 1, 1),
    _Level(_HEADS, 0, 1, 1),
)
"""Widest first. `columns` counts name, role and version: the version goes first, then the role."""


def write(paper: Paper, table: Sequence[Row]) -> None:
    """Write the matrix and its legend, as full as the width allows."""
    needed = max(cells(row.label(paper, paper.width)) for row in table)
    for level in _LEVELS:
        heads = ["engine", "role", "version"][: level.columns] + list(level.heads)
        body = [_texts(row, level) for row in table]
        columns = zip([(h, "") for h in heads[1:]], *body, strict=True)
        sizes = [max(cells(paper.fit(text, 14)) for text, _ in column) for column in columns]
        room = paper.width - sum(sizes) - level.gap * len(sizes)
        if room >= max(6, min(needed, _NAME_ROOM)):
            break
    first = max(6, min(needed, room))
    gap = " " * level.gap
    head = [paper.pad(heads[0], first), *(paper.pad(h, n) for h, n in zip(heads[1:], sizes, strict=True))]
    paper.line((gap.join(head), "bold"))
    for row, texts in zip(table, body, strict=True):
        spans: list[Span] = [(paper.pad(row.label(paper, first), first), "")]
        for (text, style), size in zip(texts, sizes, strict=True):
            spans += [(gap, ""), (paper.pad(text, size), style)]
        paper.line(*spans)
    _legend(paper, table)


def _texts(row: Row, level: _Level) -> list[Span]:
    facts = [(row.role, ""), (row.version, "")][: level.columns - 1]
    return facts + [cell.text(level.limit) for cell in row.gates]


def _legend(paper: Paper, table: Sequence[Row]) -> None:
    parts = ["CRIT HIGH MED low = worst failing, with how many", "? = could not be judged (not a pass)"]
    if any(cell.waived for row in table for cell in row.gates):
        parts.append("waived = accepted for now (not a pass)")
    parts += ["ok = passed", "- = nothing applied"]
    paper.text(paper.dot.join(parts), style="dim")
