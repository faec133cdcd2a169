"""Routers: what a client sees, and what becomes of the other half."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import httpx
import pytest

from pdguard.simulator import ClusterSpec, EngineSpec, Live, RouterSpec
from tests.simulator.helpers import WAIT, decode, events, in_cluster, pair, post, prefill, prompt, until

OLD = RouterSpec("r0", "sglang-router", "0.3.2", ("p0", "d0"), retry_seconds=0.01)
SMG_11 = RouterSpec("r0", "smg", "1.11.0", ("p0", "d0"), retry_seconds=0.01)
SMG_13 = RouterSpec("r0", "smg", "1.13.0", ("p0", "d0"), retry_seconds=0.01)


@pytest.mark.parametrize("router", [OLD, SMG_11, SMG_13])
def test_an_ordinary_request_reaches_both_halves(router: RouterSpec) -> None:
    async def body(live: Live, client: httpx.AsyncClient) -> None:
        seen = await post(client, live.url("r0") + "/generate", prompt(100, room=None))
        assert seen.status == 200
        assert seen.body["meta_info"]["prompt_tokens"] == 100
        assert len(seen.body["output_ids"]) == 4
        for name in ("p0", "d0"):
            assert live.engines[name].state.calls["POST", "/generate"] == 1
        assert live.routers["r0"].attempts == {"prefill": 1, "decode": 1}

    in_cluster(pair("0.5.22", (4096, 4096), router), body)


@pytest.mark.parametrize("router", [OLD, SMG_11])
def test_a_prefill_refusal_costs_every_try_the_whole_timeout(router: RouterSpec) -> None:
    async def body(live: Live, client: httpx.AsyncClient) -> None:
        seen = await post(client, live.url("r0") + "/generate", prompt(1500, room=None))
        assert seen.status == 500
        assert seen.body["error"]["code"] == "decode_internal_error"
        assert seen.seconds >= 5 * WAIT
        assert live.routers["r0"].attempts["decode"] == 5

    in_cluster(pair("0.5.22", (1024, 4096), router), body)


def test_smg_1_12_answers_a_prefill_refusal_at_once_and_drops_the_decode_half() -> None:
    async def body(live: Live, client: httpx.AsyncClient) -> None:
        seen = await post(client, live.url("r0") + "/generate", prompt(1500, room=None))
        assert seen.status == 400
        assert seen.body["error"]["code"] == "prefill_bad_request"
        assert seen.seconds < WAIT
        await until(lambda: live.engines["d0"].state.value("num_aborted_requests_total") == 1)
        assert live.routers["r0"].attempts["decode"] == 1

    spec = pair("0.5.22", (1024, 4096), SMG_13)
    spec = replace(spec, engines=(spec.engines[0], replace(spec.engines[1], waiting_timeout=30.0)))
    in_cluster(spec, body)


def test_both_refuse_and_the_client_knows_at_once() -> None:
    async def body(live: Live, client: httpx.AsyncClient) -> None:
        seen = await post(client, live.url("r0") + "/generate", prompt(1500, room=None))
        assert (seen.status, seen.body["error"]["code"]) == (400, "decode_bad_request")
        assert seen.seconds < WAIT

    in_cluster(pair("0.5.22", (1024, 1024), OLD), body)


def test_a_decode_refusal_is_told_only_when_prefill_gave_up() -> None:
    async def body(live: Live, client: httpx.AsyncClient) -> None:
        seen = await post(client, live.url("r0") + "/generate", prompt(1500, room=None))
        assert (seen.status, seen.body["error"]["code"]) == (400, "decode_bad_request")
        assert seen.seconds >= WAIT

    in_cluster(pair("0.5.22", (4096, 1024), OLD), body)


def test_0_5_19_answers_from_foreign_pages_through_the_router_too() -> None:
    async def body(live: Live, client: httpx.AsyncClient) -> None:
        first = await post(client, live.url("r0") + "/generate", prompt(1500, 8, room=None))
        second = await post(client, live.url("r0") + "/generate", prompt(1500, 8, room=None))
        assert (first.status, second.status) == (200, 200)
        assert first.body["meta_info"]["prompt_tokens"] == 1500
        assert first.body["output_ids"] != second.body["output_ids"]

    in_cluster(pair("0.5.19", (1024, 4096), OLD), body)


def test_a_streamed_request_is_not_tried_again() -> None:
    async def body(live: Live, client: httpx.AsyncClient) -> None:
        begun = time.monotonic()
        response = await client.post(live.url("r0") + "/generate", json=prompt(1500, room=None, stream=True))
        assert response.status_code == 200
        assert WAIT <= time.monotonic() - begun < 2 * WAIT
        (event,) = events(response.text)
        assert event["meta_info"]["finish_reason"]["type"] == "abort"
        assert live.routers["r0"].attempts["decode"] == 1

    in_cluster(pair("0.5.22", (1024, 4096), OLD), body)


def test_token_ids_as_a_completion_prompt_are_refused() -> None:
    async def body(live: Live, client: httpx.AsyncClient) -> None:
        response = await client.post(live.url("r0") + "/v1/completions", json={"prompt": [1, 2, 3]})
        assert response.status_code == 422

    in_cluster(pair("0.5.22", (4096, 4096), OLD), body)


@pytest.mark.parametrize(
    "path", ["/server_info", "/model_info", "/version", "/metrics", "/list_workers", "/v1/loads"]
)
def test_paths_that_a_router_does_not_have(path: str) -> None:
    async def body(live: Live, client: httpx.AsyncClient) -> int:
        return (await client.get(live.url("r0") + path)).status_code

    assert in_cluster(pair("0.5.22", (4096, 4096), OLD), body) == 404


def test_health_paths() -> None:
    async def body(live: Live, client: httpx.AsyncClient) -> None:
        for path in ("/health", "/liveness"):
            assert (await client.get(live.url("r0") + path)).text == "OK"
        assert (await client.get(live.url("r0") + "/readiness")).json()["healthy_workers"] == 2
        info = (await client.get(live.url("r0") + "/get_server_info")).json()
        assert info == {"router_manager": True, "routers_count": 1, "workers_count": 2}

    in_cluster(pair("0.5.22", (4096, 4096), OLD), body)


def test_workers_carry_the_bootstrap_port() -> None:
    async def body(live: Live, client: httpx.AsyncClient) -> None:
        workers = (await client.get(live.url("r0") + "/workers")).json()["workers"]
        ports = {worker["worker_type"]: worker.get("bootstrap_port") for worker in workers}
        assert ports == {"prefill": live.bootstrap_ports["p0"], "decode": None}

    in_cluster(pair("0.5.22", (4096, 4096), OLD), body)


def slow_transfer(router: RouterSpec, seconds: float) -> ClusterSpec:
    engines = (
        prefill("0.5.22", transfer_seconds=seconds),
        decode("0.5.22", waiting_timeout=10.0, token_seconds=0.02),
    )
    return ClusterSpec(engines=engines, routers=(router,))


@pytest.mark.parametrize("stream", [False, True])
def test_sglang_router_drops_both_halves_when_the_client_leaves(stream: bool) -> None:
    async def body(live: Live, client: httpx.AsyncClient) -> None:
        request = prompt(100, 50, room=None, stream=stream)
        task = asyncio.create_task(post(client, live.url("r0") + "/generate", request))
        await until(lambda: live.engines["p0"].state.queues["prefill_inflight"] == 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until(lambda: live.engines["d0"].state.value("num_aborted_requests_total") == 1, 1.0)

    in_cluster(slow_transfer(OLD, 2.0), body)


def test_smg_leaves_a_stream_running_until_its_transfer_has_ended() -> None:
    async def body(live: Live, client: httpx.AsyncClient) -> None:
        request = prompt(100, 50, room=None, stream=True)
        task = asyncio.create_task(post(client, live.url("r0") + "/generate", request))
        await until(lambda: live.engines["p0"].state.queues["prefill_inflight"] == 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.sleep(0.2)
        decode_state = live.engines["d0"].state
        assert decode_state.value("num_aborted_requests_total") == 0
        await until(lambda: decode_state.value("num_aborted_requests_total") == 1)
        assert decode_state.value("num_transfer_failed_reqs_total") == 0
        assert live.engines["p0"].state.value("num_aborted_requests_total") == 0

    in_cluster(slow_transfer(SMG_13, 0.5), body)


def test_without_a_pair_there_is_nothing_to_send_to() -> None:
    spec = ClusterSpec(engines=(EngineSpec("e0"),), routers=(RouterSpec("r0", engines=("e0",)),))

    async def body(live: Live, client: httpx.AsyncClient) -> int:
        return (await post(client, live.url("r0") + "/generate", prompt(5, room=None))).status

    assert in_cluster(spec, body) == 503


def test_a_router_in_front_of_unknown_engines_is_refused() -> None:
    with pytest.raises(ValueError, match="no such engine: x"):
        ClusterSpec(engines=(EngineSpec("e0"),), routers=(RouterSpec("r0", engines=("x",)),))
