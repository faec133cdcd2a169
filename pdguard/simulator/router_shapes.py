"""What routers say about themselves and their workers, as recorded on sglang-router 0.3.2 and smg 1.13.0."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pdguard.simulator.answers import server_info
from pdguard.simulator.spec import EngineSpec


@dataclass(frozen=True, slots=True)
class Upstream:
    """An engine as a router knows it."""

    spec: EngineSpec
    url: str
    bootstrap_port: int | None

    @property
    def worker_type(self) -> str:
        """The router's word for the role."""
        return "regular" if self.spec.role == "null" else self.spec.role

    @property
    def ident(self) -> str:
        """A stable worker id."""
        return str(uuid.uuid5(uuid.NAMESPACE_URL, self.url))


def stats(upstreams: Sequence[Upstream]) -> dict[str, int]:
    """How many workers there are of each kind."""
    kinds = [upstream.worker_type for upstream in upstreams]
    return {f"{kind}_count": kinds.count(kind) for kind in ("prefill", "decode", "regular")}


def sglang_workers(upstreams: Sequence[Upstream]) -> dict[str, Any]:
    """/workers of sglang-router 0.3.2."""
    order = sorted(upstreams, key=lambda one: one.spec.role == "prefill")
    workers = [_sglang_worker(upstream) for upstream in order]
    return {"workers": workers, "total": len(workers), "stats": stats(upstreams)}


def _sglang_worker(upstream: Upstream) -> dict[str, Any]:
    spec = upstream.spec
    worker: dict[str, Any] = {
        "id": upstream.ident,
        "url": upstream.url,
        "model_id": spec.model,
        "priority": 50,
        "cost": 1.0,
        "worker_type": upstream.worker_type,
        "is_healthy": True,
        "load": 0,
        "connection_mode": "HTTP",
    }
    if upstream.bootstrap_port is not None:
        worker["bootstrap_port"] = upstream.bootstrap_port
    worker["metadata"] = {
        "model_type": "llama",
        "architectures": json.dumps(["LlamaForCausalLM"]),
        "model_path": spec.model,
        "tp_size": str(spec.tp),
        "served_model_name": spec.model,
        "disaggregation_mode": spec.role,
        "dp_size": str(spec.dp),
        "load_balance_method": "follow_bootstrap_room" if spec.role == "prefill" else "round_robin",
    }
    worker["disable_health_check"] = True
    return worker


def smg_workers(upstreams: Sequence[Upstream]) -> dict[str, Any]:
    """/workers of smg 1.13.0."""
    workers = [_smg_worker(upstream) for upstream in upstreams]
    return {"workers": workers, "total": len(workers), "stats": stats(upstreams)}


def _smg_worker(upstream: Upstream) -> dict[str, Any]:
    spec = upstream.spec
    info = server_info(spec, int(upstream.url.rsplit(":", 1)[1]), upstream.bootstrap_port)
    labels = {
        "architectures": json.dumps(["LlamaForCausalLM"]),
        "load_balance_method": str(info.get("load_balance_method")),
        "tokenizer_path": spec.model,
        "is_generation": "true",
        "dp_size": str(spec.dp),
        "has_image_understanding": "false",
        "weight_version": "default",
        "disaggregation_mode": spec.role,
        "model_type": "llama",
        "has_audio_understanding": "false",
        "max_total_tokens": str(spec.ranks[0]),
        "version": spec.version,
        "context_length": str(spec.context_length),
        "model_path": spec.model,
        "attn_dp_size": "1",
        "enable_dp_attention": "false",
        "is_embedding": "false",
        "max_model_len": str(spec.context_length),
        "pp_size": str(spec.pp),
        "tp_size": str(spec.tp),
        "served_model_name": spec.model,
    }
    card = {
        "id": spec.model,
        "model_type": ["chat", "completions", "responses", "tools"],
        "hf_model_type": "llama",
    }
    card |= {"architectures": ["LlamaForCausalLM"], "context_length": spec.context_length}  # type: ignore[dict-item]
    worker: dict[str, Any] = {
        "id": upstream.ident,
        "model_id": spec.model,
        "url": upstream.url,
        "models": [card | {"tokenizer_path": spec.model}],
        "worker_type": upstream.worker_type,
        "connection_mode": "http",
        "runtime_type": "sglang",
        "labels": labels,
        "priority": 50,
        "cost": 1.0,
    }
    if upstream.bootstrap_port is not None:
        worker["bootstrap_port"] = upstream.bootstrap_port
    loads = [_smg_load(spec, rank) for rank in range(spec.dp)]
    return worker | {
        "max_connection_attempts": 20,
        "is_healthy": True,
        "status": "ready",
        "load": 0,
        "http2": False,
        "pd_pairing": "sglang/?/?",
        "engine_load": {"timestamp": _now(), "version": spec.version, "dp_rank_count": 0, "loads": loads},
    }


def _now() -> str:
    return datetime.now(UTC).isoformat()


def _smg_load(spec: EngineSpec, rank: int) -> dict[str, Any]:
    pool = spec.ranks[rank]
    zeros = ("num_running_reqs", "num_waiting_reqs", "num_waiting_uncached_tokens", "num_total_reqs")
    return {
        "dp_rank": rank,
        **dict.fromkeys(zeros, 0),
        "num_used_tokens": 0,
        "max_total_num_tokens": pool,
        "token_usage": 0.0,
        "gen_throughput": 0.0,
        "cache_hit_rate": 0.0,
        "utilization": -1.0 if spec.role == "prefill" else 0.0,
        "max_running_requests": max(1, min(pool // 2, 4096)),
        "memory": {"weight_gb": 0.001, "kv_cache_gb": 0.001, "graph_gb": 0.0, "token_capacity": pool},
        "queues": {"waiting": 0, "grammar": 0, "paused": 0, "retracted": 0},
    }


def smg_loads(upstreams: Sequence[Upstream], version: str) -> dict[str, Any]:
    """/get_loads of smg."""
    loads = [
        {"worker": one.url, "worker_type": one.worker_type, **_smg_load(one.spec, rank)}
        for one in upstreams
        for rank in range(one.spec.dp)
    ]
    totals = dict.fromkeys(("total_running_reqs", "total_waiting_reqs", "total_reqs"), 0)
    means = dict.fromkeys(("avg_token_usage", "avg_throughput", "avg_utilization"), 0.0)
    answer = {"timestamp": _now(), "version": f"smg-{version}", "dp_rank_count": len(loads), "loads": loads}
    return answer | {"aggregate": {**totals, **means}}


def sglang_loads(upstreams: Sequence[Upstream]) -> dict[str, Any]:
    """/get_loads of sglang-router 0.3.2."""
    return {"workers": [{"worker": one.url, "load": -1} for one in upstreams]}
