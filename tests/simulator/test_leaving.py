"""Clients that leave: what is counted, and what decode holds."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from pdguard.simulator import ClusterSpec, EngineSpec, Live
from pdguard.simulator.spec import HOLD_SECONDS_VARIABLE, HOLD_VARIABLE
from tests.simulator.helpers import decode, in_cluster, post, prefill, prompt, until

TRANSFER = 0.4


async def leave_in_mid_transfer(live: Live, client: httpx.AsyncClient) -> None:
    request = prompt(100)
    halves = [
        asyncio.create_task(post(client, live.url(name) + "/generate", request)) for name in ("p0", "d0")
    ]
    await until(lambda: live.engines["p0"].state.queues["prefill_inflight"] == 1)
    loads = (await client.get(live.url("d0") + "/v1/loads")).json()["loads"][0]
    assert loads["disaggregation"]["decode_transfer_queue_reqs"] == 1
    assert loads["num_used_tokens"] == 100
    halves[1].cancel()
    await asyncio.gather(*halves, return_exceptions=True)
    state = live.engines["d0"].state
    await until(lambda: state.value("num_aborted_requests_total") == 1)
    assert state.value("num_transfer_failed_reqs_total") == 1
    assert live.engines["p0"].state.value("num_transfer_failed_reqs_total") == 1
    assert state.used_tokens == 0


def outcomes(versions: tuple[str, str], **more: Any) -> dict[str, float]:
    spec = ClusterSpec(
        engines=(
            prefill(versions[0], transfer_seconds=TRANSFER),
            decode(versions[1], waiting_timeout=5.0, **more),
        )
    )

    async def body(live: Live, client: httpx.AsyncClient) -> dict[str, float]:
        await leave_in_mid_transfer(live, client)
        state = live.engines["d0"].state
        await until(lambda: state.queues["held"] == 0)
        return {
            dict(labels)["outcome"]: count
            for (name, labels), count in state.counters.items()
            if name == "decode_deferred_kv_release_total"
        }

    return in_cluster(spec, body)


SHORT = {HOLD_SECONDS_VARIABLE: "0.2"}


@pytest.mark.parametrize(
    ("versions", "env", "expected"),
    [
        (("0.5.22", "0.5.22"), {}, {"drained": 1}),
        (("0.5.23", "0.5.22"), {}, {"drained": 1}),
        (("0.5.22", "0.5.22"), SHORT, {"timeout": 1}),
        (("0.5.22", "0.5.22"), {HOLD_VARIABLE: "0"}, {}),
        (("0.5.21", "0.5.22"), SHORT, {"timeout": 1}),
        (("0.5.20", "0.5.20"), {HOLD_VARIABLE: "1", **SHORT}, {"timeout": 1}),
        (("0.5.20", "0.5.20"), {HOLD_VARIABLE: "on"}, {}),
        (("0.5.19", "0.5.19"), {}, {}),
    ],
)
def test_hold_ends_as_measured(
    versions: tuple[str, str], env: dict[str, str], expected: dict[str, float]
) -> None:
    assert outcomes(versions, exposed_env=env) == expected


def test_a_hold_shows_in_the_metrics_while_it_lasts_and_after() -> None:
    spec = ClusterSpec(
        engines=(prefill("0.5.22", transfer_seconds=TRANSFER), decode("0.5.22", waiting_timeout=5.0))
    )

    async def body(live: Live, client: httpx.AsyncClient) -> None:
        await leave_in_mid_transfer(live, client)
        text = (await client.get(live.url("d0") + "/metrics")).text
        assert "decode_deferred_kv_release_total" not in text
        await until(lambda: live.engines["d0"].state.queues["held"] == 0)
        text = (await client.get(live.url("d0") + "/metrics")).text
        assert 'le="+Inf",model_name="/models/tiny",moe_ep_rank="0",pp_rank="0",tp_rank="0"} 1.0' in text
        assert 'outcome="drained"' in text

    in_cluster(spec, body)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_while_tokens_are_made_is_counted(stream: bool) -> None:
    engine = EngineSpec("e0", version="0.5.22", token_seconds=0.05)

    async def body(live: Live, client: httpx.AsyncClient) -> None:
        request = prompt(16, 100, room=None, stream=stream)
        task = asyncio.create_task(post(client, live.url("e0") + "/generate", request))
        await asyncio.sleep(0.15)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until(lambda: live.engines["e0"].state.value("num_aborted_requests_total") == 1)
        text = (await client.get(live.url("e0") + "/metrics")).text
        assert (
            'sglang:num_aborted_requests_total{engine_type="unified",model_name="/models/tiny"} 1.0' in text
        )

    in_cluster(ClusterSpec(engines=(engine,)), body)


def test_requests_and_tokens_are_counted() -> None:
    async def body(live: Live, client: httpx.AsyncClient) -> None:
        for _ in range(2):
            await post(client, live.url("e0") + "/generate", prompt(16, 5, room=None))
        state = live.engines["e0"].state
        assert state.value("num_requests_total", is_streaming="false") == 2
        assert state.value("prompt_tokens_total", is_streaming="false") == 32
        assert state.value("generation_tokens_total", is_streaming="false") == 10

    in_cluster(ClusterSpec(engines=(EngineSpec("e0", version="0.5.22"),)), body)
