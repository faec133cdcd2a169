"""Which settings an audited cluster needs: every setting on every engine of its roles, kept or proposed."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from pdguard.cluster.model import Policy
from pdguard.facts.deriving import version_of
from pdguard.facts.environment import parse_environment
from pdguard.facts.interface import Collected, FactSet, Scalar, Subject
from pdguard.harden.settings.diffs import change
from pdguard.harden.settings.model import Proposal, Setting, SettingsPlan, Skipped
from pdguard.harden.settings.places import Launch
from pdguard.harden.settings.values import COMPUTED, Audience, Computed
from pdguard.policy.evaluate import role_of
from pdguard.policy.expression import Expression, Ref
from pdguard.policy.message import Message
from pdguard.policy.model import AuditResult, Finding, Status

ON = "on"
NUMBERS = ("t_hold_min", "t_hold_max", "extreme_context")


class _Case:
    """What is asked about, and everything that the answer depends on."""

    def __init__(
        self,
        audience: Audience,
        findings: Sequence[Finding] | None,
        launches: Mapping[str, Launch],
        hardened: Mapping[str, Collection[str]],
    ) -> None:
        self.audience, self.launches, self.hardened = audience, launches, hardened
        self.judged = findings is not None
        self.engines = {e.name: e for e in audience.engines}
        self.states: dict[str, set[Status]] = defaultdict(set)
        self._failed: dict[str, list[Finding]] = defaultdict(list)
        self._of_all: list[Finding] = []
        for finding in findings or ():
            self.states[finding.check].add(finding.status)
            if finding.status is Status.FAIL:
                for engine in finding.engines:
                    self._failed[engine].append(finding)
                if not finding.engines:
                    self._of_all.append(finding)

    @functools.cached_property
    def unset(self) -> tuple[Audience, Mapping[str, Subject]]:
        """The engines as they would be with nothing set in an environment that was not read."""
        engines = {name: _unset(e) for name, e in self.engines.items()}
        return Audience(tuple(engines.values()), self.audience.policy), engines

    @functools.cached_property
    def nobody_truncates(self) -> bool:
        """A half that truncates refuses nothing, so that the tokenizers do not refuse alike."""
        return all(e.facts.flag("auto_truncate") is False for e in self.audience.engines)

    def failed(self, engine: str, checks: Collection[str]) -> tuple[tuple[str, str], ...]:
        """Failed findings about the engine, or about a cluster or a router as a whole."""
        found = (f for f in (*self._of_all, *self._failed[engine]) if f.check in checks)
        return tuple(sorted({(f.check, f.target) for f in found}))


def propose(
    audited: AuditResult | Collected,
    settings: Sequence[Setting],
    launches: Mapping[str, Launch] | None = None,
    hardened: Mapping[str, Collection[str]] | None = None,
) -> tuple[Proposal, ...]:
    """The changes of `plan_settings` alone."""
    return plan_settings(audited, settings, launches, hardened).proposals


def plan_settings(
    audited: AuditResult | Collected,
    settings: Sequence[Setting],
    launches: Mapping[str, Launch] | None = None,
    hardened: Mapping[str, Collection[str]] | None = None,
) -> SettingsPlan:
    """What to set on which engine, in the order of settings and engines.

    With an AuditResult only settings that a failed finding asks for are proposed (an unknown one too, where
    the value in force is not known); with bare facts, every setting that is not as it should be. `launches`
    tells more of an engine's start than its facts do, by engine name. `hardened` names fixes, by engine, that
    the same plan puts in.
    """
    engines = tuple(
        e
        for e in audited.engines
        if role_of(e) in ("prefill", "decode") and e.facts.flag("in_pair") is not False
    )
    findings = audited.findings if isinstance(audited, AuditResult) else None
    case = _Case(Audience(engines, _numbers(audited.policy)), findings, launches or {}, hardened or {})
    proposals: list[Proposal] = []
    skipped: list[Skipped] = []
    for setting in sorted(settings, key=lambda s: bool(s.follows)):
        lead = {p.engine for p in proposals if p.setting == setting.follows}
        found = _whole(setting, [_one(setting, e, case) for e in engines if role_of(e) in setting.roles])
        wanted = [o for o in found if _asked_for(setting, o, case, lead)]
        made = [o for o in wanted if isinstance(o, Proposal)]
        skipped += [o for o in wanted if isinstance(o, Skipped)]
        proposals += _with_others(setting, made, case)
    order = {e.name: i for i, e in enumerate(engines)}
    return SettingsPlan(
        tuple(sorted(proposals, key=lambda p: (p.setting, order[p.engine]))),
        tuple(sorted(skipped, key=lambda s: (s.setting, order[s.engine]))),
    )


def _numbers(policy: Mapping[str, object]) -> dict[str, Scalar]:
    defaults = Policy()
    given = {n: policy.get(n) for n in NUMBERS}
    return {n: v if isinstance(v, int | float) else getattr(defaults, n) for n, v in given.items()}


Outcome = Proposal | Skipped | None


def _one(setting: Setting, engine: Subject, case: _Case) -> Outcome:
    """The proposal for one engine, the reason why there is none, or None where all is well."""
    exists = _exists(setting, engine, case)
    if exists is not True:
        reason = setting.exists_else if exists is False else "whether this engine knows it is not known"
        return Skipped(engine.name, setting.id, Message(reason).fill(lambda r: engine.facts.value(r[1])))
    computed = _value(setting, engine, case.audience)
    if not computed.value:
        return Skipped(engine.name, setting.id, computed.why)
    good = computed.good
    if good is None:
        audience, engines = case.unset
        if _value(setting, engines[engine.name], audience).good is True:
            why = "the value in force is not known; where it is not set, the default will do"
            return Skipped(engine.name, setting.id, why)
    if good is True:
        return None
    made = change(setting, ON if setting.switch else computed.value, engine, case.launches.get(engine.name))
    return Proposal(
        engine=engine.name,
        role=role_of(engine) or "",
        setting=setting.id,
        title=setting.title,
        target=setting.target,
        current=made.current,
        current_from=made.current_from,
        new=ON if setting.switch else computed.value,
        sure=good is False,
        why=computed.why or setting.why,
        closes=(),
        eases=(),
        closes_admission_alone=False,
        together=(),
        optional=setting.optional,
        cost=setting.cost,
        order=setting.order,
        place=made.place,
        before=made.before,
        after=made.after,
        notes=made.notes,
    )


def _exists(setting: Setting, engine: Subject, case: _Case) -> bool | None:
    if set(setting.also_with) & set(case.hardened.get(engine.name, ())):
        return True
    return _holds(setting.exists_if, engine.facts, case.audience.policy)


def _value(setting: Setting, engine: Subject, audience: Audience) -> Computed:
    if setting.computed:
        return COMPUTED[setting.computed](engine, audience)
    return Computed(setting.literal, "", _holds(setting.good_if, engine.facts, audience.policy))


@functools.lru_cache(maxsize=256)
def _compiled(text: str) -> Expression:
    return Expression(text)


def _holds(text: str, facts: FactSet, policy: Mapping[str, Scalar]) -> bool | None:
    expression = _compiled(text)
    values: dict[Ref, object] = {}
    for ref in expression.refs:
        value = policy.get(ref[1]) if ref[0] == "policy" else facts.value(ref[1])
        if value is not None:
            values[ref] = value
    return expression.evaluate(values)


def _unset(engine: Subject) -> Subject:
    """The engine as it would be with nothing set in its environment, where that was not read."""
    facts = FactSet(dict(engine.facts.entries))
    parse_environment({}, version_of(facts)).put(facts, "default", "unset")
    return Subject(engine.kind, engine.name, facts)


def _whole(setting: Setting, found: list[Outcome]) -> list[Outcome]:
    """Where a setting needs every engine and one cannot have it, no engine gets it."""
    missing = [o for o in found if isinstance(o, Skipped)]
    if not setting.needs_all or not missing:
        return found
    why = f"every engine of both roles needs it, and {missing[0].engine} cannot: {missing[0].reason}"
    return [
        Skipped(o.engine, setting.id, why) if isinstance(o, Proposal) and o.engine != missing[0].engine else o
        for o in found
    ]


def _asked_for(setting: Setting, outcome: Outcome, case: _Case, lead: Collection[str]) -> bool:
    """Whether a finding names the setting, or the setting that this one follows is proposed."""
    if outcome is None:
        return False
    if not case.judged or outcome.engine in lead:
        return True
    checks = {c.check for c in setting.closes} | set(setting.eases)
    states = {s for check in checks for s in case.states.get(check, ())}
    unsure = isinstance(outcome, Skipped) or not outcome.sure
    return Status.FAIL in states or (unsure and Status.UNKNOWN in states)


def _with_others(setting: Setting, made: Sequence[Proposal], case: _Case) -> Iterator[Proposal]:
    """The proposals of a setting with the findings that each closes and the engines that need the same."""
    names = tuple(p.engine for p in made) if setting.together else ()
    for one in made:
        facts = case.engines[one.engine].facts
        closes = {
            c.check
            for c in setting.closes
            if not c.only_if or _holds(c.only_if, facts, case.audience.policy) is True
        }
        eases = ({c.check for c in setting.closes} | set(setting.eases)) - closes
        yield replace(
            one,
            closes=case.failed(one.engine, closes),
            eases=case.failed(one.engine, eases),
            closes_admission_alone=setting.closes_admission_alone and case.nobody_truncates,
            together=names,
        )
