from __future__ import annotations

import asyncio
import json
import pathlib
import ssl
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx

from pdguard.simulator import ClusterSpec, EngineSpec, Live, RouterSpec, running

WAIT = 0.3
RECORDED = pathlib.Path(__file__).parent / "recorded"
T = TypeVar("T")
_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # unused on loopback, quicker than the default
_LETTERS = {str: "s", int: "i", float: "f", bool: "b", type(None): "n", list: "l", dict: "d"}


def recorded(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))
    return content


def types_of(value: Mapping[str, Any]) -> list[str]:
    return [f"{key}:{_LETTERS[type(item)]}" for key, item in value.items()]


def shape(value: Any) -> Any:
    """Key order and JSON types, values dropped."""
    if isinstance(value, dict):
        return [(key, shape(item)) for key, item in value.items()]
    if isinstance(value, list):
        return ["list", *({repr(shape(item)) for item in value[:1]})]
    return _LETTERS[type(value)]


def prefill(version: str, pool: int = 4096, **more: Any) -> EngineSpec:
    settings: dict[str, Any] = {"waiting_timeout": WAIT, "context_flag": 4096, "bootstrap_port": 0, **more}
    return EngineSpec("p0", "prefill", version, pools=(pool,), **settings)


def decode(version: str, pool: int = 4096, **more: Any) -> EngineSpec:
    settings: dict[str, Any] = {
        "waiting_timeout": WAIT,
        "context_flag": 4096,
        "num_reserved_decode_tokens": 16,
        **more,
    }
    return EngineSpec("d0", "decode", version, pools=(pool,), **settings)


def pair(version: str, pools: tuple[int, int] = (4096, 4096), *routers: RouterSpec) -> ClusterSpec:
    return ClusterSpec("pair", (prefill(version, pools[0]), decode(version, pools[1])), routers)


def in_cluster(
    spec: ClusterSpec, body: Callable[[Live, httpx.AsyncClient], Awaitable[T]], *, limit: float = 20.0
) -> T:
    """Run `body` against a live cluster; afterwards nothing of it may be left."""

    async def whole() -> T:
        async with asyncio.timeout(limit):
            client = httpx.AsyncClient(verify=_TLS, trust_env=False, timeout=limit)
            async with running(spec) as live, client:
                result = await body(live, client)
            assert len(live.rooms) == 0
            assert live.server.open_connections == 0
            assert asyncio.all_tasks() == {asyncio.current_task()}
            return result

    return asyncio.run(whole())


@dataclass(frozen=True)
class Seen:
    status: int
    body: Any
    seconds: float
    headers: Mapping[str, str]

    @property
    def message(self) -> str:
        error = self.body.get("error", self.body)
        return str(error["message"])


async def post(client: httpx.AsyncClient, url: str, body: Mapping[str, Any]) -> Seen:
    begun = time.monotonic()
    response = await client.post(url, json=body)
    try:
        content: Any = response.json()
    except ValueError:
        content = response.text
    return Seen(response.status_code, content, time.monotonic() - begun, response.headers)


def prompt(length: int, new: int = 4, room: int | None = 1000, **more: Any) -> dict[str, Any]:
    body: dict[str, Any] = {
        "input_ids": [7 * index % 256 for index in range(length)],
        "sampling_params": {"max_new_tokens": new, "temperature": 0},
        **more,
    }
    if room is not None:
        body |= {"bootstrap_host": "127.0.0.1", "bootstrap_port": 1, "bootstrap_room": room}
    return body


async def both(
    live: Live, client: httpx.AsyncClient, body: Mapping[str, Any], path: str = "/generate"
) -> tuple[Seen, Seen]:
    halves: list[Coroutine[Any, Any, Seen]] = [
        post(client, live.url(name) + path, body) for name in ("p0", "d0")
    ]
    first, second = await asyncio.gather(*halves)
    return first, second


def events(text: str) -> list[Any]:
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


async def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)
