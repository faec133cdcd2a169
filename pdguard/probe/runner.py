"""Runs a plan, one step at a time: mildest first, stopped by an exposure, by the budget or by Ctrl-C."""

from __future__ import annotations

import asyncio
import datetime
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pdguard.facts._fetch import Fetcher
from pdguard.probe import abort, over_pool, pairing, staging
from pdguard.probe.canary import Canary
from pdguard.probe.context import BudgetSpent, Context, Ledger
from pdguard.probe.interface import (
    Danger,
    Kind,
    Plan,
    ProbeResult,
    Step,
    StepResult,
    Target,
    Verdict,
)
from pdguard.probe.sending import watched
from pdguard.probe.state import Load, read_all
from pdguard.probe.wire import Wire

GRACE_SECONDS = 2.0
"""How long after its budget a run may still take to close its connections and to look at queues."""

MOST_OPEN = 3
"""Requests that may be open at once."""

_READ_SECONDS = 5.0
_DURING_AFTER = 0.5
"""Seconds into a step at which it counts as a waiting one."""

_RUNS: Mapping[Kind, Callable[[Step, Context], Awaitable[StepResult]]] = {
    Kind.OVER_POOL: over_pool.run,
    Kind.ABORT: abort.run,
    Kind.PAIRING: pairing.run,
    Kind.STAGING: staging.run,
}


@dataclass(slots=True)
class _Run:
    """A run under way."""

    plan: Plan
    context: Context
    canaries: list[Canary] = field(default_factory=list)
    results: list[StepResult] = field(default_factory=list)
    stopped: str = ""


async def run_probe(
    plan: Plan,
    cluster: str,
    progress: Callable[[str], None],
    *,
    wire: Wire | None = None,
    fetcher: Fetcher | None = None,
) -> ProbeResult:
    """Carry out `plan` and say what was seen.

    It stops after the first exposure, once the budget is spent, or when it is cancelled (Ctrl-C): connections
    are closed then, and what was seen until then is returned. `wire` and `fetcher` replace the network in
    tests. It takes no longer than the budget's seconds and a few more.
    """
    started = _now()
    ledger = Ledger(plan.budget)
    own_wire, own_fetcher = wire or Wire(), fetcher or Fetcher(timeout=_READ_SECONDS, connections=8)
    run = _Run(plan, Context(own_wire, own_fetcher, ledger, secrets.token_hex(4), progress))
    try:
        async with asyncio.timeout(plan.budget.seconds + GRACE_SECONDS):
            await _steps(run)
    except BudgetSpent as spent:
        run.stopped = str(spent)
    except TimeoutError:
        run.stopped = f"the budget of {plan.budget.seconds:g} s is spent"
    except asyncio.CancelledError:
        run.stopped = "interrupted"
    finally:
        await own_wire.close()
        await own_fetcher.close()
    return ProbeResult(
        cluster=cluster,
        run_id=run.context.run,
        started_at=started,
        ended_at=_now(),
        plan=plan,
        results=(*run.results, *(canary.result() for canary in run.canaries)),
        requests=ledger.requests,
        tokens=ledger.tokens,
        seconds=ledger.seconds,
        stopped=run.stopped,
        sent=ledger.sent,
    )


def nothing_sent(plan: Plan, cluster: str) -> ProbeResult:
    """A plan as the result of a run in which nothing was done."""
    now = _now()
    return ProbeResult(cluster, secrets.token_hex(4), now, now, plan, (), 0, 0, 0.0, "nothing was sent")


async def _steps(run: _Run) -> None:
    plan, context = run.plan, run.context
    before = await read_all(context, _engines(plan.steps), metrics=False, limit=_READ_SECONDS)
    for step in plan.steps:
        if step.kind is Kind.CANARY:
            canary = Canary(step)
            run.canaries.append(canary)
            context.progress(f"step {step.number}: known answers, {step.route.name}")
            await canary.baseline(context)
    for step in plan.steps:
        if step.kind is Kind.CANARY:
            continue
        context.progress(f"step {step.number}: {_what(step)}")
        result = await _one(run, step)
        run.results.append(result)
        context.progress(f"step {step.number}: {result.verdict.value}")
        if result.verdict is Verdict.EXPOSED:
            run.stopped = f"an exposure was observed in step {step.number}"
            break
        for canary in run.canaries:
            await canary.check(context, "between")
    for canary in run.canaries if not run.stopped else ():
        await canary.check(context, "after", whole=True)
    after = await read_all(context, _engines(plan.steps), metrics=False, limit=_READ_SECONDS)
    for text in left_behind(_engines(plan.steps), before, after):
        context.progress(text)


async def _one(run: _Run, step: Step) -> StepResult:
    """One step; while it waits, one known answer is asked for, if that keeps within what may be open."""
    task = asyncio.ensure_future(_RUNS[step.kind](step, run.context))
    try:
        beside = [c for c in run.canaries if _open(step) + _open(c.step) <= MOST_OPEN]
        if beside and step.danger is not Danger.ORDINARY:
            done, _ = await asyncio.wait({task}, timeout=_DURING_AFTER)
            if not done:
                await beside[0].check(run.context, "during")
        return await task
    finally:
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def _open(step: Step) -> int:
    return len(Context.halves(step.route))


def _what(step: Step) -> str:
    length = f", {step.length.tokens:,} tokens" if step.length is not None else ""
    stream = ", streamed" if step.stream else ""
    return f"{step.kind.value}{length}, {step.api.value}{stream}, {step.route.name}"


def _engines(steps: Sequence[Step]) -> tuple[Target, ...]:
    return tuple({one.name: one for step in steps for one in watched(step.route)}.values())


def left_behind(
    engines: Sequence[Target], before: Mapping[str, Load], after: Mapping[str, Load]
) -> list[str]:
    """What stands in an engine's queues now and did not before the run; others may have brought it."""
    texts = []
    for one in engines:
        was, now = before[one.name].queued(one.role), after[one.name].queued(one.role)
        if was is not None and now is not None and now > was:
            texts.append(f"{one.name} has {now - was} more in its handoff queues than before the run")
    return texts


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
