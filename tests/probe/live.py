"""Simulated pairs to probe, and the routes to them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from pdguard.facts._fetch import Fetcher
from pdguard.probe.context import Context, Ledger
from pdguard.probe.interface import Budget, Length, Role, Route, Side, Target
from pdguard.probe.wire import Wire
from pdguard.simulator import ClusterSpec, EngineSpec, Live, RouterSpec, running

CONTEXT = 4096
WAITING = 1.0
ROUTER = RouterSpec("r0", engines=("p0", "d0"), tries=2)
SMG = RouterSpec("r0", kind="smg", version="1.13.0", engines=("p0", "d0"), tries=2)
T = TypeVar("T")


def pair(
    version: str, pools: tuple[int, int], router: RouterSpec = ROUTER, *, reserved: int = 16, **more: Any
) -> ClusterSpec:
    """A pair with a context of 4,096 tokens behind one router."""
    common: dict[str, Any] = {"context_flag": CONTEXT, "waiting_timeout": WAITING, **more}
    prefill = EngineSpec("p0", "prefill", version, pools=pools[:1], bootstrap_port=0, **common)
    decode = EngineSpec(
        "d0", "decode", version, pools=pools[1:], num_reserved_decode_tokens=reserved, **common
    )
    return ClusterSpec("pair", (prefill, decode), (router,))


def direct(live: Live, waiting: float | None = WAITING, **more: Any) -> Route:
    prefill = Target("p0", Role.PREFILL, live.url("p0"))
    decode = Target("d0", Role.DECODE, live.url("d0"))
    port = live.bootstrap_ports["p0"]
    return Route(
        ("p0",), ("d0",), None, prefill, decode, "127.0.0.1", port, waiting=waiting,
        engines=(prefill, decode), **more,
    )  # fmt: skip


def through(live: Live, waiting: float | None = WAITING) -> Route:
    engines = direct(live).engines
    router = Target("r0", Role.ROUTER, live.url("r0"))
    return Route(("p0",), ("d0",), router, waiting=waiting, tries=2, engines=engines)


def length(live: Live, side: Side, tokens: int) -> Length:
    limits = {e.name: e.max_req_input_len for e in live.spec.engines}
    return Length(side, tokens, limits["p0"], limits["d0"], CONTEXT)


def in_context(
    spec: ClusterSpec, body: Callable[[Live, Context], Awaitable[T]], budget: Budget | None = None
) -> T:
    """Run `body` with a real wire against a live cluster; nothing of it may be left open."""

    async def whole() -> T:
        async with running(spec) as live:
            wire, fetcher = Wire(), Fetcher(timeout=2, connections=2)
            context = Context(wire, fetcher, Ledger(budget or Budget()), "0a1b2c3d", lambda _: None)
            try:
                return await body(live, context)
            finally:
                await wire.close()
                await fetcher.close()
                await asyncio.sleep(0.05)
                assert len(live.rooms) == 0
                if not live.routers["r0"].attempts:  # a router keeps connections to its engines
                    assert live.server.open_connections == 0

    return asyncio.run(whole())
