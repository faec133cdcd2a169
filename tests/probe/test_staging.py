from __future__ import annotations

import asyncio

import pytest

from pdguard.probe import staging
from pdguard.probe.context import Context
from pdguard.probe.interface import (
    Ask,
    Budget,
    End,
    ErrorClass,
    Kind,
    Length,
    Seen,
    Side,
    StepResult,
    Target,
    Verdict,
)
from pdguard.simulator import Live
from tests.probe import kit
from tests.probe.live import direct, in_context, length, pair, through

UNEQUAL = (1024, 4096)
STEP = kit.step(Kind.STAGING)


def prove(version: str, *, router: bool = False, wait: float = 4.0) -> StepResult:
    async def body(live: Live, context: Context) -> StepResult:
        route = through(live) if router else direct(live)
        return await staging.run(
            kit.step(Kind.STAGING, route, length=length(live, Side.PREFILL, 1500)), context
        )

    return in_context(pair(version, UNEQUAL), body, Budget(wait=wait))


@pytest.mark.parametrize("router", [False, True])
def test_on_0_5_19_the_answer_depends_on_the_traffic_before(router: bool) -> None:
    result = prove("0.5.19", router=router)
    assert result.verdict is Verdict.EXPOSED
    assert "depends on what ran before" in result.reason
    figures = {m.name: m.value for m in result.measures}
    assert figures["answer 1: hash"] != figures["answer 2: hash"]
    assert figures["control steady"] is True
    assert int(figures["positions that differ"]) > 0


@pytest.mark.parametrize("version", ["0.5.20", "0.5.22"])
def test_where_it_is_refused_there_is_no_answer_to_compare(version: str) -> None:
    result = prove(version)
    assert result.verdict is Verdict.INDEPENDENT
    assert "no answer to compare" in result.reason
    assert result.halves


def run(script: kit.Script, budget: Budget | None = None) -> tuple[StepResult, kit.FakeWire]:
    wire = kit.FakeWire(script)
    return asyncio.run(staging.run(STEP, kit.context(wire, budget))), wire


def script(over: str, *, control_varies: bool = False) -> kit.Script:
    """Prefill walks on with a stub; decode answers with the hash `over` where it is given."""
    count = 0

    def answer(target: Target, ask: Ask) -> Seen:
        nonlocal count
        count += 1
        if ask.length < 1018:
            return kit.answered(12, f"{count if control_varies else ask.seed:032x}")
        if target.name == "p0":
            return kit.answered(1, prompt_tokens=1)
        return kit.answered(12, over or f"{count:032x}")

    return answer


def test_the_same_answer_twice_is_still_an_exposure() -> None:
    result, wire = run(script("ab" * 16))
    assert result.verdict is Verdict.EXPOSED
    assert "answered, and the same" in result.reason
    requests, tokens = staging.cost(kit.BETWEEN)
    assert len(wire.asked) == 2 * requests
    assert sum(ask.length for _, ask in wire.asked) == 2 * tokens
    assert len({ask.rid for _, ask in wire.asked}) == requests
    overs = {(ask.seed, ask.length) for _, ask in wire.asked if ask.length >= 1018}
    assert overs == {(5, 1500)}
    assert len({ask.seed for _, ask in wire.asked if ask.length < 1018}) == 17
    assert wire.most_open == 2


def test_a_control_that_varies_voids_the_comparison_only() -> None:
    result, _ = run(script("", control_varies=True))
    assert result.verdict is Verdict.EXPOSED
    assert "control varies" in result.reason
    assert "depends on" not in result.reason


def test_an_admitted_prompt_without_an_answer_is_inconclusive() -> None:
    result, wire = run(lambda *_: Seen(End.COMPLETE, 0.1, 503, error=ErrorClass.UNAVAILABLE))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "503" in result.reason
    assert not [ask for _, ask in wire.asked if ask.length >= 1018]


def test_fillers_leave_room_and_have_a_bound() -> None:
    assert staging.filler_length(kit.BETWEEN) == 509
    huge = Length(Side.PREFILL, 700_000, 681_274, 1_048_570, 1_048_576)
    assert staging.filler_length(huge) == 16_384


def test_admitted_prompts_are_waited_for_to_their_end_and_refusals_are_not() -> None:
    _, wire = run(script("ab" * 16), Budget(wait=3.0))
    admitted = {wait for wait, (_, ask) in zip(wire.waits, wire.asked, strict=True) if ask.length < 1018}
    over = {wait for wait, (_, ask) in zip(wire.waits, wire.asked, strict=True) if ask.length >= 1018}
    assert (admitted, over) == ({120.0}, {3.0})


@pytest.mark.parametrize("slow", [1, 2])
def test_a_service_that_is_slow_is_left_alone(slow: int) -> None:
    def answer(_: Target, ask: Ask) -> Seen:
        return kit.answered(
            12, f"{ask.seed:032x}", ended_after=31.0 if len(wire.asked) > 2 * (slow - 1) else 1.0
        )

    wire = kit.FakeWire(answer)
    result = asyncio.run(staging.run(STEP, kit.context(wire)))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "it took 31 s, too long for a proof" in result.reason
    assert len(wire.asked) == 2 * slow
