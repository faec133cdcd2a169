"""One run of `pdguard harden`: all packages that it is about, node by node, and the settings beside them."""

from __future__ import annotations

import datetime
import os
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from pdguard.cluster.model import Cluster
from pdguard.errors import InputError, PdguardError
from pdguard.harden import agent
from pdguard.harden.answers import SetLabel
from pdguard.harden.emit import dockerfile
from pdguard.harden.operate import Operator, Wanted
from pdguard.harden.plan import TOOL, Plan
from pdguard.harden.results import Outcome, Site
from pdguard.harden.settings.model import SettingsPlan
from pdguard.harden.sites import Sites, of_cluster, of_target
from pdguard.transport.interface import Json, NodeTransport

Step = Callable[[Site, NodeTransport], Outcome]


@dataclass(slots=True)
class Job:
    """What to do, where, and how many nodes at a time."""

    wanted: Wanted
    python: str | None = None
    parallel: int = 1
    say: Callable[[str], None] = lambda _text: None
    order: tuple[str, ...] = ()
    """In which order to restart, where a cluster file tells the roles."""
    source: str = ""
    """How the targets were named, for the next step."""
    nodes: tuple[str, ...] = ()
    """The nodes that were named, where not all are meant."""
    settings: SettingsPlan = field(default_factory=SettingsPlan)
    """What should be set beside the fixes, and what could not be judged."""
    _sites: Sites = field(default_factory=lambda: Sites((), {}))
    _operator: Operator | None = None
    _cluster: Cluster | None = None

    @property
    def sites(self) -> tuple[Site, ...]:
        """The packages that were found."""
        return self._sites.sites

    @property
    def operator(self) -> Operator:
        """Made when it is needed: the catalogues take a moment to read."""
        if self._operator is None:
            self._operator = Operator(self.wanted, self.say)
        return self._operator

    def open_target(self, path: Path) -> None:
        """Work on one package of this machine."""
        self._sites = of_target(path, self.python)
        self.source = f"--target {shlex.quote(str(path))}"

    def open_cluster(self, path: Path, nodes: Sequence[str]) -> None:
        """Work on every package that the engines of a cluster file import."""
        from pdguard.cluster.loader import load_cluster

        cluster = load_cluster(path)
        self._sites = of_cluster(cluster, nodes, self.python, self.say)
        self.source, self.nodes = shlex.quote(str(path)), tuple(nodes)
        prefills = [e.name for e in cluster.engines if e.role == "prefill"]
        decodes = [e.name for e in cluster.engines if e.role == "decode"]
        self.order = (*prefills, *decodes)
        self._cluster = cluster

    def propose_settings(self, planned: Sequence[Outcome]) -> None:
        """Audit the cluster and say what should be set beside the planned fixes."""
        if self._cluster is not None:
            hardened = {name: o.fixes for o in planned for name in o.site.engines}
            self.settings = _settings(self._cluster, hardened, self.say)

    def plan(self) -> list[Outcome]:
        """The plan of every package."""
        return [*self._sites.lost, *(self.operator.plan(s, self._to(s)) for s in self.sites)]

    def apply(self, planned: Sequence[Outcome]) -> list[Outcome]:
        """Apply every plan, `parallel` nodes at a time; after the first that fails the rest is not tried."""
        by_site = {id(o.site): o for o in planned}
        return [
            *(o for o in planned if not o.site.root),
            *self._each(lambda site, to: self.operator.apply(by_site[id(site)], to)),
        ]

    def recover(self, planned: Sequence[Outcome]) -> None:
        """Take back what interrupted runs left."""
        for site in (o.site for o in planned if o.status == "interrupted"):
            self.say(f"{site.name()}: an interrupted run is taken back first")
            self.operator.rollback(site, self._to(site))

    def status(self) -> list[Outcome]:
        """What earlier runs left."""
        return [*self._sites.lost, *(self.operator.status(s, self._to(s)) for s in self.sites)]

    def verify(self) -> list[Outcome]:
        """Whether what earlier runs left holds."""
        return [*self._sites.lost, *(self.operator.verify(s, self._to(s)) for s in self.sites)]

    def rollback(self) -> list[Outcome]:
        """Put everything back."""
        return [*self._sites.lost, *self._each(self.operator.rollback)]

    def emit(self, kind: str) -> str:
        """The diff or the Dockerfile of the one plan that all packages share.

        Raises InputError where a plan is refused, or where packages differ.
        """
        planned = self.plan()
        refused = [o for o in planned if o.bad or o.plan is None]
        if refused:
            first = refused[0]
            why = first.why or (str(first.plan.refusals[0]) if first.plan else first.status)
            raise HardenRefused(f"nothing can be emitted for {first.site.name()}: {why}")
        plans = {o.plan.id: o.plan for o in planned if o.plan is not None}
        if len(plans) != 1:
            raise InputError("the packages differ", expected="one, or --node", found=f"{len(plans)} kinds")
        plan = next(iter(plans.values()))
        if not plan.edited:
            raise HardenRefused("there is nothing to emit: every fix of the set is there already")
        return plan.diff() if kind == "diff" else dockerfile(plan, _request(plan, self.wanted))

    def next_step(self, did: str, outcomes: Sequence[Outcome]) -> str:
        """What the operator does next, or nothing."""
        if any(o.status == "interrupted" for o in outcomes):
            return f"pdguard harden {self.source} --rollback"
        if any(o.bad and o.status != "not restarted" for o in outcomes):
            return ""
        statuses = {o.status for o in outcomes}
        if did == "plan" and "planned" in statuses:
            return f"pdguard harden {self.source}{self._options()} --apply"
        if statuses == {"restored"}:
            return f"restart {self._restarts()}"
        if "applied" in statuses or any(r.stale and r.sure for o in outcomes for r in o.running):
            return f"restart {self._restarts()}, then pdguard harden {self.source} --verify"
        return ""

    def _options(self) -> str:
        wanted = self.wanted
        words = [f"--backport v{wanted.base}"] if wanted.base else []
        words += ["--auto"] if wanted.auto else []
        words += [f"--only {name}" for name in wanted.only] + [f"--except {name}" for name in wanted.excluded]
        words += [f"--python {shlex.quote(self.python)}"] if self.python else []
        words += [] if wanted.exercise else ["--no-exercise"]
        words += [f"--node {name}" for name in self.nodes]
        return "".join(f" {word}" for word in words)

    def _restarts(self) -> str:
        names = ", ".join(self.order[:12]) + (" …" if len(self.order) > 12 else "")
        return f"one engine at a time, prefill first: {names}" if self.order else "the engines, prefill first"

    def _to(self, site: Site) -> NodeTransport:
        return self._sites.transports[site.node]

    def _each(self, step: Step) -> list[Outcome]:
        """One package of a node after the other, `parallel` nodes at a time, until the first that fails."""
        nodes: dict[str, list[Site]] = {}
        for site in self.sites:
            nodes.setdefault(site.node, []).append(site)
        waiting = list(nodes.values())
        done: list[Outcome] = []
        while waiting:
            group, waiting = waiting[: self.parallel], waiting[self.parallel :]
            done += self._group(group, step)
            if any(o.bad for o in done):
                why = "an earlier package failed"
                return done + [Outcome(s, "not tried", why) for sites in waiting for s in sites]
        return done

    def _group(self, group: Sequence[Sequence[Site]], step: Step) -> list[Outcome]:
        """Several nodes at once. One alone is worked on in this thread, which Ctrl-C reaches."""
        if len(group) == 1:
            return self._node(group[0], step)
        with ThreadPoolExecutor(len(group)) as pool:
            running = [pool.submit(self._node, sites, step) for sites in group]
            try:
                return [outcome for one in running for outcome in one.result()]
            except KeyboardInterrupt:
                self.say("interrupted: waiting for the nodes at work, then their packages are put back")
                for one in running:
                    for outcome in one.result():
                        if outcome.status == "applied":
                            self.operator.rollback(outcome.site, self._to(outcome.site))
                raise

    def _node(self, sites: Sequence[Site], step: Step) -> list[Outcome]:
        done: list[Outcome] = []
        for site in sites:
            failed = any(o.bad for o in done)
            done.append(
                Outcome(site, "not tried", "an earlier package failed")
                if failed
                else step(site, self._to(site))
            )
        return done


class HardenRefused(PdguardError):
    """Nothing was changed, for a reason that the operator can act on."""

    exit_code = 30


def _settings(
    cluster: Cluster, hardened: Mapping[str, Collection[str]], say: Callable[[str], None]
) -> SettingsPlan:
    """What the audit says should be set; without an answer from the engines there is nothing to say."""
    from pdguard._bundle import bundled
    from pdguard.audit import run_audit
    from pdguard.errors import NothingCollected
    from pdguard.harden.settings import load_settings, plan_settings
    from pdguard.policy.loader import load_checks

    try:
        now = datetime.datetime.now(datetime.UTC)
        audited = run_audit(cluster, load_checks(bundled("checks")), os.environ, now, say)
    except NothingCollected as error:
        say(f"no settings are proposed: {error}")
        return SettingsPlan()
    return plan_settings(audited, load_settings(bundled("remediations") / "settings"), hardened=hardened)


def _request(plan: Plan, wanted: Wanted) -> dict[str, Json]:
    return {
        "do": "apply",
        **agent.apply_request(
            SetLabel(plan.id, plan.base, TOOL, plan.fixes),
            plan.fresh,
            imports=plan.modules,
            seconds=wanted.seconds,
        ),
    }
