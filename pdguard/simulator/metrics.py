"""/metrics of an engine: gauges from the spec, counters from what has happened so far.

Families, label sets and versions follow recorded scrapes (`data/gauges.json`); the help texts are ours.
A counter has no series before its first event, and the hold's counters exist from 0.5.22 on only.
"""

from __future__ import annotations

import functools
import importlib.resources
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pdguard.simulator.answers import version_data
from pdguard.simulator.spec import EngineSpec
from pdguard.simulator.state import EngineState, Labels
from pdguard.simulator.versions import at_least, parse

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
_EVERY_RANK = frozenset({"max_total_num_tokens", "page_size", "num_pages", "context_len"})
_PER_RANK_COUNTERS = frozenset({"num_transfer_failed_reqs_total", "num_bootstrap_failed_reqs_total"})
_SCHEDULER_COUNTERS = _PER_RANK_COUNTERS | {"decode_deferred_kv_release_total"}
_HOLD = "decode_deferred_kv_release"
_HOLD_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0)
_HOLD_SUM, _HOLD_OVER = "_hold_seconds_sum", "_hold_seconds_le"
_TRANSFER = "kv_transfer_latency_ms"
_TRANSFER_BUCKETS = (1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0, 5000.0)
_TRANSFER_COUNT, _TRANSFER_SUM, _TRANSFER_OVER = "_transfer_count", "_transfer_ms_sum", "_transfer_ms_le"


@functools.cache
def _gauges(version: str) -> tuple[Mapping[str, Any], ...]:
    path = importlib.resources.files("pdguard.simulator.data") / "gauges.json"
    known: Sequence[Mapping[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["gauges"]
    return tuple(
        gauge for gauge in known if parse(gauge["first"]) <= parse(version) and _until(version, gauge["last"])
    )


def _until(version: str, last: str) -> bool:
    return last == "0.5.23" or not at_least(version, last) or parse(version) == parse(last)


def record_hold(state: EngineState, outcome: str, seconds: float) -> None:
    """Count the end of one hold, once a request."""
    state.add(f"{_HOLD}_total", (("outcome", outcome),))
    state.add(_HOLD_SUM, (), seconds)
    for edge in _HOLD_BUCKETS:
        if seconds <= edge:
            state.add(_HOLD_OVER, (("le", str(edge)),))


def record_transfer(state: EngineState, seconds: float) -> None:
    """Count one whole transfer, which a prefill measures."""
    milliseconds = seconds * 1000
    state.add(_TRANSFER_COUNT)
    state.add(_TRANSFER_SUM, (), milliseconds)
    for edge in _TRANSFER_BUCKETS:
        if milliseconds <= edge:
            state.add(_TRANSFER_OVER, (("le", str(edge)),))


class Page:
    """The exposition of one engine; the gauges are kept until a queue changes."""

    def __init__(self, spec: EngineSpec, state: EngineState) -> None:
        self._spec = spec
        self._state = state
        self._key: object = None
        self._kept = ""

    def render(self) -> str:
        """The whole text."""
        state = self._state
        key = (tuple(sorted(state.queues.items())), state.used_tokens, state.served)
        if key != self._key:
            self._key, self._kept = key, _render_gauges(self._spec, state)
        return self._kept + _render_counters(self._spec, state)


def _render_gauges(spec: EngineSpec, state: EngineState) -> str:
    lines: list[str] = []
    quiet = spec.role == "decode" and not state.served and at_least(spec.version, "0.5.20")
    for gauge in _gauges(spec.version):
        if not (quiet and gauge.get("late")):
            _gauge(lines, spec, state, gauge)
    return "\n".join(lines) + "\n"


def _render_counters(spec: EngineSpec, state: EngineState) -> str:
    lines: list[str] = []
    families: dict[str, list[str]] = {}
    for (name, labels), value in state.counters.items():
        if name.startswith("_") or (name.startswith(_HOLD) and not at_least(spec.version, "0.5.22")):
            continue
        families.setdefault(name, []).extend(_counter_lines(spec, name, labels, value))
    for name, samples in families.items():
        _head(lines, name, "counter")
        lines += samples
    if at_least(spec.version, "0.5.18"):
        _head(lines, "http_requests_total", "counter")
        for (method, path), count in state.calls.items():
            lines.append(f'sglang:http_requests_total{{endpoint="{path}",method="{method}"}} {float(count)}')
    if at_least(spec.version, "0.5.22"):
        _hold_histogram(lines, spec, state)
    _transfer_histogram(lines, spec, state)
    return "\n".join(lines) + "\n"


def _head(lines: list[str], name: str, kind: str) -> None:
    lines.append(f"# HELP sglang:{name} {name.replace('_', ' ')} (simulated)")
    lines.append(f"# TYPE sglang:{name} {kind}")


def _text(labels: Labels) -> str:
    return "{" + ",".join(f'{key}="{value}"' for key, value in sorted(labels)) + "}" if labels else ""


def _model_labels(spec: EngineSpec) -> Labels:
    return (("engine_type", spec.engine_type), ("model_name", spec.model))


def _rank_labels(spec: EngineSpec, *, every_tp: bool) -> Iterator[tuple[int, Labels]]:
    kind = "dynamic" if spec.overrides.get("enable_pd_role_switch") else spec.engine_type
    labels = [("engine_type", kind), ("model_name", spec.model), ("pp_rank", "0")]
    if at_least(spec.version, "0.5.18"):
        labels.append(("moe_ep_rank", "0"))
    every_tp = every_tp or bool(spec.overrides.get("enable_metrics_for_all_schedulers"))
    for rank in range(spec.dp):
        for tp in range(spec.tp if every_tp else 1):
            own = [*labels, ("tp_rank", str(tp))]
            yield rank, tuple(own + ([("dp_rank", str(rank))] if spec.dp > 1 else []))


def _gauge(lines: list[str], spec: EngineSpec, state: EngineState, gauge: Mapping[str, Any]) -> None:
    name = gauge["name"]
    _head(lines, name, "gauge")
    extras: Sequence[Labels] = [tuple(extra.items()) for extra in gauge.get("each", [{}])]
    for extra in extras:
        if gauge["scope"] == "rank":
            for rank, labels in _rank_labels(spec, every_tp=name in _EVERY_RANK):
                lines.append(f"sglang:{name}{_text(labels + extra)} {_value(spec, state, name, rank, extra)}")
        else:
            labels = _model_labels(spec) if gauge["scope"] == "model" else ()
            lines.append(f"sglang:{name}{_text(labels + extra)} {_value(spec, state, name, 0, extra)}")


def _value(spec: EngineSpec, state: EngineState, name: str, rank: int, extra: Labels) -> float | str:
    pool = spec.ranks[rank]
    used = min(state.used_tokens, pool) if rank == 0 else 0
    queue = state.queues if rank == 0 else {}
    if name == "startup_time_seconds":
        return float(version_data(spec.version)["startup_time"].get(dict(extra).get("phase", ""), 0.0))
    values: dict[str, float | str] = {
        "max_total_num_tokens": float(pool),
        "page_size": float(spec.page_size),
        "num_pages": float(pool // spec.page_size),
        "context_len": float(spec.context_length),
        "num_used_tokens": float(used),
        "kv_used_tokens": float(used),
        "kv_available_tokens": float(pool - used),
        "token_usage": round(used / pool, 4),
        "full_token_usage": round(used / pool, 4),
        "utilization": -1.0 if spec.role_now == "prefill" else 0.0,
        "fwd_occupancy": "NaN",
        "new_token_ratio": 0.7,
        "num_running_reqs": float(queue.get("running", 0)),
        "num_prefill_bootstrap_queue_reqs": float(queue.get("prefill_bootstrap", 0)),
        "num_prefill_inflight_queue_reqs": float(queue.get("prefill_inflight", 0)),
        "num_decode_prealloc_queue_reqs": float(queue.get("decode_prealloc", 0)),
        "num_decode_transfer_queue_reqs": float(queue.get("decode_transfer", 0)),
        "num_decode_deferred_kv_release_reqs": float(queue.get("held", 0)),
        "weight_memory_usage_gb": 0.001,
        "startup_available_gpu_memory_gb": 20.4,
    }
    return values.get(name, 0.0)


def _counter_lines(spec: EngineSpec, name: str, labels: Labels, value: float) -> Iterator[str]:
    if name in _SCHEDULER_COUNTERS:
        # A counter of another data-parallel rank than the first is kept with that rank among its labels.
        mine = dict(labels).get("dp_rank", "0")
        labels = tuple(item for item in labels if item[0] != "dp_rank")
        for rank, own in _rank_labels(spec, every_tp=name in _PER_RANK_COUNTERS):
            if str(rank) == mine:
                yield f"sglang:{name}{_text(own + labels)} {value}"
    else:
        yield f"sglang:{name}{_text(_model_labels(spec) + labels)} {value}"


def _hold_histogram(lines: list[str], spec: EngineSpec, state: EngineState) -> None:
    total = sum(value for (name, _), value in state.counters.items() if name == f"{_HOLD}_total")
    if total:
        _head(lines, f"{_HOLD}_seconds", "histogram")
        own = next(_rank_labels(spec, every_tp=False))[1]
        edges = {edge: state.value(_HOLD_OVER, le=str(edge)) for edge in _HOLD_BUCKETS}
        _histogram(lines, f"{_HOLD}_seconds", own, edges, total, state.value(_HOLD_SUM))


def _transfer_histogram(lines: list[str], spec: EngineSpec, state: EngineState) -> None:
    """Measured by every tensor rank of the first data-parallel rank."""
    total = state.value(_TRANSFER_COUNT)
    if total:
        _head(lines, _TRANSFER, "histogram")
        edges = {edge: state.value(_TRANSFER_OVER, le=str(edge)) for edge in _TRANSFER_BUCKETS}
        for rank, own in _rank_labels(spec, every_tp=True):
            if rank == 0:
                _histogram(lines, _TRANSFER, own, edges, total, state.value(_TRANSFER_SUM))


def _histogram(
    lines: list[str], name: str, own: Labels, edges: Mapping[float, float], count: float, total: float
) -> None:
    lines.append(f"sglang:{name}_sum{_text(own)} {total}")
    for edge, below in edges.items():
        lines.append(f"sglang:{name}_bucket{_text((*own, ('le', str(edge))))} {below}")
    lines.append(f"sglang:{name}_bucket{_text((*own, ('le', '+Inf')))} {count}")
    lines.append(f"sglang:{name}_count{_text(own)} {count}")
