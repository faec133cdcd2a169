"""Facts about the cluster as a whole: counts, what differs inside a role, the one context that fits all."""

from __future__ import annotations

from collections.abc import Sequence

from pdguard.facts.deriving import derive, missing_because
from pdguard.facts.interface import Fact, FactSet, Grade, PairSubject, Scalar, Subject
from pdguard.facts.windows import rank_limits


def derive_cluster(
    cluster: Subject,
    prefills: Sequence[Subject],
    decodes: Sequence[Subject],
    pairs: Sequence[PairSubject],
    routers: int,
    prometheus: bool,
) -> None:
    """Add every fact about the cluster; `pairs` may stand for several alike ones each."""
    facts = cluster.facts
    counts = {"prefills": len(prefills), "decodes": len(decodes), "routers": routers}
    for name, count in counts.items():
        facts.add(name, count, Grade.CLAIMED, "cluster", name)
    facts.add("pairs", sum(p.alike for p in pairs), Grade.CLAIMED, "cluster", "engines")
    facts.add("prometheus", prometheus, Grade.CLAIMED, "cluster", "prometheus")
    for role, engines in (("prefill", prefills), ("decode", decodes)):
        _distinct(facts, f"{role}_limits", engines, "admission_limit")
        _distinct(facts, f"{role}_versions", engines, "version")
    _safe_context(facts, pairs)


def _distinct(facts: FactSet, name: str, engines: Sequence[Subject], source: str) -> None:
    """The distinct values of a role. One that is missing matters only while the others agree."""
    known: list[Fact] = []
    values: set[Scalar] = set()
    unknown: Subject | None = None
    for engine in engines:
        fact = engine.facts.get(source)
        if fact is None:
            unknown = unknown or engine
            continue
        known.append(fact)
        if source == "admission_limit":
            values.update(rank_limits(engine.facts) or ())
        elif isinstance(fact.value, str):
            values.add(fact.value)
    if unknown is not None and len(values) < 2:
        why = missing_because("engine", unknown.facts, (source,))
        facts.miss(name, f"{unknown.name}: {why.reason}", why.how)
        return
    one_of_each = {f.value: f for f in known}
    derive(facts, name, tuple(sorted(values, key=lambda v: (str(type(v)), v))), one_of_each.values())


def _safe_context(facts: FactSet, pairs: Sequence[PairSubject]) -> None:
    """The smallest of the pairs' safe contexts: set on every engine, it fits every pool."""
    found = [p.facts.get("safe_context") for p in pairs]
    missing = next((p for p, f in zip(pairs, found, strict=True) if f is None), None)
    if missing is not None:
        why = missing_because("pair", missing.facts, ("safe_context",))
        facts.miss("safe_context", f"{missing.name}: {why.reason}", why.how)
        return
    smallest = min((f for f in found if f is not None), key=lambda f: f.value, default=None)
    if smallest is None:
        facts.miss("safe_context", "there is no pair of a prefill and a decode")
        return
    facts.put("safe_context", smallest)
