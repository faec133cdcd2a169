from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import cast

import pytest

from pdguard.probe import runner
from pdguard.probe.context import Context
from pdguard.probe.exchange import exchange
from pdguard.probe.interface import (
    Ask,
    Budget,
    Danger,
    Kind,
    LeftOut,
    Plan,
    ProbeResult,
    Role,
    Step,
    StepResult,
    Verdict,
)
from pdguard.probe.outcome import INTERRUPTED
from pdguard.probe.runner import left_behind, run_probe
from pdguard.probe.state import Load
from pdguard.probe.wire import Wire
from tests.probe import kit

Body = Callable[[Step, Context], Awaitable[StepResult]]


def plan(*steps: Step, budget: Budget | None = None) -> Plan:
    numbered = tuple(replace(one, number=number) for number, one in enumerate(steps, 1))
    return Plan(numbered, (LeftOut("chat", "not asked for"),), budget or Budget(seconds=20, wait=5))


def probe(
    monkeypatch: pytest.MonkeyPatch, body: Body, the_plan: Plan, wire: kit.FakeWire | None = None
) -> tuple[ProbeResult, kit.FakeWire, list[str]]:
    monkeypatch.setattr(runner, "_RUNS", dict.fromkeys(Kind, body))
    used, said = wire or kit.FakeWire(lambda *_: kit.answered()), list[str]()
    result = asyncio.run(
        run_probe(the_plan, "prod", said.append, wire=cast(Wire, used), fetcher=kit.no_loads())
    )
    assert used.closed
    assert used.open == 0
    return result, used, said


def ends(verdict: Verdict) -> Body:
    async def body(step: Step, context: Context) -> StepResult:
        ask = Ask(step.api, 1500, context.rid())
        await exchange(context, step.route, ask)
        return StepResult(step, verdict, "as scripted")

    return body


def test_steps_run_one_at_a_time_in_the_plans_order(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = kit.FakeWire(lambda *_: kit.answered(), seconds=0.02)
    steps = [kit.step(), kit.step(route=kit.THROUGH), kit.step(Kind.PAIRING)]
    result, _, said = probe(monkeypatch, ends(Verdict.DOOR), plan(*steps), wire)
    assert [r.step.number for r in result.results] == [1, 2, 3]
    assert wire.most_open == 2
    assert (result.sent, result.requests, result.tokens) == (5, 5, 5 * 1500)
    assert result.stopped == ""
    assert not result.exposed
    assert [text for text in said if text.startswith("step 2")] == [
        "step 2: over-pool, 1,500 tokens, /generate, through r0",
        "step 2: rejected at the door",
    ]
    assert result.started_at.endswith("Z")
    assert result.run_id


def test_what_was_sent_is_counted_without_a_routers_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    routed = kit.step(route=replace(kit.THROUGH, tries=5))
    result, wire, _ = probe(monkeypatch, ends(Verdict.DOOR), plan(kit.step(), routed))
    assert (result.sent, len(wire.asked)) == (3, 3)
    assert (result.requests, result.tokens) == (7, 7 * 1500)


def test_the_first_exposure_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    result, wire, _ = probe(monkeypatch, ends(Verdict.EXPOSED), plan(kit.step(), kit.step()))
    assert len(result.results) == 1
    assert len(wire.asked) == 2
    assert result.exposed
    assert "step 1" in result.stopped


def test_a_spent_budget_ends_the_run_with_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    small = plan(kit.step(), kit.step(), budget=Budget(requests=3))
    result, wire, _ = probe(monkeypatch, ends(Verdict.DOOR), small)
    assert len(result.results) == 1
    assert len(wire.asked) == 2
    assert "budget of 3 requests" in result.stopped


def test_no_run_outlives_its_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    async def stuck(step: Step, context: Context) -> StepResult:
        await asyncio.Event().wait()
        raise AssertionError((step, context))

    monkeypatch.setattr(runner, "GRACE_SECONDS", 0.1)
    began = time.monotonic()
    result, _, _ = probe(monkeypatch, stuck, plan(kit.step(), budget=Budget(seconds=0.2)))
    assert time.monotonic() - began < 2
    assert "0.2 s is spent" in result.stopped
    assert result.results == ()


def test_cancelling_closes_everything_and_gives_what_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = kit.FakeWire(lambda *_: kit.answered())
    monkeypatch.setattr(runner, "_RUNS", dict.fromkeys(Kind, ends(Verdict.DOOR)))

    async def whole() -> ProbeResult:
        def progress(text: str) -> None:
            if text.startswith("step 2"):
                wire.seconds = 60.0

        work = run_probe(
            plan(kit.step(), kit.step()), "prod", progress, wire=cast(Wire, wire), fetcher=kit.no_loads()
        )
        task = asyncio.create_task(work)
        while wire.open < 2 or len(wire.asked) < 4:
            await asyncio.sleep(0.01)
        task.cancel()
        return await task

    result = asyncio.run(whole())
    assert result.stopped == INTERRUPTED
    assert [r.step.number for r in result.results] == [1]
    assert wire.open == 0
    assert wire.closed


def test_known_answers_before_during_and_after(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_DURING_AFTER", 0.05)
    seen: list[int] = []
    wire = kit.FakeWire(lambda *_: kit.answered(), seconds=0.01)

    async def waits(step: Step, context: Context) -> StepResult:
        seen.append(len(wire.asked))
        await exchange(context, step.route, Ask(step.api, 1500, context.rid()))
        await asyncio.sleep(0.3)
        return StepResult(step, Verdict.HELD, "as scripted")

    canary = kit.step(Kind.CANARY, kit.THROUGH, length=None)
    wanted = replace(plan(canary, kit.step(danger=Danger.HOLDS)), canary=True)
    result, _, _ = probe(monkeypatch, waits, wanted, wire)
    assert seen == [10]
    assert wire.most_open <= runner.MOST_OPEN
    last = result.results[-1]
    assert (last.step.kind, last.verdict) == (Kind.CANARY, Verdict.STEADY)
    figures = {m.name: m.value for m in last.measures}
    assert figures == {
        "answers compared during": 1,
        "answers compared between": 1,
        "answers compared after": 5,
    }


def test_a_direct_known_answer_would_be_a_fourth_request_and_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_DURING_AFTER", 0.02)

    async def waits(step: Step, context: Context) -> StepResult:
        await asyncio.sleep(0.2)
        return StepResult(step, Verdict.HELD, f"{context.run}")

    steps = [kit.step(Kind.CANARY, length=None), kit.step(danger=Danger.HOLDS)]
    result, _, _ = probe(monkeypatch, waits, plan(*steps))
    assert "answers compared during" not in {m.name for m in result.results[-1].measures}


def test_what_stays_in_a_queue_is_said() -> None:
    def load(transfer: int) -> Load:
        return Load(0.0, decode_prealloc=0, decode_transfer=transfer)

    decode = kit.DECODE
    assert decode.role is Role.DECODE
    texts = left_behind([decode], {"d0": load(0)}, {"d0": load(2)})
    assert texts == ["d0 has 2 more in its handoff queues than before the run"]
    assert left_behind([decode], {"d0": load(2)}, {"d0": load(2)}) == []
    assert left_behind([decode], {"d0": Load(0.0)}, {"d0": load(2)}) == []
