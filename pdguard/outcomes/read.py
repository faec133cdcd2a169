"""Reads release outcomes over a window: from Prometheus, from the engines, and from logs that are given."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Literal

from pdguard.cluster.model import Cluster
from pdguard.errors import NothingCollected
from pdguard.facts.access import keys_of, tls_of
from pdguard.outcomes import series as s
from pdguard.outcomes.direct import read_direct
from pdguard.outcomes.figures import Engine, Ref, count, missing, with_log
from pdguard.outcomes.interface import EngineOutcomes, Figure, Gap, HoldTimes, Outcomes, Source
from pdguard.outcomes.logs import read_log
from pdguard.outcomes.prometheus import instances, quote, read_prometheus

From = Literal["auto", "prometheus", "engines"]

FALLBACK_SECONDS = 60.0
"""The longest that engines are watched for in place of a Prometheus that could not be read."""

Progress = Callable[[str], None]
Scraped = Mapping[str, s.Scrapes | Gap]


def read_outcomes(
    cluster: Cluster,
    environ: Mapping[str, str],
    *,
    window: float,
    source: From = "auto",
    logs: Mapping[str, Path] | None = None,
    versions: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Outcomes:
    """Every engine's figures over `window` seconds; 0 means since each engine started.

    Prometheus gives the window that ends now; reading the engines takes as long as the window. `auto` asks
    Prometheus where the cluster file names one, and the engines where it does not or cannot be read. `logs`
    is by name of the engine. Where `versions` are not given the engines are asked.

    Must not be called within an event loop. Raises InputError for a log, key or certificate that cannot be
    read, PrometheusProblem where Prometheus was asked for and cannot be read, NothingCollected where no
    engine gave anything.
    """
    from pdguard.outcomes.client import PrometheusProblem

    logs = logs or {}
    for name in logs:
        cluster.engine(name)
    known = dict(versions) if versions is not None else _ask_versions(cluster, environ, progress)
    notes: list[str] = []
    read: list[EngineOutcomes] | None = None
    ended = datetime.now(UTC)
    if source == "prometheus" or (source == "auto" and cluster.prometheus is not None):
        try:
            read, ended = _from_prometheus(cluster, environ, window, known, notes, progress)
        except PrometheusProblem as problem:
            if source == "prometheus":
                raise
            notes.append(f"{problem.what}, so the engines were asked")
            if window > FALLBACK_SECONDS:
                notes[-1] += f", for {FALLBACK_SECONDS:g} s instead of {window:g} s"
                window = FALLBACK_SECONDS
    if read is None:
        read = _from_engines(cluster, window, known, notes, progress)
        ended = datetime.now(UTC)
    for i, engine in enumerate(read):
        if engine.name in logs:
            read[i] = with_log(
                engine, read_log(logs[engine.name], window, engine.name), logs[engine.name].name
            )
    _refuse_nothing(read)
    if window <= 0:
        notes.append("counts are since each engine started, so there is no rate")
    began = datetime.fromtimestamp(ended.timestamp() - max(window, 0.0), UTC)
    return Outcomes(cluster.cluster, _iso(began), _iso(ended), max(window, 0.0), tuple(read), tuple(notes))


def _from_engines(
    cluster: Cluster,
    window: float,
    versions: Mapping[str, str],
    notes: list[str],
    progress: Progress | None,
) -> list[EngineOutcomes]:
    scraped = asyncio.run(read_direct(cluster, window, progress=progress))

    def ref(name: str, labels: dict[str, str]) -> str:
        return "/metrics " + name + _braces(labels)

    read = []
    for engine in _engines(cluster, versions):
        one = scraped[engine.name]
        if isinstance(one, Gap):
            read.append(missing(engine, max(window, 0.0), one))
            continue
        seconds = one.times[-1] - one.times[0]
        read.append(count(engine, one, seconds, Source.ENGINE, ref))
        if window > 0 and seconds < 0.9 * window:
            notes.append(f"{engine.name} answered over {seconds:.3g} s of the {window:g} s")
    return read


def _from_prometheus(
    cluster: Cluster,
    environ: Mapping[str, str],
    window: float,
    versions: Mapping[str, str],
    notes: list[str],
    progress: Progress | None,
) -> tuple[list[EngineOutcomes], datetime]:
    reading = read_prometheus(cluster, environ, window, progress)
    read = []
    for engine in _engines(cluster, versions):
        one = reading.engines[engine.name]
        if isinstance(one, Gap):
            read.append(missing(engine, max(window, 0.0), one))
            continue
        seconds = _covered(engine.name, one, reading.end, window, notes)
        instance = instances(cluster.engine(engine.name))[0]
        read.append(count(engine, one, seconds, Source.PROMETHEUS, _query(instance, window, reading.end)))
    return read, datetime.fromtimestamp(reading.end, UTC)


def _covered(name: str, scrapes: s.Scrapes, end: float, window: float, notes: list[str]) -> float:
    """The seconds that an engine's scrapes cover, with a note where that is not the window."""
    if window <= 0:
        return 0.0
    times, start = scrapes.times, end - window
    if not times:
        return window
    began = max(times[0], start)
    if began - start > 0.1 * window:
        notes.append(f"{name} was scraped for the last {end - began:.4g} s of the {window:g} s only")
    gap = max((b - a for a, b in pairwise(times)), default=0.0)
    if end - times[-1] > max(0.1 * window, 2 * gap):
        notes.append(f"{name} has not answered a scrape for {end - times[-1]:.4g} s")
    return end - began


def _query(instance: str, window: float, end: float) -> Ref:
    def ref(name: str, labels: dict[str, str]) -> str:
        span = f"[{window:g}s]" if window > 0 and name in s.COUNTED | set(s.HISTOGRAMS) else ""
        return f"{name}{_braces({'instance': instance, **labels})}{span} @ {end:.3f}"

    return ref


def _braces(labels: Mapping[str, str]) -> str:
    inner = ",".join(f'{name}="{quote(value)}"' for name, value in labels.items())
    return f"{{{inner}}}" if inner else ""


def _engines(cluster: Cluster, versions: Mapping[str, str]) -> list[Engine]:
    return [Engine(e.name, e.role, versions.get(e.name, "")) for e in cluster.engines]


def _ask_versions(cluster: Cluster, environ: Mapping[str, str], progress: Progress | None) -> dict[str, str]:
    """What each engine says its version is; those that do not answer are left out."""
    from pdguard.facts.http import collect_http

    if progress is not None:
        progress("asking the engines for their versions")
    policy = cluster.policy
    results = asyncio.run(
        collect_http(
            cluster.engines,
            request_timeout=policy.request_timeout,
            run_timeout=policy.run_timeout,
            concurrency=policy.concurrency,
            keys=keys_of(cluster, cluster.engines, environ),
            tls=tls_of(cluster, cluster.engines),
        )
    )
    told = {subject.name: subject.facts.text("version") for subject in results.engines}
    return {name: version for name, version in told.items() if version}


def _refuse_nothing(read: list[EngineOutcomes]) -> None:
    gaps: dict[str, int] = {}
    for engine in read:
        values = (engine.aborts, engine.pool, engine.requests, *engine.holds.values())
        if any(isinstance(value, Figure | HoldTimes) for value in values):
            return
        if isinstance(engine.aborts, Gap):
            gaps[engine.aborts.why] = gaps.get(engine.aborts.why, 0) + 1
    told = "; ".join(f"{why} ({n} engines)" for why, n in sorted(gaps.items())[:5])
    raise NothingCollected(
        "no engine gave any figure",
        found=told,
        todo="Start the engines with --enable-metrics, and check the URLs in the cluster file.",
    )


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
