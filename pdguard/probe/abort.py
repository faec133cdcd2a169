"""A client leaves while prefill is still sending: are both halves told, and does the hold end?"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pdguard.probe.context import BudgetSpent, Context
from pdguard.probe.half import Half, stirred
from pdguard.probe.interface import (
    End,
    ErrorClass,
    Measure,
    Role,
    Seen,
    Step,
    StepResult,
    Target,
)
from pdguard.probe.leaving import NOTICE, Leaving
from pdguard.probe.sending import Sent, inconclusive, of_role, plainly, sending, watched
from pdguard.probe.state import OTHERS, POLL, Load, read_all

NEW_TOKENS = 16
TRIES = 3
NOISE_SECONDS = 1.0
OVERHEAD_SECONDS = 2 * NOISE_SECONDS + TRIES * NOTICE[False]
"""Seconds of a step besides its tries, at most: looking for other requests, and pauses between tries."""
_LOOK = 0.05
_PATIENCE = 0.3
"""Seconds that decode may be in its transfer queue before prefill shows that it sends."""
_OVER = "the transfer was over before the client left"


@dataclass(frozen=True, slots=True)
class _Try:
    """One try: what was seen after leaving, or why it never came to that, and whether another may do."""

    leaving: Leaving | None
    reason: str = ""
    again: bool = False
    left_after: float = 0.0


async def run(step: Step, context: Context) -> StepResult:
    """Run the step. Raises BudgetSpent where not even one try fits the budget."""
    engines = watched(step.route)
    if step.length is None or not (of_role(engines, Role.PREFILL) and of_role(engines, Role.DECODE)):
        return inconclusive(step, "the engines that would have to be watched are not known")
    earlier = await read_all(context, engines, limit=context.wait)
    if not all(earlier[one.name].queued(one.role) is not None for one in engines):
        trouble = next((load.trouble for load in earlier.values() if load.trouble), "no queues are told")
        return inconclusive(step, f"when a transfer runs cannot be read: {trouble}")
    noisy = await _noisy(step, context, engines, earlier)
    tried, sent = _Try(None), 0
    for _ in range(TRIES):
        before = await read_all(context, engines, limit=context.wait)
        try:
            tried = await _try(step, context, engines, before, noisy=noisy)
        except BudgetSpent:
            if sent == 0:
                raise
            break
        sent += 1
        if not tried.again or context.ledger.left <= 0:
            break
        # What this try left behind may still be counted; it must not be taken for the next one's.
        await asyncio.sleep(min(NOTICE[step.stream], context.wait))
    return _result(step, tried, sent)


async def _noisy(
    step: Step, context: Context, engines: tuple[Target, ...], earlier: Mapping[str, Load]
) -> bool:
    """Whether counters move without us. A second look: an earlier step's request may have been counted."""
    for pause in (0.0, NOTICE[step.stream]):
        if pause:
            await asyncio.sleep(min(pause, context.wait))
            earlier = await read_all(context, engines, limit=context.wait)
        await asyncio.sleep(min(NOISE_SECONDS, context.wait))
        later = await read_all(context, engines, limit=context.wait)
        if not stirred(earlier, later):
            return False
    return True


def _result(step: Step, tried: _Try, count: int) -> StepResult:
    tries = Measure("tries", count)
    if tried.leaving is None:
        return inconclusive(step, tried.reason, (tries,))
    verdict, reason = tried.leaving.verdict()
    left = Measure("left_after", round(tried.left_after, 2), "s")
    measures = (*tried.leaving.measures(), left, tries)
    return StepResult(step, verdict, reason, tried.leaving.halves(), measures)


async def _try(
    step: Step,
    context: Context,
    engines: tuple[Target, ...],
    before: Mapping[str, Load],
    *,
    noisy: bool,
) -> _Try:
    assert step.length is not None  # noqa: S101 - checked by run
    new_tokens = max(NEW_TOKENS, step.length.new_tokens)
    async with sending(step, context, step.length, new_tokens) as sent:
        began = time.monotonic()
        latest = await _in_flight(context, engines, before, sent)
        if isinstance(latest, _Try):
            return latest
        left_at = time.monotonic()
        answers = await sent.close()
        if any(seen.end is End.COMPLETE or seen.outputs for _, seen in answers):
            return _Try(None, _OVER, again=True)
        names = {role: tuple(one.name for one in of_role(engines, role)) for role in Role}
        leaving = Leaving(
            Half(Role.PREFILL, names[Role.PREFILL], before),
            Half(Role.DECODE, names[Role.DECODE], before),
            stream=step.stream,
            noisy=noisy,
            at_leaving=latest,
        )
        await _watch(context, engines, leaving, left_at)
        return _Try(leaving, again=leaving.too_short and leaving.clear, left_after=left_at - began)


async def _in_flight(
    context: Context, engines: tuple[Target, ...], before: Mapping[str, Load], sent: Sent
) -> Mapping[str, Load] | _Try:
    """Wait until a transfer runs; the loads at that moment."""
    began, limit = time.monotonic(), context.wait
    since: float | None = None
    while (left := limit - (time.monotonic() - began)) > 0:
        loads = await read_all(context, engines, limit=left)
        over = [(name, seen) for name, seen in sent.over if seen.end is not End.CLOSED]
        if over:
            return _ended(over)
        now = time.monotonic()
        if _above(before, loads, "prefill_inflight"):
            return loads
        if _above(before, loads, "decode_transfer"):
            since = now if since is None else since
            if now - since >= _PATIENCE:
                return loads
        await asyncio.sleep(min(_LOOK, left))
    busy = any((load.busy or 0) > 0 for load in before.values())
    return _Try(None, f"no transfer was seen within {limit:.0f} s" + (f"; {OTHERS}" if busy else ""))


def _above(before: Mapping[str, Load], loads: Mapping[str, Load], queue: str) -> bool:
    return any(
        (getattr(load, queue) or 0) > ((getattr(before[name], queue) or 0) if name in before else 0)
        for name, load in loads.items()
    )


def _ended(over: Sequence[tuple[str, Seen]]) -> _Try:
    for name, seen in over:
        if seen.end is not End.COMPLETE or seen.error is not ErrorClass.NONE or seen.status != 200:
            return _Try(None, f"{name} answered before any transfer: {plainly(seen)}")
    return _Try(None, _OVER, again=True)


async def _watch(context: Context, engines: tuple[Target, ...], leaving: Leaving, left_at: float) -> None:
    """Read all engines until nothing more can come, or as long as one answer may be waited for."""
    limit = context.wait
    while (left := limit - (time.monotonic() - left_at)) > 0:
        loads = await read_all(context, engines, limit=left)
        leaving.take(time.monotonic() - left_at, loads)
        if leaving.finished:
            return
        await asyncio.sleep(min(POLL, left))
