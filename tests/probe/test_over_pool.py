"""Each version and pool shape, as real engines answered them, over the wire against simulated ones."""

from __future__ import annotations

import asyncio

import pytest

from pdguard.probe import over_pool
from pdguard.probe.context import Context
from pdguard.probe.interface import Api, Budget, Kind, Length, Side, StepResult, Verdict
from pdguard.simulator import ClusterSpec, Live, RouterSpec
from tests.probe import kit
from tests.probe.live import ROUTER, SMG, direct, in_context, length, pair, through

UNEQUAL, EQUAL, MIRRORED = (1024, 4096), (1024, 1024), (4096, 1024)


def probe(
    spec: ClusterSpec,
    side: Side,
    *,
    tokens: int = 1500,
    router: bool = False,
    wait: float = 5.0,
    waiting: float | None = 1.0,
    truncates: bool = False,
    api: Api = Api.GENERATE,
    stream: bool = False,
) -> StepResult:
    async def body(live: Live, context: Context) -> StepResult:
        route = through(live, waiting) if router else direct(live, waiting, truncates=truncates)
        one = kit.step(Kind.OVER_POOL, route, length=length(live, side, tokens), api=api, stream=stream)
        return await over_pool.run(one, context)

    return in_context(spec, body, Budget(wait=wait))


@pytest.mark.parametrize(
    ("version", "pools", "side", "step", "prefill", "decode"),
    [
        ("0.5.19", UNEQUAL, Side.PREFILL, "EXPOSED", "WALKED_ON", "EXPOSED"),
        ("0.5.19", EQUAL, Side.BOTH, "LATE", "WALKED_ON", "LATE"),
        ("0.5.19", MIRRORED, Side.DECODE, "LATE", "ADMITTED", "LATE"),
        ("0.5.20", UNEQUAL, Side.PREFILL, "WAITED", "DOOR", "WAITED"),
        ("0.5.20", EQUAL, Side.BOTH, "WAITED", "DOOR", "WAITED"),
        ("0.5.21", EQUAL, Side.BOTH, "DOOR", "DOOR", "DOOR"),
        ("0.5.22", EQUAL, Side.BOTH, "DOOR", "DOOR", "DOOR"),
        ("0.5.23", EQUAL, Side.BOTH, "DOOR", "DOOR", "DOOR"),
        ("0.5.21", UNEQUAL, Side.PREFILL, "WAITED", "DOOR", "WAITED"),
        ("0.5.23", UNEQUAL, Side.PREFILL, "WAITED", "DOOR", "WAITED"),
        ("0.5.23", MIRRORED, Side.DECODE, "WAITED", "WAITED", "DOOR"),
        ("0.5.23", EQUAL, Side.ADMITTED, "ADMITTED", "ADMITTED", "ADMITTED"),
        ("0.5.23", EQUAL, Side.CONTEXT, "TOKENIZER", "TOKENIZER", "TOKENIZER"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_direct(
    version: str, pools: tuple[int, int], side: Side, step: str, prefill: str, decode: str, stream: bool
) -> None:
    tokens = {Side.ADMITTED: 1000, Side.CONTEXT: 4100}.get(side, 1500)
    result = probe(pair(version, pools), side, tokens=tokens, stream=stream)
    assert [h.name for h in result.halves] == ["p0", "d0"]
    told = [result.verdict.name, *(h.verdict.name for h in result.halves)]
    assert told == [step, prefill, decode], result.reason
    assert all(h.release is None for h in result.halves)


@pytest.mark.parametrize(
    ("version", "pools", "side", "router", "verdict"),
    [
        ("0.5.19", UNEQUAL, Side.PREFILL, ROUTER, Verdict.EXPOSED),
        ("0.5.22", UNEQUAL, Side.PREFILL, ROUTER, Verdict.WAITED),
        ("0.5.22", EQUAL, Side.BOTH, ROUTER, Verdict.DOOR),
        ("0.5.22", UNEQUAL, Side.PREFILL, SMG, Verdict.DOOR),
    ],
)
def test_through_a_router(
    version: str, pools: tuple[int, int], side: Side, router: RouterSpec, verdict: Verdict
) -> None:
    result = probe(pair(version, pools, router), side, router=True)
    assert result.verdict is verdict, result.reason
    assert [h.name for h in result.halves] == ["r0"]


def test_a_half_that_outlives_the_patience_is_closed_and_seen_to_let_go() -> None:
    result = probe(pair("0.5.22", UNEQUAL, waiting_timeout=60.0), Side.PREFILL, wait=0.5, waiting=60.0)
    prefill, decode = result.halves
    assert (prefill.verdict, decode.verdict) == (Verdict.DOOR, Verdict.HELD)
    assert prefill.release is None
    assert decode.release is not None
    assert decode.release.released is True
    assert decode.release.after is not None
    assert decode.release.after < 3
    assert decode.seen is not None
    assert 0.4 < decode.seen.ended_after < 2


def test_behind_a_router_both_engines_are_seen_to_let_go() -> None:
    result = probe(
        pair("0.5.22", UNEQUAL, waiting_timeout=60.0), Side.PREFILL, router=True, wait=0.5, waiting=60.0
    )
    (half,) = result.halves
    assert half.verdict is Verdict.HELD
    assert half.release is not None
    assert half.release.released is True


def test_a_prompt_that_is_cut_is_told_as_such() -> None:
    # decode keeps so little back that the longest prompt it admits can be placed
    spec = pair("0.5.22", EQUAL, reserved=4, allow_auto_truncate=True)
    result = probe(spec, Side.BOTH, truncates=True)
    assert result.verdict is Verdict.TRUNCATED, result.reason


@pytest.mark.parametrize("api", [Api.COMPLETIONS, Api.CHAT])
@pytest.mark.parametrize("stream", [False, True])
def test_texts_are_measured_first_and_land_on_the_side_that_was_wanted(api: Api, stream: bool) -> None:
    result = probe(pair("0.5.22", EQUAL), Side.BOTH, api=api, stream=stream, router=True)
    assert result.verdict is Verdict.DOOR, result.reason
    assert result.step.length is not None
    assert abs(result.step.length.tokens - 1500) <= 2
    assert result.halves[0].seen is not None
    assert result.halves[0].seen.said_tokens == result.step.length.tokens


def test_an_exposure_is_seen_on_a_text_path_too() -> None:
    result = probe(pair("0.5.19", UNEQUAL), Side.PREFILL, api=Api.COMPLETIONS, stream=True)
    assert result.verdict is Verdict.EXPOSED, result.reason


def test_a_path_without_a_chat_template_is_inconclusive() -> None:
    result = probe(pair("0.5.22", EQUAL, chat_template=False), Side.BOTH, api=Api.CHAT)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "chat template" in result.reason


def test_a_server_that_is_not_there_is_inconclusive() -> None:
    async def body(live: Live, context: Context) -> StepResult:
        return await over_pool.run(kit.step(length=length(live, Side.PREFILL, 1500)), context)

    result = in_context(pair("0.5.22", UNEQUAL), body)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "no connection" in result.reason


@pytest.mark.parametrize(
    ("side", "budget", "wait"),
    [
        (Side.ADMITTED, Budget(wait=2.0), 120.0),
        (Side.ADMITTED, Budget(wait=300.0), 300.0),
        (Side.CONTEXT, Budget(wait=2.0), 2.0),
        (Side.BOTH, Budget(wait=2.0), 2.0),
        (Side.DECODE, Budget(wait=2.0), 2.0),
        (Side.PREFILL, Budget(wait=2.0), 2.0),
    ],
)
def test_only_an_admitted_prompt_is_waited_for_to_its_end(side: Side, budget: Budget, wait: float) -> None:
    limits = {Side.DECODE: (4090, 1018), Side.PREFILL: (1018, 4090)}.get(side, (1018, 1018))
    tokens = {Side.ADMITTED: 1000, Side.CONTEXT: 4100}.get(side, 1500)
    wire = kit.FakeWire(lambda *_: kit.answered())
    step = kit.step(length=Length(side, tokens, *limits, 4096))
    asyncio.run(over_pool.run(step, kit.context(wire, budget)))
    assert set(wire.waits) == {wait}


def test_patience_ends_with_the_budget() -> None:
    wire = kit.FakeWire(lambda *_: kit.answered())
    step = kit.step(length=Length(Side.ADMITTED, 1000, 1018, 1018, 4096))
    asyncio.run(over_pool.run(step, kit.context(wire, Budget(seconds=30.0))))
    assert all(25.0 < wait <= 30.0 for wait in wire.waits)


def test_a_slow_answer_to_an_admitted_prompt_is_not_closed_at_the_wait() -> None:
    slow = pair("0.5.22", EQUAL, transfer_seconds=1.5, waiting_timeout=60.0)
    result = probe(slow, Side.ADMITTED, tokens=1000, wait=0.3, waiting=60.0)
    assert result.verdict is Verdict.ADMITTED, result.reason
