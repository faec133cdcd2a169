"""Judges facts: every check on every target, three-valued, with the grade and evidence behind it.

A finding is as strong as the weakest fact that it needs. Where several sets of facts each suffice (an `or` of
proofs), the set whose weakest fact is strongest counts. Whether a check applies is part of its verdict.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pdguard.facts.catalogue import spec
from pdguard.facts.interface import Collected, Evidence, Fact, FactSet, Grade, PairSubject, Subject
from pdguard.policy.expression import Expression, ExpressionError, Ref
from pdguard.policy.message import Message
from pdguard.policy.model import Check, Finding, Status

_Values = tuple[object, ...]

_LEAD = {
    Status.FAIL: "",
    Status.PASS: "not so here",
    Status.UNKNOWN: "could not be judged",
    Status.SKIPPED: "does not apply",
}
MAX_PROOF = 4
"""Facts beyond the indispensable ones that a proof is looked for among."""


@dataclass(frozen=True, slots=True)
class _Verdict:
    status: Status
    proofs: tuple[tuple[Ref, ...], ...] = ()
    """Smallest sets of facts that each give this verdict by themselves."""
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
            status = self._status(values)
            if status is Status.UNKNOWN:
                return _Verdict(status, lacking=self._lacking(values))
            return _Verdict(status, self._proofs(values, status))
        except ExpressionError as error:
            return _Verdict(Status.UNKNOWN, broken=str(error))

    def _status(self, values: Mapping[Ref, object]) -> Status:
        applies = self.when.evaluate(values)
        if applies is False:
            return Status.SKIPPED
        failed = self.fail_if.evaluate(values)
        if failed is False:
            return Status.PASS  # whether it applies does not matter where nothing could fail
        return Status.UNKNOWN if applies is None or failed is None else Status.FAIL

    def _lacking(self, values: Mapping[Ref, object]) -> tuple[Ref, ...]:
        return _absent(self.when if self.when.evaluate(values) is None else self.fail_if, values)

    def _proofs(self, values: Mapping[Ref, object], status: Status) -> tuple[tuple[Ref, ...], ...]:
        present = [r for r in self.refs if r in values and r[0] != "policy"]
        given = {r: v for r, v in values.items() if r[0] == "policy"}

        def suffices(refs: Iterable[Ref]) -> bool:
            return self._status(given | {r: values[r] for r in refs}) is status

        needed = [r for r in present if not suffices(p for p in present if p != r)]
        if suffices(needed):
            return (tuple(needed),)
        others = [r for r in present if r not in needed]
        proofs: list[tuple[Ref, ...]] = []
        for size in range(1, min(len(others), MAX_PROOF) + 1):
            for some in itertools.combinations(others, size):
                if not any(set(p) <= {*needed, *some} for p in proofs) and suffices([*needed, *some]):
                    proofs.append((*needed, *some))
        return tuple(proofs) or (tuple(present),)


def _absent(expression: Expression, values: Mapping[Ref, object]) -> tuple[Ref, ...]:
    return tuple(r for r in expression.refs if r not in values)


class _Scope:
    """The facts that a check on one target may use."""

    __slots__ = ("_policy", "_roots", "engines", "members", "name", "suffix")

    def __init__(
        self, name: str, roots: Mapping[str, FactSet], policy: Mapping[str, object], engines: Sequence[str]
    ) -> None:
        self.name, self._roots, self._policy, self.engines = name, roots, policy, tuple(engines)
        self.suffix = ""
        self.members: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())

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
    members = pair.members if any(pair.members) else ((pair.prefill.name,), (pair.decode.name,))
    scope = _Scope(pair.name, {**shared, **halves}, policy, (*members[0], *members[1]))
    scope.members = members
    if pair.alike > 1:
        scope.suffix = f" (and {pair.alike - 1:,} pairs alike)"
    return scope


def role_of(engine: Subject) -> str | None:
    """The role an engine has now, or the one in cluster.yaml where it did not say."""
    return engine.facts.text("role") or engine.facts.text("declared_role")


def _finding(judge: Judge, scope: _Scope) -> Finding:
    check = judge.check
    verdict = judge.verdict(scope.known(judge.refs))
    grade, evidence = _behind(verdict, scope)
    missing = tuple(scope.lacks(r) for r in verdict.lacking)
    message = f"{_LEAD[verdict.status]}: {check.title}"
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
        members=scope.members,
    )


def _behind(verdict: _Verdict, scope: _Scope) -> tuple[Grade | None, tuple[Evidence, ...]]:
    best: tuple[Grade, list[Fact]] | None = None
    for proof in verdict.proofs:
        facts = [f for f in map(scope.fact, proof) if f is not None]
        weakest = min((f.grade for f in facts), default=None)
        if weakest is not None and (best is None or weakest > best[0]):
            best = weakest, facts
    if best is None:
        return None, ()
    evidence = dict.fromkeys(e for fact in best[1] for e in fact.evidence)
    return best[0], tuple(evidence)
