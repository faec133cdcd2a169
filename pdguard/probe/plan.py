"""The plan of a run: which steps, mildest first, what each may cost at the worst, and what is left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from pdguard.cluster.model import Cluster
from pdguard.facts._fetch import Tls
from pdguard.facts.interface import Collected
from pdguard.probe.canary import LENGTHS
from pdguard.probe.costs import Cost, allowed, calibration, canary_cost, cost_of
from pdguard.probe.danger import danger_of
from pdguard.probe.interface import (
    MAX_PROMPT,
    Api,
    Danger,
    Kind,
    LeftOut,
    Length,
    Plan,
    Side,
    Step,
)
from pdguard.probe.routes import Way, find_ways
from pdguard.probe.sizes import ALL, Sizes, lengths, router_lengths
from pdguard.probe.wanted import Wanted

_DANGERS = (Danger.ORDINARY, Danger.HOLDS, Danger.EXPOSES)
_KINDS = (Kind.CANARY, Kind.OVER_POOL, Kind.PAIRING, Kind.ABORT, Kind.STAGING)
_SIDES = (Side.CONTEXT, Side.ADMITTED, Side.BOTH, Side.DECODE, Side.PREFILL)
_APIS = (Api.GENERATE, Api.COMPLETIONS, Api.CHAT)
_NO_WINDOW = "no prompt length is refused by prefill alone: its limit is no smaller than decode's"
_TODO = "--accept-exposure"


@dataclass(frozen=True, slots=True)
class _Draft:
    """A step before it has a number, and why it may expose something."""

    way: Way
    step: Step
    why: tuple[str, ...]

    @property
    def what(self) -> str:
        """What it is, wherever it goes."""
        step = self.step
        parts = [step.kind.value, step.length.side.value if step.length is not None else ""]
        parts += [step.api.value if step.api is not Api.GENERATE else ""]
        return ", ".join(part for part in parts if part)

    @property
    def title(self) -> str:
        return f"{self.what}, {self.step.route.name}"

    @property
    def order(self) -> tuple[int, ...]:
        step = self.step
        side = _SIDES.index(step.length.side) if step.length is not None else 0
        return (
            _DANGERS.index(step.danger),
            _KINDS.index(step.kind),
            side,
            int(step.stream),
            int(step.route.router is not None),
            _APIS.index(step.api),
        )


class _Folded:
    """What is left out for the same reason on several routes, told once."""

    def __init__(self) -> None:
        self._routes: dict[LeftOut, dict[str, None]] = {}

    def add(self, one: LeftOut, way: Way) -> None:
        self._routes.setdefault(one, {})[way.route.name] = None

    def told(self) -> Iterator[LeftOut]:
        for one, names in self._routes.items():
            first = next(iter(names))
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            yield replace(one, what=f"{one.what}, {first}{more}")


def make_plan(
    cluster: Cluster, collected: Collected, wanted: Wanted, keys: Mapping[str, str], tls: Mapping[str, Tls]
) -> Plan:
    """Everything that is asked for and possible within the budget, mildest first.

    `keys` and `tls` are by name of engine or router. Nothing is sent. Raises InputError where a router or a
    pair is named that is not there.
    """
    ways, left = find_ways(cluster, collected, wanted, keys, tls)
    if wanted.pairing and not any(way.kind for way in ways):
        left.append(LeftOut(Kind.PAIRING.value, "no router is gone through, and only a router pairs halves"))
    drafts: list[_Draft] = []
    unlike = _Folded()
    for way in ways:
        for one in _of_way(way, wanted):
            if isinstance(one, LeftOut):
                unlike.add(one, way)
            else:
                drafts.append(one)
    consents = tuple(dict.fromkeys(why for draft in drafts for why in draft.why))
    if not wanted.accept_exposure:
        for draft in drafts:
            if draft.why:
                unlike.add(LeftOut(draft.what, "; ".join(draft.why), _TODO), draft.way)
        drafts = [d for d in drafts if not d.why]
    drafts.sort(key=lambda d: d.order)
    left += unlike.told()
    kept = _affordable(drafts, wanted, left)
    canaries = _canaries(ways, kept, wanted, left) if wanted.canary else []
    # The known answers come first, but have the budget that the others leave.
    steps = [replace(step, number=n) for n, step in enumerate([*canaries, *(d.step for d in kept)], 1)]
    return Plan(tuple(steps), tuple(dict.fromkeys(left)), wanted.budget, consents, bool(canaries))


def _sizes(way: Way, texts: bool) -> Sizes:
    if way.kind:
        return router_lengths(way.pairs, texts)
    pair = way.pairs[0]
    return lengths(pair.prefill.facts, pair.decode.facts, pair.facts, texts)


def _of_way(way: Way, wanted: Wanted) -> Iterator[_Draft | LeftOut]:
    found, unfound = _sizes(way, texts=False)
    if wanted.over_pool:
        yield from _over_pool(way, wanted)
    elif any(left.what == ALL for left in unfound) and not _only_canary(wanted):
        yield from unfound
    if any(left.what == ALL for left in unfound):
        return
    one = {length.side: length for length in reversed(found)}
    lacks = {left.what: left for left in unfound}
    if wanted.pairing and way.kind:
        yield from _single(way, wanted, Kind.PAIRING, Side.PREFILL, one, lacks)
    if wanted.abort:
        yield from _single(way, wanted, Kind.ABORT, Side.ADMITTED, one, lacks)
    if wanted.staging:
        yield from _single(way, wanted, Kind.STAGING, Side.PREFILL, one, lacks)


def _only_canary(wanted: Wanted) -> bool:
    return not (wanted.over_pool or wanted.abort or wanted.pairing or wanted.staging)


def _over_pool(way: Way, wanted: Wanted) -> Iterator[_Draft | LeftOut]:
    for api in wanted.apis:
        found, unfound = _sizes(way, texts=api is not Api.GENERATE)
        yield from unfound
        first = True
        for length in found:
            for stream in wanted.streams:
                draft = _draft(way, wanted, Kind.OVER_POOL, length, api, stream)
                if isinstance(draft, _Draft) and api is not Api.GENERATE and first:
                    more = calibration(draft.step.route)
                    step = draft.step
                    step = replace(
                        step, requests=step.requests + more.requests, tokens=step.tokens + more.tokens
                    )
                    draft, first = replace(draft, step=step), False
                yield draft


def _single(
    way: Way,
    wanted: Wanted,
    kind: Kind,
    side: Side,
    found: Mapping[Side, Length],
    lacks: Mapping[str, LeftOut],
) -> Iterator[_Draft | LeftOut]:
    """A kind that has one length a route."""
    length = found.get(side)
    if length is None:
        why = lacks.get(side.value, LeftOut(side.value, _NO_WINDOW))
        yield replace(why, what=kind.value)
        return
    # The proof compares answers; whether they came streamed changes nothing in them.
    for stream in (False,) if kind is Kind.STAGING else wanted.streams:
        yield _draft(way, wanted, kind, length, Api.GENERATE, stream)


def _draft(way: Way, wanted: Wanted, kind: Kind, length: Length, api: Api, stream: bool) -> _Draft | LeftOut:
    route = way.towards(stream)
    danger, why = danger_of(kind, length.side, way.prefills, way.pairs)
    cost = cost_of(kind, route, length, danger, wanted.budget.wait)
    step = _step(way, kind, length, danger, cost, stream, api)
    draft = _Draft(way, step, why if danger is Danger.EXPOSES else ())
    if length.tokens > MAX_PROMPT:
        return LeftOut(draft.what, f"{length.tokens:,} tokens are above the hard limit of {MAX_PROMPT:,}")
    return draft


def _step(
    way: Way, kind: Kind, length: Length, danger: Danger, cost: Cost, stream: bool, api: Api = Api.GENERATE
) -> Step:
    pool = way.smallest_pool
    return Step(
        0,
        kind,
        way.towards(stream),
        danger,
        cost.requests,
        cost.tokens,
        cost.seconds,
        cost.held,
        cost.held / pool if pool else None,
        length,
        api,
        stream,
    )


def _affordable(drafts: list[_Draft], wanted: Wanted, left: list[LeftOut]) -> list[_Draft]:
    """The first steps that fit the budget all together; the worst come last and are the first to go."""
    spent = Cost(0, 0, 0.0, 0)
    for place, draft in enumerate(drafts):
        spent += Cost.of(draft.step)
        short = allowed(spent, wanted.budget)
        if short is None:
            continue
        rest = drafts[place:]
        whole = sum((Cost.of(d.step) for d in drafts), Cost(0, 0, 0.0, 0))
        what = f"{len(rest)} steps, from `{draft.title}` on" if len(rest) > 1 else draft.title
        left.append(short.told(what, whole))
        return drafts[:place]
    return drafts


def _canaries(ways: list[Way], kept: list[_Draft], wanted: Wanted, left: list[LeftOut]) -> list[Step]:
    """Known answers for each route that is taken, as far as the other steps leave a budget for them."""
    spent = sum((Cost.of(d.step) for d in kept), Cost(0, 0, 0.0, 0))
    # One is asked for after each step, and one more while a step waits.
    others = len(kept) + sum(d.step.danger is not Danger.ORDINARY for d in kept)
    used = {d.way.route.name for d in kept}
    steps: list[Step] = []
    unlike, late, whole = _Folded(), _Folded(), spent
    for way in ways:
        if used and way.route.name not in used:
            continue
        length = _known_answer(way)
        if isinstance(length, LeftOut):
            unlike.add(length, way)
            continue
        cost = canary_cost(way.route, length, others, wanted.budget.wait)
        whole += cost
        if allowed(spent + cost, wanted.budget) is None:
            spent += cost
            steps.append(_step(way, Kind.CANARY, length, Danger.ORDINARY, cost, stream=False))
        else:
            late.add(LeftOut(Kind.CANARY.value, ""), way)
    short = allowed(whole, wanted.budget)
    left += unlike.told()
    if short is not None:
        left += [short.told(one.what, whole) for one in late.told()]
    return steps


def _known_answer(way: Way) -> Length | LeftOut:
    found, unfound = _sizes(way, texts=False)
    for length in found:
        if length.side is Side.ADMITTED:
            return replace(length, tokens=min(length.tokens, LENGTHS[-1]))
    why = next(one for one in unfound if one.what in (ALL, Side.ADMITTED.value))
    return replace(why, what=Kind.CANARY.value)
