"""The deployment of the 2026 incident in small, and as large as wanted.

One shape of six engines, repeated: a context that the prefill's pool cannot hold, limits that differ by
role, five engine versions side by side, a hold that is believed to be on but is parsed as off, a pair
whose acknowledgements do not fit, and a router that does not pair aborts.
"""

from __future__ import annotations

from dataclasses import replace

from pdguard.simulator.spec import HOLD_VARIABLE, ClusterSpec, EngineSpec, RouterSpec

CONTEXT = 1_048_576
PREFILL_POOL = 681_280
LARGE_POOL = 2_040_064
#: The key of the one engine in six that has an admin key and no API key. Not a secret: it guards a double.
ADMIN_KEY = "simulated-admin-key"

_BASE = EngineSpec(
    name="base",
    context_length=CONTEXT,
    context_flag=CONTEXT,
    page_size=64,
    tp=8,
    model="/models/glm",
)
_SHAPE: tuple[EngineSpec, ...] = (
    replace(_BASE, name="p", role="prefill", version="0.5.19", pools=(PREFILL_POOL,), bootstrap_port=0),
    replace(
        _BASE,
        name="d",
        role="decode",
        version="0.5.20",
        pools=(LARGE_POOL,),
        exposed_env={HOLD_VARIABLE: "on"},
    ),
    replace(
        _BASE,
        name="p",
        role="prefill",
        version="0.5.21",
        pools=(PREFILL_POOL,),
        bootstrap_port=0,
        metrics=False,
    ),
    replace(
        _BASE,
        name="d",
        role="decode",
        version="0.5.22",
        pools=(LARGE_POOL,),
        context_flag=None,
        exposed_env={},
        seed={
            'decode_deferred_kv_release_total{outcome="drained"}': 3,
            'decode_deferred_kv_release_total{outcome="timeout"}': 41,
        },
    ),
    replace(
        _BASE,
        name="p",
        role="prefill",
        version="0.5.23",
        pools=(LARGE_POOL,),
        bootstrap_port=0,
        exposed_env={HOLD_VARIABLE: "true", "SGLANG_MOONCAKE_MAX_TRANSFER_BATCH_INDICES": "1024"},
    ),
    replace(
        _BASE,
        name="d",
        role="decode",
        version="0.5.23",
        pools=(LARGE_POOL,),
        admin_api_key=ADMIN_KEY,
        seed={'decode_deferred_kv_release_total{outcome="drained"}': 57},
    ),
)


def incident_cluster(engines: int = 6, *, waiting_timeout: float = 300.0) -> ClusterSpec:
    """The incident's shape with that many engines, the same for the same number."""
    if engines < 1:
        raise ValueError("a cluster needs at least one engine")
    made: list[EngineSpec] = []
    counts = {"p": 0, "d": 0}
    for index in range(engines):
        shape = _SHAPE[index % len(_SHAPE)]
        made.append(replace(shape, name=f"{shape.name}{counts[shape.name]}", waiting_timeout=waiting_timeout))
        counts[shape.name] += 1
    router = RouterSpec(
        name="r0", kind="sglang-router", version="0.3.2", engines=tuple(one.name for one in made)
    )
    return ClusterSpec(name="incident", engines=tuple(made), routers=(router,))
