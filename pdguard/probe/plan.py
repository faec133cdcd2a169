"""The plan of a run: which steps, mildest first, what each may cost at the worst, and what is left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pdguard.cluster.model import Cluster
from pdguard.facts._fetch import Tls
from pdguard.facts.interface import Collected
from pdguard.facts.observed import ARROW, mark_of
from pdguard.probe.afford import Choice, Draft, afford, step_of
from pdguard.probe.canary import LENGTHS
from pdguard.probe.costs import Cost, cost_of
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
)
from pdguard.probe.routes import Way, find_ways
from pdguard.probe.sizes import ALL, ELSEWHERE, Sizes, lengths, router_lengths
from pdguard.probe.wanted import Wanted

_DANGERS = (Danger.ORDINARY, Danger.HOLDS, Danger.EXPOSES)
_KINDS = (Kind.CANARY, Kind.OVER_POOL, Kind.PAIRING, Kind.ABORT, Kind.STAGING)
_SIDES = (Side.CONTEXT, Side.ADMITTED, Side.BOTH, Side.DECODE, Side.PREFILL)
_APIS = (Api.GENERATE, Api.COMPLETIONS, Api.CHAT)
_NO_WINDOW = "no prompt length is refused by prefill alone: its limit is no smaller than decode's"
_TODO = "--accept-exposure"


def _order(draft: Draft) -> tuple[int, ...]:
    step = draft.step
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
        exists = bool(cluster.routers)
        why = "no router is gone through, and only a router pairs halves"
        left.append(LeftOut(Kind.PAIRING.value, why, "--router NAME" if exists else "", lost=exists))
    drafts: list[Draft] = []
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
                lost = not draft.step.control
                unlike.add(LeftOut(draft.what, "; ".join(draft.why), _TODO, lost), draft.way)
        drafts = [d for d in drafts if not d.why]
    drafts.sort(key=_order)
    known = _known_answers(ways, drafts, unlike) if wanted.canary else []
    left += unlike.told()
    narrower = f"--pair {ways[0].pairs[0].name.replace(ARROW, '/')} for one pair" if _several(ways) else ""
    kept = afford(Choice(drafts, known), wanted.budget, narrower, left)
    steps = [replace(step, number=n) for n, step in enumerate(kept.steps(wanted.budget.wait), 1)]
    met = {name for step in steps for name in (*step.route.prefills, *step.route.decodes)}
    marks = tuple(mark_of(engine) for engine in collected.engines if engine.name in met)
    left_out = tuple(dict.fromkeys(left))
    return Plan(tuple(steps), left_out, wanted.budget, consents, bool(kept.canaries), marks)


def _several(ways: Sequence[Way]) -> bool:
    return len(ways) > 1 and bool(ways[0].pairs)


def _known_answers(ways: list[Way], drafts: list[Draft], unlike: _Folded) -> list[Draft]:
    """Known answers for each route that is taken."""
    used = {d.way.route.name for d in drafts}
    found: list[Draft] = []
    for way in ways:
        if used and way.route.name not in used:
            continue
        length = _known_answer(way)
        if isinstance(length, LeftOut):
            unlike.add(length, way)
        else:
            step = step_of(way, Kind.CANARY, length, Danger.ORDINARY, Cost(0, 0, 0.0, 0), stream=False)
            found.append(Draft(way, step, ()))
    return found


def _sizes(way: Way, texts: bool) -> Sizes:
    if way.kind:
        return router_lengths(way.pairs, texts)
    pair = way.pairs[0]
    return lengths(pair.prefill.facts, pair.decode.facts, pair.facts, texts)


def _of_way(way: Way, wanted: Wanted) -> Iterator[Draft | LeftOut]:
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


def _over_pool(way: Way, wanted: Wanted) -> Iterator[Draft | LeftOut]:
    beyond = False
    for api in wanted.apis:
        found, unfound = _sizes(way, texts=api is not Api.GENERATE)
        for one in unfound:
            yield _elsewhere(one, Kind.OVER_POOL, wanted)
        for length in found:
            # What no tokenizer takes tests no limit: once a route is enough.
            over_context = length.side is Side.CONTEXT
            if over_context and beyond:
                continue
            beyond = beyond or over_context
            for stream in (False,) if over_context else wanted.streams:
                yield _draft(way, wanted, Kind.OVER_POOL, length, api, stream)


def _elsewhere(one: LeftOut, kind: Kind, wanted: Wanted) -> LeftOut:
    """A length that pairs do not have in common is probed straight to each; how a router pairs is not."""
    if one.todo != ELSEWHERE:
        return one
    if kind is Kind.PAIRING:
        return replace(one, todo="")
    return replace(one, todo="", lost=False) if wanted.direct else one


def _single(
    way: Way,
    wanted: Wanted,
    kind: Kind,
    side: Side,
    found: Mapping[Side, Length],
    lacks: Mapping[str, LeftOut],
) -> Iterator[Draft | LeftOut]:
    """A kind that has one length a route."""
    length = found.get(side)
    if length is None:
        why = _elsewhere(lacks.get(side.value, LeftOut(side.value, _NO_WINDOW, lost=False)), kind, wanted)
        # The length is a control where prompts are probed, and everything where a client leaves.
        yield replace(why, what=kind.value, lost=why.lost or kind is Kind.ABORT)
        return
    # The proof compares answers; whether they came streamed changes nothing in them.
    for stream in (False,) if kind is Kind.STAGING else wanted.streams:
        yield _draft(way, wanted, kind, length, Api.GENERATE, stream)


def _draft(way: Way, wanted: Wanted, kind: Kind, length: Length, api: Api, stream: bool) -> Draft | LeftOut:
    route = way.towards(stream)
    danger, why = danger_of(kind, length, way.prefills, way.pairs)
    cost = cost_of(kind, route, length, danger, wanted.budget.wait)
    step = step_of(way, kind, length, danger, cost, stream, api)
    draft = Draft(way, step, why if danger is Danger.EXPOSES else ())
    if length.tokens > MAX_PROMPT:
        why_not = f"{length.tokens:,} tokens are above the hard limit of {MAX_PROMPT:,}"
        return LeftOut(draft.what, why_not, lost=not step.control)
    return draft


def _known_answer(way: Way) -> Length | LeftOut:
    found, unfound = _sizes(way, texts=False)
    for length in found:
        if length.side is Side.ADMITTED:
            return replace(length, tokens=min(length.tokens, LENGTHS[-1]))
    why = next(one for one in unfound if one.what in (ALL, Side.ADMITTED.value))
    return replace(why, what=Kind.CANARY.value, lost=True)
