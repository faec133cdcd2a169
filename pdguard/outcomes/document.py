"""`pdguard.metrics/1`: release outcomes and sizing as JSON. `pdguard audit --with` reads its observations."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from pdguard import __version__
from pdguard.facts.observed import as_entry
from pdguard.outcomes.histogram import Between, last_bound, mean, quantile
from pdguard.outcomes.interface import OUTCOMES, QUEUES, EngineOutcomes, Gap, HoldTimes, Outcomes, Read
from pdguard.outcomes.judge import Fault
from pdguard.outcomes.margin import Margin
from pdguard.outcomes.observations import observations
from pdguard.outcomes.sizing import Advice, Capacity, DecodeSizing, WhatIf
from pdguard.outcomes.terms import Term

SCHEMA = "pdguard.metrics/1"
"""Name and version: a change that breaks readers gets a new number."""

FIGURES = (
    "held_now",
    "aborts",
    "requests",
    "prompt_tokens",
    "failed_transfers",
    "failed_bootstraps",
    "pool",
    "page_size",
)
"""Figures of EngineOutcomes that are one number each."""


def metrics_schema() -> dict[str, Any]:
    """The published JSON Schema (draft 2020-12); a new dictionary at every call."""
    text = (files("pdguard.outcomes") / "metrics.schema.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


def as_json(outcomes: Outcomes, sizing: Sequence[DecodeSizing], faults: Sequence[Fault]) -> str:
    """The document, indented by one, with a newline at its end. The same reading gives the same bytes."""
    content = {
        "schema": SCHEMA,
        "pdguard": __version__,
        "cluster": outcomes.cluster,
        "began_at": outcomes.began_at,
        "ended_at": outcomes.ended_at,
        "seconds": number(outcomes.seconds),
        "engines": [_engine(e) for e in outcomes.engines],
        "sizing": [_sizing(s) for s in sizing],
        "faults": [str(fault) for fault in faults],
        "notes": list(outcomes.notes),
        "observations": [as_entry(o) for o in observations(outcomes)],
    }
    # Names come from a cluster file and from engines; escapes keep them harmless on a terminal.
    return json.dumps(content, indent=1, ensure_ascii=True, allow_nan=False) + "\n"


def number(value: float) -> float | int | str:
    """A number for JSON: whole ones without a fraction, those that are not finite as strings."""
    if not math.isfinite(value):
        return str(value)
    rounded = round(value, 6)
    return int(rounded) if rounded == int(rounded) else rounded


def _engine(engine: EngineOutcomes) -> dict[str, Any]:
    return {
        "name": engine.name,
        "role": engine.role,
        "version": engine.version,
        "seconds": number(engine.seconds),
        "resets": engine.resets,
        "holds": {name: _read(engine.holds[name]) for name in OUTCOMES if name in engine.holds},
        "hold_seconds": _times(engine.hold_times),
        "transfer_seconds": _times(engine.transfer_seconds),
        "figures": {name: _read(getattr(engine, name)) for name in FIGURES},
        "queues": {name: _read(engine.queues[name]) for name in QUEUES if name in engine.queues},
    }


def _gap(gap: Gap) -> dict[str, Any]:
    return {"unknown": gap.why, "how": gap.how}


def _read(read: Read) -> dict[str, Any]:
    if isinstance(read, Gap):
        return _gap(read)
    return {"value": number(read.value), "source": read.source.value, "ref": read.ref}


def _times(times: HoldTimes | Gap) -> dict[str, Any]:
    if isinstance(times, Gap):
        return _gap(times)
    average = mean(times)
    return {
        "count": number(times.count),
        "sum": number(times.total_seconds),
        "mean": None if average is None else number(average),
        "p50": _quantile(times, 0.5),
        "p95": _quantile(times, 0.95),
        "p99": _quantile(times, 0.99),
        "buckets_end_at": number(last_bound(times)),
        "buckets": [[number(bound), number(count)] for bound, count in times.buckets],
        "source": times.source.value,
        "ref": times.ref,
    }


def _quantile(times: HoldTimes, share: float) -> float | int | str | None:
    value = quantile(times, share)
    return None if value is None else number(value)


def _term(term: Term) -> dict[str, Any]:
    return {
        "name": term.name,
        "unit": term.unit,
        "value": None if term.value is None else number(term.value),
        "known": term.known.value,
        "where": term.where,
        "how": term.how,
    }


def _capacity(one: Capacity) -> dict[str, Any]:
    names = ("rate", "seconds", "request_pages", "page_size", "pool", "pages", "tokens", "share")
    return {name: _term(getattr(one, name)) for name in names}


def _margin(one: Margin) -> dict[str, Any]:
    return {
        "verdict": one.verdict.value,
        "why": one.why,
        "t_hold": _term(one.t_hold),
        "terms": [_term(t) for t in one.terms],
        "margin": _term(one.margin),
    }


def _advice(one: Advice) -> dict[str, Any]:
    return {
        "t_hold": None if one.value is None else number(one.value),
        "in_force_will_do": one.good,
        "share": _term(one.share),
        "longest_that_fits": _term(one.most),
        "reasons": list(one.reasons),
    }


def _what_if(one: WhatIf) -> dict[str, Any]:
    return {
        "t_hold": number(one.t_hold),
        "capacity": _capacity(one.capacity),
        "by_timeout": _between(one.by_timeout),
        "margin": _margin(one.margin),
    }


def _between(share: Between | Gap) -> dict[str, Any]:
    if isinstance(share, Gap):
        return _gap(share)
    return {"at_least": number(share.low), "at_most": number(share.high)}


def _sizing(one: DecodeSizing) -> dict[str, Any]:
    return {
        "decode": one.name,
        "prefills": list(one.prefills),
        "worst_case": _capacity(one.worst),
        "usual": _capacity(one.usual),
        "margin": _margin(one.margin),
        "advice": _advice(one.advice),
        "what_if": [_what_if(w) for w in one.what_ifs],
    }
