"""One window of every engine from Prometheus: raw samples at fixed times, counted in `series`.

`increase()` and `rate()` extrapolate and cannot see that one series' restart is every series', so no such
function is used: an instant query of a range selector gives the samples as they were scraped.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from pdguard.cluster.model import Cluster, Engine
from pdguard.outcomes import series as s
from pdguard.outcomes.client import Client, PrometheusProblem, Series, TooMuch
from pdguard.outcomes.interface import Gap

LOOKBACK = 300.0
"""Seconds before the window in which a value counts as the one that the window begins with."""

_AT_ONCE = 25
_SHORTEST = 1.0
_PLAIN_TARGET = frozenset({"job", "instance"})
_FAMILIES = (
    s.COUNTERS,
    *(tuple(n for n in sorted(s.COUNTED) if n.startswith(histogram)) for histogram in s.HISTOGRAMS),
)


@dataclass(slots=True)
class Reading:
    """What Prometheus knows: each engine's scrapes or why there are none, and its own clock at the end."""

    end: float
    engines: dict[str, s.Scrapes | Gap] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def read_prometheus(
    cluster: Cluster,
    environ: Mapping[str, str],
    window: float,
    progress: Callable[[str], None] | None = None,
) -> Reading:
    """The scrapes of the last `window` seconds; 0 takes the counters as they stand.

    Raises PrometheusProblem where Prometheus cannot be read, InputError for keys and files that cannot be
    had.
    """
    settings = cluster.prometheus
    if settings is None:
        raise PrometheusProblem(
            "the cluster file names no Prometheus", todo="Add `prometheus:` with its `url:`."
        )
    client = Client(settings, cluster.base_dir, environ, time.monotonic() + cluster.policy.run_timeout)
    try:
        return _Reader(client, settings.selector, window, progress).read(cluster.engines)
    finally:
        client.close()


def instances(engine: Engine) -> tuple[str, ...]:
    """The values of `instance` that mean this engine: as declared, or host:port of its URL."""
    if engine.metrics_instance is not None:
        return (engine.metrics_instance,)
    parts = urlsplit(engine.url)
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    standard = 443 if parts.scheme == "https" else 80
    named = (f"{host}:{parts.port or standard}",)
    return named if parts.port not in (None, standard) else (*named, host)


def selector(labels: Mapping[str, str], *more: str) -> str:
    """A PromQL selector of those exact labels and of matchers that are already written."""
    return "{" + ",".join([*more, *(f'{name}="{quote(value)}"' for name, value in labels.items())]) + "}"


def quote(value: str) -> str:
    """A text for between PromQL's double quotes."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _one_of(label: str, values: Iterable[str]) -> str:
    return f'{label}=~"{quote("|".join(re.escape(value) for value in values))}"'


def _named(families: Iterable[str]) -> str:
    return _one_of("__name__", (name for family in families for name in s.both_names(family)))


class _Reader:
    def __init__(
        self,
        client: Client,
        narrowed: Mapping[str, str],
        window: float,
        progress: Callable[[str], None] | None,
    ) -> None:
        self._client = client
        self._narrowed = narrowed
        self._window = window
        self._progress = progress
        self._step = window + LOOKBACK

    def read(self, engines: Sequence[Engine]) -> Reading:
        answer = self._client.query("vector(time())")
        if len(answer) != 1 or not answer[0].points:
            raise PrometheusProblem("what came is not an answer of Prometheus")
        reading = Reading(answer[0].points[0][1])
        for first in range(0, len(engines), _AT_ONCE):
            some = engines[first : first + _AT_ONCE]
            if self._progress is not None:
                self._progress(f"asking Prometheus about {', '.join(e.name for e in some[:3])}, …")
            self._some(some, reading)
        missing = [e for e in engines if isinstance(reading.engines[e.name], Gap)]
        if missing:
            self._suggest(missing, engines, reading)
        return reading

    def _some(self, engines: Sequence[Engine], reading: Reading) -> None:
        end = reading.end
        names = {instance: e.name for e in engines for instance in instances(e)}
        which = _one_of("instance", names)
        targets: dict[str, _Targets] = {e.name: _Targets() for e in engines}

        def owners(answer: Iterable[Series]) -> Iterator[tuple[_Targets, Series]]:
            for one in answer:
                name = names.get(one.labels.get("instance", ""))
                if name is not None:
                    yield targets[name], one

        # Prometheus stores a scrape's `up` with its samples. It is asked first, for a scrape that ends
        # between two queries must not look like one in which a series was missing.
        for answer in self._samples(f"up{selector(self._narrowed, which)}", end):
            for owner, one in owners(answer):
                owner.up(one)
        for family in _FAMILIES:
            for answer in self._samples(selector(self._narrowed, _named(family), which), end):
                for owner, one in owners(answer):
                    owner.counter(one)
        query = selector(self._narrowed, _named(sorted(s.GAUGES)), which)
        for owner, one in owners(self._client.query(query, end)):
            owner.gauge(one)
        for engine in engines:
            scrapes = targets[engine.name].best(end - self._window, from_zero=self._window <= 0)
            reading.engines[engine.name] = scrapes or Gap("Prometheus has no series of SGLang from it")

    def _samples(self, query: str, end: float) -> Iterator[list[Series]]:
        """The raw samples from LOOKBACK before the window on, in pieces that Prometheus can carry."""
        if self._window <= 0:
            yield self._client.query(query, end)
            return
        at = end - self._window - LOOKBACK
        while at < end:
            step = min(self._step, end - at)
            until = end if end - at - step < 0.001 else at + step
            try:
                answer = self._client.query(f"{query}[{max(1, round((until - at) * 1000))}ms]", until)
            except TooMuch:
                if step / 2 < _SHORTEST:
                    raise
                self._step = step / 2
                continue
            yield answer
            at = until

    def _suggest(self, missing: Sequence[Engine], engines: Sequence[Engine], reading: Reading) -> None:
        """Say of each engine without series what was looked for and what there is instead."""
        names = _named((s.POOL, "sglang:num_running_reqs", "sglang:token_usage"))
        answer = self._client.query(f"count by (instance) ({selector(self._narrowed, names)})", reading.end)
        mine = {instance for e in engines for instance in instances(e)}
        others = sorted({one.labels.get("instance", "") for one in answer} - mine)
        shown = ", ".join(o[:60] for o in others[:5] if o.isascii() and o.isprintable())
        for engine in missing:
            why = f"Prometheus has no series of SGLang with instance={instances(engine)[0]}"
            if others:
                how = f"set metrics_instance of {engine.name} in cluster.yaml; there are {shown}"
                why += f"; it has {len(others):,} other instances"
            else:
                how = "start it with --enable-metrics, have Prometheus scrape it, check prometheus.selector"
            reading.engines[engine.name] = Gap(why, how + (", …" if len(others) > 5 else ""))


class _Targets:
    """One engine's series, by the scrape target that Prometheus had them from."""

    def __init__(self) -> None:
        self._up: dict[s.Labels, s.Points] = {}
        self._names = _PLAIN_TARGET
        self._scrapes: dict[s.Labels, s.Scrapes] = {}
        self._gauges: dict[s.Labels, dict[s.Key, float]] = {}

    def up(self, one: Series) -> None:
        # Whatever labels `up` has, the target has: they are not the engine's own.
        self._names |= one.labels.keys()
        points = self._up.setdefault(_sorted(one.labels), s.Points())
        for at, value in one.points:
            points.add(at, value)

    def counter(self, one: Series) -> None:
        target, own = self._split(one)
        scrapes = self._scrapes.setdefault(target, s.Scrapes())
        name = s.own_name(one.name)
        if one.broken:
            scrapes.broken.add(name)
        for at, value in one.points:
            scrapes.add(at, name, own, value)

    def gauge(self, one: Series) -> None:
        target, own = self._split(one)
        if one.points:
            self._gauges.setdefault(target, {})[s.own_name(one.name), own] = one.points[-1][1]
        elif one.broken:
            self._scrapes.setdefault(target, s.Scrapes()).broken.add(s.own_name(one.name))

    def _split(self, one: Series) -> tuple[s.Labels, s.Labels]:
        target = {n: v for n, v in one.labels.items() if n in self._names}
        return _sorted(target), _sorted({n: v for n, v in one.labels.items() if n not in self._names})

    def best(self, start: float, *, from_zero: bool) -> s.Scrapes | None:
        """The scrapes of one target: one that took another's place continues it, and of two at once (two
        jobs, two replicas) the one that saw more counts."""
        whole: list[tuple[float, float, s.Scrapes]] = []
        for target in {*self._scrapes, *self._gauges}:
            scrapes = self._scrapes.get(target, s.Scrapes())
            up = self._up.get(target)
            if up is not None:
                scrapes.times = [t for t, v in zip(up.times, up.values, strict=True) if v > 0]
            scrapes.gauges = self._gauges.get(target, {})
            times = scrapes.times or [t for points in scrapes.counters.values() for t in points.times]
            whole.append((min(times, default=start), max(times, default=start), scrapes))
        chains: list[tuple[float, s.Scrapes]] = []
        for first, last, scrapes in sorted(whole, key=lambda one: one[:2]):
            free = next((i for i, (until, _) in enumerate(chains) if until < first), None)
            if free is None:
                chains.append((last, scrapes))
            else:
                chains[free] = (last, _continued(chains[free][1], scrapes))
        if not chains:
            return None
        best = max((scrapes for _, scrapes in chains), key=_seen)
        best.start, best.from_zero = start, from_zero
        return best


def _continued(before: s.Scrapes, after: s.Scrapes) -> s.Scrapes:
    for key, points in after.counters.items():
        mine = before.counters.setdefault(key, s.Points())
        for at, value in zip(points.times, points.values, strict=True):
            mine.add(at, value)
    known = bool(before.times and after.times)
    before.times = [*before.times, *after.times] if known else []
    before.gauges = after.gauges or before.gauges
    before.broken |= after.broken
    return before


def _seen(scrapes: s.Scrapes) -> tuple[int, int]:
    return len(scrapes.times), sum(len(points.times) for points in scrapes.counters.values())


def _sorted(labels: Mapping[str, str]) -> s.Labels:
    return tuple(sorted(labels.items()))
