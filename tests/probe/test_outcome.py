from __future__ import annotations

from dataclasses import replace

import pytest

from pdguard.probe.interface import (
    Budget,
    HalfResult,
    Kind,
    LeftOut,
    Length,
    Plan,
    ProbeResult,
    Release,
    Role,
    Side,
    StepResult,
    Verdict,
)
from pdguard.probe.outcome import INTERRUPTED, Word, exit_code, said, word
from tests.probe import kit

CONTROL = kit.step(length=Length(Side.ADMITTED, 100, 1018, 4090, 4096))


def result(*results: StepResult, stopped: str = "", plan: Plan | None = None) -> ProbeResult:
    the_plan = plan or Plan(tuple(r.step for r in results), (), Budget())
    return ProbeResult("prod", "0a1b2c3d", "", "", the_plan, results, 2, 3000, 1.0, stopped)


def one(verdict: Verdict, *halves: Verdict, kind: Kind = Kind.OVER_POOL) -> StepResult:
    made = tuple(HalfResult("d0", Role.DECODE, half, "so") for half in halves)
    return StepResult(kit.step(kind), verdict, "so", made)


@pytest.mark.parametrize(
    ("verdict", "code"),
    [
        (Verdict.EXPOSED, 20),
        (Verdict.WAITED, 12),
        (Verdict.HELD, 12),
        (Verdict.LATE, 12),
        (Verdict.WALKED_ON, 12),
        (Verdict.NOT_TOLD, 12),
        (Verdict.UNPAIRED, 12),
        (Verdict.DRIFTED, 11),
        (Verdict.TRUNCATED, 11),
        (Verdict.INCONCLUSIVE, 3),
        (Verdict.DOOR, 0),
        (Verdict.TOLD, 0),
        (Verdict.PAIRED, 0),
        (Verdict.STEADY, 0),
        (Verdict.INDEPENDENT, 0),
    ],
)
def test_exit_codes(verdict: Verdict, code: int) -> None:
    run = result(one(verdict))
    assert exit_code(run) == code
    assert said(run).text.startswith("prod: ")


def test_the_worst_step_and_the_worst_half_count() -> None:
    assert word(result(one(Verdict.DOOR), one(Verdict.DRIFTED), one(Verdict.INCONCLUSIVE))) is Word.FINDINGS
    assert word(result(one(Verdict.DOOR, Verdict.DOOR, Verdict.HELD))) is Word.AT_RISK
    assert word(result(one(Verdict.HELD), one(Verdict.EXPOSED))) is Word.EXPOSED
    # a step that told nothing is not judged by its halves
    assert word(result(one(Verdict.INCONCLUSIVE, Verdict.WALKED_ON))) is Word.UNKNOWN


def test_a_half_that_did_not_let_go_counts() -> None:
    kept = HalfResult("d0", Role.DECODE, Verdict.DOOR, "so", release=Release(False, None, "/v1/loads"))
    unknown = replace(kept, release=Release(None, None, "no answer"))
    assert word(result(replace(one(Verdict.DOOR), halves=(kept,)))) is Word.AT_RISK
    assert word(result(replace(one(Verdict.DOOR), halves=(unknown,)))) is Word.CLEAN


def test_controls_alone_are_no_pass() -> None:
    control = StepResult(CONTROL, Verdict.ADMITTED, "so")
    assert exit_code(result(control)) == 3
    assert exit_code(result(control, one(Verdict.DOOR))) == 0
    assert exit_code(result()) == 3


GAPS = {
    "budget": LeftOut("2 steps, from `over-pool, both reject, p0→d0 direct` on", "the budget is too small"),
    "consent": LeftOut("over-pool, only prefill rejects, through r0", "p0: walks on", "--accept-exposure"),
    "unknown limits": LeftOut("over-pool lengths, through r0", "pool is not known"),
    "hard limit": LeftOut("over-pool, both reject, through r0", "5,000,000 tokens are above the hard limit"),
    "more kinds": LeftOut("4 pairs of 4 more kinds, direct", "one run meets 16 pairs at most"),
}


@pytest.mark.parametrize("reason", GAPS)
def test_what_was_asked_for_and_left_out_is_no_pass(reason: str) -> None:
    done, lost = one(Verdict.DOOR), GAPS[reason]
    run = result(done, plan=Plan((done.step,), (lost,), Budget()))
    assert exit_code(run) == 3
    assert f"not probed: {lost.what}; unknown is not a pass" in said(run).text
    # something worse that was seen is still told
    worse = result(done, one(Verdict.HELD), plan=Plan((done.step,), (lost,), Budget()))
    assert exit_code(worse) == 12
    unharmed = result(done, plan=Plan((done.step,), (replace(lost, lost=False),), Budget()))
    assert exit_code(unharmed) == 0


def test_many_things_left_out_end_in_a_count() -> None:
    done = one(Verdict.DOOR)
    run = result(done, plan=Plan((done.step,), tuple(GAPS.values()), Budget()))
    assert said(run).text.count("over-pool") == 3
    assert " and 2 more; unknown is not a pass" in said(run).text


def test_a_step_that_was_not_done_or_told_nothing_is_no_pass() -> None:
    done, second = one(Verdict.DOOR), kit.step(number=2)
    undone = result(done, plan=Plan((done.step, second), (), Budget()))
    assert (exit_code(undone), "not done: step 2" in said(undone).text) == (3, True)
    unsure = result(done, StepResult(second, Verdict.INCONCLUSIVE, "so"))
    assert (exit_code(unsure), "told nothing: step 2" in said(unsure).text) == (3, True)
    # a control that was not sent says nothing; one that is not as it should be speaks against the limits told
    control = replace(CONTROL, number=2)
    assert exit_code(result(done, plan=Plan((done.step, control), (), Budget()))) == 0
    assert exit_code(result(done, StepResult(control, Verdict.INCONCLUSIVE, "so"))) == 3


@pytest.mark.parametrize(
    ("kind", "verdict", "text"),
    [
        (Kind.CANARY, Verdict.STEADY, "prod: known answers did not drift; limits were not probed"),
        (Kind.PAIRING, Verdict.PAIRED, "prod: refusals let decode go at once; limits were not probed"),
        (Kind.ABORT, Verdict.TOLD, "prod: both halves were told of clients that left; limits were not"),
        (Kind.STAGING, Verdict.INDEPENDENT, "prod: 1 of 1 steps ended as they should"),
    ],
)
def test_a_run_without_limits_says_so(kind: Kind, verdict: Verdict, text: str) -> None:
    assert said(result(one(verdict, kind=kind))).text.startswith(text)


def test_interrupted_is_130_unless_an_exposure_was_seen() -> None:
    assert exit_code(result(one(Verdict.HELD), stopped=INTERRUPTED)) == 130
    assert exit_code(result(one(Verdict.EXPOSED), stopped=INTERRUPTED)) == 20
    assert exit_code(result(one(Verdict.HELD), stopped="the budget of 3 requests is spent")) == 12
