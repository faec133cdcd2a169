"""Which version serves what, and to whom."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import httpx
import pytest

from pdguard.simulator import ClusterSpec, EngineSpec, Live
from pdguard.simulator.spec import HOLD_VARIABLE
from tests.simulator.helpers import decode, in_cluster, prefill

ALL = ("0.4.10", "0.5.5", "0.5.10", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23")
ROUTE = {
    "prefill_dp_rank": -1,
    "prefill_cp_rank": -1,
    "target_tp_rank": -1,
    "target_pp_rank": -1,
}


def from_version(first: str) -> dict[str, int]:
    return {version: 200 if ALL.index(version) >= ALL.index(first) else 404 for version in ALL}


TABLE: dict[str, dict[str, int]] = {
    "/get_server_info": from_version("0.4.10"),
    "/server_info": from_version("0.5.10"),
    "/get_model_info": from_version("0.4.10"),
    "/model_info": from_version("0.5.10"),
    "/v1/models": from_version("0.4.10"),
    "/health": from_version("0.4.10"),
    "/health_generate": from_version("0.4.10"),
    "/ready": from_version("0.5.20"),
    "/metrics": from_version("0.4.10"),
    "/v1/loads": from_version("0.5.10"),
    "/get_load": {version: 404 if ALL.index(version) >= ALL.index("0.5.21") else 200 for version in ALL},
    "/get_internal_state": dict.fromkeys(ALL, 404),
    "/version": dict.fromkeys(ALL, 404),
}


@pytest.mark.parametrize("version", ALL)
def test_serves_the_paths_of_its_version(version: str) -> None:
    async def body(live: Live, client: httpx.AsyncClient) -> dict[str, int]:
        found = {}
        for path in TABLE:
            response = await client.get(live.url("p0") + path)
            found[path] = response.status_code
            if response.status_code == 404:
                assert response.json() == {"detail": "Not Found"}
        return found

    found = in_cluster(ClusterSpec(engines=(prefill(version),)), body)
    assert found == {path: statuses[version] for path, statuses in TABLE.items()}


@pytest.mark.parametrize("version", ALL)
def test_info_has_the_fields_that_an_audit_reads(version: str) -> None:
    spec = prefill(version, 1024, context_flag=None, page_size=16, tp=2, api_key="k-1")

    async def body(live: Live, client: httpx.AsyncClient) -> dict[str, Any]:
        content: dict[str, Any] = (
            await client.get(live.url("p0") + "/get_server_info", headers={"authorization": "Bearer k-1"})
        ).json()
        assert content["port"] == int(live.url("p0").rsplit(":", 1)[1])
        assert content["disaggregation_bootstrap_port"] == live.bootstrap_ports["p0"]
        return content

    info = in_cluster(ClusterSpec(engines=(spec,)), body)
    assert info["version"] == version
    assert info["context_length"] is None
    assert (info["max_total_num_tokens"], info["max_req_input_len"]) == (1024, 1018)
    assert (info["tp_size"], info["page_size"], info["disaggregation_mode"]) == (2, 16, "prefill")
    assert info["api_key"] == "k-1"
    assert info["internal_states"][0]["memory_usage"]["token_capacity"] == 1024
    newer = ALL.index(version)
    assert ("launch_command" in info) == (newer >= ALL.index("0.5.20"))
    assert ("disaggregation_enable_kv_checksum" in info) == (newer >= ALL.index("0.5.21"))
    assert ("frontend" in info) == (newer >= ALL.index("0.5.21"))
    assert ("startup_time" in info) == (newer >= ALL.index("0.5.18"))
    assert ("kv_canary" in info) == (newer >= ALL.index("0.5.18"))
    assert ("admin_api_key" in info) == (newer >= ALL.index("0.5.10"))
    if "launch_command" in info:
        assert "--api-key k-1" in info["launch_command"]


def test_effective_context_is_shown_where_the_flag_is_not() -> None:
    spec = prefill("0.5.23", 1024, context_flag=None, context_length=9000)

    async def body(live: Live, client: httpx.AsyncClient) -> None:
        info = (await client.get(live.url("p0") + "/server_info")).json()
        assert info["context_length"] is None
        models = (await client.get(live.url("p0") + "/v1/models")).json()
        assert models["data"][0]["max_model_len"] == 9000
        metrics = (await client.get(live.url("p0") + "/metrics")).text
        assert re.search(r"^sglang:context_len\{.*\} 9000\.0$", metrics, re.M)

    in_cluster(ClusterSpec(engines=(spec,)), body)


def test_only_the_first_rank_shows_in_server_info() -> None:
    spec = replace(prefill("0.5.22"), dp=2, pools=(4096, 1024))

    async def body(live: Live, client: httpx.AsyncClient) -> None:
        info = (await client.get(live.url("p0") + "/server_info")).json()
        assert (info["max_total_num_tokens"], info["max_req_input_len"]) == (4096, 4090)
        assert [state["memory_usage"]["token_capacity"] for state in info["internal_states"]] == [4096, 1024]
        assert len(info["scheduler_pids"]) == 2
        loads = (await client.get(live.url("p0") + "/v1/loads")).json()["loads"]
        assert [(load["dp_rank"], load["max_total_num_tokens"]) for load in loads] == [(0, 4096), (1, 1024)]
        one = (await client.get(live.url("p0") + "/v1/loads?dp_rank=1&include=core,disagg")).json()["loads"]
        assert [load["dp_rank"] for load in one] == [1]
        assert "memory" not in one[0]
        assert "disaggregation" in one[0]
        assert (await client.get(live.url("p0") + "/v1/loads?dp_rank=7")).status_code == 400
        text = (await client.get(live.url("p0") + "/v1/loads?format=prometheus")).text
        assert 'sglang_memory_token_capacity{dp_rank="1"} 1024' in text
        metrics = (await client.get(live.url("p0") + "/metrics")).text
        assert re.search(r'^sglang:max_total_num_tokens\{dp_rank="1",.*\} 1024\.0$', metrics, re.M)

    in_cluster(ClusterSpec(engines=(spec,)), body)


def test_two_tensor_ranks_repeat_some_metrics_and_not_others() -> None:
    spec = decode(
        "0.5.22",
        tp=2,
        seed={"num_transfer_failed_reqs_total": 1, 'decode_deferred_kv_release_total{outcome="drained"}': 1},
    )

    async def body(live: Live, client: httpx.AsyncClient) -> str:
        assert len((await client.get(live.url("d0") + "/server_info")).json()["internal_states"]) == 1
        return (await client.get(live.url("d0") + "/metrics")).text

    text = in_cluster(ClusterSpec(engines=(spec,)), body)
    for name, ranks in (
        ("max_total_num_tokens", 2),
        ("num_transfer_failed_reqs_total", 2),
        ("decode_deferred_kv_release_total", 1),
        ("weight_memory_usage_gb", 1),
    ):
        assert len(re.findall(rf"^sglang:{name}\{{", text, re.M)) == ranks, name


@pytest.mark.parametrize(("version", "shown"), [("0.5.21", False), ("0.5.22", True), ("0.5.23", True)])
def test_hold_outcomes_are_counted_from_0_5_22_on(version: str, shown: bool) -> None:
    spec = decode(version, seed={'decode_deferred_kv_release_total{outcome="timeout"}': 4})

    async def body(live: Live, client: httpx.AsyncClient) -> str:
        return (await client.get(live.url("d0") + "/metrics")).text

    text = in_cluster(ClusterSpec(engines=(spec,)), body)
    assert (
        re.search(r'decode_deferred_kv_release_total\{.*outcome="timeout".*\} 4', text) is not None
    ) == shown


def test_metrics_need_their_flag_and_counters_an_event() -> None:
    off, on = prefill("0.5.22", metrics=False), decode("0.5.22")

    async def body(live: Live, client: httpx.AsyncClient) -> None:
        assert (await client.get(live.url("p0") + "/metrics")).status_code == 404
        text = (await client.get(live.url("d0") + "/metrics")).text
        assert "num_aborted_requests_total" not in text
        assert "decode_deferred_kv_release_total" not in text
        assert 'engine_type="decode"' in text

    in_cluster(ClusterSpec(engines=(off, on)), body)


@pytest.mark.parametrize(("version", "shown"), [("0.5.18", False), ("0.5.19", True), ("0.5.23", True)])
def test_exposed_environment(version: str, shown: bool) -> None:
    spec = decode(version, exposed_env={HOLD_VARIABLE: "on"})

    async def body(live: Live, client: httpx.AsyncClient) -> Any:
        return (
            (await client.get(live.url("d0") + "/server_info")).json()["internal_states"][0].get("env_vars")
        )

    found = in_cluster(ClusterSpec(engines=(spec,)), body)
    assert found == ({HOLD_VARIABLE: "on", "SGLANG_EXPOSE_OWN_ENV_VARS": "1"} if shown else None)


@pytest.mark.parametrize(
    ("version", "text", "holds"),
    [
        ("0.5.19", None, False),
        ("0.5.20", "on", False),
        ("0.5.20", "1", True),
        ("0.5.21", None, True),
        ("0.5.21", "off", True),
        ("0.5.21", "0", False),
    ],
)
def test_the_hold_follows_how_the_engine_reads_its_variable(
    version: str, text: str | None, holds: bool
) -> None:
    assert decode(version, exposed_env={} if text is None else {HOLD_VARIABLE: text}).holds is holds


def test_mori_cannot_hold_before_0_5_22() -> None:
    assert not decode("0.5.21", backend="mori", exposed_env={HOLD_VARIABLE: "1"}).holds
    assert decode("0.5.22", backend="mori").holds


def test_role_switch_shows_in_the_internal_state_only() -> None:
    spec = prefill("0.5.22", live_role="decode")

    async def body(live: Live, client: httpx.AsyncClient) -> None:
        info = (await client.get(live.url("p0") + "/server_info")).json()
        assert info["disaggregation_mode"] == "prefill"
        assert info["internal_states"][0]["disaggregation_mode"] == "decode"

    in_cluster(ClusterSpec(engines=(spec,)), body)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize(
    ("version", "keys", "path", "given", "status"),
    [
        ("0.5.22", {}, "/server_info", None, 200),
        ("0.5.22", {"api_key": "a"}, "/server_info", None, 401),
        ("0.5.22", {"api_key": "a"}, "/server_info", "b", 401),
        ("0.5.22", {"api_key": "a"}, "/server_info", "a", 200),
        ("0.5.22", {"api_key": "a"}, "/nowhere", None, 401),
        ("0.5.22", {"api_key": "a"}, "/metrics", None, 200),
        ("0.5.22", {"api_key": "a"}, "/health", None, 200),
        ("0.5.22", {"api_key": "a"}, "/ready", None, 200),
        ("0.5.19", {"api_key": "a"}, "/ready", None, 401),
        ("0.5.22", {"admin_api_key": "x"}, "/server_info", None, 200),
        ("0.5.22", {"admin_api_key": "x"}, "/flush_cache", None, 401),
        ("0.5.22", {"admin_api_key": "x"}, "/flush_cache", "x", 200),
        ("0.5.22", {"api_key": "a", "admin_api_key": "x"}, "/flush_cache", "a", 401),
        ("0.5.22", {"api_key": "a", "admin_api_key": "x"}, "/server_info", "a", 200),
        ("0.5.22", {"api_key": "a"}, "/flush_cache", "a", 200),
        ("0.5.5", {"api_key": "a"}, "/get_server_info", None, 401),
        ("0.5.5", {"api_key": "a"}, "/get_server_info", "a", 200),
    ],
)
def test_keys(version: str, keys: dict[str, Any], path: str, given: str | None, status: int) -> None:
    async def body(live: Live, client: httpx.AsyncClient) -> None:
        response = await client.get(live.url("p0") + path, headers=bearer(given) if given else {})
        assert response.status_code == status
        if status == 401:
            assert response.json() == {"error": "Unauthorized"}

    in_cluster(ClusterSpec(engines=(prefill(version, **keys),)), body)


def test_what_would_change_the_engine_is_noticed() -> None:
    async def body(live: Live, client: httpx.AsyncClient) -> None:
        await client.get(live.url("p0") + "/flush_cache")
        await client.get(live.url("p0") + "/v1/models")
        await client.post(live.url("p0") + "/nowhere")
        state = live.engines["p0"].state
        assert state.mutations == {"/flush_cache": 1}
        assert state.calls["GET", "/v1/models"] == 1
        assert state.calls["POST", "/*"] == 1

    in_cluster(ClusterSpec(engines=(prefill("0.5.22"),)), body)


def test_bootstrap_port_tells_the_layout_without_a_key() -> None:
    spec = prefill("0.5.23", tp=4, page_size=64, api_key="k")

    async def body(live: Live, client: httpx.AsyncClient) -> None:
        base = f"http://127.0.0.1:{live.bootstrap_ports['p0']}"
        layout = (await client.get(base + "/route", params=ROUTE)).json()
        assert (layout["attn_tp_size"], layout["page_size"], layout["dp_size"]) == (4, 64, 1)
        assert layout["prefill_http_port"] == int(live.url("p0").rsplit(":", 1)[1])
        assert layout["decode_allocation_policy"] == "early"
        assert (await client.get(base + "/health")).text == "OK"
        assert (await client.get(base + "/route")).status_code == 400
        assert (await client.get(base + "/else")).status_code == 404
        live.bootstraps["p0"].registered = False
        assert (await client.get(base + "/route", params=ROUTE)).status_code == 503

    in_cluster(ClusterSpec(engines=(spec,)), body)


def test_a_wrong_method_or_body_is_refused() -> None:
    async def body(live: Live, client: httpx.AsyncClient) -> None:
        url = live.url("p0")
        assert (await client.get(url + "/generate")).status_code == 405
        assert (await client.post(url + "/server_info")).status_code == 405
        assert (await client.post(url + "/generate", content=b"{")).status_code == 400
        assert (await client.post(url + "/generate", json={"text": 5})).status_code == 400
        assert (await client.post(url + "/v1/completions", json={})).json()["code"] == 400

    in_cluster(ClusterSpec(engines=(prefill("0.5.23"),)), body)


def test_a_spec_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="pools"):
        EngineSpec("e", pools=())
    with pytest.raises(ValueError, match="3 pools for 2"):
        EngineSpec("e", dp=2, pools=(100, 100, 100))
    with pytest.raises(ValueError, match="older than anything"):
        EngineSpec("e", version="0.3.0")
    with pytest.raises(ValueError, match="names used twice: e"):
        ClusterSpec(engines=(EngineSpec("e"), EngineSpec("e")))
