"""What an engine says about itself: /server_info, /model_info, /v1/models, bootstrap /route.

Field names, order and types follow the recorded answers in `data/` (0.5.19 to 0.5.23); older versions
are put together from their source tables, as each file says. Values come from the engine's spec.
"""

from __future__ import annotations

import functools
import importlib.resources
import json
import zlib
from collections.abc import Mapping
from typing import Any

from pdguard.simulator.spec import EngineSpec
from pdguard.simulator.versions import at_least, data_version

_DEFAULT_BOOTSTRAP_PORT = 8998


@functools.cache
def version_data(version: str) -> Mapping[str, Any]:
    """The recorded or synthesised material of one version."""
    path = importlib.resources.files("pdguard.simulator.data") / f"{data_version(version)}.json"
    data: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return data


def server_info(spec: EngineSpec, port: int, bootstrap_port: int | None) -> dict[str, Any]:
    """The flat union that /server_info answers: arguments, then the scheduler's own, then the rest."""
    data = version_data(spec.version)
    args = _server_args(spec, port, bootstrap_port)
    made: dict[str, Any] = {
        "launch_command": launch_command(spec, port, bootstrap_port),
        "status": "ready",
        "max_total_num_tokens": spec.ranks[0],
        "max_req_input_len": spec.max_req_input_len,
        "startup_time": data["startup_time"],
        "scheduler_pids": [4000 + 2 * rank for rank in range(spec.dp)],
        "internal_states": [_internal_state(spec, args, rank) for rank in range(spec.dp)],
        "version": spec.version,
        "frontend": "python",
        "kv_events": None,
        **data["extra"],
    }
    answer = dict(args)
    for key in data["tail"]:
        answer[key] = made[key]
        if key == "startup_time" and spec.dp > 1 and at_least(spec.version, "0.5.22"):
            answer["scheduler_pids"] = made["scheduler_pids"]
    return answer


def _server_args(spec: EngineSpec, port: int, bootstrap_port: int | None) -> dict[str, Any]:
    data = version_data(spec.version)
    args = dict(data["args"])
    decode = spec.role == "decode"
    if decode:
        args.update(data["decode"])
    given: dict[str, Any] = {
        "model_path": spec.model,
        "tokenizer_path": spec.model,
        "served_model_name": spec.model,
        "host": "127.0.0.1",
        "port": port,
        "random_seed": zlib.crc32(spec.name.encode()) % 1_000_000_000,
        "context_length": spec.context_flag,
        "page_size": spec.page_size,
        "tp_size": spec.tp,
        "dp_size": spec.dp,
        "pp_size": spec.pp,
        "api_key": spec.api_key,
        "admin_api_key": spec.admin_api_key,
        "enable_metrics": spec.metrics,
        "allow_auto_truncate": spec.allow_auto_truncate,
        "num_reserved_decode_tokens": spec.num_reserved_decode_tokens,
        "disaggregation_mode": spec.role,
        "disaggregation_transfer_backend": spec.backend,
        "disaggregation_bootstrap_port": bootstrap_port or _DEFAULT_BOOTSTRAP_PORT,
    }
    if spec.role == "null" and "load_balance_method" in args:
        given["load_balance_method"] = "round_robin"
    args.update({key: value for key, value in given.items() if key in args})
    args.update(spec.overrides)
    return args


def launch_command(spec: EngineSpec, port: int, bootstrap_port: int | None) -> str:
    """The arguments of the process, API keys in clear as the engine shows them."""
    parts: list[str] = ["--model-path", spec.model, "--host", "127.0.0.1", "--port", str(port)]
    options: list[tuple[str, object]] = [
        ("--context-length", spec.context_flag),
        ("--page-size", spec.page_size if spec.page_size != 1 else None),
        ("--tp-size", spec.tp if spec.tp != 1 else None),
        ("--dp-size", spec.dp if spec.dp != 1 else None),
        ("--pp-size", spec.pp if spec.pp != 1 else None),
        ("--api-key", spec.api_key),
        ("--admin-api-key", spec.admin_api_key),
    ]
    if spec.role != "null":
        options += [
            ("--disaggregation-mode", spec.role),
            ("--disaggregation-transfer-backend", spec.backend),
            ("--disaggregation-bootstrap-port", bootstrap_port),
        ]
    if spec.role == "decode":
        options.append(("--num-reserved-decode-tokens", spec.num_reserved_decode_tokens))
    for name, value in options:
        if value is not None:
            parts += [name, str(value)]
    parts += [
        flag
        for flag, on in (
            ("--enable-metrics", spec.metrics),
            ("--allow-auto-truncate", spec.allow_auto_truncate),
        )
        if on
    ]
    return " ".join(parts)


def _internal_state(spec: EngineSpec, args: Mapping[str, Any], rank: int) -> dict[str, Any]:
    data = version_data(spec.version)
    state = {key: value for key, value in args.items() if key not in data["inner_drop"]}
    role = "decode" if spec.role == "decode" else "prefill"
    state.update({key: value for key, value in data["inner"][role].items() if key in state})
    if "pp_max_micro_batch_size" in state:
        state["pp_max_micro_batch_size"] = _running_limit(spec, rank)
    if spec.live_role is not None and at_least(spec.version, "0.5.21"):
        state["disaggregation_mode"] = spec.live_role
    memory: dict[str, Any] = {"weight": 0.001, "kvcache": _kv_gb(spec, rank)}
    if at_least(spec.version, "0.5.18"):
        memory["startup_available"] = 20.4
    memory["token_capacity"] = spec.ranks[rank]
    if at_least(spec.version, "0.5.18"):
        memory["token_capacity_swa"] = None
    memory["graph"] = data["memory_graph"]
    made: dict[str, Any] = {
        "world_size": spec.tp * spec.pp,
        "last_gen_throughput": 0.0,
        "memory_usage": memory,
        "startup_time": {key: value for key, value in data["startup_time"].items() if key != "tokenizer_e2e"},
        "effective_max_running_requests_per_dp": _running_limit(spec, rank),
        "decode_cuda_graph_bs": [],
        "decode_cuda_graph_memory_gb": 0.0,
    }
    state.update({key: made[key] for key in data["inner_tail"]})
    if spec.exposed_env is not None and at_least(spec.version, "0.5.19"):
        names = {**spec.exposed_env, "SGLANG_EXPOSE_OWN_ENV_VARS": "1"}
        state["env_vars"] = {name: names[name] for name in sorted(names)}
    return state


def _running_limit(spec: EngineSpec, rank: int) -> int:
    return max(1, min(spec.ranks[rank] // 2, 4096))


def _kv_gb(spec: EngineSpec, rank: int) -> float:
    return round(spec.ranks[rank] * 256 / 2**30, 3)


def model_info(spec: EngineSpec) -> dict[str, Any]:
    """What /model_info answers."""
    answer = dict(version_data(spec.version)["model_info"])
    for key in ("model_path", "served_model_name", "tokenizer_path"):
        if key in answer:
            answer[key] = spec.model
    if "disaggregation_mode" in answer:
        answer["disaggregation_mode"] = spec.role_now
    embedding = answer.get("embedding")
    if isinstance(embedding, dict) and spec.role == "decode":
        answer["embedding"] = {**embedding, "cache": {**embedding["cache"], "radix_cache_disabled": True}}
    return answer


def models(spec: EngineSpec, created: int) -> dict[str, Any]:
    """What /v1/models answers: the effective context is `max_model_len`."""
    card = {"id": spec.model, "object": "model", "created": created, "owned_by": "sglang", "root": spec.model}
    if at_least(spec.version, "0.5.10"):
        card["parent"] = None
    card["max_model_len"] = spec.context_length
    return {"object": "list", "data": [card]}


def bootstrap_route(spec: EngineSpec, port: int) -> dict[str, Any]:
    """What the prefill's bootstrap port answers to the question about its layout."""
    answer: dict[str, Any] = {
        "attn_tp_size": spec.tp,
        "attn_cp_size": 1,
        "dp_size": spec.dp,
        "pp_size": spec.pp,
        "page_size": spec.page_size,
        "kv_cache_dtype": "auto",
        "follow_bootstrap_room": True,
    }
    if at_least(spec.version, "0.5.19"):
        answer["enable_dsa_cache_layer_split"] = False
    if at_least(spec.version, "0.5.22"):
        answer["decode_allocation_policy"] = "early"
    if at_least(spec.version, "0.5.23"):
        answer["enable_kv_cache_sharding"] = False
    if at_least(spec.version, "0.5.19"):
        answer["prefill_http_port"] = port
        ranks = ("target_tp_rank", "target_tp_ranks", "target_cp_ranks", "target_pp_ranks")
        answer.update(dict.fromkeys((*ranks, "required_dst_info_num", "required_prefill_response_num")))
    return answer
