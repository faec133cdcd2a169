"""Load answers: /v1/loads (JSON and Prometheus text) and the older /get_load."""

from __future__ import annotations

import time
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

from pdguard.simulator.answers import version_data
from pdguard.simulator.spec import EngineSpec
from pdguard.simulator.state import EngineState
from pdguard.simulator.versions import at_least

_SECTIONS = {"memory": "memory", "disagg": "disaggregation", "queues": "queues"}
_PREFIXES = {"disaggregation": "disagg"}


def v1_loads(
    spec: EngineSpec, state: EngineState, rank: int | None, include: Collection[str]
) -> dict[str, Any]:
    """The answer of /v1/loads, one entry a data-parallel rank."""
    ranks = range(spec.dp) if rank is None else [rank]
    answer: dict[str, Any] = {
        "timestamp": datetime.now(UTC).isoformat(),
        "version": spec.version,
        "accelerator": None,
        "num_accelerators": spec.tp * spec.pp,
        "loads": [_entry(spec, state, number, include) for number in ranks],
    }
    if not at_least(spec.version, "0.5.18"):
        for key in ("accelerator", "num_accelerators"):
            del answer[key]
        answer["dp_rank_count"] = spec.dp
    return answer


def _entry(spec: EngineSpec, state: EngineState, rank: int, include: Collection[str]) -> dict[str, Any]:
    entry = dict(version_data(spec.version)["loads"])
    role = spec.role_now
    queues = state.queues if rank == 0 else {}
    pool = spec.ranks[rank]
    used = min(state.used_tokens, pool) if rank == 0 else 0
    values: dict[str, Any] = {
        "timestamp": time.time(),
        "dp_rank": rank,
        "num_running_reqs": queues.get("running", 0),
        "num_waiting_reqs": 0,
        "num_used_tokens": used,
        "num_total_tokens": used,
        "max_total_num_tokens": pool,
        "max_running_requests": max(1, min(pool // 2, 4096)),
        "token_usage": round(used / pool, 4),
        "utilization": -1.0 if role == "prefill" else 0.0,
        "total_prefill_uncached_tokens": 0,
        "total_prefill_busy_us": 0,
        "decode_moments": None,
    }
    entry.update({key: value for key, value in values.items() if key in entry})
    entry["memory"] = {**entry["memory"], "token_capacity": pool}
    entry["disaggregation"] = {
        **entry["disaggregation"],
        "mode": role,
        "prefill_bootstrap_queue_reqs": queues.get("prefill_bootstrap", 0),
        "prefill_inflight_queue_reqs": queues.get("prefill_inflight", 0),
        "decode_prealloc_queue_reqs": queues.get("decode_prealloc", 0),
        "decode_transfer_queue_reqs": queues.get("decode_transfer", 0),
        "kv_transfer_speed_gb_s": 0.0,
        "kv_transfer_latency_ms": 0.0,
    }
    if include and "all" not in include:
        for section, key in _SECTIONS.items():
            if section not in include:
                entry.pop(key, None)
    return entry


def prometheus_text(loads: list[dict[str, Any]]) -> str:
    """The entries as gauges named `sglang_…`, with dp_rank as the only label."""
    samples: dict[str, list[tuple[int, float]]] = {}
    for entry in loads:
        rank = entry["dp_rank"]
        for key, value in entry.items():
            inner = value.items() if isinstance(value, dict) else [(None, value)]
            for sub, number in inner:
                if key == "dp_rank" or isinstance(number, bool) or not isinstance(number, int | float):
                    continue
                name = f"sglang_{key}" if sub is None else f"sglang_{_PREFIXES.get(key, key)}_{sub}"
                samples.setdefault(name, []).append((rank, number))
    lines: list[str] = []
    for name, points in samples.items():
        lines.append(f"# TYPE {name} gauge")
        lines += [f'{name}{{dp_rank="{rank}"}} {number}' for rank, number in points]
    return "\n".join(lines) + "\n"


def get_load(spec: EngineSpec, state: EngineState) -> list[dict[str, Any]]:
    """The answer of /get_load, which ends with 0.5.20."""
    return [
        {
            "dp_rank": rank,
            "num_reqs": state.queues["running"] if rank == 0 else 0,
            "num_waiting_reqs": 0,
            "num_tokens": state.used_tokens if rank == 0 else 0,
            "num_pending_tokens": 0,
            "ts_tic": time.monotonic(),
        }
        for rank in range(spec.dp)
    ]
