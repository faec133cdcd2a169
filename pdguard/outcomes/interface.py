"""The seams of release outcomes: figures over a window, each measured or missing with a reason. Frozen."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


class Source(enum.Enum):
    """Where a figure was read."""

    PROMETHEUS = "prometheus"
    ENGINE = "the engine's own /metrics"
    LOG = "the engine's log"


@dataclass(frozen=True, slots=True)
class Figure:
    """A number that was measured. `ref` is the query, the series or the log line behind it."""

    value: float
    source: Source
    ref: str


@dataclass(frozen=True, slots=True)
class Gap:
    """A figure that could not be had: why, and what the operator can do."""

    why: str
    how: str = ""


Read = Figure | Gap

OUTCOMES = ("drained", "timeout", "error")
QUEUES = ("prefill_bootstrap", "prefill_inflight", "decode_prealloc", "decode_transfer")


@dataclass(frozen=True, slots=True)
class HoldTimes:
    """The histogram of hold times over the window: (upper bound in seconds, cumulative count), +Inf last."""

    buckets: tuple[tuple[float, float], ...]
    count: float
    total_seconds: float
    source: Source
    ref: str


@dataclass(frozen=True, slots=True)
class EngineOutcomes:
    """One engine over one window of `seconds`.

    Counts are those within the window, of requests (ranks of one group are not counted twice), through
    restarts. `holds` is by outcome, `queues` by queue, `pool` in tokens over all DP ranks, `prompt_tokens`
    the mean of a request in tokens. `resets` is how often its counters began again. Only decode has holds.
    """

    name: str
    role: str
    version: str
    seconds: float
    holds: Mapping[str, Read] = field(default_factory=dict)
    hold_times: HoldTimes | Gap = field(default_factory=lambda: Gap("not read"))
    held_now: Read = field(default_factory=lambda: Gap("not read"))
    aborts: Read = field(default_factory=lambda: Gap("not read"))
    requests: Read = field(default_factory=lambda: Gap("not read"))
    prompt_tokens: Read = field(default_factory=lambda: Gap("not read"))
    failed_transfers: Read = field(default_factory=lambda: Gap("not read"))
    failed_bootstraps: Read = field(default_factory=lambda: Gap("not read"))
    transfer_seconds: HoldTimes | Gap = field(default_factory=lambda: Gap("not read"))
    """The histogram of KV transfer times, in seconds (kv_transfer_latency_ms)."""
    queues: Mapping[str, Read] = field(default_factory=dict)
    t_hold: Read = field(default_factory=lambda: Gap("not read"))
    """T_hold in force, in seconds, as the engine's log names it where a hold ran into it."""
    pool: Read = field(default_factory=lambda: Gap("not read"))
    page_size: Read = field(default_factory=lambda: Gap("not read"))
    resets: int = 0


@dataclass(frozen=True, slots=True)
class Outcomes:
    """All engines over one window. `notes` are sentences about the reading itself."""

    cluster: str
    began_at: str
    ended_at: str
    seconds: float
    engines: tuple[EngineOutcomes, ...]
    notes: tuple[str, ...] = ()

    @property
    def decodes(self) -> tuple[EngineOutcomes, ...]:
        """The decode engines."""
        return tuple(e for e in self.engines if e.role == "decode")
