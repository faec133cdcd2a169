"""What a window of outcomes tells an audit."""

from __future__ import annotations

import pytest

from pdguard.facts.catalogue import CATALOGUE
from pdguard.facts.interface import Value
from pdguard.facts.observed import METRICS, OBSERVABLE
from pdguard.outcomes.interface import EngineOutcomes, Figure, Gap, Outcomes, Read, Source
from pdguard.outcomes.observations import observations

NO = Gap("no such series")


def figure(value: float, source: Source = Source.PROMETHEUS) -> Figure:
    return Figure(value, source, "sum(increase(x[1h]))\n")


def facts(role: str = "decode", source: Source = Source.PROMETHEUS, **reads: Read) -> dict[str, Value]:
    holds = {name: read for name, read in reads.items() if name in ("drained", "timeout", "error")}
    engine = EngineOutcomes(
        "d0",
        role,
        "0.5.22",
        3600.0,
        holds=holds,
        held_now=reads.get("held", NO),
        prompt_tokens=reads.get("prompt", NO),
        pool=reads.get("pool", NO),
    )
    found = observations(Outcomes("prod", "2026-11-30T11:00:00Z", "2026-11-30T12:00:00Z", 3600.0, (engine,)))
    for one in found:
        assert (one.subject, one.name, one.source, one.at) == (
            "engine",
            "d0",
            "metrics",
            "2026-11-30T11:00:00Z",
        )
        assert one.ref.isprintable()
        assert (one.subject, one.fact) in OBSERVABLE[METRICS]
    return {one.fact: one.value for one in found}


def test_counts_are_whole_and_dated_by_the_window_s_beginning() -> None:
    found = facts(drained=figure(97.6), timeout=figure(2.2), error=figure(0.0))
    assert found == {
        **{"hold_window_seconds": 3600.0, "window_holds_drained": 98, "window_holds_timeout": 2},
        **{"window_holds_error": 0, "outcomes": "counted"},
    }
    assert all(type(v) is int for k, v in found.items() if k.startswith("window"))


def test_a_gap_is_left_out() -> None:
    assert facts(drained=NO, timeout=NO, error=NO) == {}
    assert facts(role="prefill", drained=figure(3)) == {}


def test_a_log_counts_timeouts_and_is_no_counter() -> None:
    found = facts(drained=NO, timeout=figure(3, Source.LOG), error=NO)
    assert found == {"hold_window_seconds": 3600.0, "window_holds_timeout": 3}


def test_nothing_yet_is_no_claim_that_outcomes_are_counted() -> None:
    assert "outcomes" not in facts(drained=figure(0), timeout=figure(0), error=figure(0))


@pytest.mark.parametrize(
    ("held", "prompt", "pool", "share"),
    [
        (figure(4), figure(1000), figure(10_000), 0.4),
        (figure(0), NO, figure(10_000), 0.0),
        (figure(4), NO, figure(10_000), None),
        (figure(4), figure(1000), NO, None),
        (figure(4), figure(1000), figure(0), None),
        (NO, figure(1000), figure(10_000), None),
    ],
)
def test_the_share_of_the_pool_that_is_held(
    held: Read, prompt: Read, pool: Read, share: float | None
) -> None:
    assert facts(held=held, prompt=prompt, pool=pool).get("held_share") == share


def test_everything_is_in_the_catalogue() -> None:
    assert all(fact in CATALOGUE[subject] for subject, fact in OBSERVABLE[METRICS])
