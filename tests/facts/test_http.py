"""Facts from honest answers: every version of the simulator, and each rule that needs more than one field."""

from __future__ import annotations

from typing import Any

import pytest

from pdguard.facts._fetch import BOOTSTRAP_ROUTE, KEYED_PATHS, LIMITS
from pdguard.facts.interface import Fact, Grade
from pdguard.simulator import EngineSpec, Live, RouterSpec
from pdguard.simulator.versions import get_paths, known_versions
from tests.facts.catalogue_check import assert_free_of, assert_in_catalogue
from tests.facts.http_help import MODELS, Engine, ask, info, of, reason, simulate

PASSIVE = {path.partition("?")[0] for path in LIMITS}


def _only_passive(live: Live) -> None:
    for app in live.engines.values():
        assert {method for method, _ in app.state.calls} <= {"GET"}
        paths = {path for _, path in app.state.calls}
        if "/server_info" not in get_paths(app.spec.version):
            paths.discard("/*")  # the simulator's name for every path that it does not have
        assert paths <= PASSIVE
        assert not app.state.mutations


@pytest.mark.parametrize("version", known_versions())
def test_every_version(version: str) -> None:
    engines = (
        EngineSpec("p0", role="prefill", version=version, bootstrap_port=0, dp=2, pools=(1024, 512)),
        EngineSpec("d0", role="decode", version=version, context_flag=4096, tp=2),
    )
    routers = (
        RouterSpec("r0", engines=("p0",)),
        RouterSpec("r1", kind="smg", version="1.13.0", engines=("p0", "d0")),
    )
    results = simulate(*engines, routers=routers, after=_only_passive)
    assert_in_catalogue(*results.engines, *results.routers)
    p, d = (s.facts for s in results.engines)
    assert (p.flag("reachable"), p.text("version"), p.text("role"), d.text("role")) == (
        True,
        version,
        "prefill",
        "decode",
    )
    assert (p.items("pools"), p.integer("pool"), p.integer("reported_pool")) == ((1024, 512), 512, 1024)
    assert (p.integer("admission_limit"), p.integer("rank_limit")) == (1018, 506)
    assert (d.integer("pool"), d.integer("rank_limit"), d.integer("context_length")) == (4096, 4090, 4096)
    assert p.get("context_flag") is None
    assert d.integer("context_flag") == 4096
    assert p.flag("bootstrap_registered") is True
    assert p.integer("bootstrap_dp") == 2
    newer = tuple(int(n) for n in version.split(".")) >= (0, 5, 21)
    assert p.flag("checksum_supported") is newer
    assert p.text("frontend") == ("python" if newer else None)
    assert p.get("launch_flags") is not None or "launch_command" in reason(results.engines[0], "launch_flags")
    r0, r1 = (s.facts for s in results.routers)
    assert (r0.integer("workers"), r0.items("engines_unlisted"), r0.integer("workers_unknown")) == (1, (), 0)
    assert (r1.integer("workers"), r1.items("role_conflicts"), r1.integer("workers_unhealthy")) == (2, (), 0)
    for subject in results.engines:
        for name, fact in subject.facts.known():
            assert fact.grade == _grade(name, fact), name


def _grade(name: str, fact: Fact) -> Grade:
    if name in ("version", "version_kind"):
        return Grade.CLAIMED
    return (
        Grade.OBSERVED
        if name in ("reachable", "trouble") or fact.evidence[0].source == "metrics"
        else Grade.CONFIGURED
    )


def test_only_what_is_needed_is_asked() -> None:
    seen: list[str] = []
    ask({"/server_info": info(), "/v1/models": MODELS}, seen=seen)
    assert seen == ["GET http://engine:30000/server_info", "GET http://engine:30000/v1/models"]


def test_old_path_only_after_404() -> None:
    seen: list[str] = []
    subject = ask({"/get_server_info": info(version="0.5.5"), "/v1/models": MODELS}, seen=seen)
    assert [s.rsplit("/", 1)[1] for s in seen] == ["server_info", "get_server_info", "models"]
    assert subject.facts.flag("reachable") is True
    seen.clear()
    ask({"/server_info": (500, b""), "/get_server_info": info()}, seen=seen)
    assert len(seen) == 1


def test_a_prefix_in_the_url_is_kept() -> None:
    seen: list[str] = []
    ask(
        {"/gw/p0/server_info": info(), "/gw/p0/v1/models": MODELS}, Engine(url="https://gw/gw/p0/"), seen=seen
    )
    assert seen[0] == "GET https://gw/gw/p0/server_info"


@pytest.mark.parametrize(
    ("api", "admin", "key", "who"),
    [
        (None, None, None, "nobody"),
        ("", "", None, "nobody"),
        ("k", None, None, "anyone"),
        ("k", "a", None, "anyone"),
        (None, "a", None, "anyone"),
        (None, "a", "k", "anyone"),
        ("k", "a", "k", "key holders"),
        ("k", None, "k", "nobody"),
        (None, ..., None, "nobody"),
    ],
)
def test_keys_readable(api: Any, admin: Any, key: str | None, who: str) -> None:
    subject = ask({"/server_info": info(api_key=api, admin_api_key=admin), "/v1/models": MODELS}, key=key)
    assert subject.facts.text("keys_readable") == who


def test_keys_over_real_auth() -> None:
    engines = (
        EngineSpec("both", api_key="sk-one", admin_api_key="sk-two"),
        EngineSpec("admin", admin_api_key="sk-two"),
        EngineSpec("locked", api_key="sk-one"),
    )
    results = simulate(*engines, keys={"both": "sk-one"})
    both, admin, locked = results.engines
    assert both.facts.text("keys_readable") == "key holders"
    assert admin.facts.text("keys_readable") == "anyone"
    assert locked.facts.flag("reachable") is False
    assert "HTTP 401" in reason(locked, "pool")
    assert_free_of(["sk-one", "sk-two"], *results.engines)


def test_the_key_goes_only_where_it_may_be_wanted() -> None:
    assert {p for p in LIMITS if p not in KEYED_PATHS} == {"/metrics", BOOTSTRAP_ROUTE}


def test_role_after_a_switch_comes_from_the_ranks() -> None:
    results = simulate(EngineSpec("p0", role="prefill", version="0.5.22", live_role="decode"))
    assert results.engines[0].facts.text("role") == "decode"
    assert results.engines[0].facts.text("start_role") == "prefill"


def test_role_from_model_info_where_ranks_do_not_tell() -> None:
    state = {"memory_usage": {"token_capacity": 1024}}
    replies = {"/v1/models": MODELS, "/model_info": {"disaggregation_mode": "decode"}}
    switched = ask({**replies, "/server_info": info(internal_states=[state], enable_pd_role_switch=True)})
    fixed = ask({**replies, "/server_info": info(internal_states=[state], enable_pd_role_switch=False)})
    assert (switched.facts.text("role"), fixed.facts.text("role")) == ("decode", "prefill")


def test_ranks_that_disagree_on_the_role() -> None:
    states = [{"disaggregation_mode": "prefill"}, {"disaggregation_mode": "decode"}]
    assert "different roles" in reason(of(internal_states=states), "role")


def _states(*pools: Any, swa: tuple[Any, ...] = ()) -> list[dict[str, Any]]:
    windows = swa or (None,) * len(pools)
    return [
        {"disaggregation_mode": "prefill", "memory_usage": {"token_capacity": p, "token_capacity_swa": w}}
        for p, w in zip(pools, windows, strict=True)
    ]


def test_pools_put_the_first_rank_first() -> None:
    # Ranks answer in any order: seen so on a recorded engine with two data-parallel ranks.
    subject = of(dp_size=3, internal_states=_states(512, 2048, 1024))
    assert subject.facts.items("pools") == (1024, 512, 2048)


def test_missing_ranks_are_asked_of_loads() -> None:
    loads = {
        "loads": [{"dp_rank": r, "max_total_num_tokens": p} for r, p in enumerate((1024, 900, 800, 700))]
    }
    replies = {"/server_info": info(dp_size=4), "/v1/models": MODELS, "/v1/loads": loads}
    subject = ask(replies)
    assert subject.facts.items("pools") == (1024, 700, 800, 900)
    assert subject.facts.integer("rank_limit") == 694
    silent = of(dp_size=4)
    assert reason(silent, "pool") == "/v1/loads: HTTP 404"
    few = ask({**replies, "/v1/loads": {"loads": loads["loads"][:2]}})
    assert reason(few, "pool") == "2 of 4 data-parallel ranks told their pool"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dcp_size": 2, "version": "0.5.20"}, "context parallelism"),
        ({"enable_kv_cache_sharding": True}, "sharding"),
        ({"dllm_algorithm": "x"}, "diffusion"),
        ({"max_req_input_len": 900}, "do not explain"),
        ({"max_req_input_len": None}, "cannot be checked"),
    ],
)
def test_rank_limit_is_not_guessed(changes: dict[str, Any], words: str) -> None:
    subject = of(dp_size=2, internal_states=_states(1024, 512), **changes)
    assert words in reason(subject, "rank_limit")
    assert subject.facts.integer("pool") == 512


def test_sliding_window_pools() -> None:
    subject = of(dp_size=2, internal_states=_states(1024, 512, swa=(400, 300)))
    assert subject.facts.integer("swa_pool") == 300
    assert "sliding-window" in reason(subject, "rank_limit")


def test_the_first_rank_needs_no_formula() -> None:
    subject = of(max_req_input_len=700, internal_states=_states(1024, swa=(706,)))
    assert subject.facts.integer("rank_limit") == 700


@pytest.mark.parametrize(
    ("changes", "settings", "reserved"),
    [
        ({}, (), 0),
        ({"speculative_algorithm": "eagle3"}, ("steps=3", "topk=4", "draft_tokens=8"), 12),
        ({"speculative_algorithm": "NEXTN"}, ("steps=3", "topk=4", "draft_tokens=8"), 12),
        ({"speculative_algorithm": "NGRAM"}, ("steps=3", "topk=4", "draft_tokens=8"), 0),
    ],
)
def test_speculative(changes: dict[str, Any], settings: tuple[str, ...], reserved: int) -> None:
    numbers = {"speculative_num_steps": 3, "speculative_eagle_topk": 4, "speculative_num_draft_tokens": 8}
    facts = of(**numbers, **changes).facts
    assert (facts.items("speculative_settings"), facts.integer("reserved_tokens")) == (settings, reserved)


def test_speculative_that_cannot_be_counted() -> None:
    given = {"speculative_num_steps": 3, "speculative_eagle_topk": 4, "speculative_num_draft_tokens": None}
    assert "not all are set" in reason(of(speculative_algorithm="EAGLE", **given), "reserved_tokens")
    given["speculative_num_draft_tokens"] = 8
    adaptive = of(speculative_algorithm="EAGLE", speculative_adaptive=True, **given)
    assert "adaptive" in reason(adaptive, "reserved_tokens")
    assert "not a known value" in reason(of(speculative_algorithm="home-made"), "reserved_tokens")


def test_context_length_sources() -> None:
    lora = {"id": "l", "parent": "m", "max_model_len": None}
    with_lora = ask({"/server_info": info(), "/v1/models": {"data": [lora, *MODELS["data"]]}})
    assert with_lora.facts.integer("context_length") == 4096
    flag_only = ask({"/server_info": info(context_length=8192)})
    assert flag_only.facts.integer("context_length") == 8192
    neither = ask({"/server_info": info()})
    assert reason(neither, "context_length") == "/v1/models: HTTP 404"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"disaggregation_enable_kv_checksum": ..., "version": "0.5.20"}, False),
        ({"disaggregation_enable_kv_checksum": ..., "version": "0.5.22"}, None),
        ({"disaggregation_enable_kv_checksum": ..., "disaggregation_transfer_backend": ...}, None),
    ],
)
def test_checksum_supported(changes: dict[str, Any], expected: bool | None) -> None:
    assert of(**changes).facts.flag("checksum_supported") is expected


def test_words() -> None:
    assert of(disaggregation_transfer_backend="mooncake_tcp").facts.text("backend") == "mooncake"
    assert of(disaggregation_transfer_backend="own").facts.text("backend") == "other"
    assert (
        reason(of(kv_cache_dtype="own"), "kv_cache_dtype") == "/server_info kv_cache_dtype: not a known value"
    )
    states = [{**_states(1024)[0], "rust_server_startup_time": 1.0}]
    assert of(internal_states=states, frontend=...).facts.text("frontend") == "rust"
    assert of(version="0.5.20.dev3+g680bd4b").facts.text("version_kind") == "development"


def test_launch_flags_keep_no_secret() -> None:
    subject = of()
    assert subject.facts.items("launch_flags") is not None
    assert_free_of(["sk-never-shown"], subject)


def test_exposed_environment() -> None:
    env = {"SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE": "off", "SGLANG_SECRET": "hush"}
    (subject,) = simulate(EngineSpec("d0", role="decode", version="0.5.22", exposed_env=env)).engines
    assert subject.facts.flag("hold_setting") is True
    assert subject.facts.text("hold_misread") == "said off, is on"
    fact = subject.facts.get("hold_setting")
    assert fact is not None
    assert (fact.grade, fact.evidence[0].source) == (Grade.CONFIGURED, "http")
    assert_in_catalogue(subject)
    assert_free_of(["hush"], subject)
    assert of().facts.get("hold_setting") is None


def test_bootstrap() -> None:
    waiting = EngineSpec("p0", role="prefill", bootstrap_port=0, bootstrap_registered=False)
    (subject,) = simulate(waiting).engines
    assert subject.facts.flag("bootstrap_registered") is False
    assert "503" in reason(subject, "bootstrap_tp")
    assert "no bootstrap_port" in reason(of(), "bootstrap_tp")
    decode = ask({"/server_info": info(internal_states=[])}, Engine(role="decode"))
    assert "bootstrap_port" in reason(decode, "bootstrap_tp")
    seen: list[str] = []
    ask(
        {"/server_info": info(), "/v1/models": MODELS},
        Engine(url="http://[::1]:3", bootstrap_port=8998),
        seen=seen,
    )
    assert seen[-1].startswith("GET http://[::1]:8998/route?prefill_dp_rank=-1&prefill_cp_rank=-1")


def test_metrics_only_when_on() -> None:
    seen: list[str] = []
    ask(
        {"/server_info": info(enable_metrics=True), "/v1/models": MODELS, "/metrics": "sglang:x 1\n"},
        seen=seen,
    )
    assert seen[-1] == "GET http://engine:30000/metrics"
    assert "metrics are off" in reason(of(), "metric_pool")
    assert "not known" in reason(of(enable_metrics="yes"), "metric_pool")
