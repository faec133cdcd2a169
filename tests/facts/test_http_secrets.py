"""Whatever an engine answers: nothing escapes but facts, and none of its own words is kept."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pdguard.facts.http import collect_http
from pdguard.facts.router import derive_router
from pdguard.simulator import EngineSpec
from pdguard.simulator.answers import server_info
from pdguard.simulator.versions import known_versions
from tests.facts.catalogue_check import assert_free_of, assert_in_catalogue
from tests.facts.http_help import INFO, MODELS, Engine, Router, transport

MARK = "sk-PLANTED"
PLANTED = st.builds(lambda n, end: f"{MARK}{n}{end}", st.integers(0, 99), st.text(max_size=3))
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | PLANTED
    | st.sampled_from(["prefill", "decode", "0.5.22", "EAGLE", "auto", "none", ""])
)
KEYS = st.sampled_from(
    [
        *INFO,
        *("memory_usage", "token_capacity", "token_capacity_swa", "env_vars", "data", "loads", "parent"),
        *("max_model_len", "dp_rank", "workers", "url", "worker_type", "is_healthy", "urls", "attn_tp_size"),
        *("speculative_num_steps", "disaggregation_decode_retraction_backup", "enable_pd_role_switch"),
        "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE",
    ]
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS | PLANTED, inner, max_size=6),
    max_leaves=25,
)
OBJECTS = st.dictionaries(KEYS | PLANTED, TREES, max_size=20)
LINES = st.lists(
    st.sampled_from(["sglang:max_total_num_tokens", "sglang:decode_deferred_kv_release_total"]), max_size=3
)


def _collect(replies: dict[str, Any]) -> list[Any]:
    engines = [Engine("p0", bootstrap_port=8998), Engine("d0", role="decode", url="http://other:1")]
    run = collect_http(engines, [Router()], keys={"p0": "own-key"}, transport=transport(replies))
    results = asyncio.run(run)
    for subject in results.routers:
        derive_router(subject.facts)
    found = [*results.engines, *results.routers]
    assert_in_catalogue(*found)
    assert_free_of([MARK, "own-key"], *found)
    for subject in found:
        for entry in subject.facts.entries.values():
            assert "pdguard failed" not in getattr(entry, "reason", "")
    return found


def _dump(value: Any) -> bytes:
    return json.dumps(value).encode()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(OBJECTS, TREES, TREES, TREES, TREES, st.text(max_size=80), LINES)
def test_arbitrary_answers(
    info: dict[str, Any], models: Any, loads: Any, route: Any, workers: Any, text: str, names: list[str]
) -> None:
    lines = [f'{name}{{outcome="{MARK}{text}",tp_rank="{text}"}} {text}' for name in names]
    _collect(
        {
            "/server_info": _dump({**info, "enable_metrics": True}),
            "/v1/models": _dump(models),
            "/v1/loads": _dump(loads),
            "/model_info": _dump(models),
            "/route": _dump(route),
            "/workers": _dump(workers),
            "/metrics": "\n".join([*lines, text, MARK]).encode("utf-8", "replace"),
        }
    )


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300), st.sampled_from([200, 204, 301, 401, 404, 418, 500, 503]))
def test_arbitrary_bytes(body: bytes, status: int) -> None:
    paths = ("/server_info", "/get_server_info", "/v1/models", "/v1/loads", "/route", "/workers", "/metrics")
    _collect(dict.fromkeys(paths, (status, body)))
    _collect(
        {"/server_info": _dump({**INFO, "enable_metrics": True}), **dict.fromkeys(paths[2:], (status, body))}
    )


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(known_versions()), st.floats(0.02, 0.6))
def test_real_answers_with_secrets_planted(seed: int, version: str, share: float) -> None:
    rng = random.Random(seed)  # noqa: S311 - places in a tree, no secret
    spec = EngineSpec(
        "p0", role="prefill", version=version, dp=2, pools=(64, 32), exposed_env={"SGLANG_X": "1"}
    )
    answer = _plant(server_info(spec, 30000, 8998), rng, share)
    assert isinstance(answer, dict)
    _collect({"/server_info": _dump(answer), "/v1/models": _dump(_plant(MODELS, rng, share))})


def test_every_leaf_and_key_planted() -> None:
    spec = EngineSpec("p0", role="prefill", version="0.5.23", exposed_env={"SGLANG_X": "1"})
    made = server_info(spec, 30000, 8998)
    rng = random.Random(1)  # noqa: S311 - places in a tree, no secret
    for share in (0.0, 1.0):
        answer = {key: _plant(value, rng, 1.0, keys=bool(share)) for key, value in made.items()}
        engine = _collect({"/server_info": _dump(answer), "/v1/models": _dump(MODELS)})[0]
        assert engine.facts.flag("reachable") is True
        assert engine.facts.get("admission_limit") is None


def _plant(value: Any, rng: random.Random, share: float, *, keys: bool = True) -> Any:
    """The same tree with a planted string in place of a share of its leaves and keys."""
    if isinstance(value, dict):
        renamed = {(f"{MARK}-{k}" if keys and rng.random() < share / 4 else k): v for k, v in value.items()}
        return {k: _plant(v, rng, share, keys=keys) for k, v in renamed.items()}
    if isinstance(value, list):
        return [_plant(v, rng, share, keys=keys) for v in value]
    return f"{MARK}-{rng.randrange(100)}" if rng.random() < share else value
