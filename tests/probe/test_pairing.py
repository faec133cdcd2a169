"""Prefill refuses: what a router does with decode's half, on simulated routers and by what was seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pdguard.probe import pairing
from pdguard.probe.context import BudgetSpent, Context
from pdguard.probe.interface import (
    Budget,
    End,
    ErrorClass,
    Kind,
    Release,
    Role,
    Route,
    Seen,
    StepResult,
    Target,
    Verdict,
)
from pdguard.probe.pairing import Watched, judge, run
from pdguard.simulator import ClusterSpec, Live, RouterSpec
from tests.probe.sim import figures, in_context, routed, step
from tests.simulator.helpers import decode, prefill

OLD = RouterSpec("r0", "sglang-router", "0.3.2", ("p0", "d0"), tries=2, retry_seconds=0.4)
NEW = RouterSpec("r0", "smg", "1.13.0", ("p0", "d0"))


def probed(
    router: RouterSpec,
    *,
    waiting: float = 20.0,
    stream: bool = False,
    wait: float = 4.0,
    pools: tuple[int, int] = (1024, 4096),
    version: str = "0.5.22",
    queues: dict[str, int] | None = None,
    **more: Any,
) -> StepResult:
    spec = ClusterSpec(
        engines=(
            prefill(version, pools[0], waiting_timeout=waiting, **more),
            decode(version, pools[1], waiting_timeout=waiting, **more),
        ),
        routers=(router,),
    )

    async def body(live: Live, context: Context) -> StepResult:
        live.engines["d0"].state.queues.update(queues or {})
        route = routed(live, waiting=waiting)
        return await run(step(route, Kind.PAIRING, 1500, stream=stream), context)

    return in_context(spec, body, budget=Budget(wait=wait))


def test_smg_1_13_pairs() -> None:
    result = probed(NEW)
    assert result.verdict is Verdict.PAIRED
    assert float(str(figures(result)["client_answered_after"])) < 1.0
    assert result.halves[0].seen is not None
    assert result.halves[0].seen.error_side is Role.PREFILL


def test_smg_1_11_waits_for_both() -> None:
    result = probed(replace(NEW, version="1.11.0"), wait=1.5)
    assert result.verdict is Verdict.UNPAIRED
    assert "still held after 2 s; released 0." in result.reason


def test_sglang_router_waits_out_every_timeout() -> None:
    result = probed(OLD, waiting=0.8)
    assert result.verdict is Verdict.UNPAIRED
    assert result.reason.startswith("at the timeout, 2 tries: ")
    assert "0.8 s" in result.reason
    assert figures(result)["tries"] == 2


def test_sglang_router_streamed_waits_once() -> None:
    result = probed(OLD, waiting=0.8, stream=True)
    assert result.verdict is Verdict.UNPAIRED
    assert result.reason.startswith("at the timeout, 1 try: ")


@pytest.mark.parametrize("stream", [False, True])
def test_a_half_that_outlives_the_budget_is_released_by_closing(stream: bool) -> None:
    result = probed(OLD, stream=stream, wait=1.0)
    assert result.verdict is Verdict.UNPAIRED
    assert "still held after 1 s; released 0." in result.reason
    release = result.halves[1].release
    assert release is not None
    assert release.released is True


def test_two_tensor_ranks_count_as_one_request() -> None:
    assert probed(NEW, tp=2).verdict is Verdict.PAIRED


def test_with_metrics_off_queues_are_enough() -> None:
    result = probed(OLD, wait=1.0, metrics=False)
    assert result.verdict is Verdict.UNPAIRED


def test_both_refuse_and_nothing_had_to_be_dropped() -> None:
    result = probed(OLD, pools=(1024, 1024))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "decode refused" in result.reason


def test_an_answer_with_tokens_is_an_exposure() -> None:
    result = probed(OLD, version="0.5.19")
    assert result.verdict is Verdict.EXPOSED


def test_requests_that_were_queued_before_are_not_taken_for_ours() -> None:
    result = probed(OLD, wait=1.0, queues={"decode_transfer": 2, "running": 7})
    assert "still held" in result.reason
    assert result.verdict is Verdict.UNPAIRED


def test_without_a_router_or_engines_there_is_nothing_to_watch() -> None:
    async def body(live: Live, context: Context) -> None:
        route = routed(live)
        blind = await run(step(replace(route, engines=()), Kind.PAIRING, 1500), context)
        assert blind.verdict is Verdict.INCONCLUSIVE
        alone = await run(step(replace(route, router=None), Kind.PAIRING, 1500), context)
        assert alone.verdict is Verdict.INCONCLUSIVE
        assert context.ledger.requests == 0

    spec = ClusterSpec(engines=(prefill("0.5.22"), decode("0.5.22")), routers=(NEW,))
    in_context(spec, body)


def test_nothing_is_sent_beyond_the_budget() -> None:
    async def body(live: Live, context: Context) -> None:
        with pytest.raises(BudgetSpent):
            await run(step(routed(live), Kind.PAIRING, 1500), context)
        assert live.routers["r0"].attempts["prefill"] == 0

    spec = ClusterSpec(engines=(prefill("0.5.22"), decode("0.5.22")), routers=(NEW,))
    in_context(spec, body, budget=Budget(tokens=1000))


REFUSED = Seen(
    End.COMPLETE, 0.01, 400, error=ErrorClass.OVER_LIMIT, inner_status=400, error_side=Role.PREFILL
)
TIMED = Seen(End.COMPLETE, 40.0, 500, error=ErrorClass.WAITED_DECODE, said_seconds=8.0)
SILENT = Seen(End.CLOSED, 20.0)
YES, NO = Release(True, 0.4, "read"), Release(False, None, "read")
HOLDING = Watched(REFUSED, 5.0, held=True, tries=1)


@pytest.mark.parametrize(
    ("seen", "waiting", "verdict", "words"),
    [
        (replace(HOLDING, let_go_after=3.9), 300.0, Verdict.PAIRED, "gone after 3.9 s"),
        (replace(HOLDING, let_go_after=9.0), 300.0, Verdict.UNPAIRED, "went 9.0 s later"),
        (replace(HOLDING, let_go_after=3.0), 3.0, Verdict.INCONCLUSIVE, "timeout of 3 s"),
        (replace(HOLDING, waited=20.0), 300.0, Verdict.UNPAIRED, "still held after 20 s"),
        (replace(HOLDING, clear=False), 300.0, Verdict.INCONCLUSIVE, "other requests"),
        (Watched(REFUSED, 1.5), 300.0, Verdict.PAIRED, "never seen holding"),
        (Watched(REFUSED, 1.5, readable=False, trouble="HTTP 404"), 300.0, Verdict.INCONCLUSIVE, "404"),
        (
            Watched(replace(REFUSED, ended_after=25.0), 26.0, held=True, let_go_after=25.1),
            25.0,
            Verdict.UNPAIRED,
            "at the end of a join: the client had its answer only after 25.0 s, when decode's timeout 25 s",
        ),
        (
            Watched(TIMED, 41.0, held=True, let_go_after=40.0, tries=5),
            8.0,
            Verdict.UNPAIRED,
            "at the timeout, 5 tries: the client had its answer after 40.0 s, when decode's timeout of 8 s",
        ),
        (Watched(SILENT, 20.0, held=True, release=YES), None, Verdict.UNPAIRED, "released 0.4 s after"),
        (Watched(SILENT, 20.0, held=True, release=NO), None, Verdict.UNPAIRED, "not released after"),
        (Watched(SILENT, 20.0, held=True, let_go_after=4.0), None, Verdict.PAIRED, "no answer in 20 s"),
        (Watched(SILENT, 20.0, held=True, let_go_after=15.0), None, Verdict.UNPAIRED, "gone after 15.0 s"),
        (Watched(SILENT, 20.0), None, Verdict.INCONCLUSIVE, "never seen holding"),
        (Watched(Seen(End.NO_CONNECTION, 0.1), 1.0), None, Verdict.INCONCLUSIVE, "no connection"),
        (
            # A hardened decode lets go by itself: what the router would have done stays open.
            Watched(replace(REFUSED, error=ErrorClass.RELEASED, error_side=Role.DECODE), 1.5),
            300.0,
            Verdict.INCONCLUSIVE,
            "nothing to drop",
        ),
        (
            Watched(Seen(End.COMPLETE, 0.1, 401, error=ErrorClass.UNAUTHORIZED), 1.0),
            None,
            Verdict.INCONCLUSIVE,
            "key refused",
        ),
        (
            Watched(Seen(End.COMPLETE, 0.1, 500, error=ErrorClass.OTHER), 1.0),
            None,
            Verdict.INCONCLUSIVE,
            "no refusal by prefill",
        ),
    ],
)
def test_what_was_seen_gives_the_verdict(
    seen: Watched, waiting: float | None, verdict: Verdict, words: str
) -> None:
    route = Route(("p0",), ("d0",), Target("r0", Role.ROUTER, "http://r0"), waiting=waiting)
    found, reason = judge(step(route, Kind.PAIRING, 1500), seen)
    assert found is verdict, reason
    assert words in reason


def test_an_engine_gets_long_enough_to_notice() -> None:
    assert pairing.PAIR_SECONDS > 4.0
