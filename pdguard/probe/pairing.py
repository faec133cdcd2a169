"""Prefill refuses: does the router drop decode's half at once, at the end of a join, or at the timeout?"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pdguard.probe.context import Context
from pdguard.probe.interface import (
    End,
    ErrorClass,
    HalfResult,
    Measure,
    Release,
    Role,
    Seen,
    Step,
    StepResult,
    Target,
    Verdict,
)
from pdguard.probe.over_pool import RELEASE_SECONDS
from pdguard.probe.sending import Sent, inconclusive, of_role, plainly, sending, watched
from pdguard.probe.state import OTHERS, Load, at_rest, read_all, until_released
from pdguard.probe.verdict import judge_router

PAIR_SECONDS = 5.0
"""Seconds within which a dropped half must be gone: an engine looks for its client only every 4 s or so."""
_LOOK = 0.1
_LAG = 1.0
"""Seconds that a queue must stay at rest after the answer before it counts as never having been longer."""
_SHORT = "decode's own timeout of {:g} s is no longer than a dropped half may take to go"
_NOT_REACHED = (
    ErrorClass.UNAUTHORIZED,
    ErrorClass.NOT_TAKEN,
    ErrorClass.UNAVAILABLE,
    ErrorClass.OVER_CONTEXT,
    ErrorClass.OVER_TOTAL,
)


@dataclass(frozen=True, slots=True)
class Watched:
    """What was seen of one try. Seconds since it was sent; `tries` is how often decode's queue rose.

    `seen` is the router's answer (CLOSED: none came within `waited`). `readable` says whether decode's
    queues could be read, `clear` whether they could be told apart from other requests.
    """

    seen: Seen
    waited: float
    held: bool = False
    let_go_after: float | None = None
    tries: int = 0
    readable: bool = True
    clear: bool = True
    trouble: str = ""
    release: Release | None = None


async def run(step: Step, context: Context) -> StepResult:
    """Run the step. Raises BudgetSpent before anything is sent."""
    route = step.route
    decodes = of_role(watched(route), Role.DECODE)
    if route.router is None:
        return inconclusive(step, "only a router pairs two halves; this route has none")
    if step.length is None or not decodes:
        why = "the prompt length" if step.length is None else "where decode answers for itself"
        return inconclusive(step, f"{why} is not known")
    before = await read_all(context, decodes, metrics=False, limit=context.wait)
    async with sending(step, context, step.length, step.length.new_tokens) as sent:
        seen = await _watch(context, decodes, before, sent)
        if seen.seen.end is End.CLOSED:
            seen = replace(seen, release=await _released(context, decodes, before))
    if seen.seen.answered:
        return _answered(step, seen)
    verdict, reason = judge(step, seen)
    client = HalfResult(route.router.name, Role.ROUTER, verdict, plainly(seen.seen), seen.seen)
    held = HalfResult(
        ", ".join(one.name for one in decodes), Role.DECODE, verdict, reason, release=seen.release
    )
    return StepResult(step, verdict, reason, (client, held), measures(seen))


def _answered(step: Step, w: Watched) -> StepResult:
    """Tokens came for a prompt that prefill must refuse: that is no matter of pairing."""
    return replace(judge_router(step, w.seen), measures=measures(w))


@dataclass(slots=True)
class _Queue:
    """Decode's queues over all engines of the route, one reading after another."""

    before: Mapping[str, Load]
    held: bool = False
    high: bool = False
    tries: int = 0
    let_go_after: float | None = None
    readable: bool = False
    blurred: bool = False
    trouble: str = ""

    def take(self, after: float, loads: Mapping[str, Load]) -> None:
        told = [load.queued(Role.DECODE) is not None for load in loads.values()]
        if not all(told):
            self.trouble = next((load.trouble for load in loads.values() if load.trouble), self.trouble)
            return
        self.readable = True
        rest = [at_rest(self.before.get(name), load, Role.DECODE) for name, load in loads.items()]
        self.blurred = None in rest
        if False in rest:
            self.tries += 0 if self.high else 1
            self.held, self.high, self.let_go_after = True, True, None
        elif all(rest) and self.high:
            self.high, self.let_go_after = False, after


async def _watch(
    context: Context, decodes: tuple[Target, ...], before: Mapping[str, Load], sent: Sent
) -> Watched:
    """Read decode's queues until they are at rest and the client has its answer, or the wait is over."""
    began, limit, queue = time.monotonic(), context.wait, _Queue(before)
    while (left := limit - (time.monotonic() - began)) > 0:
        loads = await read_all(context, decodes, metrics=False, limit=left)
        after = time.monotonic() - began
        queue.take(after, loads)
        if sent.over:
            since = after - sent.over[0][1].ended_after
            if not queue.readable or (since >= _LAG and not queue.high and not queue.blurred):
                break
        await asyncio.sleep(min(_LOOK, left))
    waited = time.monotonic() - began
    over = await sent.close()
    return Watched(
        seen=over[0][1] if over else Seen(End.CLOSED, waited),
        waited=waited,
        held=queue.held,
        let_go_after=queue.let_go_after,
        tries=queue.tries,
        readable=queue.readable,
        clear=not queue.blurred,
        trouble=queue.trouble,
    )


async def _released(context: Context, decodes: tuple[Target, ...], before: Mapping[str, Load]) -> Release:
    """The last release of all decodes; the first that did not let go, where one did not."""
    limit = min(RELEASE_SECONDS, max(0.5, context.ledger.left))
    found = await asyncio.gather(*(until_released(context, one, before[one.name], limit) for one in decodes))
    for release in found:
        if not release.released:
            return release
    return max(found, key=lambda one: one.after or 0.0)


def judge(step: Step, w: Watched) -> tuple[Verdict, str]:
    """Verdict and reason of one try that gave no token."""
    seen, answered = w.seen, w.seen.ended_after
    if seen.end is End.CLOSED:
        return _never_answered(step, w)
    if seen.end is not End.COMPLETE or seen.error in _NOT_REACHED:
        return Verdict.INCONCLUSIVE, f"the request did not reach both halves: {plainly(seen)}"
    if seen.error is ErrorClass.WAITED_DECODE:
        tries = max(w.tries, 1)
        count = f"{tries} {'try' if tries == 1 else 'tries'}"
        each = seen.said_seconds if seen.said_seconds is not None else step.route.waiting
        text = f" of {each:g} s" if each is not None else ""
        return Verdict.UNPAIRED, (
            f"at the timeout, {count}: the client had its answer after {answered:.1f} s, "
            f"when decode's timeout{text} ended"
        )
    if seen.error is ErrorClass.RELEASED:
        return Verdict.INCONCLUSIVE, "prefill ended decode's half by itself, there was nothing to drop"
    if seen.refused and seen.error_side is Role.DECODE:
        return Verdict.INCONCLUSIVE, "decode refused the prompt as well, there was nothing to drop"
    if not w.readable:
        return Verdict.INCONCLUSIVE, f"decode's queues cannot be read: {w.trouble or 'no reason given'}"
    if w.let_go_after is None and (w.held or not w.clear):
        if not w.clear:
            return Verdict.INCONCLUSIVE, f"decode's queues: {OTHERS}"
        return Verdict.UNPAIRED, (
            f"the client had its answer after {answered:.1f} s, decode's half was "
            f"still held after {w.waited:.0f} s"
        )
    if answered > PAIR_SECONDS:
        return _late(step, w)
    if not w.held:
        if seen.refused or seen.error_side is Role.PREFILL:
            return Verdict.PAIRED, (
                f"the client had prefill's refusal after {answered:.2f} s; decode was never seen holding"
            )
        return Verdict.INCONCLUSIVE, f"no refusal by prefill was seen: {plainly(seen)}"
    went = w.let_go_after or 0.0
    if not (seen.refused or seen.error_side is Role.PREFILL):
        return Verdict.INCONCLUSIVE, f"no refusal by prefill was seen: {plainly(seen)}"
    if _own_timeout(step, went):
        return Verdict.INCONCLUSIVE, _SHORT.format(step.route.waiting)
    if went - answered > PAIR_SECONDS:
        return Verdict.UNPAIRED, (
            f"the client had its answer after {answered:.1f} s, "
            f"decode's half went {went - answered:.1f} s later"
        )
    return Verdict.PAIRED, (
        f"the client had its answer after {answered:.2f} s, decode's half was gone after {went:.1f} s"
    )


def _own_timeout(step: Step, went: float) -> bool:
    """Whether decode may have gone by its own timeout, which is no longer than a dropped half may take."""
    waiting = step.route.waiting
    return waiting is not None and waiting <= PAIR_SECONDS and went >= waiting * 0.9


def _late(step: Step, w: Watched) -> tuple[Verdict, str]:
    went = w.let_go_after
    if went is not None and went <= PAIR_SECONDS and not _own_timeout(step, went):
        return Verdict.PAIRED, (
            f"decode's half was gone after {went:.1f} s; the client had its answer after "
            f"{w.seen.ended_after:.1f} s"
        )
    waiting = f" {step.route.waiting:g} s" if step.route.waiting is not None else ""
    return Verdict.UNPAIRED, (
        f"at the end of a join: the client had its answer only after {w.seen.ended_after:.1f} s, "
        f"when decode's timeout{waiting} ended"
    )


def _never_answered(step: Step, w: Watched) -> tuple[Verdict, str]:
    went = w.let_go_after
    if went is not None:
        early = went <= PAIR_SECONDS and not _own_timeout(step, went)
        verdict = Verdict.PAIRED if early else Verdict.UNPAIRED
        return verdict, (
            f"decode's half was gone after {went:.1f} s; the client had no answer in {w.waited:.0f} s"
        )
    if not w.readable:
        return Verdict.INCONCLUSIVE, (
            f"no answer within {w.waited:.0f} s, and decode's queues cannot be read: {w.trouble}"
        )
    if not w.held:
        blur = f" ({OTHERS})" if not w.clear else ""
        return Verdict.INCONCLUSIVE, (
            f"no answer within {w.waited:.0f} s, and decode was never seen holding{blur}"
        )
    text = f"still held after {w.waited:.0f} s"
    release = w.release
    if release is None or release.released is None:
        how = release.how if release is not None else "not looked at"
        return Verdict.UNPAIRED, f"{text}; whether the probe's leaving released it is not known: {how}"
    if release.released and release.after is not None:
        return Verdict.UNPAIRED, f"{text}; released {release.after:.1f} s after the probe closed its request"
    return Verdict.UNPAIRED, f"{text}; not released after the probe closed its request"


def measures(w: Watched) -> tuple[Measure, ...]:
    """The figures."""
    made = [Measure("waited", round(w.waited, 2), "s")]
    if w.seen.end is End.COMPLETE:
        made.append(Measure("client_answered_after", round(w.seen.ended_after, 3), "s"))
    if w.let_go_after is not None:
        made.append(Measure("decode_let_go_after", round(w.let_go_after, 2), "s"))
    if w.tries:
        made.append(Measure("tries", w.tries))
    return tuple(made)
