"""Counts how held releases end, under the names that the engine uses from 0.5.22 on (fix 41128).

Only where the engine exports metrics. A metric that fails is left out; it is never in the way of a release.
"""

from __future__ import annotations

import logging
import time
from typing import Any

logger = logging.getLogger(__name__)

_BOUNDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60)
"""Seconds; the bounds that later releases use, so that histograms of both can be added up."""


class Metrics:
    """The three series of one collector."""

    def __init__(self, collector: Any) -> None:
        import prometheus_client

        counter = getattr(collector, "_counter_cls", None) or prometheus_client.Counter
        gauge = getattr(collector, "_gauge_cls", None) or prometheus_client.Gauge
        histogram = getattr(collector, "_histogram_cls", None) or prometheus_client.Histogram
        self._labels = dict(collector.labels)
        names = list(self._labels)
        self._ends = counter(
            name="sglang:decode_deferred_kv_release_total",
            documentation="Held decode KV releases that have ended, by how they ended.",
            labelnames=[*names, "outcome"],
        )
        self._seconds = histogram(
            name="sglang:decode_deferred_kv_release_seconds",
            documentation="How long decode KV was held before its release, in seconds.",
            labelnames=names,
            buckets=_BOUNDS,
        )
        self._held = gauge(
            name="sglang:num_decode_deferred_kv_release_reqs",
            documentation="Failed decode requests whose KV is held now.",
            labelnames=names,
            multiprocess_mode="mostrecent",
        )

    def show(self, held: int) -> None:
        """So many are held now."""
        self._held.labels(**self._labels).set(held)

    def end(self, outcome: str, seconds: float) -> None:
        """One has ended."""
        self._ends.labels(**self._labels, outcome=outcome).inc(1)
        self._seconds.labels(**self._labels).observe(seconds)


def held(queue: Any, decode_req: Any) -> None:
    """A release is held from now on."""
    decode_req.__dict__["_pdguard_held_at"] = time.monotonic()
    _note(queue)


def released(queue: Any, decode_req: Any, drained: bool) -> None:
    """A held release is done: prefill had acknowledged it, or its time was over."""
    _note(queue, decode_req, "drained" if drained else "timeout")


def failed(queue: Any, decode_req: Any) -> None:
    """A held release raised an error."""
    _note(queue, decode_req, "error")


def dropped(queue: Any) -> None:
    """The pool is torn down, and what was held with it."""
    _note(queue)


def _note(queue: Any, decode_req: Any = None, outcome: str = "") -> None:
    try:
        metrics = _metrics(queue.scheduler)
        if metrics is None:
            return
        metrics.show(len(queue._deferred_releases))
        if outcome:
            now = time.monotonic()
            metrics.end(outcome, max(0.0, now - decode_req.__dict__.get("_pdguard_held_at", now)))
    except Exception:
        logger.debug("pdguard: the outcome of a held release was not counted", exc_info=True)


def _metrics(scheduler: Any) -> Metrics | None:
    if not scheduler.metrics_reporter.enable_metrics:
        return None
    collector = scheduler.metrics_collector
    if "_pdguard_metrics" not in collector.__dict__:
        collector._pdguard_metrics = None
        collector._pdguard_metrics = Metrics(collector)
    found: Metrics | None = collector._pdguard_metrics
    return found
