"""What a probe's results settle, and what they leave open."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pdguard.facts.catalogue import CATALOGUE
from pdguard.facts.interface import Value
from pdguard.facts.observed import KINDS, OBSERVABLE, OVER_POOL, PROBE
from pdguard.probe.interface import (
    ErrorClass,
    Finish,
    Kind,
    LeftOut,
    Measure,
    ProbeResult,
    Role,
    Side,
    Step,
    StepResult,
    Verdict,
)
from pdguard.probe.observations import observations
from tests.probe.results import AT, DIRECT, REFUSED, STUB, THROUGH, exposed_019, half, over_pool, probed, step

V = Verdict


def facts(result: ProbeResult, subject: str = "pair", name: str = "p0→d0") -> dict[str, Value]:
    return {o.fact: o.value for o in observations(result) if (o.subject, o.name) == (subject, name)}


def abort(
    number: int, verdict: Verdict, *told: Role, through: bool = False, stream: bool = False, hold: str = ""
) -> StepResult:
    halves = tuple(half(role, V.TOLD if role in told else V.NOT_TOLD) for role in (Role.PREFILL, Role.DECODE))
    measures = (Measure("hold_outcome", hold),) if hold else ()
    one = step(number, Kind.ABORT, Side.ADMITTED, THROUGH if through else DIRECT, stream)
    return StepResult(one, verdict, "", halves, measures)


def test_the_incident_as_the_lab_saw_it() -> None:
    result = exposed_019()
    assert facts(result) == {
        "probes": ("over-pool",),
        "probe_exposed": True,
        "probe_over_pool": "exposed",
    }
    assert facts(result, "router", "r0") == {
        **{"probes": ("over-pool", "pairing", "canary"), "probe_exposed": True},
        **{"probe_over_pool": "exposed", "canary_drift": False, "pairs_refusals": "no"},
    }
    assert facts(result, "engine", "p0") == {"reject_fate": "walks on"}
    assert facts(result, "engine", "d0") == {}
    (one,) = (o for o in observations(result) if o.subject == "engine")
    assert (one.source, one.ref, one.at) == ("probe", "step 1 over-pool, 1,500 tokens", AT)


def test_everything_said_is_in_the_catalogue_and_may_be_read_back() -> None:
    for (subject, fact), words in OBSERVABLE[PROBE].items():
        assert fact in CATALOGUE[subject]
        assert words or CATALOGUE[subject][fact].type == "bool"
    assert set(KINDS) == {k.value for k in Kind}
    assert set(OVER_POOL) <= {v.value for v in Verdict}
    for one in observations(exposed_019()):
        assert (one.subject, one.fact) in OBSERVABLE[PROBE]


@pytest.mark.parametrize(
    ("side", "prefill", "decode", "fates", "held"),
    [
        (Side.BOTH, V.DOOR, V.DOOR, ("is retired at the door", "is retired at the door"), "none"),
        (Side.BOTH, V.LATE, V.WAITED, ("is retired late", "is retired late"), "decode"),
        (Side.BOTH, V.DOOR, V.HELD, (None, "is retired late"), "decode"),
        (Side.BOTH, V.WALKED_ON, V.DOOR, ("walks on", None), None),
        (Side.PREFILL, V.DOOR, V.WAITED, (None, None), "decode"),
        (Side.DECODE, V.WAITED, V.DOOR, (None, None), "prefill"),
        (Side.DECODE, V.ADMITTED, V.DOOR, (None, None), "none"),
        (Side.BOTH, V.INCONCLUSIVE, V.DOOR, (None, None), None),
        (Side.ADMITTED, V.ADMITTED, V.ADMITTED, (None, None), None),
        (Side.CONTEXT, V.TOKENIZER, V.TOKENIZER, (None, None), None),
    ],
)
def test_two_answers_settle_a_fate_or_do_not(
    side: Side, prefill: Verdict, decode: Verdict, fates: tuple[str | None, ...], held: str | None
) -> None:
    whole = V.INCONCLUSIVE if V.INCONCLUSIVE in (prefill, decode) else decode
    result = probed(over_pool(1, side, whole, prefill, decode))
    found = [facts(result, "engine", name).get("reject_fate") for name in ("p0", "d0")]
    assert found == list(fates)
    assert facts(result).get("probe_held") == held


def test_a_refusal_within_a_stream_is_no_stub() -> None:
    """Real engines count one prompt token in the event of a refusal; the status of the stream is 200."""
    within = replace(REFUSED, status=200, inner_status=400, prompt_tokens=1, finish=Finish.ABORT)
    one = over_pool(1, Side.BOTH, V.DOOR, V.DOOR, V.DOOR, within)
    assert facts(probed(one), "engine", "p0") == {"reject_fate": "is retired at the door"}


def test_a_half_that_the_other_one_s_door_has_ended_does_not_show_its_own() -> None:
    ended = replace(REFUSED, error=ErrorClass.RELEASED)
    found = probed(over_pool(1, Side.BOTH, V.DOOR, V.DOOR, V.DOOR, ended))
    assert (facts(found, "engine", "p0"), facts(found, "engine", "d0")) == ({}, {})
    assert facts(found)["probe_held"] == "none"


def test_a_stub_in_the_answer_is_a_walk() -> None:
    result = probed(over_pool(1, Side.PREFILL, V.INCONCLUSIVE, V.INCONCLUSIVE, V.HELD, STUB))
    assert facts(result, "engine", "p0") == {"reject_fate": "walks on"}
    admitted = probed(over_pool(1, Side.ADMITTED, V.ADMITTED, V.ADMITTED, V.ADMITTED, STUB))
    assert facts(admitted, "engine", "p0") == {}


@pytest.mark.parametrize(
    ("what", "lost", "said"),
    [
        ("only prefill rejects, through r0", True, False),
        ("only prefill rejects, through r0", False, True),
        ("pairing", True, True),
    ],
)
def test_a_window_that_was_left_out_may_be_open(what: str, lost: bool, said: bool) -> None:
    """A router may meet pairs that have no length in common; what was not sent is not passed."""
    result = probed(over_pool(1, Side.BOTH, V.DOOR, V.DOOR, V.DOOR))
    plan = replace(result.plan, left_out=(LeftOut(what, "no length in common", lost=lost),))
    found = facts(replace(result, plan=plan))
    assert ("probe_exposed" in found) is said
    assert ("probe_held" in found) is said


def test_no_exposure_is_said_only_when_everything_was_tried() -> None:
    door = over_pool(1, Side.BOTH, V.DOOR, V.DOOR, V.DOOR)
    waited = over_pool(2, Side.PREFILL, V.WAITED, V.DOOR, V.WAITED)
    assert facts(probed(door, waited))["probe_exposed"] is False
    assert facts(probed(door, waited))["probe_over_pool"] == "waited for the timeout"
    assert "probe_exposed" not in facts(probed(door, more=[step(2)]))
    open_ = over_pool(2, Side.PREFILL, V.INCONCLUSIVE, V.INCONCLUSIVE, V.INCONCLUSIVE)
    assert "probe_exposed" not in facts(probed(door, open_))
    cut = over_pool(2, Side.PREFILL, V.TRUNCATED, V.TRUNCATED, V.TRUNCATED)
    assert "probe_exposed" not in facts(probed(door, cut))
    walked = over_pool(2, Side.PREFILL, V.HELD, V.WALKED_ON, V.HELD)
    assert "probe_exposed" not in facts(probed(door, walked))
    assert facts(probed(over_pool(1, Side.ADMITTED, V.ADMITTED, V.ADMITTED, V.ADMITTED))) == {
        "probes": ("over-pool",)
    }


@pytest.mark.parametrize(
    ("verdict", "one", "two", "steady", "depends", "exposed"),
    [
        (V.EXPOSED, "aa", "bb", True, True, True),
        (V.EXPOSED, "aa", "aa", True, None, True),
        (V.EXPOSED, "aa", "bb", False, None, True),
        (V.INDEPENDENT, "", "", True, False, False),
        (V.INCONCLUSIVE, "", "", True, None, None),
    ],
)
def test_the_strong_proof(
    verdict: Verdict, one: str, two: str, steady: bool, depends: bool | None, exposed: bool | None
) -> None:
    measures = (
        Measure("answer 1: hash", one),
        Measure("answer 2: hash", two),
        Measure("control steady", steady),
    )
    found = facts(probed(StepResult(step(1, Kind.STAGING), verdict, "", (), measures)))
    assert found.get("probe_depends") is depends
    assert found.get("probe_exposed") is exposed


BOTH = (Role.PREFILL, Role.DECODE)


def test_an_abort_reaches_both_halves_or_one() -> None:
    assert facts(probed(abort(1, V.TOLD, *BOTH, hold="drained"))) == {
        "probes": ("abort",),
        "abort_told": "both",
        "abort_outcome": "drained",
    }
    one = abort(2, V.NOT_TOLD, Role.DECODE, hold="timeout")
    assert facts(probed(abort(1, V.TOLD, *BOTH, hold="drained"), one))["abort_told"] == "decode only"
    assert facts(probed(abort(1, V.TOLD, *BOTH, hold="drained"), one))["abort_outcome"] == "timeout"
    assert facts(probed(abort(1, V.NOT_TOLD, Role.PREFILL)))["abort_told"] == "prefill only"
    assert facts(probed(abort(1, V.NOT_TOLD)))["abort_told"] == "neither"
    assert facts(probed(abort(1, V.INCONCLUSIVE))) == {"probes": ("abort",)}


@pytest.mark.parametrize(
    ("hold", "word"),
    [
        ("error", "error"),
        ("none ended", "no hold"),
        ("still held", None),
        ("not counted (before 0.5.22, or no metrics)", None),
    ],
)
def test_how_its_hold_ended(hold: str, word: str | None) -> None:
    assert facts(probed(abort(1, V.TOLD, *BOTH, hold=hold))).get("abort_outcome") == word


@pytest.mark.parametrize(
    ("streamed", "whole", "word"),
    [
        ([V.TOLD], [V.TOLD], "yes"),
        ([V.NOT_TOLD], [V.TOLD], "not streamed"),
        ([V.NOT_TOLD], [V.NOT_TOLD], "no"),
        ([V.TOLD], [V.NOT_TOLD], "not always"),
        ([V.TOLD, V.NOT_TOLD], [V.TOLD], "not always"),
        ([V.NOT_TOLD], [], "not always"),
        ([V.TOLD], [], None),
        ([V.INCONCLUSIVE], [V.TOLD], None),
    ],
)
def test_a_router_and_clients_that_leave(
    streamed: list[Verdict], whole: list[Verdict], word: str | None
) -> None:
    forms = [(True, v) for v in streamed] + [(False, v) for v in whole]
    results = [abort(n, v, through=True, stream=s) for n, (s, v) in enumerate(forms, 1)]
    assert facts(probed(*results), "router", "r0").get("pairs_disconnects") == word


@pytest.mark.parametrize(
    ("verdicts", "more", "word"),
    [
        ([V.PAIRED], False, "yes"),
        ([V.PAIRED], True, None),
        ([V.PAIRED, V.UNPAIRED], False, "no"),
        ([V.PAIRED, V.INCONCLUSIVE], False, None),
    ],
)
def test_a_router_and_refusals(verdicts: list[Verdict], more: bool, word: str | None) -> None:
    steps = [step(n, Kind.PAIRING, Side.PREFILL, THROUGH) for n in range(1, len(verdicts) + 1)]
    left: list[Step] = [step(9, Kind.PAIRING, Side.PREFILL, THROUGH)] if more else []
    results = [StepResult(s, v, "") for s, v in zip(steps, verdicts, strict=True)]
    assert facts(probed(*results, more=left), "router", "r0").get("pairs_refusals") == word


def test_drift_is_said_of_whoever_drifted() -> None:
    drifted = StepResult(step(1, Kind.CANARY, None), V.DRIFTED, "")
    assert facts(probed(drifted))["canary_drift"] is True
    assert "canary_drift" not in facts(probed(replace(drifted, verdict=V.INCONCLUSIVE)))


def test_a_prompt_that_is_cut_settles_no_fate() -> None:
    one = over_pool(1, Side.BOTH, V.DOOR, V.DOOR, V.DOOR)
    cut = replace(one, step=replace(one.step, route=replace(DIRECT, truncates=True)))
    assert facts(probed(cut), "engine", "p0") == {}
