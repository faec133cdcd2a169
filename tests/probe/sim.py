"""A simulated cluster with what a step needs: targets, routes and a context."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from pdguard.facts._fetch import Fetcher
from pdguard.probe.context import Context, Ledger
from pdguard.probe.interface import (
    Budget,
    Danger,
    Kind,
    Length,
    Role,
    Route,
    Side,
    Step,
    StepResult,
    Target,
)
from pdguard.probe.wire import Wire
from pdguard.simulator import ClusterSpec, Live, running

T = TypeVar("T")


def targets(live: Live) -> tuple[Target, ...]:
    return tuple(
        Target(one.name, Role(one.role), live.url(one.name), one.api_key)
        for one in live.spec.engines
        if one.role != "null"
    )


def direct(live: Live) -> Route:
    known = {one.name: one for one in targets(live)}
    dp = live.spec.engine("p0").dp
    port = live.bootstrap_ports["p0"]
    return Route(
        ("p0",), ("d0",), None, known["p0"], known["d0"], "127.0.0.1", port, dp, engines=targets(live)
    )


def routed(live: Live, *, waiting: float | None = None) -> Route:
    spec = live.spec.routers[0]
    every = targets(live)
    return Route(
        tuple(one.name for one in every if one.role is Role.PREFILL),
        tuple(one.name for one in every if one.role is Role.DECODE),
        Target(spec.name, Role.ROUTER, live.url(spec.name)),
        engines=every,
        waiting=waiting,
    )


def step(route: Route, kind: Kind, tokens: int, *, stream: bool = False, rank: int | None = None) -> Step:
    side = Side.ADMITTED if kind is Kind.ABORT else Side.PREFILL
    length = Length(side, tokens, 1018, 4090, 4096, rank=rank)
    return Step(1, kind, route, Danger.HOLDS, 1, tokens, 30.0, tokens, length=length, stream=stream)


def in_context(
    spec: ClusterSpec,
    body: Callable[[Live, Context], Awaitable[T]],
    *,
    budget: Budget | None = None,
) -> T:
    """Run `body` with a context; afterwards nothing of it may be left."""

    async def whole() -> T:
        async with asyncio.timeout(60.0):
            wire, fetcher = Wire(), Fetcher(timeout=2.0, connections=4)
            async with running(spec) as live:
                ledger = Ledger(budget if budget is not None else Budget(wait=6.0))
                try:
                    result = await body(live, Context(wire, fetcher, ledger, "test", lambda _: None))
                finally:
                    await wire.close()
                    await fetcher.close()
            assert asyncio.all_tasks() == {asyncio.current_task()}
            return result

    return asyncio.run(whole())


def figures(result: StepResult) -> dict[str, object]:
    return {one.name: one.value for one in result.measures}
