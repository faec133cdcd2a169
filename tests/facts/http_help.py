"""What the HTTP collector's tests share: engines of a cluster file, canned answers, a run in one call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from pdguard.facts._fetch import LIMITS
from pdguard.facts.http import HttpResults, collect_http
from pdguard.facts.interface import Subject
from pdguard.simulator import ClusterSpec, EngineSpec, Live, RouterSpec, running


@dataclass(frozen=True)
class Engine:
    name: str = "e0"
    role: str = "prefill"
    url: str = "http://engine:30000"
    bootstrap_port: int | None = None


@dataclass(frozen=True)
class Router:
    name: str = "r0"
    url: str = "http://router:8000"
    kind: str = "sglang-router"
    engines: tuple[str, ...] | None = None
    version: str | None = None
    built: str | None = None


PASSIVE = tuple({path.partition("?")[0] for path in LIMITS})

INFO: dict[str, Any] = {
    "disaggregation_mode": "prefill",
    "disaggregation_transfer_backend": "mooncake",
    "disaggregation_enable_kv_checksum": False,
    "context_length": None,
    "max_req_input_len": 1018,
    "max_total_num_tokens": 1024,
    "page_size": 1,
    "tp_size": 1,
    "dp_size": 1,
    "pp_size": 1,
    "dcp_size": 1,
    "nnodes": 1,
    "enable_dp_attention": False,
    "kv_cache_dtype": "auto",
    "speculative_algorithm": None,
    "enable_metrics": False,
    "enable_pd_role_switch": False,
    "api_key": None,
    "admin_api_key": None,
    "launch_command": "--model-path /m --tp-size 1 --api-key sk-never-shown",
    "version": "0.5.22",
    "frontend": "python",
    "internal_states": [
        {
            "disaggregation_mode": "prefill",
            "memory_usage": {"token_capacity": 1024, "token_capacity_swa": None},
            "disaggregation_decode_retraction_backup": "cpu_tensor",
        }
    ],
}
MODELS: dict[str, Any] = {"data": [{"id": "m", "parent": None, "max_model_len": 4096}]}

Reply = bytes | str | tuple[int, bytes] | Mapping[str, Any] | list[Any]


def transport(replies: Mapping[str, Reply], seen: list[str] | None = None) -> httpx.MockTransport:
    """Answers by path; a path that is not named is a 404."""

    async def handle(request: httpx.Request) -> httpx.Response:
        path = request.url.path
        # A path that is not passive fails here, which the collector reports as a defect of its own.
        assert request.method == "GET"
        assert path.endswith(PASSIVE)
        if seen is not None:
            seen.append(f"{request.method} {request.url}")
        if path not in replies:
            return httpx.Response(404, json={"detail": "Not Found"})
        reply = replies[path]
        if isinstance(reply, tuple):
            return httpx.Response(reply[0], content=reply[1])
        body = reply.encode() if isinstance(reply, str) else reply
        return httpx.Response(200, content=body if isinstance(body, bytes) else json.dumps(body).encode())

    return httpx.MockTransport(handle)


def info(**changes: Any) -> dict[str, Any]:
    """An honest /server_info with some fields changed; a value of `...` takes the field out."""
    made = {**INFO, **changes}
    return {key: value for key, value in made.items() if value is not ...}


def ask(
    replies: Mapping[str, Reply],
    engine: Engine | None = None,
    *,
    key: str | None = None,
    seen: list[str] | None = None,
) -> Subject:
    """The subject that one engine with these answers gives."""
    one = engine or Engine()
    keys = {} if key is None else {one.name: key}
    return asyncio.run(collect_http([one], keys=keys, transport=transport(replies, seen))).engines[0]


def of(**changes: Any) -> Subject:
    """The subject of an engine whose /server_info has some fields changed."""
    return ask({"/server_info": info(**changes), "/v1/models": MODELS})


def simulate(
    *engines: EngineSpec,
    routers: tuple[RouterSpec, ...] = (),
    after: Callable[[Live], None] | None = None,
    **options: Any,
) -> HttpResults:
    """Collect from a simulated cluster; `after` sees it while it still runs."""

    async def body() -> HttpResults:
        async with running(ClusterSpec(engines=engines, routers=routers)) as live:
            known = [
                Engine(e.name, e.role, live.urls[e.name], live.bootstrap_ports.get(e.name)) for e in engines
            ]
            fronts = [Router(r.name, live.urls[r.name], r.kind, r.engines, r.version) for r in routers]
            results = await collect_http(known, fronts, **options)
            if after is not None:
                after(live)
            return results

    return asyncio.run(body())


def reason(subject: Subject, name: str) -> str:
    """Why a fact is missing; fails where it is known."""
    why = subject.facts.why_missing(name)
    assert why is not None, f"{name} is known: {subject.facts.value(name)}"
    return why.reason
