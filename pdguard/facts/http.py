"""Collects what engines and routers tell over HTTP, all at once and within bounds.

One engine that is dead, slow or lying costs its own facts and nothing else: each of them is then missing,
with the reason. Only the passive paths of `_fetch.LIMITS` are asked, at most six an engine, one after the
other; what an answer makes unnecessary is not asked.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from typing import Protocol

from pdguard.facts import router
from pdguard.facts._engine import ENGINE_FACTS, EngineLike, Run, ask_engine
from pdguard.facts._fetch import Answer, Failed, Fetcher, Tls, Transport
from pdguard.facts._read import Bad
from pdguard.facts.interface import FactSet, Subject

__all__ = ["EngineLike", "HttpResults", "RouterLike", "Tls", "collect_http"]

CLOSE_SECONDS = 2.0


class RouterLike(Protocol):
    """What is needed of a router in cluster.yaml."""

    @property
    def name(self) -> str:
        """Name in reports."""

    @property
    def url(self) -> str:
        """Base URL."""

    @property
    def kind(self) -> str:
        """Which router it is."""

    @property
    def engines(self) -> Sequence[str] | None:
        """Names of the engines behind it, all of them if None."""

    @property
    def version(self) -> str | None:
        """Version as declared."""

    @property
    def built(self) -> str | date | None:
        """Build date as declared."""


@dataclass(slots=True)
class HttpResults:
    """One subject for each engine and router, in the order they were given."""

    engines: list[Subject] = field(default_factory=list)
    routers: list[Subject] = field(default_factory=list)
    unfinished: int = 0
    """Engines and routers that the run's deadline cut short."""


async def collect_http(
    engines: Sequence[EngineLike],
    routers: Sequence[RouterLike] = (),
    *,
    request_timeout: float = 5.0,
    run_timeout: float = 60.0,
    concurrency: int = 64,
    keys: Mapping[str, str] | None = None,
    tls: Mapping[str, Tls] | None = None,
    on_done: Callable[[str], None] | None = None,
    transport: Transport | None = None,
) -> HttpResults:
    """Facts about every engine and router, each known or missing with a reason.

    `keys` and `tls` are by name of the engine or router. `on_done` is told the name of each that is finished.
    Raises nothing for what the other side does. `router.derive_router` is left to the caller.
    """
    run = Run(
        Fetcher(timeout=request_timeout, connections=concurrency, transport=transport), keys or {}, tls or {}
    )
    results = HttpResults(
        [Subject("engine", e.name) for e in engines], [Subject("router", r.name) for r in routers]
    )
    listings: dict[str, tuple[str, router.Listing | Bad]] = {}
    jobs: list[tuple[Subject, Callable[[], Awaitable[None]]]] = []
    for engine, subject in zip(engines, results.engines, strict=True):
        jobs.append((subject, partial(ask_engine, run, engine, subject.facts)))
    for one, subject in zip(routers, results.routers, strict=True):
        router.add_declared(subject.facts, one.kind, one.version, one.built)
        jobs.append((subject, partial(_ask_router, run, one, subject.facts, listings)))
    try:
        done = await _run_all(jobs, run_timeout, concurrency, on_done)
    finally:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await run.fetcher.close()
    _compare(engines, routers, results, listings)
    for subject, _ in jobs:
        late = subject.name not in done
        results.unfinished += late
        reason = f"the run's deadline of {run_timeout:g} s passed" if late else "no answer told it"
        _fill(subject, reason)
    return results


async def _run_all(
    jobs: list[tuple[Subject, Callable[[], Awaitable[None]]]],
    run_timeout: float,
    concurrency: int,
    on_done: Callable[[str], None] | None,
) -> set[str]:
    """Run the jobs, a few at a time, until all are done or the time is up; the names of those done."""
    done: set[str] = set()
    waiting = iter(jobs)

    async def worker() -> None:
        for subject, job in waiting:
            try:
                await job()
            except Exception as error:  # noqa: BLE001 - a defect here must not cost the other engines their facts
                _fill(
                    subject, f"pdguard failed while reading it ({type(error).__name__}); please report this"
                )
            done.add(subject.name)
            if on_done is not None:
                on_done(subject.name)

    tasks = [asyncio.ensure_future(worker()) for _ in range(min(concurrency, len(jobs)))]
    if tasks:
        try:
            _, late = await asyncio.wait(tasks, timeout=run_timeout)
        finally:
            for task in tasks:
                task.cancel()
        if late:
            await asyncio.wait(late, timeout=CLOSE_SECONDS)
    return done


def _fill(subject: Subject, reason: str, how: str = "") -> None:
    names = ENGINE_FACTS if subject.kind == "engine" else ("reachable", *router.LISTED)
    for name in names:
        subject.facts.miss(name, reason, how)


async def _ask_router(
    run: Run, one: RouterLike, facts: FactSet, listings: dict[str, tuple[str, router.Listing | Bad]]
) -> None:
    path = "/workers"
    answer = await run.get(one.name, one.url, path)
    if isinstance(answer, Failed) and answer.status == 404 and one.kind == "sglang-router":
        older = await run.get(one.name, one.url, "/list_workers")
        if isinstance(older, Answer):
            path, answer = "/list_workers", older
    if isinstance(answer, Failed):
        router.read_failure(facts, path, answer)
    else:
        listings[one.name] = (path, router.read_workers(path, answer.body))


def _compare(
    engines: Sequence[EngineLike],
    routers: Sequence[RouterLike],
    results: HttpResults,
    listings: Mapping[str, tuple[str, router.Listing | Bad]],
) -> None:
    """Set each router's list against the engines, once all have told what they are."""
    if not listings:
        return
    addresses = {router.address(e.url): e.name for e in engines}
    every = frozenset(e.name for e in engines)
    roles = {e.name: s.facts.text("role") or e.role for e, s in zip(engines, results.engines, strict=True)}
    for one, subject in zip(routers, results.routers, strict=True):
        if one.name in listings:
            path, listing = listings[one.name]
            behind = every if one.engines is None else frozenset(one.engines)
            router.compare(subject.facts, listing, path, addresses, behind, roles)
