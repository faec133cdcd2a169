"""What the steps about leaving and pairing share: whom to watch, what to ask, one try with its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from pdguard.probe.context import Context
from pdguard.probe.interface import (
    Api,
    Ask,
    End,
    ErrorClass,
    Length,
    Measure,
    Role,
    Route,
    Seen,
    Step,
    StepResult,
    Target,
    Verdict,
)

_END_SECONDS = 2.0


def watched(route: Route) -> tuple[Target, ...]:
    """The engines that may serve the route, each once."""
    known = {one.name: one for one in (route.prefill, route.decode, *route.engines) if one is not None}
    named = {*route.prefills, *route.decodes}
    return tuple(one for one in known.values() if one.name in named)


def of_role(targets: Sequence[Target], role: Role) -> tuple[Target, ...]:
    """Those that play a role."""
    return tuple(one for one in targets if one.role is role)


def inconclusive(step: Step, reason: str, measures: Sequence[Measure] = ()) -> StepResult:
    """A step that could not tell."""
    return StepResult(step, Verdict.INCONCLUSIVE, reason, measures=tuple(measures))


@dataclass(slots=True)
class Sent:
    """One try that is under way: a task for each server that it was sent to, and the way to leave."""

    tasks: dict[str, asyncio.Task[Seen]]
    leave: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def over(self) -> tuple[tuple[str, Seen], ...]:
        """The answers that have ended, by server."""
        return tuple(
            (name, task.result())
            for name, task in self.tasks.items()
            if task.done() and not task.cancelled() and task.exception() is None
        )

    async def close(self) -> tuple[tuple[str, Seen], ...]:
        """Leave, and wait until every connection is closed; what was seen until then."""
        self.leave.set()
        if self.tasks:
            _, late = await asyncio.wait(self.tasks.values(), timeout=_END_SECONDS)
            for task in late:
                task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)
        return self.over


@asynccontextmanager
async def sending(step: Step, context: Context, length: Length, new_tokens: int) -> AsyncIterator[Sent]:
    """Book one try, send it, and leave at the end of the block whatever happens. Raises BudgetSpent."""
    route = step.route
    targets = context.halves(route)
    ask = Ask(
        api=step.api,
        length=length.tokens,
        rid=context.rid(),
        seed=step.number,
        new_tokens=new_tokens,
        stream=step.stream,
        words=None if step.api is Api.GENERATE else length.tokens,
        bootstrap=context.bootstrap(route, length.rank) if route.router is None else None,
        rank=length.rank,
    )
    context.book(route, *(ask for _ in targets))
    sent = Sent({})
    try:
        for target in targets:
            work = context.wire.send(target, ask, context.wait, sent.leave)
            sent.tasks[target.name] = asyncio.create_task(work)
        yield sent
    finally:
        await sent.close()


def plainly(seen: Seen) -> str:
    """An answer in a few words of our own."""
    if seen.end not in (End.COMPLETE, End.CLOSED):
        return str(seen.end.value)
    if seen.error is not ErrorClass.NONE:
        status = seen.inner_status or seen.status
        return f"{seen.error.value} (HTTP {status})" if status else seen.error.value
    return f"HTTP {seen.status}" if seen.status else "no answer"
