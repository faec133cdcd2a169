"""The figures of one engine from its scrapes or its log: each measured, or missing with the reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from pdguard.facts.metrics import counts_releases
from pdguard.facts.versions import parse_version
from pdguard.outcomes import series as s
from pdguard.outcomes.histogram import contradicts
from pdguard.outcomes.interface import (
    OUTCOMES,
    EngineOutcomes,
    Figure,
    Gap,
    HoldTimes,
    Read,
    Source,
)
from pdguard.outcomes.logs import LogCount

Ref = Callable[[str, dict[str, str]], str]
"""Says where a figure comes from: by the name of a series and labels."""

NO_HOLDS = Gap("only a decode holds")
NOT_YET = "no series yet: it appears with the first request"


@dataclass(frozen=True, slots=True)
class Engine:
    """Who is measured. `version` is empty where nobody knows it."""

    name: str
    role: str
    version: str


def missing(engine: Engine, seconds: float, gap: Gap) -> EngineOutcomes:
    """An engine of which nothing could be had, for one reason."""
    decode = engine.role == "decode"
    return EngineOutcomes(
        engine.name,
        engine.role,
        engine.version,
        seconds,
        holds=dict.fromkeys(OUTCOMES, gap) if decode else {},
        hold_times=gap if decode else NO_HOLDS,
        held_now=gap if decode else NO_HOLDS,
        t_hold=_no_t_hold(engine),
        aborts=gap,
        requests=gap,
        prompt_tokens=gap,
        failed_transfers=gap,
        failed_bootstraps=gap,
        transfer_seconds=gap,
        queues=dict.fromkeys(_queues(engine), gap),
        pool=gap,
        page_size=gap,
    )


def count(engine: Engine, scrapes: s.Scrapes, seconds: float, source: Source, ref: Ref) -> EngineOutcomes:
    """Every figure that an engine's scrapes give."""
    return _Figures(engine, scrapes, source, ref).all(seconds)


def _queues(engine: Engine) -> tuple[str, ...]:
    return tuple(name for name in s.QUEUE_NAMES if name.startswith(engine.role))


class _Figures:
    def __init__(self, engine: Engine, scrapes: s.Scrapes, source: Source, ref: Ref) -> None:
        self._engine = engine
        self._broken = scrapes.broken
        self._counting = s.Counting(scrapes)
        self._source = source
        self._ref = ref

    def all(self, seconds: float) -> EngineOutcomes:
        engine = self._engine
        holds, hold_times, held_now = self._holds()
        return EngineOutcomes(
            engine.name,
            engine.role,
            engine.version,
            seconds,
            holds=holds,
            hold_times=hold_times,
            held_now=held_now,
            t_hold=_no_t_hold(engine),
            aborts=self._counter(s.ABORTS),
            requests=self._counter(s.REQUESTS),
            prompt_tokens=self._mean_prompt(),
            failed_transfers=self._counter(s.FAILED_TRANSFERS),
            failed_bootstraps=self._counter(s.FAILED_BOOTSTRAPS),
            transfer_seconds=self._transfers(),
            queues={name: self._queue(name) for name in _queues(engine)},
            pool=self._gauge(s.POOL, "which came with 0.5.10"),
            page_size=self._gauge(s.PAGE_SIZE, "which came with 0.5.18", add=False),
            resets=self._counting.resets,
        )

    def _holds(self) -> tuple[dict[str, Read], HoldTimes | Gap, Read]:
        if self._engine.role != "decode":
            return {}, NO_HOLDS, NO_HOLDS
        counting = self._counting
        version = parse_version(self._engine.version)
        known = any(map(counting.has, (s.HOLDS, s.HELD_NOW, f"{s.HOLD_SECONDS}_count")))
        if not known and (version is None or not counts_releases(version)):
            gap = Gap(
                "this release counts no releases of held pages"
                if version is not None
                else "it has no counter of releases, and its version is not known",
                f"0.5.22 or newer, a hardened engine, or --log {self._engine.name}=FILE",
            )
            return dict.fromkeys(OUTCOMES, gap), gap, gap
        holds = {outcome: self._counter(s.HOLDS, outcome=outcome) for outcome in OUTCOMES}
        times = self._histogram(s.HOLD_SECONDS, 1.0)
        if times is None:
            times = HoldTimes((), 0.0, 0.0, self._source, self._ref(s.HOLD_SECONDS, {}))
        return holds, times, self._gauge(s.HELD_NOW, NOT_YET)

    def _counter(self, name: str, **labels: str) -> Read:
        if name in self._broken:
            return Gap(f"a sample of {name} could not be read")
        # Labelled counters have no series before the first event.
        return Figure(self._counting.increase(name, **labels) or 0.0, self._source, self._ref(name, labels))

    def _mean_prompt(self) -> Read:
        requests, tokens = self._counter(s.REQUESTS), self._counter(s.PROMPT_TOKENS)
        for read in (requests, tokens):
            if isinstance(read, Gap):
                return read
        assert isinstance(requests, Figure)  # noqa: S101
        assert isinstance(tokens, Figure)  # noqa: S101
        if requests.value <= 0:
            return Gap("no request ended in the window")
        return Figure(tokens.value / requests.value, self._source, f"{tokens.ref} / {requests.ref}")

    def _transfers(self) -> HoldTimes | Gap:
        if self._engine.role != "prefill":
            return Gap("only a prefill measures its transfers")
        found = self._histogram(s.TRANSFER_MS, 0.001)
        return found if found is not None else Gap("it has measured no transfer yet")

    def _histogram(self, name: str, scale: float) -> HoldTimes | Gap | None:
        """None where it has no series."""
        parts = [part for part in s.COUNTED if part.startswith(name)]
        if self._broken.intersection(parts):
            return Gap(f"a sample of {name} could not be read")
        found = self._counting.histogram(name, scale)
        if found is None:
            if any(map(self._counting.has, parts)):
                return Gap(f"the buckets of {name} differ between ranks")
            return None
        times = HoldTimes(found.buckets, found.count, found.total, self._source, self._ref(name, {}))
        if contradicts(times):
            return Gap("its sum and buckets contradict each other", "read once more; no engine counts so")
        return times

    def _queue(self, queue: str) -> Read:
        names = s.QUEUE_NAMES[queue]
        found = next((name for name in names if self._counting.has(name)), names[0])
        return self._gauge(found, NOT_YET)

    def _gauge(self, name: str, absent: str, *, add: bool = True) -> Read:
        value = self._counting.gauge(name, add=add)
        if value is not None:
            return Figure(value, self._source, self._ref(name, {}))
        if name in self._broken:
            return Gap(f"a sample of {name} could not be read")
        return Gap(absent if absent == NOT_YET else f"it has no {name}, {absent}")


def _no_t_hold(engine: Engine) -> Gap:
    if engine.role != "decode":
        return NO_HOLDS
    return Gap("a log alone names it", f"--log {engine.name}=FILE")


def with_log(outcomes: EngineOutcomes, count: LogCount, file: str) -> EngineOutcomes:
    """The same engine with what its log tells; counters win where there are any."""
    span = f"from {count.began} to {count.ended} by its own clock" if count.ended else "undated"
    ref = f"{file}, {span}" + (", its older lines not read" if count.cut else "")
    t_hold: Read = (
        Figure(count.t_hold, Source.LOG, ref)
        if count.t_hold is not None
        else Gap("no line of its log names it: no hold ended by timeout")
    )
    outcomes = replace(outcomes, t_hold=t_hold)
    if any(isinstance(read, Figure) for read in outcomes.holds.values()):
        return outcomes
    holds: dict[str, Read] = {
        "drained": Gap(
            "a hold that drains leaves no line in the log", "0.5.22 or newer, or a hardened engine"
        ),
        "timeout": Figure(float(count.timeouts), Source.LOG, ref),
        "error": Figure(float(count.errors), Source.LOG, ref),
    }
    return replace(outcomes, holds=holds)
