"""Facts about the cluster as a whole: counts, what differs inside a role, the one context that fits all."""

from __future__ import annotations

from collections.abc import Sequence

from pdguard.facts.deriving import derive, missing_because
from pdguard.facts.interface import Fact, FactSet, Grade, PairSubject, Scalar, Subject
from pdguard.facts.windows import RANKS_UNKNOWN, rank_limits


def derive_cluster(
    cluster: Subject,
    prefills: Sequence[Subject],
    decodes: Sequence[Subject],
    pairs: Sequence[PairSubject],
    pair_count: int,
    routers: int,
    prometheus: bool,
) -> None:
    """Add every fact about the cluster; `pairs` are those judged, `pair_count` is how many there are."""
    facts = cluster.facts
    counts = {"prefills": len(prefills), "decodes": len(decodes), "routers": routers}
    for name, count in counts.items():
        facts.add(name, count, Grade.CLAIMED, "cluster", name)
    facts.add("pairs", pair_count, Grade.CLAIMED, "cluster", "engines")
    facts.add("prometheus", prometheus, Grade.CLAIMED, "cluster", "prometheus")
    for role, engines in (("prefill", prefills), ("decode", decodes)):
        _distinct(facts, f"{role}_limits", engines, "admission_limit")
        _distinct(facts, f"{role}_versions", engines, "version")
    _safe_context(facts, pairs)


def count_contents(
    cluster: Subject, role: str, contents: Sequence[frozenset[tuple[str, str]] | None]
) -> None:
    """Add how many distinct contents the engines of a role run; None is an engine of unknown source."""
    known = {c for c in contents if c is not None}
    if None in contents and len(known) < 2:
        cluster.facts.miss(f"{role}_contents", "the source of an engine of this role was not read")
    elif known:
        name = f"{role}_contents"
        cluster.facts.add(name, len(known), Grade.FINGERPRINTED, "source", "sha256 of the watched files")
    else:
        cluster.facts.miss(f"{role}_contents", "no engine of this role")


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
            limits = rank_limits(engine.facts)
            if limits is None:
                unknown = unknown or engine
            values.update(limits or ((fact.value,) if isinstance(fact.value, int) else ()))
        elif isinstance(fact.value, str):
            values.add(fact.value)
    if unknown is not None and len(values) < 2:
        why = missing_because("engine", unknown.facts, (source,))
        known_limit = unknown.facts.get(source) is not None
        facts.miss(name, f"{unknown.name}: {RANKS_UNKNOWN if known_limit else why.reason}", why.how)
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
