"""Judges facts: every check on every target, three-valued, with the grade and evidence behind it.

A finding is as strong as the weakest fact that decided it. A fact decided where the verdict becomes unknown
without it; where several facts each suffice (an `or` of proofs), the strongest of them counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pdguard.facts.catalogue import spec
from pdguard.facts.interface import Collected, Evidence, Fact, FactSet, Grade, PairSubject, Subject
from pdguard.policy.expression import Expression, ExpressionError, Ref
from pdguard.policy.message import Message
from pdguard.policy.model import Check, Finding, Status

_Values = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class _Verdict:
    status: Status
    deciding: tuple[Ref, ...] = ()
    lacking: tuple[Ref, ...] = ()
    broken: str = ""


class Judge:
    """One check, compiled; verdicts are remembered by the values they rest on."""

    def __init__(self, check: Check) -> None:
        self.check = check
        self.when = Expression(check.when)
        self.fail_if = Expression(check.fail_if)
        self.message = Message(check.message)
        self.fix = tuple(Message(step) for step in check.fix)
        self.refs: tuple[Ref, ...] = tuple(dict.fromkeys((*self.when.refs, *self.fail_if.refs)))
        self._memo: dict[_Values, _Verdict] = {}

    def verdict(self, values: Mapping[Ref, object]) -> _Verdict:
        """The verdict on the known `values` of this check's facts."""
        key = tuple(values.get(r) for r in self.refs)
        found = self._memo.get(key)
        if found is None:
            found = self._memo[key] = self._decide(values)
        return found

    def _decide(self, values: Mapping[Ref, object]) -> _Verdict:
        try:
            applies = self.when.evaluate(values)
            failed = None if applies is False else self.fail_if.evaluate(values)
        except ExpressionError as error:
            return _Verdict(Status.UNKNOWN, broken=str(error))
        if applies is False:
            return _Verdict(Status.SKIPPED, self._deciding(self.when, values))
        if applies is None:
            # Where nothing could fail, it does not matter whether the check applies.
            if failed is False:
                return _Verdict(Status.PASS, self._deciding(self.fail_if, values))
            return _Verdict(Status.UNKNOWN, lacking=_absent(self.when, values))
        if failed is None:
            return _Verdict(Status.UNKNOWN, lacking=_absent(self.fail_if, values))
        status = Status.FAIL if failed else Status.PASS
        return _Verdict(status, self._deciding(self.fail_if, values))

    def _deciding(self, expression: Expression, values: Mapping[Ref, object]) -> tuple[Ref, ...]:
        present = [r for r in expression.refs if r in values and r[0] != "policy"]
        decided = []
        for ref in present:
            without = {k: v for k, v in values.items() if k != ref}
            if expression.evaluate(without) is None:
                decided.append(ref)
        return tuple(decided)


def _absent(expression: Expression, values: Mapping[Ref, object]) -> tuple[Ref, ...]:
    return tuple(r for r in expression.refs if r not in values)


class _Scope:
    """The facts that a check on one target may use."""

    __slots__ = ("_policy", "_roots", "engines", "name", "suffix")

    def __init__(
        self, name: str, roots: Mapping[str, FactSet], policy: Mapping[str, object], engines: Sequence[str]
    ) -> None:
        self.name, self._roots, self._policy, self.engines = name, roots, policy, tuple(engines)
        self.suffix = ""

    def fact(self, ref: Ref) -> Fact | None:
        facts = self._roots.get(ref[0])
        return None if facts is None else facts.get(ref[1])

    def value(self, ref: Ref) -> object:
        if ref[0] == "policy":
            return self._policy.get(ref[1])
        fact = self.fact(ref)
        return None if fact is None else fact.value

    def known(self, refs: Iterable[Ref]) -> dict[Ref, object]:
        values = ((r, self.value(r)) for r in refs)
        return {r: v for r, v in values if v is not None}

    def lacks(self, ref: Ref) -> str:
        """`engine.t_hold: why it is missing; how to get it`."""
        facts = self._roots.get(ref[0])
        missing = None if facts is None else facts.why_missing(ref[1])
        entry = spec(*ref)
        reason = missing.reason if missing else (f"{entry.meaning}: not known" if entry else "not known")
        how = (missing.how if missing else "") or (entry.how if entry else "")
        return f"{ref[0]}.{ref[1]}: {reason}" + (f"; {how}" if how else "")


def evaluate(checks: Iterable[Check], collected: Collected) -> list[Finding]:
    """Every check on every target it is about, in the order of checks and targets."""
    scopes = {kind: list(_scopes(kind, collected)) for kind in ("prefill", "decode", "engine", "pair")}
    scopes |= {kind: list(_scopes(kind, collected)) for kind in ("router", "node", "cluster")}
    findings: list[Finding] = []
    for check in checks:
        judge = Judge(check)
        findings.extend(_finding(judge, scope) for scope in scopes[check.for_each])
    return findings


def _scopes(kind: str, collected: Collected) -> Iterator[_Scope]:
    shared = {"cluster": collected.cluster.facts}
    policy = collected.policy
    if kind == "cluster":
        yield _Scope(collected.cluster.name, shared, policy, ())
    elif kind == "pair":
        for pair in collected.pairs:
            yield _pair_scope(pair, shared, policy)
    elif kind in ("router", "node"):
        for subject in collected.routers if kind == "router" else collected.nodes:
            yield _Scope(subject.name, shared | {kind: subject.facts}, policy, ())
    else:
        for engine in collected.engines:
            if kind == "engine" or role_of(engine) == kind:
                yield _Scope(engine.name, shared | {"engine": engine.facts}, policy, (engine.name,))


def _pair_scope(pair: PairSubject, shared: Mapping[str, FactSet], policy: Mapping[str, object]) -> _Scope:
    halves = {"pair": pair.facts, "prefill": pair.prefill.facts, "decode": pair.decode.facts}
    scope = _Scope(pair.name, {**shared, **halves}, policy, (pair.prefill.name, pair.decode.name))
    if pair.alike > 1:
        scope.suffix = f" (and {pair.alike - 1:,} pairs alike)"
    return scope


def role_of(engine: Subject) -> str | None:
    """The role an engine has now, or the one in cluster.yaml where it did not say."""
    return engine.facts.text("role") or engine.facts.text("declared_role")


def _finding(judge: Judge, scope: _Scope) -> Finding:
    check = judge.check
    verdict = judge.verdict(scope.known(judge.refs))
    grade, evidence = _behind(verdict, judge, scope)
    missing = tuple(scope.lacks(r) for r in verdict.lacking)
    message = check.title
    if verdict.status is Status.FAIL:
        message = judge.message.fill(scope.value) + scope.suffix
    elif verdict.broken:
        missing = (f"{check.id}: {verdict.broken}",)
    return Finding(
        check=check.id,
        title=check.title,
        gate=check.gate,
        severity=check.severity,
        status=verdict.status,
        grade=grade,
        target=scope.name,
        message=message,
        missing=missing,
        evidence=evidence,
        fix=tuple(step.fill(scope.value) for step in judge.fix),
        refs=check.refs,
        engines=scope.engines,
    )


def _behind(verdict: _Verdict, judge: Judge, scope: _Scope) -> tuple[Grade | None, tuple[Evidence, ...]]:
    if verdict.status is Status.UNKNOWN:
        return None, ()
    deciding = [f for f in map(scope.fact, verdict.deciding) if f is not None]
    facts = deciding or [f for f in map(scope.fact, judge.fail_if.refs) if f is not None]
    if not facts:
        return None, ()
    grades = [f.grade for f in facts]
    evidence: dict[Evidence, None] = {}
    for fact in facts:
        evidence.update(dict.fromkeys(fact.evidence))
    return (min if deciding else max)(grades), tuple(evidence)
