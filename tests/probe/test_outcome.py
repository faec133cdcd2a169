from __future__ import annotations

from dataclasses import replace

import pytest

from pdguard.probe.interface import (
    Budget,
    Danger,
    HalfResult,
    Kind,
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


def test_steps_left_out_for_want_of_consent_are_no_pass() -> None:
    done = one(Verdict.DOOR)
    without = Plan((done.step,), (), Budget(), consents=("p0: a refused prompt walks on",))
    assert exit_code(result(done, plan=without)) == 3
    assert "left out" in said(result(done, plan=without)).text
    exposing = replace(done.step, danger=Danger.EXPOSES)
    assert exit_code(result(done, plan=replace(without, steps=(exposing,)))) == 0


def test_interrupted_is_130_unless_an_exposure_was_seen() -> None:
    assert exit_code(result(one(Verdict.HELD), stopped=INTERRUPTED)) == 130
    assert exit_code(result(one(Verdict.EXPOSED), stopped=INTERRUPTED)) == 20
    assert exit_code(result(one(Verdict.HELD), stopped="the budget of 3 requests is spent")) == 12
