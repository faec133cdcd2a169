from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from pdguard.probe.canary import LENGTHS, Canary, distance
from pdguard.probe.interface import Ask, Budget, End, Kind, Length, Seen, Side, StepResult, Target, Verdict
from tests.probe import kit

STEP = kit.step(Kind.CANARY, kit.THROUGH, length=Length(Side.ADMITTED, 100, 1018, 4090, 4096))


def steady(_: Target, ask: Ask) -> Seen:
    return kit.answered(16, f"{ask.length:032x}", marks=tuple(range(ask.seed, ask.seed + 16)))


def run(script: Callable[[int, Ask], Seen], budget: Budget | None = None) -> tuple[StepResult, kit.FakeWire]:
    """Baseline, two checks between, one whole set after; the script is told how many were asked before."""
    wire = kit.FakeWire(lambda _, ask: script(len(wire.asked), ask))

    async def whole() -> StepResult:
        context, canary = kit.context(wire, budget), Canary(STEP)
        await canary.baseline(context)
        for when in ("during", "between"):
            await canary.check(context, when)
        await canary.check(context, "after", whole=True)
        return canary.result()

    return asyncio.run(whole()), wire


def test_lengths_keep_within_what_is_admitted() -> None:
    assert Canary(STEP).lengths == (8, 33, 100)
    assert Canary(kit.step(Kind.CANARY, length=None)).lengths == LENGTHS


def test_the_same_answers_are_steady_and_every_request_has_its_own_id() -> None:
    result, wire = run(lambda _, ask: steady(kit.ROUTER, ask))
    assert result.verdict is Verdict.STEADY
    assert "5 answers were the same" in result.reason
    assert len(wire.asked) == 2 * 3 + 1 + 1 + 3
    assert len({ask.rid for _, ask in wire.asked}) == len(wire.asked)
    assert all(ask.new_tokens == 16 and not ask.stream for _, ask in wire.asked)


def test_drift_is_told_by_hash_and_distance() -> None:
    def script(number: int, ask: Ask) -> Seen:
        one = steady(kit.ROUTER, ask)
        if number <= 6:
            return one
        marks = (*one.marks[:4], 7, 8, *one.marks[6:12])
        return kit.answered(12, "ff" * 16, marks=marks)

    result, _ = run(script)
    assert result.verdict is Verdict.DRIFTED
    figures = {m.name: m.value for m in result.measures}
    assert figures["answer 1 during: positions that differ"] == 2
    assert figures["answer 1 during: first difference at"] == 4
    assert figures["answer 1 during: longer by"] == -4
    assert figures["answer 1 during: hash"] == "00000000 then ffffffff"


def test_answers_that_vary_by_themselves_give_no_verdict() -> None:
    result, wire = run(lambda number, ask: kit.answered(4, f"{number:032x}", marks=(number,)))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "vary by themselves" in result.reason
    assert len(wire.asked) == 6


def test_no_answer_is_inconclusive_with_its_reason() -> None:
    result, _ = run(lambda *_: Seen(End.NO_CONNECTION, 0.1, trouble="connection refused"))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "connection refused" in result.reason


def test_a_check_that_cannot_be_afforded_is_left_out() -> None:
    result, wire = run(lambda _, ask: steady(kit.ROUTER, ask), Budget(requests=7))
    assert len(wire.asked) == 7
    assert result.verdict is Verdict.STEADY
    assert "budget" in result.reason


def test_known_answers_are_waited_for_to_their_end_and_a_slow_one_is_the_last() -> None:
    result, wire = run(lambda _, ask: steady(kit.ROUTER, ask))
    assert set(wire.waits) == {120.0}
    slow = 2 * len(LENGTHS[:3]) + 1
    result, wire = run(
        lambda number, ask: replace(steady(kit.ROUTER, ask), ended_after=11.0 if number == slow else 0.1)
    )
    assert len(wire.asked) == slow
    assert result.verdict is Verdict.STEADY
    assert "an answer took 11 s, no more were asked for" in result.reason


@pytest.mark.parametrize(
    ("other", "positions", "first", "longer"),
    [
        (kit.answered(4, "aa", marks=(0, 1, 2, 3)), 0, None, 0),
        (kit.answered(4, "bb", marks=(0, 9, 2, 9)), 2, 1, 0),
        (kit.answered(6, "cc", marks=(0, 1, 2, 3, 4, 5)), 0, None, 2),
        (kit.answered(4, "dd", marks=(0, 1, 2, 3)), 1, None, 0),
    ],
)
def test_distance(other: Seen, positions: int, first: int | None, longer: int) -> None:
    far = distance(kit.answered(4, "aa", marks=(0, 1, 2, 3)), other)
    assert (far.positions, far.first, far.longer_by) == (positions, first, longer)
    assert far.same is (other.digest == "aa")
