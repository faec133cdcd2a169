"""Outcomes and facts for tests: numbers that can be followed by hand."""

from __future__ import annotations

import math
from typing import Any

from pdguard.facts.interface import Collected, FactSet, Grade, PairSubject, Subject, Value
from pdguard.outcomes.interface import EngineOutcomes, Figure, Gap, HoldTimes, Outcomes, Source

POLICY: dict[str, Any] = {
    "t_hold_min": 60.0,
    "t_hold_max": 120.0,
    "extreme_context": 131_072,
    "timeout_ratio": 0.05,
    "min_holds": 20,
}
BOUNDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, math.inf)


def figure(value: float) -> Figure:
    return Figure(value, Source.ENGINE, "series")


def times(*ends: float, bounds: tuple[float, ...] = BOUNDS) -> HoldTimes:
    """The histogram of holds that lasted these seconds."""
    buckets = tuple((b, float(sum(e <= b for e in ends))) for b in bounds)
    return HoldTimes(buckets, float(len(ends)), sum(ends), Source.ENGINE, "histogram")


def decode(**more: Any) -> EngineOutcomes:
    """100 s; 20 aborts, 10 holds of which one timed out at 30 s, prompts of 1,001 tokens in pages of 16."""
    fields: dict[str, Any] = {
        "holds": {"drained": figure(9), "timeout": figure(1), "error": figure(0)},
        "hold_times": times(*[2.0] * 9, 30.0),
        "held_now": figure(1),
        "aborts": figure(20),
        "requests": figure(500),
        "prompt_tokens": figure(1001),
        "failed_transfers": figure(10),
        "failed_bootstraps": figure(0),
        "queues": {"decode_prealloc": figure(0), "decode_transfer": figure(2)},
        "pool": figure(100_800),
        "page_size": figure(16),
    }
    return EngineOutcomes("d0", "decode", "0.5.23", 100.0, **{**fields, **more})


def prefill(**more: Any) -> EngineOutcomes:
    fields: dict[str, Any] = {
        "aborts": figure(20),
        "requests": figure(500),
        "transfer_seconds": times(0.2, 0.4, bounds=(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, math.inf)),
        "failed_transfers": figure(10),
        "failed_bootstraps": figure(0),
        "queues": {"prefill_bootstrap": figure(0), "prefill_inflight": figure(1)},
    }
    return EngineOutcomes("p0", "prefill", "0.5.23", 100.0, **{**fields, **more})


def outcomes(*engines: EngineOutcomes, notes: tuple[str, ...] = ()) -> Outcomes:
    every = engines or (prefill(), decode())
    return Outcomes("prod", "2026-11-30T12:00:00Z", "2026-11-30T12:01:40Z", 100.0, every, notes)


def subject(name: str, role: str, **facts: Value) -> Subject:
    made = FactSet()
    for fact, value in {"role": role, **facts}.items():
        made.add(fact, value, Grade.CONFIGURED, "process", f"environ {fact}")
    return Subject("engine", name, made)


def collected(*, p: dict[str, Value] | None = None, d: dict[str, Value] | None = None) -> Collected:
    """p0 on Mooncake with its default bound, d0 holding for 60 s; `p` and `d` add to their facts."""
    one: dict[str, Value] = {
        "backend": "mooncake",
        "transfer_timeout": 30.0,
        "batch_cap": 0,
        "prefill_told": True,
    }
    two: dict[str, Value] = {
        "hold": "on",
        "t_hold": 60.0,
        "t_hold_kind": "finite",
        "hold_scope": "every failure",
    }
    half = subject("p0", "prefill", **{**one, **(p or {})})
    other = subject("d0", "decode", **{**two, **(d or {})})
    pair = PairSubject("pair", "p0→d0", prefill=half, decode=other, members=(("p0",), ("d0",)))
    return Collected(Subject("cluster", "prod"), [half, other], [pair])


UNKNOWN = Gap("metrics are off", "start it with --enable-metrics")
