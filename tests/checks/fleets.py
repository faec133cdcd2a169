"""Small fleets as collectors would leave them, completed by the real derive functions."""

from __future__ import annotations

from pdguard.facts.cluster_facts import derive_cluster
from pdguard.facts.derived import derive_engine
from pdguard.facts.interface import Collected, Grade, Subject, Value
from pdguard.facts.observed import Observed
from pdguard.facts.pairing import build_pairs, count_pairs
from pdguard.facts.versions import parse_version
from pdguard.policy.evaluate import evaluate
from pdguard.policy.model import Status
from tests.checks.recorded import catalogue

CONTEXT, POOL = 32768, 65536
POLICY = {
    "t_hold_min": 60.0,
    "t_hold_max": 120.0,
    "extreme_context": 131072,
    "timeout_ratio": 0.05,
    "min_holds": 20,
}

ANSWERED: dict[str, Value] = {
    **{"reachable": True, "version": "0.5.23", "backend": "mooncake", "context_length": CONTEXT},
    **{"pool": POOL, "pools": (POOL,), "reported_pool": POOL, "metric_pool": POOL},
    **{"page_size": 64, "reserved_decode_tokens": 512, "reserved_tokens": 0, "kv_cache_dtype": "auto"},
    **{"tp_size": 1, "dp_size": 1, "pp_size": 1, "nnodes": 1},
    **{"speculative": "none", "speculative_settings": ()},
    **{"checksum": True, "kv_canary": "raise", "hierarchical_cache": False, "decode_radix_cache": False},
    **{
        "decode_offload": False,
        "auto_truncate": False,
        "dp_attention": False,
        "metrics_on": True,
        "keys_readable": "nobody",
    },
    **{"role_switch": False, "host_receive_threshold": 1.0, "config_file": "none"},
}
"""A careful operator's engine over HTTP: everything on that can be on, one rank, sizes that fit."""

REST: dict[str, Value] = {
    **{"env_read": True, "hold_raw": "unset", "hold_misread": "no", "t_hold": 30.0, "t_hold_kind": "finite"},
    **{"bootstrap_timeout": 300.0, "waiting_timeout": 300.0, "transfer_timeout": 30.0, "batch_cap": 0},
    **{"mori_timeout_ms": 0, "holds_drained": 0, "holds_timeout": 0, "holds_error": 0},
    **{"test_injection": (), "env_not_understood": (), "env_overridden": (), "rust_server": False},
    **{"fixes_partial": (), "fixes_unknown": ()},
    **{"source_disagrees": (), "unmerged": (), "rust_parts": (), "newer_by_ctime": (), "newer_by_mtime": ()},
}
"""Counters at zero, and an environment with nothing set; the hold's default is added by version."""

BOOTSTRAP: dict[str, Value] = {
    **{"bootstrap_registered": True, "bootstrap_tp": 1, "bootstrap_dp": 1, "bootstrap_pp": 1},
    **{"bootstrap_page_size": 64, "bootstrap_kv_dtype": "auto"},
}

SINCE: dict[str, tuple[int, int, int]] = {
    "checksum": (0, 5, 21),
    "role_switch": (0, 5, 21),
    "host_receive_threshold": (0, 5, 21),
    "batch_cap": (0, 5, 20),
    "holds_drained": (0, 5, 22),
    "holds_timeout": (0, 5, 22),
    "holds_error": (0, 5, 22),
}
"""The release a flag, variable or counter came with: older engines do not tell it."""


def engine(name: str, role: str, version: str = "0.5.23", **changes: Value) -> Subject:
    """One engine: `ANSWERED`, `REST` and, on a prefill, `BOOTSTRAP`, with `changes` laid over."""
    parsed = parse_version(version)
    assert parsed is not None
    facts: dict[str, Value] = {**ANSWERED, **REST, **(BOOTSTRAP if role == "prefill" else {})}
    facts |= {"declared_role": role, "role": role, "version": version}
    facts["hold_setting"] = parsed.release >= (0, 5, 21)
    if parsed.release == (0, 5, 21):
        facts["host_receive_threshold"] = 0.0
    facts |= changes
    pool, context = facts["pool"], facts["context_length"]
    assert isinstance(pool, int)
    assert isinstance(context, int)
    limit = min(context - 1, pool - 1) - 5
    facts |= {"pools": (pool,), "reported_pool": pool, "metric_pool": pool}
    facts |= {"admission_limit": limit, "rank_limit": limit}
    subject = Subject("engine", name)
    for key, value in facts.items():
        if parsed.release >= SINCE.get(key, (0, 0, 0)):
            grade = Grade.CLAIMED if key == "version" else Grade.CONFIGURED
            subject.facts.add(key, value, grade, "fleet", key)
    derive_engine(subject.facts)
    return subject


def fleet(*engines: Subject) -> Collected:
    """The engines with every pair between them, a router that pairs everything, and a Prometheus."""
    prefills = [e for e in engines if e.facts.text("role") == "prefill"]
    decodes = [e for e in engines if e.facts.text("role") == "decode"]
    router = Subject("router", "r0")
    known: dict[str, Value] = {
        **{"kind": "other", "reachable": True, "workers": len(engines), "workers_unknown": 0, "retries": 1},
        **{"engines_unlisted": (), "workers_unhealthy": 0, "role_conflicts": ()},
        **{"pairs_refusals": "yes", "pairs_disconnects": "yes"},
    }
    for name, value in known.items():
        router.facts.add(name, value, Grade.CONFIGURED, "fleet", name)
    pairs = build_pairs(prefills, decodes, [(router, frozenset())])
    nothing = Observed()
    nothing.router(router, engines)
    nothing.pairs(pairs, engines)
    cluster = Subject("cluster", "c")
    count = count_pairs(prefills, decodes, [(router, frozenset())])
    derive_cluster(cluster, prefills, decodes, pairs, count, routers=1, prometheus=True)
    nothing.cluster(cluster)
    for role in ("prefill", "decode"):
        cluster.facts.add(f"{role}_contents", 1, Grade.FINGERPRINTED, "fleet", role)
    for engine in engines:
        engine.facts.add("in_pair", bool(pairs), Grade.CLAIMED, "fleet", "in_pair")
    return Collected(cluster, list(engines), pairs, [router], [], POLICY)


def ids(collected: Collected, status: Status) -> set[str]:
    """`PDG401 d0`: the checks that gave `status`, each with its target."""
    found = evaluate(catalogue(), collected)
    return {f"{f.check.removeprefix('PDG')} {f.target}" for f in found if f.status is status}
