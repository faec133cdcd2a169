"""Command lines and environments of the servers, as an operator would write them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from .cache import Cache
from .spec import LabSpec, Role, RouterKind

HOST = "127.0.0.1"

_INHERITED = ("PATH", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH")
_BACKEND_FLAG = {"mooncake": "mooncake_tcp", "nixl": "nixl"}
_ON_CPU = (
    *("--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
    *("--disable-overlap-schedule", "--disable-cuda-graph", "--mem-fraction-static", "0.1"),
    # Without it every idle scheduler keeps a core busy.
    "--sleep-on-idle",
)
_DECODE_ON_CPU = (
    # The default backup pool is pinned memory, which needs CUDA.
    *("--disaggregation-decode-retraction-backup", "cpu_tensor"),
    # The default of 512 would keep half of a small pool for decode, and prompts waiting for ever.
    *("--num-reserved-decode-tokens", "16"),
)


def engine_command(spec: LabSpec, cache: Cache, model: Path, role: Role, index: int) -> list[str]:
    """`python -m sglang.launch_server ...` for one engine. Flags of the spec come last, and so win."""
    mine = spec.role(role)
    bootstrap = spec.bootstrap_port(index if role == "prefill" else 0)
    return [
        *(str(cache.python), "-m", "sglang.launch_server", "--model-path", str(model)),
        *("--host", HOST, "--port", str(spec.port(role, index)), *_ON_CPU),
        *("--context-length", str(mine.context), "--max-total-tokens", str(mine.pool)),
        *("--enable-metrics", "--skip-server-warmup", "--disaggregation-mode", role),
        *("--disaggregation-transfer-backend", _BACKEND_FLAG[spec.backend]),
        *("--disaggregation-bootstrap-port", str(bootstrap)),
        *(_DECODE_ON_CPU if role == "decode" else ()),
        *mine.flags,
    ]


def engine_env(spec: LabSpec, cache: Cache, stubs: Path, role: Role) -> dict[str, str]:
    """The environment of one engine. Nothing of the caller's but a few harmless names gets in."""
    code = spec.role(role).engine_root or spec.engine_root or cache.engine(spec.version)
    sites = [cache.site(name) for name in spec.extra_sites if name == "nixl"]
    env = _base_env(cache, [stubs, code, *sites])
    env.update(
        SGLANG_USE_CPU_ENGINE="1",
        SGLANG_HOST_IP=HOST,
        HF_HUB_OFFLINE="1",
        OMP_NUM_THREADS="1",
    )
    if spec.backend == "nixl":
        # Without this UCX prefers shared memory, and nothing would cross the network.
        env.update(UCX_TLS="tcp,self", UCX_NET_DEVICES="lo")
    if spec.waiting_timeout is not None:
        for name in ("WAITING", "BOOTSTRAP"):
            env[f"SGLANG_DISAGGREGATION_{name}_TIMEOUT"] = f"{spec.waiting_timeout:g}"
    env.update(spec.role(role).env)
    return env


def router_command(spec: LabSpec, cache: Cache, kind: RouterKind, port: int, metrics_port: int) -> list[str]:
    """The router's command line. Its own /health polling is off where it can be: it injects requests."""
    module = {
        "sglang-router": ("sglang_router.launch_router", "--disable-health-check"),
        "smg": ("smg.launch_router", "--backend", "sglang", "--disable-health-check"),
    }[kind]
    prefills = [
        ("--prefill", f"http://{HOST}:{spec.port('prefill', i)}", str(spec.bootstrap_port(i)))
        for i in range(spec.prefills)
    ]
    decodes = [("--decode", f"http://{HOST}:{spec.port('decode', i)}") for i in range(spec.decodes)]
    return [
        *(str(cache.python), "-m", *module, "--pd-disaggregation"),
        *(part for group in (*prefills, *decodes) for part in group),
        *("--host", HOST, "--port", str(port), "--policy", "round_robin"),
        *("--prometheus-host", HOST, "--prometheus-port", str(metrics_port)),
        *spec.router_flags,
    ]


def router_env(cache: Cache, kind: RouterKind) -> dict[str, str]:
    """The environment of a router: without the stubs, and without an engine."""
    return _base_env(cache, [cache.site("smg")] if kind == "smg" else [])


def _base_env(cache: Cache, pythonpath: Sequence[Path]) -> dict[str, str]:
    env = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    env.update(HOME=str(cache.root / "home"), PYTHONDONTWRITEBYTECODE="1")
    if pythonpath:
        env["PYTHONPATH"] = os.pathsep.join(map(str, pythonpath))
    return env
