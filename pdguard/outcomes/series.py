"""What each figure is counted from, and the counting: pure, and exact through restarts.

An engine's scrapes come as `Scrapes`, whoever made them. A counter's increase is the sum of its steps between
scrapes, nothing is extrapolated. When any counter of an engine falls, or a series vanishes from a scrape that
answered, the engine has started again: every one of its counters then began at zero. A series that was not in
an earlier scrape began at zero too, for labelled counters have none before their first event.

Ranks of one tensor-, pipeline- or expert-parallel group count the same requests, so the largest increase
counts; data-parallel ranks serve different requests, so theirs add up. A series with a priority is part of
the one without.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pdguard.facts import metrics

Labels = tuple[tuple[str, str], ...]
"""Labels in the order of their names."""

HOLDS = metrics.RELEASES
PREFIX, ESCAPED = "sglang:", "sglang_"
"""How names begin in the text format, and as a newer client library writes them to a Prometheus that asks for
OpenMetrics, which allows no colon. Which one a Prometheus stores depends on both."""


def both_names(name: str) -> tuple[str, str]:
    """The two names under which a Prometheus may have a family."""
    return name, ESCAPED + name.removeprefix(PREFIX)


def own_name(name: str) -> str:
    """The engine's own name of a family, however it was written."""
    return PREFIX + name.removeprefix(ESCAPED) if name.startswith(ESCAPED) else name


HOLD_SECONDS = "sglang:decode_deferred_kv_release_seconds"
HELD_NOW = metrics.HELD
ABORTS = metrics.ABORTED
REQUESTS = "sglang:num_requests_total"
PROMPT_TOKENS = "sglang:prompt_tokens_total"
FAILED_TRANSFERS = metrics.FAILED
FAILED_BOOTSTRAPS = "sglang:num_bootstrap_failed_reqs_total"
TRANSFER_MS = "sglang:kv_transfer_latency_ms"
POOL = metrics.POOL
PAGE_SIZE = "sglang:page_size"

QUEUE_NAMES: Mapping[str, tuple[str, ...]] = {
    # 0.5.10 and before called it the prealloc queue, and 0.4.10 misspelt the next one.
    "prefill_bootstrap": (
        "sglang:num_prefill_bootstrap_queue_reqs",
        "sglang:num_prefill_prealloc_queue_reqs",
    ),
    "prefill_inflight": ("sglang:num_prefill_inflight_queue_reqs", "sglang:num_prefill_infight_queue_reqs"),
    "decode_prealloc": ("sglang:num_decode_prealloc_queue_reqs",),
    "decode_transfer": ("sglang:num_decode_transfer_queue_reqs",),
}


def _parts(histogram: str) -> tuple[str, str, str]:
    return (f"{histogram}_bucket", f"{histogram}_sum", f"{histogram}_count")


COUNTERS = (HOLDS, ABORTS, REQUESTS, PROMPT_TOKENS, FAILED_TRANSFERS, FAILED_BOOTSTRAPS)
HISTOGRAMS = (HOLD_SECONDS, TRANSFER_MS)
COUNTED = frozenset(COUNTERS) | {part for histogram in HISTOGRAMS for part in _parts(histogram)}
GAUGES = frozenset({HELD_NOW, POOL, PAGE_SIZE, *(n for names in QUEUE_NAMES.values() for n in names)})
NEEDED = COUNTED | GAUGES


@dataclass(slots=True)
class Points:
    """The samples of one series, in the order of time."""

    times: array[float] = field(default_factory=lambda: array("d"))
    values: array[float] = field(default_factory=lambda: array("d"))

    def add(self, time: float, value: float) -> None:
        """One more; what is not later than the last is the same sample again."""
        if not self.times or time > self.times[-1]:
            self.times.append(time)
            self.values.append(value)


Key = tuple[str, Labels]


@dataclass(slots=True)
class Scrapes:
    """What one engine's scrapes told.

    `times` are those of the scrapes that answered, in order; empty where nobody knows them. Scrapes at or
    before `start` give the values that the window begins with. With `from_zero` the counters count since the
    engine started. `gauges` holds the last values. `broken` names what could not be read in some scrape.
    """

    start: float = 0.0
    times: list[float] = field(default_factory=list)
    counters: dict[Key, Points] = field(default_factory=dict)
    gauges: dict[Key, float] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    from_zero: bool = False

    def add(self, time: float, name: str, labels: Labels, value: float) -> None:
        """One sample of a counter."""
        self.counters.setdefault((name, labels), Points()).add(time, value)

    @property
    def first(self) -> float | None:
        """When the first scrape answered."""
        if self.times:
            return self.times[0]
        return min((p.times[0] for p in self.counters.values() if p.times), default=None)


@dataclass(frozen=True, slots=True)
class Histogram:
    """Increase over the window: cumulative counts by upper bound, +Inf last, and the sum of what was seen."""

    buckets: tuple[tuple[float, float], ...]
    count: float
    total: float


class Counting:
    """Counts over one engine's scrapes."""

    def __init__(self, scrapes: Scrapes) -> None:
        self._scrapes = scrapes
        self._first = scrapes.first
        self._restarts = _restarts(scrapes)

    @property
    def resets(self) -> int:
        """How often the engine's counters began again within the window."""
        scrapes = self._scrapes
        if scrapes.from_zero:
            return 0
        if scrapes.times:
            return sum(time > scrapes.start for time in self._restarts)
        return max((_falls(points, scrapes.start) for points in scrapes.counters.values()), default=0)

    def increase(self, name: str, **labels: str) -> float | None:
        """By how much a counter rose; None where it has no series."""
        groups: dict[Labels, float] = {}
        for own, points in self._series(name, labels):
            key = _group(own)
            groups[key] = max(self._rise(points), groups.get(key, 0.0))
        return sum(groups.values()) if groups else None

    def histogram(self, name: str, scale: float = 1.0) -> Histogram | None:
        """The increase of a histogram, bounds and sum times `scale`; None where it has no series.

        Of the ranks of one group it is that of one rank: the one that counted most, and of equals the
        slowest. None also where data-parallel ranks have different bounds, which no release does.
        """
        bucket, total, count = _parts(name)
        ranks: dict[Labels, _Rank] = {}
        for own, points in self._series(bucket, {}):
            bound = _bound(dict(own).get("le", ""))
            if bound is not None:
                rank = ranks.setdefault(tuple(item for item in own if item[0] != "le"), _Rank())
                rank.buckets[bound] = self._rise(points)
        for own, points in self._series(count, {}):
            ranks.setdefault(own, _Rank()).count = self._rise(points)
        for own, points in self._series(total, {}):
            ranks.setdefault(own, _Rank()).total = self._rise(points)
        groups: dict[Labels, _Rank] = {}
        for own, rank in ranks.items():
            best = groups.setdefault(_group(own), rank)
            if (rank.count, rank.total) > (best.count, best.total):
                groups[_group(own)] = rank
        if not groups or len({tuple(sorted(rank.buckets)) for rank in groups.values()}) != 1:
            return None
        chosen = list(groups.values())
        bounds = sorted(chosen[0].buckets)
        return Histogram(
            tuple((bound * scale, sum(rank.buckets[bound] for rank in chosen)) for bound in bounds),
            sum(rank.count for rank in chosen),
            sum(rank.total for rank in chosen) * scale,
        )

    def gauge(self, name: str, *, add: bool = True) -> float | None:
        """The last value: the largest of a group's ranks, added over data-parallel ranks if `add`."""
        groups: dict[Labels, float] = {}
        for (own_name, own), value in self._scrapes.gauges.items():
            if own_name == name and not dict(own).get("priority"):
                key = _group(own)
                groups[key] = max(value, groups.get(key, value))
        if not groups:
            return None
        return sum(groups.values()) if add else max(groups.values())

    def has(self, name: str) -> bool:
        """Whether any series of that name came."""
        scrapes = self._scrapes
        return any(key[0] == name for key in (*scrapes.counters, *scrapes.gauges))

    def _series(self, name: str, labels: Mapping[str, str]) -> Iterator[tuple[Labels, Points]]:
        wanted = labels.items()
        for (own_name, own), points in self._scrapes.counters.items():
            if own_name == name and wanted <= dict(own).items() and not dict(own).get("priority"):
                yield own, points

    def _rise(self, points: Points) -> float:
        """The increase of one series within the window."""
        scrapes = self._scrapes
        if not points.times:
            return 0.0
        if scrapes.from_zero:
            return points.values[-1]
        rise, before = 0.0, None
        last = scrapes.start
        for time, value in zip(points.times, points.values, strict=True):
            if time <= scrapes.start:
                before, last = value, time
                continue
            if before is None:
                known = self._first is not None and time > self._first
                base = 0.0 if known else value
            elif value < before or self._restarted(last, time):
                base = 0.0
            else:
                base = before
            rise += value - base
            before, last = value, time
        return rise

    def _restarted(self, after: float, until: float) -> bool:
        return bisect_right(self._restarts, after) < bisect_right(self._restarts, until)


@dataclass(slots=True)
class _Rank:
    buckets: dict[float, float] = field(default_factory=dict)
    count: float = 0.0
    total: float = 0.0


def _group(labels: Labels) -> Labels:
    """What series of the same requests have in common: all but the ranks within one data-parallel rank."""
    return tuple(item for item in labels if item[0] == "dp_rank" or not item[0].endswith("_rank"))


def _bound(text: str) -> float | None:
    try:
        bound = float(text)
    except ValueError:
        return None
    return None if bound != bound else bound  # noqa: PLR0124 - NaN is no bound


def _falls(points: Points, start: float) -> int:
    pairs = zip(points.values, points.values[1:], points.times[1:], strict=False)
    return sum(after < before and time > start for before, after, time in pairs)


def _restarts(scrapes: Scrapes) -> list[float]:
    """The times of the first scrape after each restart; none where the scrapes' times are not known."""
    times = scrapes.times
    found: set[float] = set()
    if not times:
        return []
    for (name, _), points in scrapes.counters.items():
        for i, time in enumerate(points.times):
            later = points.times[i + 1] if i + 1 < len(points.times) else None
            following = bisect_right(times, time)
            # A broken line is no vanished series.
            vanished = name not in scrapes.broken and (
                following < len(times) and (later is None or times[following] < later)
            )
            if vanished:
                found.add(times[following])
            elif later is not None and points.values[i + 1] < points.values[i]:
                found.add(times[bisect_left(times, later)] if later <= times[-1] else later)
    return sorted(found)
