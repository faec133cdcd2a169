"""One prompt at one side of the limits: send it, judge the answers, see that a held half lets go."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from pdguard.probe.calibrate import calibrate, counted, side_of
from pdguard.probe.confirm import confirmed
from pdguard.probe.context import Context
from pdguard.probe.exchange import exchange
from pdguard.probe.interface import (
    Api,
    Ask,
    End,
    HalfResult,
    Length,
    Release,
    Seen,
    Side,
    Step,
    StepResult,
    Verdict,
)
from pdguard.probe.sending import inconclusive, watched
from pdguard.probe.served_model import served_model
from pdguard.probe.state import Load, read_all, until_released
from pdguard.probe.verdict import judge_direct, judge_router

RELEASE_SECONDS = 12.0
"""How long a half that was closed is watched; an engine looks for its client only every few seconds."""


async def run(step: Step, context: Context) -> StepResult:
    """Do one step. Raises BudgetSpent where it cannot be afforded."""
    length = step.length
    if length is None:
        return inconclusive(step, "no prompt length lies on this side")
    words, expected = None, length.tokens
    if step.api is not Api.GENERATE:
        scale = await calibrate(context, step.route, step.api)
        if isinstance(scale, str):
            return inconclusive(step, scale)
        words = scale.words(length)
        expected = scale.tokens(words)
    if side_of(expected, length) is not length.side:
        return inconclusive(step, f"no text is {length.tokens:,} tokens long; the nearest has {expected:,}")
    before = await read_all(context, watched(step.route), metrics=False, limit=context.wait)
    ask = Ask(
        api=step.api,
        length=expected,
        rid=context.rid(),
        seed=step.number,
        new_tokens=length.new_tokens,
        stream=step.stream,
        words=words,
        model="" if words is None else await served_model(context, Context.halves(step.route)[-1]),
        bootstrap=None if step.route.router is not None else context.bootstrap(step.route, length.rank),
        rank=length.rank,
    )
    seen = await exchange(context, step.route, ask, to_the_end=length.side is Side.ADMITTED)
    if words is None:
        return await release_closed(context, await confirmed(context, judged(step, seen)), before)
    real = _real_tokens(step, seen, expected)
    result = judged(replace(step, length=replace(length, tokens=real)), seen)
    result = await confirmed(context, _as_long_as_wanted(result, length))
    return await release_closed(context, result, before)


def judged(step: Step, seen: Mapping[str, Seen]) -> StepResult:
    """The verdict on what all servers of the step's route answered."""
    route = step.route
    if route.router is not None:
        return judge_router(step, seen[route.router.name])
    return judge_direct(step, seen[route.prefills[0]], seen[route.decodes[0]])


def _real_tokens(step: Step, seen: Mapping[str, Seen], expected: int) -> int:
    """The length of a text is known for sure only now, unless what was counted is a stub or a cut prompt."""
    count = counted(seen)
    if count is None or step.route.truncates or count <= expected // 2:
        return expected
    return count


def _as_long_as_wanted(result: StepResult, length: Length) -> StepResult:
    """On another side than planned a text has probed something else; an exposure stands all the same."""
    sent = result.step.length
    if sent is None or result.verdict is Verdict.EXPOSED or side_of(sent.tokens, length) is length.side:
        return result
    reason = (
        f"the text was {sent.tokens:,} tokens instead of {length.tokens:,}, on another side of the limits"
    )
    return replace(result, verdict=Verdict.INCONCLUSIVE, reason=reason)


async def release_closed(context: Context, result: StepResult, before: Mapping[str, Load]) -> StepResult:
    """Where the probe closed an answer, see whether the engine lets go; `before` are the loads until then."""
    route = result.step.route

    async def look(half: HalfResult) -> HalfResult:
        if half.seen is None or half.seen.end is not End.CLOSED:
            return half
        mine = [t for t in watched(route) if route.router is not None or t.name == half.name]
        limit = min(RELEASE_SECONDS, max(0.5, context.ledger.left))
        every = await asyncio.gather(*(until_released(context, t, before[t.name], limit) for t in mine))
        return replace(half, release=_together(dict(zip((t.name for t in mine), every, strict=True))))

    halves = await asyncio.gather(*(look(half) for half in result.halves))
    return replace(result, halves=tuple(halves))


def _together(releases: Mapping[str, Release]) -> Release:
    """All engines that may have served it, as one: the worst of them."""
    if not releases:
        return Release(None, None, "none of its engines can be looked at")
    for state in (False, None):
        for name, one in releases.items():
            if one.released is state:
                return Release(state, None, f"{name}: {one.how}")
    slowest = max(releases, key=lambda name: releases[name].after or 0.0)
    return Release(True, releases[slowest].after, f"{slowest}: {releases[slowest].how}")
