"""One window of every engine from its own /metrics: scrapes at both ends and in between.

The scrapes in between are there to see restarts. Nothing is kept of a scrape but the samples that figures
are counted from.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from pdguard.cluster.model import Cluster, Engine
from pdguard.facts import metrics
from pdguard.facts._fetch import PLAIN, Failed, Fetcher, Tls, Transport
from pdguard.facts.access import tls_of
from pdguard.outcomes import series as s
from pdguard.outcomes.interface import Gap

BETWEEN = 10
"""Into how many parts a window is cut; none is shorter than a second."""

TOLD_EVERY = 10.0
"""Seconds from one word about a window that is being watched to the next."""

_CLOSE_SECONDS = 2.0


async def read_direct(
    cluster: Cluster,
    window: float,
    *,
    progress: Callable[[str], None] | None = None,
    transport: Transport | None = None,
) -> dict[str, s.Scrapes | Gap]:
    """Each engine's scrapes over the next `window` seconds, or why there are none.

    A window of 0 is one scrape, and the counters count since the engine started. Raises InputError for TLS
    files that cannot be used, nothing for what an engine does.
    """
    tls = tls_of(cluster, cluster.engines)
    policy = cluster.policy
    fetcher = Fetcher(timeout=policy.request_timeout, connections=policy.concurrency, transport=transport)
    parts = max(1, math.ceil(window / max(1.0, window / BETWEEN))) if window > 0 else 0
    if progress is not None:
        progress(_intention(cluster.engines, window))
    few = asyncio.Semaphore(policy.concurrency)
    watches = [_Watch(fetcher, e, tls.get(e.name, PLAIN), few) for e in cluster.engines]
    told = asyncio.create_task(_tell(progress, window)) if progress is not None and window > 0 else None
    try:
        await asyncio.gather(*(watch.run(window, parts) for watch in watches))
    finally:
        if told is not None:
            told.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await fetcher.close()
    return {e.name: watch.result(window) for e, watch in zip(cluster.engines, watches, strict=True)}


def _intention(engines: Sequence[Engine], window: float) -> str:
    ends = datetime.now() + timedelta(seconds=window)
    length = f"for {window:g} s, until {ends:%H:%M:%S}" if window > 0 else "once"
    return f"reading /metrics of {len(engines):,} engine{'s' * (len(engines) != 1)} {length}"


async def _tell(progress: Callable[[str], None], window: float) -> None:
    """Say every TOLD_EVERY seconds how much of the window is over."""
    over = 0.0
    while (over := over + TOLD_EVERY) < window:
        await asyncio.sleep(TOLD_EVERY)
        progress(f"{over:g} of {window:g} s")


class _Watch:
    """The scrapes of one engine."""

    def __init__(self, fetcher: Fetcher, engine: Engine, tls: Tls, few: asyncio.Semaphore) -> None:
        self._fetcher = fetcher
        self._engine = engine
        self._tls = tls
        self._few = few
        self._scrapes = s.Scrapes()
        self._failed: Failed | None = None
        self._gap: Gap | None = None

    async def run(self, window: float, parts: int) -> None:
        """Scrape at both ends of the window and between its parts."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        for part in range(parts + 1):
            if part:
                await asyncio.sleep(max(0.0, began + window * part / parts - loop.time()))
            async with self._few:
                await self._scrape()

    async def _scrape(self) -> None:
        lines = metrics.LineFilter(s.NEEDED)
        answer = await self._fetcher.get(self._engine.url, metrics.PATH, tls=self._tls, sink=lines.feed)
        at = time.time()
        if isinstance(answer, Failed):
            self._failed = answer
            return
        lines.close()
        if not lines.sglang:
            self._gap = Gap(f"{metrics.PATH} holds no series of SGLang", metrics.HOW)
            return
        if lines.full:
            self._gap = Gap(f"{metrics.PATH} holds more series than are read here")
            return
        # Parsing a large scrape takes a while, and the other engines' clocks run on.
        self._take(at, await asyncio.to_thread(metrics.parse_lines, lines.lines, s.NEEDED))

    def _take(self, at: float, families: dict[str, metrics.Family]) -> None:
        scrapes = self._scrapes
        if scrapes.times and at <= scrapes.times[-1]:
            return  # the machine's clock was set back
        scrapes.times.append(at)
        scrapes.gauges = {}
        for name, family in families.items():
            if family.broken:
                scrapes.broken.add(name)
            for labels, value in family.samples:
                own = tuple(sorted(labels.items()))
                if name in s.GAUGES:
                    scrapes.gauges[name, own] = value
                else:
                    scrapes.add(at, name, own, value)

    def result(self, window: float) -> s.Scrapes | Gap:
        """What the scrapes gave."""
        scrapes = self._scrapes
        if self._gap is not None:
            return self._gap
        if not scrapes.times:
            failed = self._failed or Failed("it was not asked")
            off = failed.status == 404
            return Gap(f"{metrics.PATH}: {failed.reason}", metrics.HOW if off else failed.how)
        if window <= 0:
            scrapes.from_zero = True
        elif len(scrapes.times) == 1:
            reason = f" ({self._failed.reason})" if self._failed else ""
            return Gap(f"one scrape alone answered{reason}; counting needs two", "try again")
        scrapes.start = scrapes.times[0]
        return scrapes
