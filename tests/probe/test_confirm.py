"""Limits that are another by the time a router's answer is judged."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import httpx
import pytest

from pdguard.facts._fetch import Fetcher
from pdguard.probe.confirm import confirmed
from pdguard.probe.interface import Role, StepResult, Target, Verdict
from tests.probe import kit

PREFILL = Target("p0", Role.PREFILL, "http://127.0.0.1:1")


def checked(
    body: bytes, *, status: int = 200, limits: tuple[tuple[str, int], ...] = (("p0", 1018),)
) -> StepResult:
    context = kit.context(kit.FakeWire(lambda *_: kit.answered()))
    context.fetcher = Fetcher(
        timeout=2.0,
        connections=1,
        transport=httpx.MockTransport(lambda _: httpx.Response(status, stream=httpx.ByteStream(body))),
    )
    route = replace(kit.THROUGH, engines=(PREFILL,), limits=limits)
    step = replace(kit.step(), route=route)
    return asyncio.run(confirmed(context, StepResult(step, Verdict.EXPOSED, "the router answered")))


def test_the_same_limit_confirms() -> None:
    assert checked(b'{"max_req_input_len": 1018}').verdict is Verdict.EXPOSED
    assert checked(b"", limits=()).verdict is Verdict.EXPOSED


@pytest.mark.parametrize(
    "body",
    [
        b'{"max_req_input_len": 4090}',
        b"{}",
        b"[]",
        b"not json",
        b'{"max_req_input_len": "1018"}',
        b"[" * 9999,
    ],
)
def test_another_limit_or_none_does_not(body: bytes) -> None:
    found = checked(body)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "the limit of p0" in found.reason


def test_an_engine_that_does_not_answer_does_not() -> None:
    assert checked(b"", status=500).verdict is Verdict.INCONCLUSIVE
