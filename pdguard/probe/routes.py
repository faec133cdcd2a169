"""The ways that requests may take: through each router, and straight to both halves of pairs."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from pdguard.cluster.model import Cluster, Router
from pdguard.facts._fetch import PLAIN, Tls
from pdguard.facts.interface import Collected, FactSet, PairSubject, Subject
from pdguard.facts.observed import ARROW
from pdguard.probe.interface import LeftOut, Role, Route, Target
from pdguard.probe.wanted import Wanted, check_named

MAX_DIRECT = 16
"""Pairs that one run sends to directly, each of another kind where there are more."""

WORST_TRIES = 5
"""Tries of a router whose retries are not known: what sglang-router does unless told otherwise."""

NO_STREAM_RETRIES = ("sglang-router", "sgl-router")

_KIND = (
    *("version", "admission_limit", "context_length", "pools", "dp_size", "auto_truncate", "reject_fate"),
    *("reserved_tokens", "reserved_decode_tokens", "hold", "waiting_timeout", "fixes_present", "hardened"),
)
"""Facts by which pairs differ in what a probe would see."""


@dataclass(frozen=True, slots=True)
class Way:
    """A route with the pairs that may serve what it carries, and the router's kind, empty where direct."""

    route: Route
    pairs: tuple[PairSubject, ...]
    kind: str = ""

    def towards(self, stream: bool) -> Route:
        """The route, with the tries that a streamed or plain request may get."""
        if stream and self.kind in NO_STREAM_RETRIES:
            return replace(self.route, tries=1)
        return self.route

    @property
    def prefills(self) -> tuple[Subject, ...]:
        """Prefills with their facts, one of each class."""
        return tuple({p.prefill.name: p.prefill for p in self.pairs}.values())

    @property
    def decodes(self) -> tuple[Subject, ...]:
        """Decodes with their facts, one of each class."""
        return tuple({p.decode.name: p.decode for p in self.pairs}.values())

    @property
    def smallest_pool(self) -> int | None:
        """The smallest decode pool in tokens, None where one is not known."""
        pools = [d.facts.integer("pool") for d in self.decodes]
        known = [p for p in pools if p is not None]
        return min(known) if known and len(known) == len(pools) else None


@dataclass(frozen=True, slots=True)
class _Servers:
    cluster: Cluster
    keys: Mapping[str, str]
    tls: Mapping[str, Tls]

    def engine(self, name: str, role: Role) -> Target:
        return Target(
            name, role, self.cluster.engine(name).url, self.keys.get(name), self.tls.get(name, PLAIN)
        )

    def router(self, one: Router) -> Target:
        return Target(one.name, Role.ROUTER, one.url, self.keys.get(one.name), self.tls.get(one.name, PLAIN))


def find_ways(
    cluster: Cluster,
    collected: Collected,
    wanted: Wanted,
    keys: Mapping[str, str],
    tls: Mapping[str, Tls],
) -> tuple[list[Way], list[LeftOut]]:
    """Direct ways before routers, and what is not gone. Raises InputError for names that are not there."""
    known = {r.name: r for r in cluster.routers}
    check_named("router", wanted.routers, known)
    named = [_named(collected.pairs, name) for name in wanted.pair_names]
    servers = _Servers(cluster, keys, tls)
    narrowed = bool(wanted.routers or named)
    fronts = [known[n] for n in dict.fromkeys(wanted.routers)] if narrowed else list(cluster.routers)
    behind = {r.name: _behind(r, collected.pairs) for r in cluster.routers}
    chosen = named or _pairs_to_meet(collected.pairs, behind, fronts, wanted.direct, narrowed)
    left: list[LeftOut] = []
    ways: list[Way] = []
    for pair in _few(chosen, left):
        way = _direct(servers, pair)
        if isinstance(way, LeftOut):
            left.append(way)
        else:
            ways.append(way)
    facts = {r.name: r.facts for r in collected.routers}
    ways += [_through(servers, r, behind[r.name], facts.get(r.name, FactSet())) for r in fronts]
    return ways, left


def _named(pairs: Sequence[PairSubject], name: str) -> PairSubject:
    """The pair of that name, also where another stands for it."""
    prefill, _, decode = name.partition(ARROW)
    for pair in pairs:
        if prefill in pair.members[0] and decode in pair.members[1]:
            return replace(pair, name=name, members=((prefill,), (decode,)))
    check_named("pair", (name,), {p.name for p in pairs})
    return next(p for p in pairs if p.name == name)


def _behind(router: Router, pairs: Iterable[PairSubject]) -> tuple[PairSubject, ...]:
    if router.engines is None:
        return tuple(pairs)
    names = set(router.engines)
    return tuple(p for p in pairs if names & {*p.members[0]} and names & {*p.members[1]})


def _pairs_to_meet(
    pairs: Sequence[PairSubject],
    behind: Mapping[str, tuple[PairSubject, ...]],
    fronts: Sequence[Router],
    direct: bool,
    narrowed: bool,
) -> list[PairSubject]:
    fronted = {p.name for r in fronts for p in behind[r.name]}
    if narrowed:
        return [p for p in pairs if direct and p.name in fronted]
    # Pairs that no router fronts can be met in no other way.
    return [p for p in pairs if direct or p.name not in fronted]


def _few(pairs: Sequence[PairSubject], left: list[LeftOut]) -> list[PairSubject]:
    """At most MAX_DIRECT pairs, all of them or one of each kind."""
    for pair in pairs:
        if len(pairs) <= MAX_DIRECT and pair.alike > 1:
            left.append(_others(pair, pair.alike - 1))
    if len(pairs) <= MAX_DIRECT:
        return list(pairs)
    kinds: dict[tuple[object, ...], list[PairSubject]] = {}
    for pair in pairs:
        values = [half.facts.value(n) for n in _KIND for half in (pair.prefill, pair.decode)]
        kinds.setdefault(tuple(values), []).append(pair)
    kept = list(kinds.values())
    for alike in kept[:MAX_DIRECT]:
        others = sum(p.alike for p in alike) - 1
        if others:
            left.append(_others(alike[0], others))
    if len(kept) > MAX_DIRECT:
        many = sum(p.alike for alike in kept[MAX_DIRECT:] for p in alike)
        what = f"{many:,} pairs of {len(kept) - MAX_DIRECT} more kinds, direct"
        left.append(LeftOut(what, f"one run meets {MAX_DIRECT} pairs at most", "name them with --pair"))
    return [alike[0] for alike in kept[:MAX_DIRECT]]


def _others(pair: PairSubject, count: int) -> LeftOut:
    what = f"{count:,} {'pair' if count == 1 else 'pairs'} like {pair.name}, direct"
    return LeftOut(what, f"{pair.name} stands for them", "name them with --pair", lost=False)


def _direct(servers: _Servers, pair: PairSubject) -> Way | LeftOut:
    prefill, decode = pair.name.split(ARROW, 1)
    engine = servers.cluster.engine(prefill)
    if engine.bootstrap_port is None:
        why = f"the port of {prefill}'s bootstrap server is not known"
        return LeftOut(
            f"{pair.name} direct", why, f"give {prefill} its `bootstrap_port:` in the cluster file"
        )
    p, d = pair.prefill.facts, pair.decode.facts
    route = Route(
        (prefill,),
        (decode,),
        prefill=servers.engine(prefill, Role.PREFILL),
        decode=servers.engine(decode, Role.DECODE),
        bootstrap_host=engine.bootstrap_host or urlsplit(engine.url).hostname or "",
        bootstrap_port=engine.bootstrap_port,
        # A room that is congruent modulo both sizes means the same rank to both halves.
        dp_size=math.lcm(p.integer("dp_size") or 1, d.integer("dp_size") or 1),
        waiting=d.number("waiting_timeout"),
        truncates=_truncates((p, d)),
        prefill_cuts=_truncates((p,)),
    )
    return Way(route, (pair,))


def _through(servers: _Servers, router: Router, pairs: tuple[PairSubject, ...], facts: FactSet) -> Way:
    names = None if router.engines is None else {*router.engines}
    prefills = _members((p.members[0] for p in pairs), names)
    decodes = _members((p.members[1] for p in pairs), names)
    waits = [p.decode.facts.number("waiting_timeout") for p in pairs]
    known = [w for w in waits if w is not None]
    engines = [servers.engine(n, Role.PREFILL) for n in prefills]
    engines += [servers.engine(n, Role.DECODE) for n in decodes]
    route = Route(
        prefills,
        decodes,
        router=servers.router(router),
        tries=facts.integer("retries") or WORST_TRIES,
        waiting=max(known) if known and len(known) == len(waits) else None,
        truncates=_truncates(half.facts for p in pairs for half in (p.prefill, p.decode)),
        prefill_cuts=_truncates(p.prefill.facts for p in pairs),
        limits=tuple(_limits(pairs, prefills).items()),
        engines=tuple(engines),
    )
    return Way(route, pairs, router.kind)


def _limits(pairs: Iterable[PairSubject], prefills: Collection[str]) -> dict[str, int]:
    """What each prefill told; of engines that are alike the first speaks for all."""
    found: dict[str, int] = {}
    for pair in pairs:
        limit = pair.prefill.facts.integer("admission_limit")
        if limit is not None:
            found.update(dict.fromkeys((n for n in pair.members[0] if n in prefills), limit))
    return found


def _members(groups: Iterable[Collection[str]], names: Collection[str] | None) -> tuple[str, ...]:
    every = dict.fromkeys(name for group in groups for name in group)
    return tuple(n for n in every if names is None or n in names)


def _truncates(halves: Iterable[FactSet]) -> bool:
    return any(half.flag("auto_truncate") for half in halves)
