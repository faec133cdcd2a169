"""The result of harden for people: what happens to which fix and file, what to restart, what it costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pdguard.harden.plan import Plan
from pdguard.harden.results import Outcome
from pdguard.harden.settings.model import SettingsPlan
from pdguard.harden.settings.present import as_lines

_HOLD_COST = (
    "cost: with the hold on, an aborted transfer keeps its pages on decode until prefill says that it"
    " drained, at most T_hold (30 s unless set)"
)
_RANKS_APART = (
    "several ranks: each decode rank releases by its own count; that they agree (X1) is not in this set"
)
_RANKS_AGREE = "several ranks: they agree (X1), so every node of an engine is hardened, or none"


def as_text(outcomes: Sequence[Outcome], settings: SettingsPlan, next_step: str, with_diff: bool) -> str:
    """Every package, then the settings, then the next step, then the diffs."""
    lines: list[str] = []
    for outcome in outcomes:
        lines += [*_package(outcome), ""]
    lines += as_lines(settings)
    step = [f"next: {next_step}"] if next_step else []
    text = "\n".join(_clean(line) for line in [*lines, *step])
    if with_diff:
        seen = dict.fromkeys(o.plan.diff() for o in outcomes if o.plan is not None)
        diff = "\n".join(d for d in seen if d)
        text += f"\n\n{diff}" + "".join(f"\n{one}" for one in step if diff)
    return text.rstrip("\n") + "\n"


def _package(outcome: Outcome) -> Iterator[str]:
    yield f"{outcome.status.upper()}  {outcome.site.name()}{_engines(outcome)}"
    if outcome.why:
        yield f"  {outcome.why}"
    if outcome.plan is not None:
        yield from _plan(outcome.plan, outcome.status)
    elif outcome.fixes:
        yield f"  fixes: {', '.join(outcome.fixes)}"
    yield from (f"  {line}" for line in outcome.lines)
    yield from _restarts(outcome)


def _engines(outcome: Outcome) -> str:
    return f"  ({', '.join(outcome.site.engines)})" if outcome.site.engines else ""


def _plan(plan: Plan, status: str) -> Iterator[str]:
    if status == "unchanged":
        there = ", ".join(plan.fixes) or "every fix of the set is there already"
        yield f"  version {plan.version or 'unknown'}, base v{plan.base}; nothing to do: {there}"
        return
    if plan.refusals:
        yield f"  version {plan.version or 'unknown'}, base v{plan.base}; nothing has been changed"
        yield from (f"  {refusal}" for refusal in plan.refusals)
        return
    new = [c for c in plan.pending if c.before is None]
    gone = [c for c in plan.pending if c.after is None]
    changed = len(plan.pending) - len(new) - len(gone)
    counts = [f"{changed} change", f"{len(new)} are new", *([f"{len(gone)} go"] if gone else [])]
    done = "nothing has been changed" if status in ("planned", "refused") else status
    yield f"  version {plan.version or 'unknown'}, base v{plan.base}; files: {', '.join(counts)}; {done}"
    yield ""
    for choice in plan.choices:
        why = f" ({choice.why})" if choice.why else ""
        out = choice.fix.id in plan.taken_out
        yield f"  {choice.fix.id:6} {'TAKEN OUT' if out else choice.action:10} {choice.fix.title}{why}"
    if plan.edited:
        yield ""
    for one in plan.edited:
        added, removed = _counted(one.before, one.after)
        yield f"  {one.file:42} +{added:<3} -{removed:<3} {', '.join(one.fixes)}"
    for change in plan.pending:
        if change.before is not None and change.path in plan.restored:
            yield f"  {change.path:42} back to the original"
    if plan.payload:
        size = sum(len(text.encode()) for text in plan.payload.values())
        yield f"  srt/disaggregation/pdguard/, {len(plan.payload)} modules, {size:,} bytes: the payload"
    if any(name in plan.fixes for name in ("41404", "40645", "41402", "X1", "X2")):
        yield ""
        yield f"  {_HOLD_COST}"
        yield f"  {_RANKS_AGREE if 'X1' in plan.fixes else _RANKS_APART}"


def _counted(before: str, after: str) -> tuple[int, int]:
    """Lines added and removed."""
    import difflib

    added = removed = 0
    for line in difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0):
        added += line.startswith("+") and not line.startswith("+++")
        removed += line.startswith("-") and not line.startswith("---")
    return added, removed


def _restarts(outcome: Outcome) -> Iterator[str]:
    if not outcome.running:
        return
    changes = outcome.plan is not None and bool(outcome.plan.pending) and not outcome.plan.refusals
    sure = [r for r in outcome.running if r.sure]
    stale = [r for r in sure if r.stale or changes]
    if len(sure) < len(outcome.running):
        yield f"  {len(outcome.running) - len(sure)} engine processes here could not be looked into"
    if sure and not stale:
        yield f"  {len(sure)} processes run this package, all of them as it is on disk"
    if not stale:
        return
    shown = ", ".join(str(r.pid) for r in stale[:12])
    more = f" and {len(stale) - 12} more" if len(stale) > 12 else ""
    yield f"  restart: processes {shown}{more} keep the code that they started with until you restart them"


def _clean(text: str) -> str:
    return "".join(c if c.isprintable() or c == "\t" else "?" for c in text)
