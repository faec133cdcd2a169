from __future__ import annotations

import asyncio

import httpx
import pytest

from pdguard.facts._fetch import Fetcher
from pdguard.probe.context import Context
from pdguard.probe.interface import Role, Target
from pdguard.probe.served_model import UNKNOWN, served_model
from pdguard.simulator import ClusterSpec, EngineSpec
from tests.probe import kit
from tests.probe.sim import in_context, targets

ENGINE = Target("d0", Role.DECODE, "http://127.0.0.1:1")


def test_the_name_is_the_servers_own() -> None:
    spec = ClusterSpec(engines=(EngineSpec("d0", role="decode", model="/models/ours"),))
    assert in_context(spec, lambda live, context: served_model(context, targets(live)[0])) == "/models/ours"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"[]",
        b'{"data": []}',
        b'{"data": [{"id": 7}]}',
        b'{"data": [{"id": ""}]}',
        b'{"data": [{"id": "a\\nb"}]}',
        b'{"data": [{"id": "' + b"x" * 600 + b'"}]}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_name_is_not_taken_for_one(body: bytes) -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        return httpx.Response(200, stream=httpx.ByteStream(body))

    context: Context = kit.context(kit.FakeWire(lambda *_: kit.answered()))
    context.fetcher = Fetcher(timeout=2.0, connections=1, transport=httpx.MockTransport(answer))

    async def twice() -> list[str]:
        return [await served_model(context, ENGINE) for _ in range(2)]

    assert asyncio.run(twice()) == [UNKNOWN, UNKNOWN]
    assert asked == ["/v1/models"]
