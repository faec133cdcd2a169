"""Which prefill may meet which decode, and how a large fleet is judged without listing every pair.

Engines that are the same in everything a pair looks at are one class, and a pair of classes is one pair.
Where even the classes are too many to pair them all, each class meets the extremes of the other side: they
bound every window, so that no engine is without the pair that treats it worst.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from pdguard.facts.deriving import missing_because
from pdguard.facts.interface import PairSubject, Subject
from pdguard.facts.observed import ARROW, WINDOW_FACTS
from pdguard.facts.pairs import derive_pair
from pdguard.facts.windows import rank_limits

MAX_PAIRS = 256
"""Up to this many pairs, each is judged and reported by itself."""

MAX_CLASS_PAIRS = 4096
"""Up to this many pairs of classes, every class meets every other."""

_OWN = frozenset(
    {
        *("pid", "started", "launch_flags", "process_flags", "titles"),
        *("aborted_requests", "failed_transfers", "holds_drained", "holds_timeout", "holds_error"),
        *("watched", *WINDOW_FACTS),
    }
)
"""Facts that differ from engine to engine without any bearing on a pair."""

_SIZES = frozenset(
    {
        *("admission_limit", "rank_limit", "pool", "pools", "reported_pool", "metric_pool", "swa_pool"),
        "max_total_tokens_flag",
    }
)
"""Facts that may differ by a few tokens between engines that are otherwise the same."""

Front = tuple[Subject | None, frozenset[str]]


@dataclass(frozen=True, slots=True)
class _Class:
    """Engines that no pair can tell apart, the first of them standing for all."""

    members: tuple[Subject, ...]
    kind: tuple[object, ...]

    @property
    def first(self) -> Subject:
        return self.members[0]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(m.name for m in self.members)


def build_pairs(
    prefills: Sequence[Subject],
    decodes: Sequence[Subject],
    routers: Sequence[tuple[Subject, frozenset[str]]],
    apart: Sequence[str] = (),
) -> list[PairSubject]:
    """All pairs that may serve a request together, with their facts.

    `routers` gives each router with the names of the engines behind it; an empty set means all of them.
    Engines behind no router may meet each other. `apart` are patterns of pair names (`p0→d*`, of waivers):
    engines that a pattern tells apart are never in one class.
    """
    collapse = len(prefills) * len(decodes) > MAX_PAIRS
    patterns = [p.replace("->", ARROW) for p in apart]
    halves = [p.split(ARROW, 1) for p in patterns if ARROW in p]
    found: dict[tuple[tuple[str, ...], tuple[str, ...]], PairSubject] = {}
    for router, names in _fronts(routers, (*prefills, *decodes)):
        behind_p = _classes([e for e in prefills if e.name in names], collapse, [h[0] for h in halves])
        behind_d = _classes([e for e in decodes if e.name in names], collapse, [h[1] for h in halves])
        for p_class, d_class in _meeting(behind_p, behind_d):
            key = (p_class.names, d_class.names)
            if key not in found:
                found[key] = _pair(p_class, d_class)
            _retries(found[key], router)
    return list(found.values())


def count_pairs(
    prefills: Sequence[Subject], decodes: Sequence[Subject], routers: Sequence[tuple[Subject, frozenset[str]]]
) -> int:
    """How many pairs of single engines may serve a request together."""
    met: set[tuple[str, str]] = set()
    for _, names in _fronts(routers, (*prefills, *decodes)):
        behind = [e.name for e in decodes if e.name in names]
        met.update((e.name, d) for e in prefills if e.name in names for d in behind)
    return len(met)


def _fronts(routers: Sequence[tuple[Subject, frozenset[str]]], engines: Sequence[Subject]) -> Iterator[Front]:
    every = frozenset(e.name for e in engines)
    for router, names in routers:
        yield router, names or every
    left = every.difference(*(names or every for _, names in routers)) if routers else every
    if left:
        yield None, left


def _pair(p_class: _Class, d_class: _Class) -> PairSubject:
    p, d = p_class.first, d_class.first
    pair = PairSubject("pair", f"{p.name}{ARROW}{d.name}", prefill=p, decode=d)
    pair.members = (p_class.names, d_class.names)
    derive_pair(pair)
    return pair


def _classes(engines: Sequence[Subject], collapse: bool, apart: Sequence[str]) -> list[_Class]:
    groups: dict[tuple[object, ...], list[Subject]] = {}
    kinds: dict[tuple[object, ...], tuple[object, ...]] = {}
    for engine in engines:
        kind, sizes = _signature(engine, apart)
        whole = (kind, sizes) if collapse else (engine.name,)
        groups.setdefault(whole, []).append(engine)
        kinds[whole] = kind
    return [_Class(tuple(group), kinds[whole]) for whole, group in groups.items()]


def _signature(engine: Subject, apart: Sequence[str]) -> tuple[tuple[object, ...], tuple[object, ...]]:
    kind: list[object] = [fnmatchcase(engine.name, pattern) for pattern in apart]
    sizes: list[object] = []
    for name, fact in engine.facts.known():
        if name in _SIZES:
            kind.append((name, fact.grade))
            sizes.append(fact.value)
        elif name not in _OWN:
            kind.append((name, fact.value, fact.grade))
    return tuple(kind), tuple(sizes)


def _meeting(prefills: list[_Class], decodes: list[_Class]) -> Iterable[tuple[_Class, _Class]]:
    if len(prefills) * len(decodes) <= MAX_CLASS_PAIRS:
        return itertools.product(prefills, decodes)
    worst_p, worst_d = _extremes(prefills), _extremes(decodes)
    met = [(p, d) for p in prefills for d in worst_d] + [(p, d) for d in decodes for p in worst_p]
    return {(p.names, d.names): (p, d) for p, d in met}.values()


def _extremes(classes: list[_Class]) -> list[_Class]:
    """Of each kind, the classes with the lowest and the highest limit and with the smallest pool."""
    kinds: dict[tuple[object, ...], list[_Class]] = {}
    for one in classes:
        kinds.setdefault(one.kind, []).append(one)
    kept: dict[tuple[str, ...], _Class] = {}
    for alike in kinds.values():
        for one in (
            min(alike, key=lambda c: _limits(c)[0]),
            max(alike, key=lambda c: _limits(c)[1]),
            min(alike, key=lambda c: c.first.facts.integer("pool") or 0),
        ):
            kept[one.names] = one
    return list(kept.values())


def _limits(one: _Class) -> tuple[int, int]:
    return rank_limits(one.first.facts) or (0, 0)


def _retries(pair: PairSubject, router: Subject | None) -> None:
    if router is None:
        return
    tries = router.facts.get("retries")
    if tries is None:
        why = missing_because("router", router.facts, ("retries",))
        pair.facts.miss("retries", why.reason, why.how)
        return
    old = pair.facts.integer("retries")
    if old is None or (isinstance(tries.value, int) and tries.value > old):
        pair.facts.entries["retries"] = tries
