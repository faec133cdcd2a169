"""The work on one package: read it, plan, apply and prove, tell, verify, put back."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pdguard._bundle import bundled
from pdguard.errors import TransportError
from pdguard.exercise.model import ExerciseReport
from pdguard.exercise.runner import run_exercise
from pdguard.facts._env_tables import HOLD_ON_BY_DEFAULT
from pdguard.fingerprint.loader import load_fixes
from pdguard.fingerprint.match import Matcher
from pdguard.fingerprint.model import FixFinding, State
from pdguard.harden import agent
from pdguard.harden.answers import Applied, Processes, SetLabel, Survey, TreeState, Why
from pdguard.harden.expectations import expected, judge
from pdguard.harden.loader import load_backports, load_payload
from pdguard.harden.model import PAYLOAD_FOLDER, Backport
from pdguard.harden.plan import TOOL, Plan, Tree, find_fixes, interesting, make_plan
from pdguard.harden.results import Outcome, Running, Site
from pdguard.node.names import HOLD
from pdguard.transport.interface import NodeTransport

_KEPT = ("hardened", "partial", "edited")
"""States in which the originals of an earlier run are what counts."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the operator asked for."""

    base: str = ""
    auto: bool = False
    only: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    exercise: bool = True
    seconds: float = 600.0
    """For each longer step on a node: imports, and the exercise."""


@functools.cache
def _backports() -> tuple[Backport, ...]:
    return load_backports(bundled("remediations"))


@functools.cache
def _payload() -> Mapping[str, str]:
    return load_payload(bundled("remediations"))


@functools.cache
def _matcher() -> Matcher:
    """One for the whole process: it remembers what it found in each content."""
    return Matcher(load_fixes(bundled("remediations")))


@dataclass(slots=True)
class Operator:
    """Works on packages, one call for each; what it reads of one it remembers for the next."""

    wanted: Wanted
    say: Callable[[str], None] = lambda _text: None
    backports: tuple[Backport, ...] = field(default_factory=_backports)
    payload: Mapping[str, str] = field(default_factory=_payload)
    matcher: Matcher = field(default_factory=_matcher)
    _contents: dict[str, bytes] = field(default_factory=dict)

    def plan(self, site: Site, transport: NodeTransport) -> Outcome:
        """What would change; nothing is."""
        files = interesting(self.backports, self.matcher, self.payload)
        try:
            seen = agent.survey(transport, site.root, files, payload=PAYLOAD_FOLDER)
            stop = _stop(site, seen)
            if stop is not None:
                return stop
            tree = self._tree(transport, site, seen)
        except TransportError as error:
            return Outcome(site, "not reached", str(error))
        if isinstance(tree, Outcome):
            return tree
        wanted = self.wanted
        plan = make_plan(
            *(tree, self.backports, self.payload, self.matcher, wanted.base),
            auto=wanted.auto,
            only=wanted.only,
            excluded=wanted.excluded,
        )
        running = _running(seen.processes)
        if plan.refused:
            return Outcome(site, "refused", plan=plan, running=running, fixes=tree.hardened)
        status = "planned" if plan.pending else "unchanged"
        return Outcome(
            site, status, plan=plan, running=running, fixes=plan.fixes, lines=_warnings(site, seen, plan)
        )

    def _tree(self, transport: NodeTransport, site: Site, seen: Survey) -> Tree | Outcome:
        state = seen.state or TreeState("none")
        unread = [f for f in seen.files if f.exists and (f.why or f.sha is None)]
        if unread:
            return Outcome(site, "refused", f"{unread[0].path} cannot be read: {unread[0].why}")
        current = {f.path: f.sha if f.exists else None for f in seen.files}
        original = dict(current)
        kept = state.files if state.status in _KEPT else ()
        for row in kept:
            current[row.path], original[row.path] = row.now, row.before
        wanted = {sha for sha in original.values() if sha is not None}
        missing = [sha for sha in wanted if sha not in self._contents]
        if missing:
            paths = [path for path, sha in original.items() if sha in missing]
            self._contents.update(agent.contents(transport, site.root, missing, files=paths))
        lost = [path for path, sha in original.items() if sha is not None and sha not in self._contents]
        if lost:
            why = f"the original of {lost[0]} could not be read"
            return Outcome(site, "refused", f"{why}: run it as the owner of the package, or as root")
        return Tree(
            root=seen.real_root,
            version=seen.version or seen.dist_version,
            current=current,
            originals={p: self._contents[sha] for p, sha in original.items() if sha is not None},
            hardened=state.set.fixes if kept and state.set is not None else (),
            written={row.path: row.after for row in kept if row.after is not None},
        )

    def apply(self, planned: Outcome, transport: NodeTransport) -> Outcome:
        """Do what was planned, prove it in the engine's interpreter, and take it back where that fails."""
        site, plan = planned.site, planned.plan
        if plan is None or plan.refused:
            return planned
        label = SetLabel(plan.id, plan.base, TOOL, plan.fixes)
        if not plan.changes:
            return planned
        self.say(f"{site.name()}: {len(plan.pending)} files")
        try:
            return self._do(site, transport, plan, label, planned)
        except KeyboardInterrupt:
            self._after_interrupt(site, transport)
            raise

    def _after_interrupt(self, site: Site, transport: NodeTransport) -> None:
        """Somebody pressed Ctrl-C: nothing unproven stays, and what is there is told."""
        self.say(f"{site.name()}: interrupted, putting every file back")
        for _ in range(30):
            back = self.rollback(site, transport)
            if back.status in ("restored", "unchanged"):
                self.say(f"{site.name()}: {back.why}")
                return
            time.sleep(1)  # the run on the node may still be about to see that it was left alone
        self.say(f"{site.name()}: {back.why}. See --status, and put it back with --rollback")

    def _do(
        self, site: Site, transport: NodeTransport, plan: Plan, label: SetLabel, planned: Outcome
    ) -> Outcome:
        try:
            done = agent.apply(
                *(transport, site.root, label, plan.changes),
                python=site.python,
                imports=modules_of(plan),
                seconds=self.wanted.seconds,
            )
        except TransportError as error:
            todo = "what happened there is not known; --rollback or another --apply puts it right"
            return Outcome(site, "failed", f"{error}. {todo}", plan)
        if done.status not in ("applied", "unchanged"):
            return Outcome(site, *_ended(done), plan, planned.running, plan.fixes)
        lines = [*done.left, *_proved(site, done)]
        if done.status == "unchanged":
            return Outcome(site, "unchanged", "", plan, planned.running, plan.fixes, tuple(lines))
        failed, said = self._exercised(site, transport, plan.base, plan.fixes)
        lines.append(said)
        if failed:
            return self._taken_back(site, transport, plan, said)
        return Outcome(site, "applied", "", plan, planned.running, plan.fixes, tuple(lines))

    def _taken_back(self, site: Site, transport: NodeTransport, plan: Plan, why: str) -> Outcome:
        try:
            back = agent.rollback(transport, site.root)
        except TransportError as error:
            return Outcome(site, "failed", f"{why}; putting it back: {error}", plan)
        if back.status not in ("rolled-back", "unchanged"):
            return Outcome(site, "failed", f"{why}; putting it back: {_ended(back)[1]}", plan)
        return Outcome(site, "rolled back", why, plan)

    def _exercised(
        self, site: Site, transport: NodeTransport, base: str, fixes: Sequence[str]
    ) -> tuple[bool, str]:
        """Whether a contract that must hold does not, and what to say of it."""
        if not self.wanted.exercise:
            return False, "the exercise was left out, as asked"
        if site.python is None:
            return False, "the exercise was skipped: no interpreter is named (--python)"
        contracts = expected(b for b in self.backports if b.base == base and b.fix in fixes)
        if not contracts:
            return False, "no contract of the exercise is about these fixes"
        self.say(f"{site.name()}: {len(contracts)} contracts in {site.python}")
        report: ExerciseReport = run_exercise(
            site.python,
            str(Path(site.root).parent),
            [c.id for c in contracts],
            self.wanted.seconds,
            transport,
        )
        judged = judge(report, contracts)
        if not judged.passed and not judged.broken:
            why = judged.not_run[0].why if judged.not_run else "none was run"
            todo = "name the engine's own interpreter (--python), or say --no-exercise"
            return True, f"exercise: {site.python} proves nothing ({why}); {todo}"
        return bool(judged.broken), f"exercise: {judged.text()}"

    def status(self, site: Site, transport: NodeTransport) -> Outcome:
        """What an earlier run left, and what runs it."""
        try:
            seen = agent.survey(transport, site.root, (), payload=PAYLOAD_FOLDER)
        except TransportError as error:
            return Outcome(site, "not reached", str(error))
        if seen.status != "found":
            return Outcome(site, "refused", _why(seen.why))
        state = seen.state or TreeState("none")
        if state.status == "none" and seen.payload:
            why = "pdguard's payload is here without its notes: it came by a diff, and goes by `patch -R`"
            return Outcome(site, "stock", why, running=_running(seen.processes))
        return _told(site, state, _running(seen.processes))

    def verify(self, site: Site, transport: NodeTransport) -> Outcome:
        """Every file read again, fingerprints, the exercise, and the processes."""
        files = interesting((), self.matcher, ())
        try:
            found = agent.verify(transport, site.root)
            if found.status in ("refused", "failed"):
                return Outcome(site, "refused", _why(found.why))
            state = found.state or TreeState("none")
            running = _running(found.processes)
            told = _told(site, state, running)
            if found.status == "none" or told.bad:
                return told
            fixes = self._fixes(transport, site, files)
        except TransportError as error:
            return Outcome(site, "not reached", str(error))
        states = {f.fix.id: f.state for f in fixes}
        partial = {b.fix for b in self.backports if b.partial}
        applied = state.set.fixes if state.set is not None else ()
        good = {
            n: states.get(n) is State.PRESENT or (n in partial and states.get(n) is State.PARTIAL)
            for n in applied
        }
        base = state.set.base if state.set is not None else ""
        lines = [f"{len(state.files)} files are as they were written", *hold_note(base, applied)]
        lines += [f"{row.path} is {row.why}" for row in found.bytecode]
        lines.append(f"fingerprints: {sum(good.values())} of {len(good)} fixes are recognised")
        lost = [name for name, ok in good.items() if not ok]
        failed, said = self._exercised(
            site, transport, state.set.base if state.set is not None else "", applied
        )
        lines.append(said)
        why = f"{lost[0]} is not recognised any more" if lost else said if failed else ""
        status = "edited" if lost or found.status == "differs" else "unproven" if failed else "verified"
        if status == "verified" and any(r.stale and r.sure for r in running):
            status, why = "not restarted", "the files are right, and processes run the code of before"
        return Outcome(site, status, why, None, running, applied, tuple(lines))

    def _fixes(self, transport: NodeTransport, site: Site, files: Sequence[str]) -> tuple[FixFinding, ...]:
        seen = agent.survey(transport, site.root, files, processes=False)
        hashes = {f.path: f.sha for f in seen.files if f.exists and f.sha is not None}
        missing = [sha for sha in hashes.values() if sha not in self._contents]
        self._contents.update(agent.contents(transport, site.root, missing, files=list(hashes)))
        return find_fixes(
            self.matcher, {p: self._contents[s] for p, s in hashes.items() if s in self._contents}
        )

    def rollback(self, site: Site, transport: NodeTransport) -> Outcome:
        """Put every file back as it was before the first change."""
        try:
            before = agent.survey(transport, site.root, ())
            done = agent.rollback(transport, site.root)
        except TransportError as error:
            return Outcome(site, "not reached", str(error))
        fixes = before.state.set.fixes if before.state is not None and before.state.set is not None else ()
        running = _running(before.processes)
        if done.status == "unchanged":
            return Outcome(site, "unchanged", "pdguard has changed nothing here")
        if done.status != "rolled-back":
            return Outcome(site, *_ended(done))
        changed = tuple(Running(r.pid, r.title, True, r.sure) for r in running)
        files = len(done.done.replaced) + len(done.done.created) + len(done.done.removed) if done.done else 0
        what = f"{files} files are as they came" if files else "an interrupted run was taken back"
        return Outcome(site, "restored", what, None, changed, fixes, done.left)


def _stop(site: Site, seen: Survey) -> Outcome | None:
    """Why no plan can be made."""
    if seen.status != "found":
        return Outcome(site, "refused", _why(seen.why))
    state = seen.state or TreeState("none")
    if state.running is not None:
        return Outcome(site, "refused", f"another run works on it now (process {state.running or 'unknown'})")
    if state.interrupted:
        return Outcome(site, "interrupted", "an earlier run was cut off: --rollback puts every file back")
    told = _told(site, state, ())
    return told if state.status in ("edited", "broken") else None


def _told(site: Site, state: TreeState, running: tuple[Running, ...]) -> Outcome:
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


def _running(processes: Processes | None) -> tuple[Running, ...]:
    """The engines that import this very package, also where that is not known for sure."""
    if processes is None:
        return ()
    seen = (p for p in processes.seen if p.same_tree is not False)
    return tuple(Running(p.pid, p.title, bool(p.older), p.same_tree is True) for p in seen)


def _warnings(site: Site, seen: Survey, plan: Plan) -> tuple[str, ...]:
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


def modules_of(plan: Plan) -> list[str]:
    """What to import: every module that gets a seam."""
    return ["sglang." + one.file.removesuffix(".py").replace("/", ".") for one in plan.edited]


def _proved(site: Site, done: Applied) -> Iterable[str]:
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


def _ended(done: Applied) -> tuple[str, str]:
    """Status and reason of a run that changed nothing, or was taken back."""
    words = {"refused": "refused", "rolled-back": "rolled back", "failed": "failed"}
    troubles = "; ".join(_why(one) for one in done.troubles)
    return words.get(done.status, "failed"), troubles or _why(done.why)


def _why(why: Why | None) -> str:
    if why is None:
        return "the node did not say why"
    text = why.what
    for word, part in (("", why.path), ("expected ", why.expected), ("found ", why.found)):
        text += f", {word}{part}" if part else ""
    return f"{text}. {why.todo}" if why.todo else text
