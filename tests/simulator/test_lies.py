"""Engines that do not answer honestly, each seen through a plain client."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import httpx
import pytest

from pdguard.simulator import ClusterSpec, Lie, Live
from tests.simulator.helpers import in_cluster, prefill


def served(lie: Lie, path: str = "/server_info", **more: Any) -> httpx.Response:
    async def body(live: Live, client: httpx.AsyncClient) -> httpx.Response:
        return await client.get(live.url("p0") + path)

    return in_cluster(ClusterSpec(engines=(prefill("0.5.22", lie=lie, **more),)), body)


def test_refused() -> None:
    with pytest.raises(httpx.ConnectError):
        served(Lie.REFUSED)


@pytest.mark.parametrize(
    ("lie", "status"), [(Lie.UNAUTHORIZED, 401), (Lie.SERVER_ERROR, 500), (Lie.HTML, 200)]
)
def test_another_answer_in_place_of_the_engines(lie: Lie, status: int) -> None:
    response = served(lie)
    assert response.status_code == status
    if lie is Lie.HTML:
        assert response.headers["content-type"].startswith("text/html")
        with pytest.raises(json.JSONDecodeError):
            response.json()


def test_numbers_as_strings() -> None:
    info = served(Lie.NUMBERS_AS_STRINGS).json()
    assert info["max_req_input_len"] == "4090"
    assert info["enable_metrics"] is True


def test_nan() -> None:
    info = served(Lie.NAN).json()
    assert math.isnan(info["max_req_input_len"])


def test_missing_keys() -> None:
    honest, info = served(Lie.NONE).json(), served(Lie.MISSING_KEYS).json()
    assert len(info) == math.ceil(len(honest) / 2)


def test_truncated_json() -> None:
    response = served(Lie.TRUNCATED_JSON)
    assert int(response.headers["content-length"]) == len(response.content)
    with pytest.raises(json.JSONDecodeError):
        response.json()


def test_wrong_top_level_type() -> None:
    assert isinstance(served(Lie.WRONG_TYPE).json(), list)


def test_redirect_loop() -> None:
    response = served(Lie.REDIRECT_LOOP)
    assert response.status_code == 307
    assert response.headers["location"] == "/server_info"


def test_slow() -> None:
    response = served(Lie.SLOW, slow_seconds=0.2)
    assert response.json()["version"] == "0.5.22"
    assert response.elapsed.total_seconds() >= 0.2


@pytest.mark.parametrize("lie", [Lie.ENDLESS, Lie.TRICKLE])
def test_a_body_that_never_ends(lie: Lie) -> None:
    async def body(live: Live, client: httpx.AsyncClient) -> int:
        read = 0

        async def reading() -> None:
            nonlocal read
            async with client.stream("GET", live.url("p0") + "/server_info") as response:
                assert response.status_code == 200
                async for chunk in response.aiter_raw():
                    read += len(chunk)

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reading(), 0.4)
        return read

    read = in_cluster(ClusterSpec(engines=(prefill("0.5.22", lie=lie),)), body)
    assert read > 0


def test_huge_body_is_made_only_as_fast_as_it_is_read() -> None:
    async def body(live: Live, client: httpx.AsyncClient) -> None:
        async with client.stream("GET", live.url("p0") + "/server_info") as response:
            read = 0
            async for chunk in response.aiter_raw():
                read += len(chunk)
                if read > 1_000_000:
                    break

    in_cluster(ClusterSpec(engines=(prefill("0.5.22", lie=Lie.HUGE),)), body)
    assert len(served(Lie.HUGE, huge_bytes=200_000).json()) == 0


def test_metrics_and_requests_pass_through_a_lie_about_json() -> None:
    assert served(Lie.NAN, "/metrics").text.startswith("# HELP sglang:")
