"""The report for people: verdict, matrix, findings, what could not be judged, and the next step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pdguard.policy.model import AuditResult, Finding, Severity, Status
from pdguard.report import _groups, _matrix
from pdguard.report._paper import Paper, Span, cells
from pdguard.report.interface import DEFAULT_WIDTH
from pdguard.report.summary import plural, summarise, verdict

SHOWN_TARGETS = 5
"""Targets of a group that are named; the others are counted."""

SHOWN_FACTS = 4
SHOWN_CHECKS = 12
_VERDICT_STYLES = {
    "EXPOSED": "critical",
    "AT RISK": "high",
    "FINDINGS": "medium",
    "UNKNOWN": "unknown",
    "WAIVED": "medium",
    "CLEAN": "ok",
}


class TableRenderer:
    """`--format table`, for people. Without `unicode` the text is pure ASCII."""

    name = "table"

    def __init__(self, width: int = DEFAULT_WIDTH, color: bool = False, unicode: bool = True) -> None:
        self.width = width
        self.color = color
        self.unicode = unicode

    def render(self, result: AuditResult) -> str:
        """The report; no line is wider than the width, no escape code without colour."""
        paper = Paper(self.width, self.color, self.unicode)
        said = verdict(result, summarise(result.findings))
        style = _VERDICT_STYLES[said.word]
        paper.text(said.text, lead=((said.word, style), ("  ", "")), indent=len(said.word) + 2)
        fails = _groups.failing(result.findings)
        gaps = _groups.gaps(result.findings, result.engines)
        judged = any(f.status is not Status.SKIPPED for f in result.findings)
        step = _next(paper, fails, gaps, judged)
        paper.text(step, lead=(("next: ", "bold"),), indent=6)
        rows = _matrix.rows(result)
        if rows:
            paper.blank()
            _matrix.write(paper, rows)
        _write_fails(paper, fails)
        _write_gaps(paper, gaps, sum(f.status is Status.UNKNOWN for f in result.findings))
        _write_waived(paper, _groups.waived(result.findings))
        _write_notes(paper, result.notes)
        paper.blank()
        paper.text(step, lead=(("next: ", "bold"),), indent=6)
        return paper.result()


def _some(paper: Paper, names: Iterable[str], shown: int = SHOWN_TARGETS) -> str:
    """`p0, p1, p2, p3, p4, +495 more`; a very long name loses its middle."""
    every = list(names)
    head = [paper.fit(n, 40) for n in every[:shown]]
    return ", ".join(head + ([f"+{len(every) - shown} more"] if len(every) > shown else []))


def _write_fails(paper: Paper, groups: Sequence[_groups.Group]) -> None:
    if not groups:
        return
    paper.blank()
    paper.line(("FINDINGS", "bold"))
    for group in groups:
        f = group.first
        check = paper.fit(f.check, 24)
        word = f.severity.label
        shown = word.upper() if f.severity >= Severity.HIGH else word
        lead: list[Span] = [(f"  {check} ", "bold"), (f"{shown:<8}", word), ("  ", "")]
        paper.text(_some(paper, group.targets), lead=lead, indent=sum(cells(t) for t, _ in lead))
        if f.title != f.message:
            paper.text(f.title, indent=4, style="bold")
        rest = len(group.targets) - 1
        if group.alike or not rest:
            paper.text(f.message, indent=4)
        else:
            paper.text(f"{paper.fit(f.target, 40)}: {f.message} ({_others(rest)})", indent=4)
        grade = "nothing stated" if group.grade is None else group.grade.label
        paper.text(f"known by: {grade}{paper.dot}more: pdguard explain {f.check}", indent=4, style="dim")
        steps = steps_for_people(f)
        if steps:
            whose = "" if group.one_fix else f" for {paper.fit(f.target, 20)}"
            paper.text(steps[0], lead=((f"    fix 1 of {len(steps)}{whose}: ", ""),), indent=6)


def steps_for_people(finding: Finding) -> tuple[str, ...]:
    """The next steps in words. `setting:…` names a step for `harden`; words for it stand beside it."""
    return tuple(step for step in finding.fix if not step.startswith("setting:"))


def _others(number: int) -> str:
    which = "the other one" if number == 1 else f"the other {number}"
    return f"{which} alike, names and numbers differ"


def _write_gaps(paper: Paper, found: Sequence[_groups.Gap], unknown: int) -> None:
    if not found:
        return
    paper.blank()
    title = f"{plural(unknown, 'verdict')} could not be reached; unknown is not a pass"
    paper.text(title, lead=(("UNKNOWN  ", "bold"),), indent=9)
    for gap in found:
        count = plural(len(gap.findings), "verdict")
        lead: list[Span] = [("  ? ", "unknown"), (f"{count} ", "")]
        paper.text(
            f"(up to {gap.worst.label}) on {_some(paper, sorted(gap.targets, key=_matrix.natural))}",
            lead=lead,
            indent=4,
        )
        paper.text("checks: " + _some(paper, sorted(gap.checks), SHOWN_CHECKS), indent=4)
        if gap.names:
            paper.text("missing: " + _some(paper, sorted(gap.names), SHOWN_FACTS), indent=4)
        if gap.reason:
            paper.text(gap.reason, lead=(("    why: ", ""),), indent=9)
        if gap.how:
            paper.text(gap.how, lead=(("    how: ", ""),), indent=9)


def _write_waived(paper: Paper, groups: Sequence[_groups.Group]) -> None:
    if not groups:
        return
    paper.blank()
    paper.text("accepted for now; a waiver is not a pass", lead=(("WAIVED  ", "bold"),), indent=8)
    for group in groups:
        f = group.first
        head = f"{paper.fit(f.check, 24)} {f.severity.label}  {_some(paper, group.targets)}"
        paper.text(head, lead=(("  ", ""),), indent=4)
        paper.text(f.waiver or "no reason given", indent=4, style="dim")


def _write_notes(paper: Paper, notes: Sequence[str]) -> None:
    if not notes:
        return
    paper.blank()
    paper.line(("NOTES", "bold"))
    for note in notes:
        paper.text(note, lead=(("  - ", ""),), indent=4)


def _next(paper: Paper, fails: Sequence[_groups.Group], found: Sequence[_groups.Gap], judged: bool) -> str:
    """The single most useful step: the worst failure that hits most, else the widest gap."""
    if fails:
        worst = [g for g in fails if g.severity is fails[0].severity]
        top = max(worst, key=lambda g: (bool(steps_for_people(g.first)), len(g.targets)))
        where = paper.fit(top.first.target, 40)
        rest = len(top.targets) - 1
        check = top.first.check
        step = (
            steps_for_people(top.first)[0]
            if steps_for_people(top.first)
            else f"read `pdguard explain {check}`"
        )
        if not top.one_fix:
            return f"{check} on {where}: {step} ({rest} more, each with numbers of its own: --format json)"
        return f"{check} on {where}{f' and {rest} more' if rest else ''}: {step}"
    if found:
        widest = max(found, key=lambda g: (bool(g.step), len(g.findings)))
        number = len(widest.findings)
        waiting = f"{plural(number, 'check')} {'waits' if number == 1 else 'wait'} for it"
        return f"{widest.step or 'get what is missing above'} ({waiting})"
    if not judged:
        return "nothing was judged: no check that was asked for applies here"
    return "nothing to fix; audit again after the next upgrade, restart or change of settings"
