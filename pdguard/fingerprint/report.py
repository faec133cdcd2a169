"""What `pdguard inspect` prints: the state of every fix in one package, and what follows from them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pdguard import __version__
from pdguard.fingerprint.model import FixFinding, State
from pdguard.policy.model import Finding, Status
from pdguard.report.summary import ordered, plural

MARKS = {
    State.PRESENT: "present",
    State.PARTIAL: "PARTIAL",
    State.ABSENT: "ABSENT",
    State.NOT_APPLICABLE: "-",
    State.UNKNOWN: "?",
}


@dataclass(frozen=True, slots=True)
class Inspection:
    """One inspected package: its fixes, and the verdicts of the checks that rest on them."""

    target: str
    version: str | None
    backend: str
    fixes: tuple[FixFinding, ...]
    findings: tuple[Finding, ...]
    unreadable: str = ""
    """Why not one file of the package could be read, where that is so."""


def as_json(inspection: Inspection) -> str:
    """`pdguard.inspect/1`: the fixes as DESIGN gives them, and the findings."""
    document: dict[str, Any] = {
        "schema": "pdguard.inspect/1",
        "pdguard": __version__,
        "target": inspection.target,
        "version": inspection.version,
        "backend": inspection.backend,
        "fixes": [_fix(f) for f in inspection.fixes],
        "findings": [_finding(f) for f in ordered(inspection.findings)],
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _fix(found: FixFinding) -> dict[str, Any]:
    return {
        "id": found.fix.id,
        "upstream": list(found.fix.upstream),
        "merged": found.fix.merged,
        "title": found.fix.title,
        "state": found.state.value,
        "backends": {backend: state.value for backend, state in found.backends.items()},
        "evidence": [{"file": s.file, "line": s.line} for s in found.spots],
        "missing": [f"{p.part}: {p.why}" for p in found.parts if p.state is State.UNKNOWN],
    }


def _finding(f: Finding) -> dict[str, Any]:
    return {
        "check": f.check,
        "gate": f.gate,
        "severity": f.severity.label,
        "status": f.status.value,
        "grade": None if f.grade is None else f.grade.label,
        "message": f.message,
        "missing": list(f.missing),
        "fix": [s for s in f.fix if not s.startswith("setting:")],
    }


def as_table(inspection: Inspection, width: int) -> str:
    """The verdict first, then the fixes, then what fails and what cannot be told."""
    fails = [f for f in ordered(inspection.findings) if f.status is Status.FAIL]
    unknown = [f for f in ordered(inspection.findings) if f.status is Status.UNKNOWN]
    unsettled = [f for f in inspection.fixes if f.state is State.UNKNOWN]
    lines = [_clean(_verdict(inspection, fails, unknown, unsettled)), ""]
    lines += [_row(f, width, inspection.backend) for f in inspection.fixes if f.fix.merged]
    unmerged = sum(not f.fix.merged for f in inspection.fixes)
    lines += ["", f"{unmerged} changes that no release has are looked for as well and not counted."]
    carried = [f for f in inspection.fixes if not f.fix.merged and f.state in (State.PRESENT, State.PARTIAL)]
    if carried:
        lines += [
            "",
            "NOT UPSTREAM  changes that no release has: proposals that were never merged, and pdguard's own",
            *(_row(f, width, inspection.backend) for f in carried),
        ]
    if unsettled:
        lines += ["", "UNKNOWN FIXES  their places look like neither form; a guess would be worth nothing"]
        lines += [
            _cut(f"  {f.fix.id}  {p.part}: {p.why}", width)
            for f in unsettled
            for p in f.parts
            if p.state is State.UNKNOWN
        ]
    if fails:
        lines += ["", "FINDINGS"]
        for f in fails:
            step = next((x for x in f.fix if not x.startswith("setting:")), "")
            lines.append(_cut(f"  {f.check:9} {f.severity.label:8} {f.message}: {f.title}", width))
            lines += [_cut(f"{'':22}-> {step}", width)] if step else []
    if unknown:
        need = plural(len(unknown), "verdict")
        lines += ["", f"UNKNOWN  {need} need more than source: {_names(unknown)}. Audit the running engine."]
    lines += ["", "Source only: pools, flags, environment and router are judged by `pdguard audit`."]
    return "\n".join(lines) + "\n"


def _verdict(
    inspection: Inspection,
    fails: Sequence[Finding],
    unknown: Sequence[Finding],
    unsettled: Sequence[FixFinding],
) -> str:
    about = f"{inspection.target} (version {inspection.version or '?'}, judged for {inspection.backend})"
    merged = [f for f in inspection.fixes if f.fix.merged]
    present = sum(f.state is State.PRESENT for f in merged)
    foreign = sum(f.state is not State.PRESENT and not _concerns(f, inspection.backend) for f in merged)
    count = f"{present} of {len(merged)} fixes present"
    if foreign:
        count += f", {foreign} of the others not for {inspection.backend}"
    doubt = f"; {plural(len(unknown), 'verdict')} unknown" if unknown else ""
    if fails:
        word = {"critical": "EXPOSED", "high": "AT RISK"}.get(fails[0].severity.label, "FINDINGS")
        worst = fails[0].severity.label
        return f"{word}  {about}: {count}; {plural(len(fails), 'finding')}, worst {worst}{doubt}"
    if unknown or unsettled:
        return f"UNKNOWN  {about}: {count}; nothing failed{doubt}"
    return f"CLEAN  {about}: {count}"


def _concerns(found: FixFinding, backend: str) -> bool:
    return not found.backends or backend in found.backends


def _row(found: FixFinding, width: int, backend: str) -> str:
    """One fix; where the line is too narrow, the title gives way to the place."""
    spot = f"  {found.spots[0].file}:{found.spots[0].line}" if found.spots else ""
    differ = set(found.backends.values()) - {found.state}
    tail = f" ({', '.join(f'{b} {s.value}' for b, s in found.backends.items())})" if differ else ""
    if not _concerns(found, backend):
        tail += f" (not for {backend})"
    head = f"  {found.fix.id:6} {MARKS[found.state]:8} "
    room = max(20, width - len(head) - len(spot))
    return _cut(f"{head}{_cut(found.fix.title + tail, room)}{spot}".rstrip(), width)


def _names(findings: Iterable[Finding]) -> str:
    return ", ".join(dict.fromkeys(f.check for f in findings))


def _clean(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)


def _cut(text: str, width: int) -> str:
    safe = _clean(text)
    return safe if len(safe) <= width else safe[: width - 1] + "…"
