"""Which fixes of the set go in: what the operator names, what that needs, what is there already."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pdguard.errors import SelectionError
from pdguard.fingerprint.model import Fix, FixFinding, State
from pdguard.harden.model import Backport


@dataclass(frozen=True, slots=True)
class Choice:
    """What happens to one fix of the set.

    `action` is `apply`, `present` (it is there already), `left out` (the operator's word), `not needed` (it
    does not apply to this engine) or `refused`. `why` tells more, such as what pulled it in.
    """

    fix: Fix
    action: str
    state: State
    why: str = ""


def base_of(version: str | None) -> str:
    """The release that a version belongs to (`0.5.20.post1+cu130` to `0.5.20`), or "" where it tells none.

    A pre-release or development version comes before its release and belongs to none.
    """
    from packaging.version import InvalidVersion, Version

    try:
        parsed = Version(version or "")
    except InvalidVersion:
        return ""
    if parsed.is_prerelease or len(parsed.release) > 3:
        return ""
    return ".".join(map(str, (*parsed.release, 0, 0)[:3]))


def choose(
    backports: Sequence[Backport],
    findings: Sequence[FixFinding],
    only: Collection[str],
    excluded: Collection[str],
) -> tuple[Choice, ...]:
    """The choice for every fix that `backports` (of one base) hold, each behind those that it needs.

    Raises SelectionError for a name that is no backport of this base, and for one that is left out although
    another that goes in needs it.
    """
    by_id = {b.fix: b for b in backports}
    found = {f.fix.id: f for f in findings}
    both = sorted(set(only) & set(excluded))
    if both:
        raise SelectionError("chosen and left out at once", expected="one of the two", found=", ".join(both))
    unknown = sorted({*only, *excluded} - set(by_id))
    if unknown:
        known = ", ".join(sorted(by_id)) or "none"
        raise SelectionError(
            "no such backport for this base", expected=f"one of {known}", found=", ".join(unknown)
        )
    reasons = _wanted(by_id, found, only, excluded)
    choices = []
    for name in _in_order(by_id, found):
        finding = found[name]
        if by_id[name].is_in(finding.state):
            choices.append(Choice(finding.fix, "present", finding.state))
        elif finding.state is State.NOT_APPLICABLE:
            choices.append(Choice(finding.fix, "not needed", finding.state))
        elif name not in reasons:
            choices.append(Choice(finding.fix, "left out", finding.state))
        else:
            missing = [n for n in needs(by_id[name], finding.fix) if not _met(n, by_id, found)]
            why = f"it needs {', '.join(missing)}, which is neither here nor to be had" if missing else ""
            part = "a part of it only" if by_id[name].partial else ""
            more = "; ".join(one for one in (part, reasons[name]) if one)
            choices.append(Choice(finding.fix, "refused" if missing else "apply", finding.state, why or more))
    return tuple(choices)


def needs(backport: Backport, fix: Fix) -> tuple[str, ...]:
    """The fixes that a backport stands on."""
    return tuple(dict.fromkeys((*backport.requires, *(() if backport.partial else fix.requires))))


def _wanted(
    by_id: Mapping[str, Backport],
    found: Mapping[str, FixFinding],
    only: Collection[str],
    excluded: Collection[str],
) -> dict[str, str]:
    """The fixes that go in unless they are there, each with what pulled it in ("" where it was asked for)."""
    reasons = {name: "" for name in by_id if (not only or name in only) and name not in excluded}
    queue = list(reasons)
    while queue:
        name = queue.pop(0)
        if found[name].state in (State.PRESENT, State.NOT_APPLICABLE):
            continue
        for need in needs(by_id[name], found[name].fix):
            if need not in by_id or need in reasons or found[need].state is State.PRESENT:
                continue
            if need in excluded:
                raise SelectionError(
                    f"{name} needs {need}",
                    expected=f"both, or --except {name} as well",
                    found=f"--except {need}",
                )
            reasons[need] = f"{name} needs it"
            queue.append(need)
    return reasons


def _met(name: str, by_id: Mapping[str, Backport], found: Mapping[str, FixFinding]) -> bool:
    return name in by_id or (name in found and found[name].state in (State.PRESENT, State.NOT_APPLICABLE))


def _in_order(by_id: Mapping[str, Backport], found: Mapping[str, FixFinding]) -> list[str]:
    """Every fix behind those that it needs; by id otherwise."""
    ordered: list[str] = []

    def visit(name: str, above: tuple[str, ...]) -> None:
        if name in ordered or name in above:
            return
        for need in needs(by_id[name], found[name].fix):
            if need in by_id:
                visit(need, (*above, name))
        ordered.append(name)

    for name in sorted(by_id):
        visit(name, ())
    return ordered
