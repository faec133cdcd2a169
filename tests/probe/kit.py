"""Small parts that tests of the probe share: routes, steps, answers, and a wire with a script."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import httpx

from pdguard.facts._fetch import Fetcher
from pdguard.probe.context import Context, Ledger
from pdguard.probe.interface import (
    Ask,
    Budget,
    Danger,
    End,
    Kind,
    Length,
    Role,
    Route,
    Seen,
    Side,
    Step,
    Target,
)
from pdguard.probe.wire import Wire

PREFILL = Target("p0", Role.PREFILL, "http://127.0.0.1:1")
DECODE = Target("d0", Role.DECODE, "http://127.0.0.1:2")
ROUTER = Target("r0", Role.ROUTER, "http://127.0.0.1:3")
DIRECT = Route(("p0",), ("d0",), None, PREFILL, DECODE, "127.0.0.1", 9, engines=(PREFILL, DECODE))
THROUGH = Route(("p0",), ("d0",), ROUTER, engines=(PREFILL, DECODE))
BETWEEN = Length(Side.PREFILL, 1500, 1018, 4090, 4096)

Script = Callable[[Target, Ask], Seen]


def step(kind: Kind = Kind.OVER_POOL, route: Route = DIRECT, **more: Any) -> Step:
    """A step with the worst case of a single request."""
    values: dict[str, Any] = {
        "number": 1,
        "danger": Danger.ORDINARY,
        "requests": 2,
        "tokens": 3000,
        "seconds": 20.0,
        "held_tokens": 0,
        "length": BETWEEN,
        **more,
    }
    return Step(kind=kind, route=route, **values)


def answered(outputs: int = 4, digest: str = "ab" * 16, **more: Any) -> Seen:
    """HTTP 200 with output."""
    values: dict[str, Any] = {"marks": tuple(range(outputs)), "prompt_tokens": 1500, **more}
    ended_after = values.pop("ended_after", 0.01)
    return Seen(End.COMPLETE, ended_after, 200, outputs=outputs, digest=digest, **values)


@dataclass
class FakeWire:
    """Answers from a script after `seconds`, and remembers what was asked and how many were open at once."""

    script: Script
    seconds: float = 0.0
    asked: list[tuple[str, Ask]] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    open: int = 0
    most_open: int = 0
    closed: bool = False

    async def send(self, target: Target, ask: Ask, wait: float, leave: asyncio.Event | None = None) -> Seen:
        del leave
        self.asked.append((target.name, ask))
        self.waits.append(wait)
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            await asyncio.sleep(min(self.seconds, wait))
        finally:
            self.open -= 1
        return self.script(target, ask)

    async def close(self) -> None:
        self.closed = True


def no_loads() -> Fetcher:
    """A fetcher to which every path is unknown."""
    return Fetcher(timeout=1, connections=1, transport=httpx.MockTransport(lambda _: httpx.Response(404)))


def context(wire: FakeWire, budget: Budget | None = None) -> Context:
    return Context(
        cast(Wire, wire), no_loads(), Ledger(budget or Budget()), "0a1b2c3d", progress=lambda _: None
    )
