"""One engine's load at a moment, and whether it has let go of a request.

Queues come from /v1/loads, which is fresh; counters from /metrics, where gauges lag behind. Used tokens say
nothing of a hold: after an abort they fall to 0 although the pages are kept.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pdguard.facts._fetch import Answer, Failed, Fetcher
from pdguard.facts._read import MAX_VERSION, Bad, parse_object, whole
from pdguard.facts.metrics import HOW as HOW_METRICS
from pdguard.facts.metrics import counts_releases
from pdguard.facts.versions import parse_version
from pdguard.probe.context import Context
from pdguard.probe.counters import CounterLines, Counters, read_counters
from pdguard.probe.interface import Release, Role, Target

POLL = 0.2
LOADS, METRICS = "/v1/loads", "/metrics"
OTHERS = "other requests are running, they cannot be told apart"
_MAX_RANKS = 4096
_QUEUES = {
    Role.PREFILL: ("prefill_bootstrap", "prefill_inflight"),
    Role.DECODE: ("decode_prealloc", "decode_transfer"),
}


@dataclass(frozen=True, slots=True)
class Load:
    """A snapshot of one engine, all DP ranks added up. `at` is monotonic time in seconds.

    Each figure is None where it was not told: no /v1/loads before 0.5.10, no counters without
    --enable-metrics. `trouble` says why, or is empty.
    """

    at: float
    prefill_bootstrap: int | None = None
    prefill_inflight: int | None = None
    decode_prealloc: int | None = None
    decode_transfer: int | None = None
    decode_retracted: int | None = None
    running: int | None = None
    waiting: int | None = None
    used_tokens: int | None = None
    counters: Counters | None = None
    trouble: str = ""

    def queued(self, role: Role) -> int | None:
        """How many requests are on their way through the handoff of that role."""
        parts = [getattr(self, name) for name in _QUEUES.get(role, ())]
        return None if not parts or None in parts else sum(parts)

    @property
    def busy(self) -> int | None:
        """Requests that run or wait."""
        return None if self.running is None or self.waiting is None else self.running + self.waiting


async def read_load(
    fetcher: Fetcher, target: Target, *, metrics: bool = True, limit: float | None = None
) -> Load:
    """The load of an engine now; whatever it does is `trouble`, never an error. `limit` is in seconds."""
    try:
        async with asyncio.timeout(limit):
            queues, (counters, missing) = await asyncio.gather(
                _queues(fetcher, target), _counters(fetcher, target) if metrics else _nothing()
            )
    except TimeoutError:
        return Load(time.monotonic(), trouble="no answer in time")
    at = time.monotonic()
    if isinstance(queues, str):
        return Load(at, counters=counters, trouble="; ".join(filter(None, (queues, missing))))
    figures, version = queues
    known = parse_version(version)
    if counters is not None and counters.releases is None and known is not None and counts_releases(known):
        # The gauge that tells of holds comes late; until then the release tells that they are counted.
        counters = replace(counters, releases={}, hold_count=0, hold_seconds=0.0)
    return Load(at, **figures, counters=counters, trouble=missing)


async def read_all(
    context: Context, targets: Sequence[Target], *, metrics: bool = True, limit: float | None = None
) -> dict[str, Load]:
    """The loads of several engines at once, by name."""
    loads = await asyncio.gather(
        *(read_load(context.fetcher, one, metrics=metrics, limit=limit) for one in targets)
    )
    return {target.name: load for target, load in zip(targets, loads, strict=True)}


async def _queues(fetcher: Fetcher, target: Target) -> tuple[dict[str, int | None], str] | str:
    answer = await fetcher.get(target.base, LOADS, key=target.key, tls=target.tls)
    if isinstance(answer, Failed):
        return f"{LOADS}: {answer.reason}"
    content = parse_object(answer.body)
    if isinstance(content, Bad):
        return f"{LOADS}: {content.reason}"
    entries = content.get("loads")
    if not isinstance(entries, list) or not 0 < len(entries) <= _MAX_RANKS:
        return f"{LOADS}: it names no rank"

    def total(key: str, section: str = "") -> int | None:
        return _sum([_inside(entry, section).get(key) for entry in entries])

    figures = {
        name: total(f"{name}_queue_reqs", "disaggregation")
        for name in (*_QUEUES[Role.PREFILL], *_QUEUES[Role.DECODE], "decode_retracted")
    }
    figures["running"] = total("num_running_reqs")
    figures["waiting"] = total("num_waiting_reqs")
    figures["used_tokens"] = total("num_used_tokens")
    version = content.get("version")
    return figures, version if isinstance(version, str) and len(version) <= MAX_VERSION else ""


def _inside(entry: Any, section: str) -> dict[str, Any]:
    found = entry.get(section) if section and isinstance(entry, dict) else entry
    return found if isinstance(found, dict) else {}


def _sum(values: list[Any]) -> int | None:
    counts = [whole(value) for value in values]
    return sum(c for c in counts if isinstance(c, int)) if all(isinstance(c, int) for c in counts) else None


async def _counters(fetcher: Fetcher, target: Target) -> tuple[Counters | None, str]:
    lines = CounterLines()
    answer = await fetcher.get(target.base, METRICS, tls=target.tls, sink=lines.feed)
    if isinstance(answer, Answer):
        lines.close()
        counters = read_counters(lines)
        return counters, "" if counters is not None else f"{METRICS}: no series of SGLang, {HOW_METRICS}"
    how = f", {HOW_METRICS}" if answer.status == 404 else ""
    return None, f"{METRICS}: {answer.reason}{how}"


async def _nothing() -> tuple[None, str]:
    return None, ""


def at_rest(before: Load | None, now: Load, role: Role) -> bool | None:
    """Whether the handoff's queues are no longer than `before`; None: not told, or others blur it.

    One request of ours adds at most one to the queues, and one to what runs or waits.
    """
    queued = now.queued(role)
    if queued is None:
        return None
    if queued == 0:
        return True
    earlier = None if before is None else before.queued(role)
    if before is None or earlier is None:
        return None
    more = 0 if now.busy is None or before.busy is None else now.busy - before.busy
    if queued > earlier:
        return None if queued - earlier > 1 or more > 1 else False
    return True if more == 0 else None


async def until_released(context: Context, target: Target, before: Load, limit: float) -> Release:
    """Wait up to `limit` seconds until `target` holds nothing more in its queues than `before`.

    Called right after the probe has closed its request; seconds are counted from this call.
    """
    began = time.monotonic()
    read = LOADS + " " + " + ".join(f"{name}_queue_reqs" for name in _QUEUES.get(target.role, ()))
    last: Load | None = None
    trouble = ""
    while (left := limit - (time.monotonic() - began)) > 0:
        now = await read_load(context.fetcher, target, metrics=False, limit=left)
        if now.queued(target.role) is not None:
            last = now
            if at_rest(before, now, target.role):
                return Release(True, now.at - began, read)
        else:
            trouble = now.trouble or f"{LOADS}: it tells no queues of a {target.role.value}"
        await asyncio.sleep(min(POLL, max(0.0, limit - (time.monotonic() - began))))
    if last is None:
        return Release(None, None, trouble or "no time was left to look")
    if at_rest(before, last, target.role) is None:
        return Release(None, None, f"{read}: {OTHERS}")
    return Release(False, None, read)
