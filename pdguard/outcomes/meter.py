"""From successive readings of counters to rates over those kept, and the alerts that they raise. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from pdguard.outcomes.definitions import Limits
from pdguard.outcomes.interface import OUTCOMES, EngineOutcomes, Figure, Outcomes, Read
from pdguard.outcomes.said import Word

KEPT = 60
"""Readings that are kept, and points of a sparkline."""

SETTLED = 5
"""Readings in a row that a state must last before it is called one."""

_COUNTERS = ("aborts", "requests", "failed_transfers", "failed_bootstraps")


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading of one engine: counts since its start, by name; what is not known is left out."""

    at: float
    counts: dict[str, float]
    held: float | None
    waiting: float | None


@dataclass(frozen=True, slots=True)
class Line:
    """What is shown of one engine. Rates are per second, None where they are not known."""

    name: str
    role: str
    hold_rate: tuple[float | None, ...]
    held: tuple[float | None, ...]
    aborts: tuple[float | None, ...]
    ratio: float | None
    holds: float
    alerts: frozenset[str]
    word: Word = Word.UNKNOWN


@dataclass(slots=True)
class _Engine:
    role: str
    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=KEPT + 1))

    def grown(self, name: str) -> list[float | None]:
        """Events between each two readings; a counter that fell has begun again."""
        pairs = pairwise(s.counts.get(name) for s in self.samples)
        return [_step(before, after, name) for before, after in pairs]

    def total(self, name: str) -> float:
        """Events within the readings kept, as far as known."""
        return sum(v for v in self.grown(name) if v is not None)

    def rates(self, *names: str) -> tuple[float | None, ...]:
        """Events per second between each two readings."""
        grown = [self.grown(name) for name in names]
        spans = [b.at - a.at for a, b in pairwise(self.samples)]
        return tuple(
            sum(v for v in values if v is not None) / span if span > 0 and None not in values else None
            for span, *values in zip(spans, *grown, strict=True)
        )


def _step(before: float | None, after: float | None, name: str) -> float | None:
    if after is None or before is None:
        return None
    return after - before if after >= before else after


class Meter:
    """Keeps the last readings of each engine."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._engines: dict[str, _Engine] = {}

    def add(self, outcomes: Outcomes, at: float) -> tuple[Line, ...]:
        """Take a reading of counts since start, made at `at` seconds of a monotonic clock."""
        for engine in outcomes.engines:
            kept = self._engines.setdefault(engine.name, _Engine(engine.role))
            kept.samples.append(_sample(engine, at))
        return tuple(self._line(e.name) for e in outcomes.engines)

    def _line(self, name: str) -> Line:
        kept = self._engines[name]
        drained, timeout, error = (kept.total(f"holds {o}") for o in OUTCOMES)
        total = drained + timeout + error
        alerts = frozenset(self._alerts(kept, total, timeout + error, error))
        return Line(
            name,
            kept.role,
            kept.rates(*(f"holds {o}" for o in OUTCOMES)) if kept.role == "decode" else (),
            tuple(s.held for s in kept.samples),
            kept.rates("aborts"),
            (timeout + error) / total if total > 0 else None,
            total,
            alerts,
            self._word(kept, total, alerts),
        )

    def _word(self, kept: _Engine, total: float, alerts: frozenset[str]) -> Word:
        """The verdict on the readings kept: by holds on a decode, by requests elsewhere."""
        if alerts:
            return Word.AT_RISK
        decode = kept.role == "decode"
        names = [f"holds {o}" for o in OUTCOMES] if decode else ["requests"]
        if any(v is None for name in names for v in kept.grown(name)[-1:] or [None]):
            return Word.UNKNOWN
        judged = total >= self._limits.min_holds if decode else kept.total("requests") > 0
        return Word.CLEAN if judged else Word.QUIET

    def _alerts(self, kept: _Engine, total: float, unproven: float, errors: float) -> Iterator[str]:
        limits = self._limits
        if total >= limits.min_holds and unproven > limits.timeout_ratio * total:
            yield "PdguardHoldTimeoutRatio"
        if errors > 0:
            yield "PdguardHoldReleaseErrors"
        if self._settled(kept, lambda s: s.held is not None and s.held >= limits.held_now):
            yield "PdguardHoldsGrow"
        requests = kept.total("requests")
        for name, alert in (
            ("failed_transfers", "PdguardTransferFailures"),
            ("failed_bootstraps", "PdguardBootstrapFailures"),
        ):
            failed = kept.total(name)
            if failed >= limits.failures and failed > limits.failure_share * requests:
                yield alert
        if self._spike(kept):
            yield "PdguardAbortsSpike"
        stuck = self._settled(kept, lambda s: s.waiting is not None and s.waiting > 0)
        if stuck and kept.role == "decode" and not any(kept.grown("requests")[-SETTLED:]):
            yield "PdguardDecodeTransferQueueStuck"

    def _settled(self, kept: _Engine, true: Callable[[Sample], bool]) -> bool:
        last = list(kept.samples)[-SETTLED:]
        return len(last) == SETTLED and all(true(s) for s in last)

    def _spike(self, kept: _Engine) -> bool:
        rates = [r for r in kept.rates("aborts") if r is not None]
        if len(rates) <= SETTLED:
            return False
        before = sum(rates[:-1]) / (len(rates) - 1)
        return rates[-1] > self._limits.aborts and rates[-1] > self._limits.spike * before


def _sample(engine: EngineOutcomes, at: float) -> Sample:
    reads: dict[str, Read | None] = {f"holds {o}": engine.holds.get(o) for o in OUTCOMES}
    reads |= {name: getattr(engine, name) for name in _COUNTERS}
    counts = {name: read.value for name, read in reads.items() if isinstance(read, Figure)}
    return Sample(at, counts, _value(engine.held_now), _value(engine.queues.get("decode_transfer")))


def _value(read: Read | None) -> float | None:
    return read.value if isinstance(read, Figure) else None
