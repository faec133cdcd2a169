"""What a node's answers come to, in words: states, reasons, warnings, what was proven."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pdguard.facts._env_tables import HOLD_ON_BY_DEFAULT
from pdguard.harden.answers import Applied, Processes, Survey, TreeState, Why
from pdguard.harden.plan import Plan
from pdguard.harden.results import Outcome, Running, Site
from pdguard.node.names import HOLD


def stopped(site: Site, seen: Survey) -> Outcome | None:
    """Why no plan can be made."""
    if seen.status != "found":
        return Outcome(site, "refused", reason(seen.why))
    state = seen.state or TreeState("none")
    if state.running is not None:
        return Outcome(site, "refused", f"another run works on it now (process {state.running or 'unknown'})")
    if state.interrupted:
        return Outcome(site, "interrupted", "an earlier run was cut off: --rollback puts every file back")
    told = told_of(site, state, ())
    return told if state.status in ("edited", "broken") else None


def told_of(site: Site, state: TreeState, running: tuple[Running, ...]) -> Outcome:
    """What an earlier run left in a package, and whether that is as it should be."""
    fixes = state.set.fixes if state.set is not None else ()
    if state.interrupted:
        return Outcome(site, "interrupted", "a run was cut off: --rollback puts every file back", fixes=fixes)
    if state.status == "none":
        return Outcome(site, "stock", "pdguard has changed nothing here", running=running)
    if state.status == "replaced":
        why = "it was installed anew since; what pdguard had put in is gone"
        return Outcome(site, "stock", why, running=running)
    if state.status == "broken":
        return Outcome(site, "edited", f"what pdguard noted there cannot be read ({state.why})")
    wrong = [row for row in state.files if row.match != "after"]
    if wrong:
        first = wrong[0]
        found = "the original" if first.match == "before" else "neither its own nor the original"
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        why = f"{first.path} was changed since pdguard wrote it and is {found}{more}"
        return Outcome(site, "edited", why, None, running, fixes)
    by = state.set.tool if state.set is not None else "pdguard"
    lines = hold_note(state.set.base, fixes) if state.set is not None else ()
    return Outcome(site, "hardened", f"by {by}, {len(state.files)} files", None, running, fixes, lines)


def hold_note(base: str, fixes: Sequence[str]) -> tuple[str, ...]:
    """What has to be set for the fixes of the hold to do anything, where the release ships it off."""
    release = tuple(int(n) for n in base.split(".")) if base.replace(".", "").isdigit() else ()
    if not {"40645", "41402", "41404"} & set(fixes) or not release or release >= HOLD_ON_BY_DEFAULT:
        return ()
    return (
        f"the hold is off in {base} unless {HOLD}=1 on prefill and decode: without it its fixes do nothing",
    )


def running_of(processes: Processes | None) -> tuple[Running, ...]:
    """The engines that import this very package, also where that is not known for sure."""
    if processes is None:
        return ()
    seen = (p for p in processes.seen if p.same_tree is not False)
    return tuple(Running(p.pid, p.title, bool(p.older), p.same_tree is True) for p in seen)


def warnings_of(site: Site, seen: Survey, plan: Plan) -> tuple[str, ...]:
    """What the operator should know before applying a plan."""
    lines = []
    if not seen.may_write:
        lines.append("this user may not write there: run --apply as its owner or root")
    if seen.read_only:
        lines.append("it is on a read-only file system: use --emit dockerfile")
    if seen.root != seen.real_root:
        lines.append(f"it is a link to {seen.real_root}: every environment that links there changes with it")
    touched = {c.path for c in plan.pending}
    shared = [f.path for f in seen.files if f.path in touched and (f.nlink > 1 or f.link is not None)]
    if shared:
        lines.append(
            f"{len(shared)} of the files are shared with another environment, which keeps them as they are"
        )
    lines += hold_note(plan.base, plan.fixes)
    if site.python is None:
        lines.append("no interpreter is named: import and exercise would be skipped (--python)")
    return tuple(lines)


def proofs_of(site: Site, done: Applied) -> Iterable[str]:
    """What the interpreter showed of the changed files."""
    if done.python is None:
        return
    yield f"compiled: {len(done.python.compiled)} files, by Python {done.python.version}"
    if site.python is None:
        yield "imported: nothing, as no interpreter is named (--python)"
    elif done.python.lost:
        names = (
            f"{len(done.python.lost)} could not be imported before the change either ({done.python.lost[0]})"
        )
        yield f"imported: {len(done.python.imported)} modules; {names}, so nothing follows from them"
    else:
        yield f"imported: {len(done.python.imported)} modules"
    if done.recovered:
        yield "an interrupted run was put right first"


def ended(done: Applied) -> tuple[str, str]:
    """Status and reason of a run that changed nothing, or was taken back."""
    words = {"refused": "refused", "rolled-back": "rolled back", "failed": "failed"}
    troubles = "; ".join(reason(one) for one in done.troubles)
    return words.get(done.status, "failed"), troubles or reason(done.why)


def reason(why: Why | None) -> str:
    """A node's reason in one line."""
    if why is None:
        return "the node did not say why"
    text = why.what
    for word, part in (("", why.path), ("expected ", why.expected), ("found ", why.found)):
        text += f", {word}{part}" if part else ""
    return f"{text}. {why.todo}" if why.todo else text
