"""The work on one package: read it, plan, apply and prove, tell, verify, put back."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pdguard._bundle import bundled
from pdguard.errors import TransportError
from pdguard.exercise.model import ExerciseReport
from pdguard.exercise.runner import run_exercise
from pdguard.fingerprint.loader import load_fixes
from pdguard.fingerprint.match import Matcher
from pdguard.fingerprint.model import FixFinding
from pdguard.harden import agent
from pdguard.harden.answers import SetLabel, Survey, TreeState
from pdguard.harden.expectations import expected, judge
from pdguard.harden.loader import load_backports, load_payload
from pdguard.harden.model import PAYLOAD_FOLDER, Backport
from pdguard.harden.plan import TOOL, Plan, Tree, find_fixes, interesting, make_plan
from pdguard.harden.results import Outcome, Running, Site
from pdguard.harden.telling import (
    ended,
    hold_note,
    proofs_of,
    reason,
    running_of,
    stopped,
    told_of,
    warnings_of,
)
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
            stop = stopped(site, seen)
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
        running = running_of(seen.processes)
        if plan.refused:
            return Outcome(site, "refused", plan=plan, running=running, fixes=tree.hardened)
        status = "planned" if plan.pending else "unchanged"
        return Outcome(
            site, status, plan=plan, running=running, fixes=plan.fixes, lines=warnings_of(site, seen, plan)
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
        originals = self._fetched(transport, site, original)
        lost = [path for path, sha in original.items() if sha is not None and path not in originals]
        if lost:
            why = f"the original of {lost[0]} could not be read"
            return Outcome(site, "refused", f"{why}: run it as the owner of the package, or as root")
        return Tree(
            root=seen.real_root,
            version=seen.version or seen.dist_version,
            current=current,
            originals=originals,
            hardened=state.set.fixes if kept and state.set is not None else (),
            written={row.path: row.after for row in kept if row.after is not None},
        )

    def _fetched(
        self, transport: NodeTransport, site: Site, hashes: Mapping[str, str | None]
    ) -> dict[str, bytes]:
        """Contents by path, each hash asked for once; what the node does not give is left out."""
        missing = {p: sha for p, sha in hashes.items() if sha is not None and sha not in self._contents}
        if missing:
            found = agent.contents(transport, site.root, list(missing.values()), files=list(missing))
            self._contents.update(found)
        return {p: self._contents[sha] for p, sha in hashes.items() if sha in self._contents}

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
                imports=plan.modules,
                seconds=self.wanted.seconds,
            )
        except TransportError as error:
            todo = "what happened there is not known; --rollback or another --apply puts it right"
            return Outcome(site, "failed", f"{error}. {todo}", plan)
        if done.status not in ("applied", "unchanged"):
            return Outcome(site, *ended(done), plan, planned.running, plan.fixes)
        lines = [*done.left, *proofs_of(site, done)]
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
            return Outcome(site, "failed", f"{why}; putting it back: {ended(back)[1]}", plan)
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
            return Outcome(site, "refused", reason(seen.why))
        state = seen.state or TreeState("none")
        if state.status == "none" and seen.payload:
            why = "pdguard's payload is here without its notes: it came by a diff, and goes by `patch -R`"
            return Outcome(site, "stock", why, running=running_of(seen.processes))
        return told_of(site, state, running_of(seen.processes))

    def verify(self, site: Site, transport: NodeTransport) -> Outcome:
        """Every file read again, fingerprints, the exercise, and the processes."""
        files = interesting((), self.matcher, ())
        try:
            found = agent.verify(transport, site.root)
            if found.status in ("refused", "failed"):
                return Outcome(site, "refused", reason(found.why))
            state = found.state or TreeState("none")
            running = running_of(found.processes)
            told = told_of(site, state, running)
            if found.status == "none" or told.bad:
                return told
            fixes = self._fixes(transport, site, files)
        except TransportError as error:
            return Outcome(site, "not reached", str(error))
        states = {f.fix.id: f.state for f in fixes}
        applied, base = (state.set.fixes, state.set.base) if state.set is not None else ((), "")
        by_id = {b.fix: b for b in self.backports if b.base == base}
        good = {n: n in by_id and n in states and by_id[n].is_in(states[n]) for n in applied}
        lines = [f"{len(state.files)} files are as they were written", *hold_note(base, applied)]
        lines += [f"{row.path} is {row.why}" for row in found.bytecode]
        lines.append(f"fingerprints: {sum(good.values())} of {len(good)} fixes are recognised")
        lost = [name for name, ok in good.items() if not ok]
        failed, said = self._exercised(site, transport, base, applied)
        lines.append(said)
        why = f"{lost[0]} is not recognised any more" if lost else said if failed else ""
        status = "edited" if lost or found.status == "differs" else "unproven" if failed else "verified"
        if status == "verified" and any(r.stale and r.sure for r in running):
            status, why = "not restarted", "the files are right, and processes run the code of before"
        return Outcome(site, status, why, None, running, applied, tuple(lines))

    def _fixes(self, transport: NodeTransport, site: Site, files: Sequence[str]) -> tuple[FixFinding, ...]:
        seen = agent.survey(transport, site.root, files, processes=False)
        hashes = {f.path: f.sha if f.exists else None for f in seen.files}
        return find_fixes(self.matcher, self._fetched(transport, site, hashes))

    def rollback(self, site: Site, transport: NodeTransport) -> Outcome:
        """Put every file back as it was before the first change."""
        try:
            before = agent.survey(transport, site.root, ())
            done = agent.rollback(transport, site.root)
        except TransportError as error:
            return Outcome(site, "not reached", str(error))
        fixes = before.state.set.fixes if before.state is not None and before.state.set is not None else ()
        running = running_of(before.processes)
        if done.status == "unchanged":
            return Outcome(site, "unchanged", "pdguard has changed nothing here")
        if done.status != "rolled-back":
            return Outcome(site, *ended(done))
        changed = tuple(Running(r.pid, r.title, True, r.sure) for r in running)
        files = len(done.done.replaced) + len(done.done.created) + len(done.done.removed) if done.done else 0
        what = f"{files} files are as they came" if files else "an interrupted run was taken back"
        return Outcome(site, "restored", what, None, changed, fixes, done.left)
