"""Prompts over a limit, version by version and pool by pool, as measured on running engines."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import httpx
import pytest

from pdguard.simulator import ClusterSpec, EngineSpec, Live
from tests.simulator.helpers import WAIT, both, decode, in_cluster, pair, post, prefill, prompt

N = (
    "Input length (1500 tokens) exceeds the maximum allowed length (1018 tokens). "
    "Use a shorter input or enable --allow-auto-truncate."
)
OK, NOW, WAITED = "ok", "refused", "waited"
LARGE, SMALL = 4096, 1024

#: version, pools of prefill and decode, what each half answers, prompt_tokens of prefill
TABLE = [
    *[(version, (SMALL, LARGE), OK, OK, 1) for version in ("0.5.5", "0.5.10", "0.5.18", "0.5.19")],
    ("0.5.19", (SMALL, SMALL), OK, NOW, 1),
    ("0.5.19", (LARGE, SMALL), OK, NOW, 1500),
    ("0.5.20", (SMALL, LARGE), NOW, WAITED, 0),
    ("0.5.20", (SMALL, SMALL), NOW, WAITED, 0),
    ("0.5.20", (LARGE, SMALL), OK, NOW, 1500),
    *[(version, (SMALL, LARGE), NOW, WAITED, 0) for version in ("0.5.21", "0.5.22", "0.5.23")],
    *[(version, (LARGE, SMALL), WAITED, NOW, 0) for version in ("0.5.21", "0.5.22", "0.5.23")],
    *[(version, (SMALL, SMALL), NOW, NOW, 0) for version in ("0.5.21", "0.5.22", "0.5.23")],
    *[(version, (LARGE, LARGE), OK, OK, 1500) for version in ("0.5.5", "0.5.19", "0.5.20", "0.5.23")],
]


@pytest.mark.parametrize(("version", "pools", "first", "second", "counted"), TABLE)
def test_each_half_answers_as_measured(
    version: str, pools: tuple[int, int], first: str, second: str, counted: int
) -> None:
    async def body(live: Live, client: httpx.AsyncClient) -> None:
        p, d = await both(live, client, prompt(1500, room=4242))
        for seen, expected in ((p, first), (d, second)):
            assert seen.status == {OK: 200, NOW: 400, WAITED: 500}[expected]
            assert (seen.seconds >= WAIT) == (expected == WAITED)
        if first == OK:
            assert p.body["meta_info"]["prompt_tokens"] == counted
        elif first == NOW:
            assert p.body == {"error": {"message": N}}
        else:
            assert p.body["message"].startswith("Prefill bootstrap failed for request rank=0 req.rid='")
            assert p.body["message"].endswith(f"Request 4242 timed out after {WAIT}s in KVPoll.Bootstrapping")
            assert live.engines["p0"].state.value("num_bootstrap_failed_reqs_total") == 1
        if second == OK:
            assert d.body["meta_info"]["prompt_tokens"] == 1500
            assert len(d.body["output_ids"]) == 4
        elif second == NOW:
            assert d.body == {"error": {"message": N}}
        else:
            assert d.body["message"].endswith(
                f"Request 4242 timed out after {WAIT}s in KVPoll.WaitingForInput"
            )
            assert live.engines["d0"].state.value("num_transfer_failed_reqs_total") == 1

    in_cluster(pair(version, pools), body)


@pytest.mark.parametrize("version", ["0.5.5", "0.5.19"])
def test_a_stub_handoff_answers_with_what_earlier_requests_left(version: str) -> None:
    async def body(live: Live, client: httpx.AsyncClient) -> None:
        async def ids(length: int, room: int) -> list[int]:
            _, d = await both(live, client, prompt(length, new=8, room=room))
            found: list[int] = d.body["output_ids"]
            return found

        right = await ids(200, 1)
        before = await ids(1500, 2)
        assert await ids(200, 3) == right
        after = await ids(1500, 4)
        assert before != after
        assert before[0] == after[0]

    in_cluster(pair(version, (SMALL, LARGE)), body)


def test_right_answers_depend_on_the_prompt_alone() -> None:
    async def answer(live: Live, client: httpx.AsyncClient) -> Any:
        _, d = await both(live, client, prompt(1500, new=20))
        return d.body["output_ids"]

    assert in_cluster(pair("0.5.19"), answer) == in_cluster(pair("0.5.23"), answer)


@pytest.mark.parametrize("path", ["/generate", "/v1/completions"])
@pytest.mark.parametrize("version", ["0.5.19", "0.5.20", "0.5.23"])
def test_over_context_is_refused_by_the_tokenizer_on_both(version: str, path: str) -> None:
    request = prompt(5000) if path == "/generate" else {"prompt": [1] * 5000, "bootstrap_room": 5}

    async def body(live: Live, client: httpx.AsyncClient) -> None:
        for seen in await both(live, client, request, path):
            assert seen.status == 400
            assert (
                seen.message
                == "The input (5000 tokens) is longer than the model's context length (4096 tokens)."
            )
            assert seen.seconds < WAIT

    in_cluster(pair(version, (SMALL, LARGE)), body)


def test_prompt_and_completion_together_over_context() -> None:
    async def body(live: Live, client: httpx.AsyncClient) -> None:
        seen = await post(client, live.url("d0") + "/generate", prompt(4095, 4))
        assert seen.status == 400
        assert (
            "You requested a total of 4099 tokens: 4095 tokens from the input messages and 4" in seen.message
        )

    in_cluster(pair("0.5.20"), body)


def test_the_last_lengths_under_the_context_reach_the_scheduler() -> None:
    engine = EngineSpec("p0", version="0.5.22", pools=(100_000,))

    async def body(live: Live, client: httpx.AsyncClient) -> list[int]:
        found = []
        for length in (4089, 4090, 4095, 4096):
            seen = await post(client, live.url("p0") + "/generate", prompt(length, 1, room=None))
            found.append(0 if seen.status == 200 else len(seen.message.split("exceeds the maximum")))
        return found

    assert in_cluster(ClusterSpec(engines=(engine,)), body) == [0, 2, 2, 1]


@pytest.mark.parametrize("version", ["0.5.19", "0.5.23"])
def test_reserved_tokens_over_the_pool_are_never_admitted(version: str) -> None:
    spec = ClusterSpec(
        engines=(prefill(version, SMALL), decode(version, SMALL, num_reserved_decode_tokens=512))
    )

    async def body(live: Live, client: httpx.AsyncClient) -> None:
        p, d = await both(live, client, prompt(512, room=1))
        assert (p.status, d.status) == (200, 200)
        request = prompt(513, room=2)
        silent = asyncio.create_task(post(client, live.url("d0") + "/generate", request))
        seen = await post(client, live.url("p0") + "/generate", request)
        assert seen.status == 500
        assert "KVPoll.Bootstrapping" in seen.body["message"]
        await asyncio.sleep(WAIT)
        assert not silent.done()
        assert live.engines["d0"].state.queues["decode_prealloc"] == 1
        silent.cancel()
        await asyncio.gather(silent, return_exceptions=True)

    in_cluster(spec, body)


def test_auto_truncate_answers_with_the_limit_as_prompt_length() -> None:
    spec = ClusterSpec(
        engines=(
            prefill("0.5.22", SMALL, allow_auto_truncate=True),
            decode("0.5.22", 5000, allow_auto_truncate=True),
        )
    )

    async def body(live: Live, client: httpx.AsyncClient) -> None:
        p, d = await both(live, client, prompt(1500))
        assert (p.status, d.status) == (200, 200)
        assert p.body["meta_info"]["prompt_tokens"] == 1018
        p, d = await both(live, client, prompt(5000))
        assert d.body["meta_info"]["prompt_tokens"] == 4090

    in_cluster(spec, body)


@pytest.mark.parametrize(
    ("versions", "pools", "statuses"),
    [
        (("0.5.19", "0.5.23"), (SMALL, LARGE), (200, 200)),
        (("0.5.23", "0.5.19"), (LARGE, SMALL), (200, 400)),
        (("0.5.19", "0.5.23"), (LARGE, SMALL), (500, 400)),
        (("0.5.23", "0.5.19"), (SMALL, LARGE), (400, 500)),
    ],
)
def test_mixed_versions_each_follow_their_own_door(
    versions: tuple[str, str], pools: tuple[int, int], statuses: tuple[int, int]
) -> None:
    spec = ClusterSpec(engines=(prefill(versions[0], pools[0]), decode(versions[1], pools[1])))

    async def body(live: Live, client: httpx.AsyncClient) -> tuple[int, int]:
        p, d = await both(live, client, prompt(1500))
        return p.status, d.status

    assert in_cluster(spec, body) == statuses


@pytest.mark.parametrize("name", ["p0", "d0"])
def test_a_half_alone_waits_out_its_timeout(name: str) -> None:
    async def body(live: Live, client: httpx.AsyncClient) -> None:
        seen = await post(client, live.url(name) + "/generate", prompt(100))
        assert seen.status == 500
        assert seen.seconds >= WAIT

    in_cluster(pair("0.5.23"), body)


def test_a_room_of_another_data_rank_is_refused_by_prefill_at_once() -> None:
    spec = ClusterSpec(
        engines=(replace(prefill("0.5.22"), dp=2), replace(decode("0.5.22"), dp=2, waiting_timeout=1.0))
    )

    async def body(live: Live, client: httpx.AsyncClient) -> None:
        p, d = await both(live, client, prompt(16, room=1000))
        assert (p.status, d.status) == (200, 200)
        p, d = await both(live, client, prompt(16, room=1001))
        assert (p.status, d.status) == (500, 500)
        assert p.seconds < 0.5 <= d.seconds
        assert (
            "follow_bootstrap_room conflict: dispatched to dp_rank 0 but bootstrap_room 1001"
            in p.body["message"]
        )
        p, d = await both(live, client, prompt(16, room=1001, routed_dp_rank=1))
        assert (p.status, d.status) == (200, 200)

    in_cluster(spec, body)


def test_the_engines_own_probe_needs_no_prefill() -> None:
    async def body(live: Live, client: httpx.AsyncClient) -> int:
        request = {"input_ids": [0], "bootstrap_host": "2.2.2.2", "bootstrap_room": 0}
        return (await post(client, live.url("d0") + "/generate", request)).status

    assert in_cluster(pair("0.5.23"), body) == 200


def test_a_stream_sends_headers_at_once_only_on_generate() -> None:
    async def body(live: Live, client: httpx.AsyncClient) -> None:
        for path, request, early in (
            ("/generate", prompt(1500, stream=True), True),
            ("/v1/completions", {"prompt": [1] * 1500, "stream": True, "bootstrap_room": 7}, False),
        ):
            begun = time.monotonic()
            async with client.stream("POST", live.url("d0") + path, json=request) as response:
                headers = time.monotonic() - begun
                text = (await response.aread()).decode()
            assert response.status_code == 200
            assert (headers < WAIT) == early
            assert text.count("timed out after 0.3s in KVPoll.WaitingForInput") == 1

    in_cluster(pair("0.5.22", (SMALL, LARGE)), body)
