"""A client leaves in mid-transfer: on simulated clusters, and replayed from what real engines counted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import httpx
import pytest

from pdguard.probe import abort, leaving
from pdguard.probe.context import BudgetSpent, Context
from pdguard.probe.counters import Counters
from pdguard.probe.half import Half
from pdguard.probe.interface import Budget, Kind, Role, StepResult, Verdict
from pdguard.probe.leaving import Leaving
from pdguard.probe.state import Load
from pdguard.simulator import ClusterSpec, Live, RouterSpec
from pdguard.simulator.spec import HOLD_SECONDS_VARIABLE, HOLD_VARIABLE
from tests.probe.sim import direct, figures, in_context, routed, step
from tests.simulator.helpers import _TLS, decode, post, prefill, prompt

OLD = RouterSpec("r0", "sglang-router", "0.3.2", ("p0", "d0"))
SMG = RouterSpec("r0", "smg", "1.13.0", ("p0", "d0"))
TRANSFER = 2.0


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulated engine notices at once: it need not be waited for as long as a real one."""
    monkeypatch.setattr(abort, "NOISE_SECONDS", 0.3)
    for module in (abort, leaving):
        monkeypatch.setattr(module, "NOTICE", {False: 0.5, True: 0.5})


def probed(
    router: RouterSpec | None,
    *,
    stream: bool = False,
    version: str = "0.5.22",
    transfer: float = TRANSFER,
    wait: float = 6.0,
    beside: Callable[[Live], Awaitable[None]] | None = None,
    rank: int | None = None,
    env: dict[str, str] | None = None,
    pool: int = 4096,
    **more: Any,
) -> StepResult:
    spec = ClusterSpec(
        engines=(
            prefill(version, pool, transfer_seconds=transfer, waiting_timeout=20.0, **more),
            decode(version, token_seconds=0.1, exposed_env=env, waiting_timeout=20.0, **more),
        ),
        routers=() if router is None else (router,),
    )

    async def body(live: Live, context: Context) -> StepResult:
        route = direct(live) if router is None else routed(live)
        other = None if beside is None else asyncio.ensure_future(beside(live))
        try:
            return await abort.run(step(route, Kind.ABORT, 1000, stream=stream, rank=rank), context)
        finally:
            if other is not None:
                other.cancel()
                await asyncio.gather(other, return_exceptions=True)

    return in_context(spec, body, budget=Budget(wait=wait))


@pytest.mark.parametrize("router", [None, OLD])
@pytest.mark.parametrize("stream", [False, True])
def test_both_halves_are_told_and_the_hold_drains(router: RouterSpec | None, stream: bool) -> None:
    result = probed(router, stream=stream)
    assert result.verdict is Verdict.TOLD, result.reason
    seen = figures(result)
    assert float(str(seen["decode_told_after"])) < 1.0
    assert float(str(seen["prefill_told_after"])) < 1.0
    assert seen["hold_outcome"] == "drained"
    assert 0.5 < float(str(seen["hold_seconds"])) <= TRANSFER
    assert [half.verdict for half in result.halves] == [Verdict.TOLD, Verdict.TOLD]


def test_a_streamed_request_runs_on_behind_smg() -> None:
    result = probed(SMG, stream=True)
    assert result.verdict is Verdict.NOT_TOLD
    assert result.reason.startswith("not before the transfer ended")
    assert "prefill never" in result.reason
    seen = figures(result)
    assert seen["prefill_learned_by"] == "never"
    assert seen["decode_learned_by"] == "client gone"
    assert float(str(seen["transfer_ended_after"])) > 1.0


def test_smg_tells_both_where_nothing_is_streamed() -> None:
    assert probed(SMG).verdict is Verdict.TOLD


def test_a_hold_that_ends_by_its_timeout_says_so() -> None:
    result = probed(None, env={HOLD_SECONDS_VARIABLE: "0.5"})
    assert figures(result)["hold_outcome"] == "timeout"


def test_without_a_hold_none_ends() -> None:
    result = probed(None, env={HOLD_VARIABLE: "0"}, wait=3.0)
    assert result.verdict is Verdict.TOLD
    assert figures(result)["hold_outcome"] == "none ended within 3 s"


def test_before_0_5_22_the_hold_is_not_counted() -> None:
    result = probed(None, version="0.5.20")
    assert result.verdict is Verdict.TOLD
    assert str(figures(result)["hold_outcome"]).startswith("not counted")


@pytest.mark.parametrize("more", [{"tp": 2}, {"dp": 2}])
def test_one_request_counts_once_with_several_ranks(more: dict[str, Any]) -> None:
    result = probed(None, rank=0 if "dp" in more else None, **more)
    assert result.verdict is Verdict.TOLD, result.reason


def test_a_transfer_too_quick_to_leave_is_tried_three_times() -> None:
    result = probed(None, transfer=0.0)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "over before the client left" in result.reason
    assert figures(result)["tries"] == abort.TRIES


def test_metrics_off_still_tells_when_the_halves_let_go() -> None:
    result = probed(None, metrics=False)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "--enable-metrics" in result.reason
    seen = figures(result)
    assert float(str(seen["decode_let_go_after"])) < 1.0
    assert "decode_told_after" not in seen


async def aborting(live: Live) -> None:
    """Another client that keeps leaving decode."""
    async with httpx.AsyncClient(verify=_TLS, trust_env=False) as client:
        for number in range(1000):
            request = prompt(50, room=2 * number + 2)
            task = asyncio.ensure_future(post(client, live.url("d0") + "/generate", request))
            await asyncio.sleep(0.1)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def test_others_that_are_aborted_meanwhile_make_it_inconclusive() -> None:
    result = probed(None, beside=aborting)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "other requests are being aborted here" in result.reason
    assert "decode_told_after" not in figures(result)


async def once(live: Live) -> None:
    """A request of an earlier step, counted only now."""
    await asyncio.sleep(0.15)
    live.engines["d0"].state.add("num_aborted_requests_total")


def test_what_an_earlier_step_left_is_not_taken_for_others() -> None:
    result = probed(None, stream=True, beside=once)
    assert result.verdict is Verdict.TOLD, result.reason


def test_no_transfer_within_the_wait_is_inconclusive() -> None:
    async def body(live: Live, context: Context) -> StepResult:
        lonely = replace(direct(live), bootstrap_port=1)
        # Decode has no room for it: the request stays before the transfer.
        return await abort.run(step(lonely, Kind.ABORT, 1000), context)

    spec = ClusterSpec(engines=(prefill("0.5.22", waiting_timeout=20.0), decode("0.5.22", 1010)))
    result = in_context(spec, body, budget=Budget(wait=1.0))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "no transfer was seen within 1 s" in result.reason


def test_a_prompt_that_is_refused_is_not_tried_again() -> None:
    result = probed(None, pool=512)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "answered before any transfer: over the admission limit" in result.reason
    assert figures(result)["tries"] == 1


def test_unknown_engines_and_a_spent_budget_send_nothing() -> None:
    async def body(live: Live, context: Context) -> None:
        blind = replace(routed(live), engines=())
        result = await abort.run(step(blind, Kind.ABORT, 100), context)
        assert result.verdict is Verdict.INCONCLUSIVE
        with pytest.raises(BudgetSpent):
            await abort.run(step(routed(live), Kind.ABORT, 100), context)
        assert live.routers["r0"].attempts["prefill"] == 0

    spec = ClusterSpec(engines=(prefill("0.5.22"), decode("0.5.22")), routers=(OLD,))
    in_context(spec, body, budget=Budget(tokens=50))


# What real engines of 0.5.22 counted (seconds after leaving; None: before sending), both routers:
# prefill (aborted, failed, inflight), decode (aborted, failed, transfer, running), generated, drained, sum.
Row = tuple[float | None, tuple[int, int, int], tuple[int, int, int, int], int, int, float]
OLD_WHOLE: Sequence[Row] = (
    (None, (0, 0, 0), (3, 0, 0, 0), 2007, 0, 0.0),
    (0.0, (0, 0, 1), (3, 0, 1, 1), 2007, 0, 0.0),
    (0.77, (0, 0, 0), (4, 1, 0, 0), 2007, 0, 0.0),
    (2.62, (0, 1, 0), (4, 1, 0, 0), 2007, 0, 0.0),
    (9.15, (0, 1, 0), (4, 1, 0, 0), 2007, 1, 5.02),
)
OLD_STREAMED: Sequence[Row] = (
    (None, (0, 0, 0), (1, 0, 0, 0), 23, 0, 0.0),
    (0.0, (0, 0, 1), (1, 0, 1, 1), 23, 0, 0.0),
    (0.16, (0, 0, 0), (2, 1, 0, 0), 23, 0, 0.0),
    (0.41, (1, 1, 0), (2, 1, 0, 0), 23, 0, 0.0),
    (10.0, (1, 1, 0), (2, 1, 0, 0), 23, 1, 9.1),
)
SMG_WHOLE: Sequence[Row] = (
    (None, (1, 2, 0), (6, 2, 0, 0), 2720, 2, 14.07),
    (0.19, (1, 2, 1), (6, 2, 1, 1), 2720, 2, 14.07),
    (2.8, (1, 2, 1), (7, 3, 0, 0), 2720, 2, 14.07),
    (3.12, (2, 3, 0), (7, 3, 0, 0), 2720, 2, 14.07),
    (6.18, (2, 3, 0), (7, 3, 0, 0), 2720, 3, 17.22),
)
SMG_STREAMED: Sequence[Row] = (
    (None, (2, 3, 0), (7, 3, 0, 0), 2720, 3, 17.22),
    (0.38, (2, 3, 1), (7, 3, 1, 1), 2720, 3, 17.22),
    (5.75, (2, 3, 0), (8, 3, 0, 0), 2723, 3, 17.22),
)


def loads(row: Row) -> dict[str, Load]:
    _, p, d, generated, drained, seconds = row
    return {
        "p0": Load(0.0, prefill_bootstrap=0, prefill_inflight=p[2], counters=Counters(p[0], p[1])),
        "d0": Load(
            0.0,
            decode_prealloc=0,
            decode_transfer=d[2],
            running=0,
            waiting=d[3],
            counters=Counters(
                d[0], d[1], 0, generated, {"drained": drained} if drained else {}, drained, seconds, 0
            ),
        ),
    }


def replayed(rows: Sequence[Row], *, stream: bool, until: float = 20.0) -> Leaving:
    before = loads(rows[0])
    found = Leaving(
        Half(Role.PREFILL, ("p0",), before),
        Half(Role.DECODE, ("d0",), before),
        stream=stream,
        at_leaving=before,
    )
    for row in rows[1:]:
        if row[0] is not None and row[0] <= until:
            found.take(row[0], loads(row))
    return found


@pytest.mark.parametrize(
    ("rows", "stream", "verdict", "words", "hold"),
    [
        (
            OLD_WHOLE,
            False,
            Verdict.TOLD,
            "decode was told after 0.8 s, prefill was told after 2.6 s by the failed transfer",
            5.02,
        ),
        (OLD_STREAMED, True, Verdict.TOLD, "decode was told after 0.2 s, prefill was told after 0.4 s", 9.1),
        (SMG_WHOLE, False, Verdict.TOLD, "decode was told after 2.8 s, prefill was told after 3.1 s", 3.15),
        (
            SMG_STREAMED,
            True,
            Verdict.NOT_TOLD,
            "not before the transfer ended, 5.8 s after the client left: "
            "decode was told after 5.8 s, prefill never",
            None,
        ),
    ],
)
def test_what_real_engines_counted(
    rows: Sequence[Row], stream: bool, verdict: Verdict, words: str, hold: float | None
) -> None:
    found = replayed(rows, stream=stream)
    assert found.verdict() == (verdict, words)
    assert found.hold_seconds == (None if hold is None else pytest.approx(hold, abs=0.01))
    assert found.hold_outcome == ("" if hold is None else "drained")
    assert found.tokens() == (3 if rows is SMG_STREAMED else 0)
    assert not found.finished
    last = rows[-1]
    found.take((last[0] or 0.0) + 1.5, loads(last))
    assert found.finished


def test_a_hold_that_outlives_the_wait_is_not_taken_for_none() -> None:
    found = replayed(OLD_WHOLE, stream=False, until=3.0)
    found.take(20.0, loads(OLD_WHOLE[3]))
    assert found.hold_words == "none ended within 20 s"
    held = loads(OLD_WHOLE[3])
    assert held["d0"].counters is not None
    held["d0"] = replace(held["d0"], counters=replace(held["d0"].counters, held=1))
    found.take(20.5, held)
    assert found.hold_words == "still held"
    assert not found.finished


def test_a_transfer_that_fails_by_itself_is_not_a_client_that_was_seen_to_leave() -> None:
    """smg, streamed, where decode's waiting timeout of 8 s ended a slow transfer."""
    found = replayed(SMG_STREAMED, stream=True, until=1.0)
    found.take(7.8, loads((7.8, (2, 4, 0), (7, 4, 0, 0), 2720, 4, 24.25)))
    assert found.verdict() == (
        Verdict.NOT_TOLD,
        "decode never within 8 s (its transfer failed by itself after 7.8 s), "
        "prefill was told after 7.8 s by the failed transfer",
    )


def test_prefill_that_hears_nothing_in_time_was_not_told() -> None:
    found = replayed(OLD_WHOLE, stream=False, until=1.0)
    found.take(20.0, loads(OLD_WHOLE[2]))
    assert found.verdict() == (
        Verdict.NOT_TOLD,
        "decode was told after 0.8 s, prefill never within 20 s",
    )
    assert [half.verdict for half in found.halves()] == [Verdict.NOT_TOLD, Verdict.TOLD]


def test_a_transfer_that_runs_on_to_the_end_of_the_wait() -> None:
    found = replayed(SMG_STREAMED, stream=True, until=1.0)
    found.take(20.0, loads(SMG_STREAMED[1]))
    verdict, reason = found.verdict()
    assert verdict is Verdict.NOT_TOLD
    assert reason == "decode never within 20 s, prefill never within 20 s"
    assert not found.finished


def test_an_engine_that_begins_counting_anew_makes_it_inconclusive() -> None:
    found = replayed(OLD_WHOLE, stream=False, until=1.0)
    found.take(2.0, loads((2.0, (0, 0, 0), (0, 0, 0, 0), 0, 0, 0.0)))
    assert found.verdict() == (Verdict.INCONCLUSIVE, "d0 was started anew meanwhile")


def test_a_second_aborted_request_cannot_be_told_apart() -> None:
    found = replayed(OLD_WHOLE, stream=False, until=1.0)
    found.take(2.0, loads((2.0, (0, 1, 0), (5, 2, 0, 0), 2007, 0, 0.0)))
    assert found.verdict()[0] is Verdict.INCONCLUSIVE
    assert {one.name for one in found.measures()} == {
        "decode_let_go_after",
        "prefill_let_go_after",
        "transfer_ended_after",
    }


def test_a_transfer_that_ends_sooner_than_an_engine_looks_tells_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leaving, "NOTICE", {False: 5.0, True: 1.0})
    rows = (*SMG_STREAMED[:2], (3.0, *SMG_STREAMED[2][1:]))
    assert replayed(rows, stream=False).too_short
    assert replayed(rows, stream=False).verdict()[0] is Verdict.INCONCLUSIVE
    assert replayed(rows, stream=True).verdict()[0] is Verdict.NOT_TOLD


def test_one_page_that_fails_does_not_undo_what_was_read() -> None:
    found = replayed(OLD_WHOLE, stream=False)
    found.take(9.5, {name: Load(0.0, trouble="no answer in time") for name in ("p0", "d0")})
    assert found.verdict()[0] is Verdict.TOLD
