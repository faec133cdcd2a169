from __future__ import annotations

from dataclasses import replace

import pytest

from pdguard.probe.advice import next_step
from pdguard.probe.interface import (
    Api,
    Budget,
    Danger,
    End,
    ErrorClass,
    HalfResult,
    Kind,
    LeftOut,
    Measure,
    Plan,
    ProbeResult,
    Release,
    Role,
    Seen,
    Side,
    Step,
    StepResult,
    Verdict,
)
from pdguard.probe.present import held_after, plan_text, result_text
from pdguard.probe.staging import SHORT
from pdguard.report.interface import RenderOptions
from tests.probe import kit

OPTIONS = RenderOptions()
HOLDS = kit.step(number=2, danger=Danger.HOLDS, held_tokens=3000, held_share=4.9)
PLAN = Plan(
    (kit.step(route=replace(kit.THROUGH, tries=5), stream=True), HOLDS),
    (LeftOut("pairing, through r0", "no window", "--accept-exposure"),),
    Budget(),
    ("p0: a refused prompt walks on",),
    canary=True,
)
HELD = StepResult(
    HOLDS,
    Verdict.HELD,
    "prefill refused at once; decode still held",
    (
        HalfResult(
            "p0",
            Role.PREFILL,
            Verdict.DOOR,
            "refused",
            Seen(End.COMPLETE, 0.02, 200, error=ErrorClass.OVER_LIMIT, inner_status=400, prompt_tokens=1500),
        ),
        HalfResult(
            "d0",
            Role.DECODE,
            Verdict.HELD,
            "held",
            Seen(End.CLOSED, 20.01),
            Release(True, 1.24, "/v1/loads decode_transfer_queue_reqs"),
        ),
    ),
    (Measure("decode_let_go_after", 3.2, "s"), Measure("control steady", True)),
)
RESULT = ProbeResult("prod", "0a1b2c3d", "", "", PLAN, (HELD,), 4, 6000, 21.5, "interrupted", sent=3)


def test_a_plan_says_who_gets_what_and_what_it_costs_at_the_worst() -> None:
    text = plan_text(PLAN, "prod", OPTIONS)
    flat = " ".join(text.split())
    assert text.startswith("PLAN  prod: 2 steps; at most 4 requests, 6,000 tokens, 40 s; KV of 3,000 tokens")
    assert "over-pool, 1,500 tokens (only prefill rejects), /generate, streamed, through r0" in flat
    assert "to r0 (then p0, d0); 2 requests (its router may try 5 times), 3,000 tokens, 20 s at most" in flat
    # more than the whole of a pool cannot be held
    assert "100% of the smallest decode pool" in flat
    assert "may hold one half until its timeout" in flat
    assert "known answers are asked for before" in flat
    assert "pairing, through r0: no window (--accept-exposure)" in flat
    assert "CONSENT --accept-exposure is needed, because: - p0: a refused prompt walks on" in flat
    given = replace(PLAN, steps=(replace(HOLDS, danger=Danger.EXPOSES),))
    assert "--accept-exposure was given" in plan_text(given, "prod", OPTIONS)


def test_an_empty_plan_can_be_shown() -> None:
    text = plan_text(Plan((), PLAN.left_out, Budget()), "prod", OPTIONS)
    assert text.startswith("PLAN  prod: 0 steps; at most 0 requests, 0 tokens, 0 s; no KV is held")


def test_a_result_names_verdicts_halves_times_and_the_release() -> None:
    text = result_text(RESULT, OPTIONS)
    lines = text.splitlines()
    assert lines[0].startswith("AT RISK  prod: 1 of 1 steps")
    assert lines[1].startswith("next: set one --context-length")
    assert "p0→d0 direct" in lines
    assert "   2  still held after 20 s  over-pool, 1,500 tokens (only prefill rejects), /generate" in lines
    half = "        p0           prefill  rejected at the door · HTTP 200 · 400 inside · prompt_tokens 1,500"
    assert any(line.startswith(half) for line in lines)
    assert "        d0           decode   still held after 20 s · closed by the probe · 20.01 s" in lines
    assert "          let go 1.2 s after the probe had closed the request: decode's handoff queues\n" in text
    assert "decode let go after 3.2 s" in text
    assert "control steady: yes" in text
    assert "STOPPED  interrupted" in lines
    assert "  not done: step 1" in lines
    assert "3 requests sent, booked as at most 4 requests, 6,000 tokens, 21.5 s" in text
    assert "pdguard-probe-0a1b2c3d" in text
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize("width", [50, 60, 100, 200])
def test_nothing_is_wider_than_asked_and_ascii_is_possible(width: int) -> None:
    options = RenderOptions(width=width, unicode=False)
    for text in (result_text(RESULT, options), plan_text(PLAN, "prod", options)):
        assert text.isascii()
        assert max(map(len, text.splitlines())) <= width


def test_a_hostile_name_is_harmless() -> None:
    evil = replace(RESULT, cluster="prod\x1b[2J\u202e")
    text = result_text(evil, OPTIONS)
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_the_release_is_told_as_it_is() -> None:
    def shown(release: Release) -> str:
        halves = (replace(HELD.halves[1], release=release),)
        return result_text(replace(RESULT, results=(replace(HELD, halves=halves),)), OPTIONS)

    assert "not known: others" in shown(Release(None, None, "others"))
    assert "had not let go" in shown(Release(False, None, "loads"))


def test_the_next_step_fits_the_verdict() -> None:
    def step(verdict: Verdict, plan: Plan = PLAN, kind: Kind = Kind.OVER_POOL) -> str:
        done = StepResult(replace(HOLDS, kind=kind), verdict, "")
        return next_step(replace(RESULT, plan=plan, results=(done,)), "c.yaml")

    harden = "`pdguard harden c.yaml --auto` (its engines' nodes must be in the file)"
    for verdict in (Verdict.EXPOSED, Verdict.HELD):
        assert "`pdguard explain PDG101`" in step(verdict)
        assert harden in step(verdict)
    cuts = StepResult(replace(HOLDS, route=replace(HOLDS.route, prefill_cuts=True)), Verdict.EXPOSED, "")
    assert "`pdguard explain PDG212`" in next_step(replace(RESULT, results=(cuts,)))
    assert "`pdguard explain PDG501`" in step(Verdict.UNPAIRED, kind=Kind.PAIRING)
    assert "`pdguard explain PDG502`" in step(Verdict.NOT_TOLD, kind=Kind.ABORT)
    assert step(Verdict.INCONCLUSIVE) == "probe again with --accept-exposure"
    options = replace(PLAN, left_out=(*PLAN.left_out, LeftOut("2 steps", "the budget", "--max-tokens 9")))
    assert step(Verdict.DOOR, options) == "probe again with --accept-exposure and --max-tokens 9"
    assert "see the reasons" in step(Verdict.INCONCLUSIVE, Plan((), (), Budget()))


def test_nobody_is_told_to_send_everything_again() -> None:
    done = replace(RESULT, plan=Plan((HOLDS,), (), Budget()), results=(StepResult(HOLDS, Verdict.DOOR, ""),))
    assert next_step(done).startswith("add --save probe.json next time")
    assert next_step(done, "c.yaml", "p.json") == "`pdguard audit c.yaml --with p.json`"
    held = result_text(RESULT, OPTIONS, "c.yaml", "p.json")
    assert "pdguard audit c.yaml --with p.json" in " ".join(held.split())


def test_held_after() -> None:
    assert held_after(1.04) == "still held after 1.0 s"
    assert held_after(20.4) == "still held after 20 s"


def test_long_lists_of_figures_end_in_a_count() -> None:
    many = tuple(Measure(f"figure {n}", n) for n in range(20))
    text = result_text(
        replace(RESULT, results=(StepResult(kit.step(Kind.CANARY), Verdict.DRIFTED, "so", measures=many),)),
        OPTIONS,
    )
    assert "8 more figures: --format json" in text


def test_a_plan_says_what_is_really_served() -> None:
    admitted = kit.step(length=replace(kit.BETWEEN, side=Side.ADMITTED, tokens=1000))
    known = kit.step(Kind.CANARY, kit.THROUGH, requests=15, length=replace(kit.BETWEEN, tokens=500))
    proof = kit.step(Kind.STAGING)

    def load(*steps: Step) -> str:
        lines = plan_text(Plan(steps, (), Budget()), "prod", RenderOptions(200)).splitlines()
        return lines[1].strip()

    assert load(HOLDS) == "no prompt is to be served: all must be refused"
    assert load(admitted) == "1 prompt will really be served, of 1,000 tokens; all others must be refused"
    every = f"{1 + 15 + SHORT} prompts will really be served, up to 1,000 tokens each"
    assert load(HOLDS, admitted, known, proof).startswith(every)
    text = replace(admitted, api=Api.COMPLETIONS)
    assert load(admitted, text, replace(text, stream=True)).startswith("5 prompts")
    leaves = kit.step(Kind.ABORT, length=replace(kit.BETWEEN, side=Side.ADMITTED, tokens=900))
    assert load(leaves).startswith("3 prompts will really be served, up to 900 tokens each")


def test_only_what_is_lost_is_told_again_with_the_result() -> None:
    kept = replace(PLAN.left_out[0], what="a control", lost=False)
    both = replace(RESULT, plan=replace(PLAN, left_out=(*PLAN.left_out, kept)))
    assert "a control" in plan_text(both.plan, "prod", OPTIONS)
    text = result_text(both, OPTIONS)
    assert "a control" not in text
    assert "pairing, through r0: no window" in text


def test_a_routers_retries_are_told_next_to_what_was_sent() -> None:
    routed = replace(HELD, step=replace(HELD.step, route=replace(kit.THROUGH, tries=5)))
    text = " ".join(result_text(replace(RESULT, results=(routed,)), OPTIONS).split())
    assert "3 requests sent, booked as at most 4 requests, 6,000 tokens with the router's own retries" in text
