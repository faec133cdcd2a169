"""Sizing by hand-computed numbers: capacity, the margin term by term, the T_hold to set, what-ifs."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pdguard.outcomes.histogram import Between, contradicts, longer_than, longest, quantile
from pdguard.outcomes.interface import Gap
from pdguard.outcomes.judge import exit_code, faults
from pdguard.outcomes.margin import Verdict
from pdguard.outcomes.sizing import DecodeSizing, size
from pdguard.outcomes.terms import Known
from tests.outcomes.made import POLICY, UNKNOWN, collected, decode, figure, outcomes, prefill, times


def sized(
    *what_ifs: float, p: dict[str, object] | None = None, d: dict[str, object] | None = None
) -> DecodeSizing:
    found = collected(p=p, d=d)  # type: ignore[arg-type]
    (one,) = size(outcomes(), found, POLICY, what_ifs)
    return one


def test_capacity_in_the_worst_case() -> None:
    worst = sized().worst
    assert worst.rate.value == 0.2
    assert worst.seconds.value == 60
    assert worst.request_pages.value == 63  # 1,001 tokens in pages of 16
    assert worst.pages.value == pytest.approx(0.2 * 60 * 63)
    assert worst.tokens.value == pytest.approx(12_096)
    assert worst.share.value == pytest.approx(0.12)
    assert [t.known for t in (worst.rate, worst.seconds, worst.pool)] == [
        Known.MEASURED,
        Known.CONFIGURED,
        Known.MEASURED,
    ]


def test_capacity_as_measured() -> None:
    usual = sized().usual
    assert usual.rate.value == 0.1
    assert usual.seconds.value == pytest.approx(4.8)
    assert usual.tokens.value == pytest.approx(0.1 * 4.8 * 63 * 16)


def test_more_holds_than_aborts_are_the_worst_case() -> None:
    seen = outcomes(prefill(), decode(aborts=figure(2)))
    assert size(seen, collected(), POLICY)[0].worst.rate.name == "holds"


def test_prompt_tokens_of_the_operator_are_an_assumption() -> None:
    (one,) = size(outcomes(), collected(), POLICY, prompt_tokens=160_000)
    assert one.worst.request_pages.value == 10_000
    assert one.worst.request_pages.known is Known.ASSUMED
    assert one.worst.share.known is Known.ASSUMED


@pytest.mark.parametrize("field", ["aborts", "prompt_tokens", "pool"])
def test_a_missing_figure_is_unknown_with_its_reason(field: str) -> None:
    gone = {field: UNKNOWN, **({"holds": {}} if field == "aborts" else {})}
    (one,) = size(outcomes(prefill(), decode(**gone)), collected(), POLICY)
    assert one.worst.share.value is None
    assert UNKNOWN.why in one.worst.share.where
    assert one.worst.share.how == UNKNOWN.how


def test_totals_since_start_give_no_rate() -> None:
    seen = outcomes(prefill(), replace(decode(), seconds=0.0))
    assert size(seen, collected(), POLICY)[0].worst.share.value is None


def test_without_settings_the_default_t_hold_is_assumed_and_suffices_for_nothing() -> None:
    (one,) = size(outcomes(), None, POLICY)
    assert (one.worst.seconds.value, one.worst.seconds.known) == (30.0, Known.ASSUMED)
    assert one.margin.t_hold == one.worst.seconds
    assert one.margin.verdict is Verdict.UNKNOWN
    found = collected(p={"transfer_timeout": 4.0})
    for fact in ("t_hold", "t_hold_kind", "hold"):
        del found.engines[1].facts.entries[fact]
    (one,) = size(outcomes(), found, POLICY)
    assert (one.margin.margin.value, one.margin.verdict) == (21.0, Verdict.UNKNOWN)
    assert one.advice.good is None


def test_a_t_hold_from_the_log_is_measured() -> None:
    seen = outcomes(prefill(), decode(t_hold=figure(10.0)))
    found = collected()
    del found.engines[1].facts.entries["t_hold"]
    (one,) = size(seen, found, POLICY)
    assert (one.margin.t_hold.value, one.margin.t_hold.known) == (10.0, Known.MEASURED)
    assert one.worst.seconds == one.margin.t_hold
    assert one.margin.verdict is Verdict.FAILS


def test_a_rate_of_the_operator_stands_in_for_the_measured_one() -> None:
    quiet = decode(aborts=figure(0), holds={n: figure(0) for n in ("drained", "timeout", "error")})
    (one,) = size(outcomes(prefill(), quiet), collected(), POLICY, (90.0,), aborts_per_second=0.2)
    assert one.worst.share.value == pytest.approx(0.12)
    assert one.worst.share.known is Known.ASSUMED
    assert one.what_ifs[0].capacity.share.value == pytest.approx(0.18)
    assert one.advice.share.value == pytest.approx(0.12)
    assert one.advice.most.value == pytest.approx(100.0)
    assert one.advice.most.known is Known.ASSUMED
    assert (one.usual.rate.value, one.usual.rate.known) == (0.2, Known.ASSUMED)


def test_the_margin_decides_whether_what_is_in_force_will_do() -> None:
    assert sized(d={"t_hold": 30.0}).advice.good is None  # -5 s by what is assumed
    assert sized(d={"t_hold": 10.0}).advice.good is False
    assert sized(d={"t_hold_kind": "infinite"}).advice.good is False  # outside of policy


def test_a_sum_that_its_buckets_cannot_give() -> None:
    good = times(2.0, 30.0, 99.0)
    assert not contradicts(good)
    assert not contradicts(times())
    assert contradicts(replace(good, total_seconds=0.0))
    assert contradicts(replace(times(2.0, 3.0), total_seconds=11.0))
    assert not contradicts(replace(times(2.0, 3.0), total_seconds=10.0))


def test_margin_term_by_term() -> None:
    margin = sized().margin
    assert [(t.name, t.value, t.known) for t in (margin.t_hold, *margin.terms)] == [
        ("T_hold", 60.0, Known.CONFIGURED),
        ("abort propagation", 5.0, Known.ASSUMED),
        ("remaining chunks", 0.0, Known.CONFIGURED),
        ("call in flight", 30.0, Known.CONFIGURED),
    ]
    assert (margin.margin.value, margin.verdict) == (25.0, Verdict.HOLDS)
    assert margin.margin.known is Known.ASSUMED


def test_capped_calls_follow_one_another() -> None:
    seen = sized(p={"batch_cap": 1024}).margin.terms[1]
    assert (seen.value, seen.known) == (0.5, Known.MEASURED)
    slow = outcomes(prefill(transfer_seconds=times(9.0, bounds=(5.0, math.inf))), decode())
    (one,) = size(slow, collected(p={"batch_cap": 1024}), POLICY)
    assert (one.margin.terms[1].value, one.margin.terms[1].known) == (25.0, Known.ASSUMED)


@pytest.mark.parametrize(
    ("d", "p", "verdict"),
    [
        ({"t_hold": 30.0}, {}, Verdict.SHORT),  # PDG407 passes: every failure is held
        ({"t_hold": 30.0, "hold_scope": "decode aborts"}, {}, Verdict.FAILS),
        ({"t_hold": 10.0}, {}, Verdict.FAILS),
        ({"t_hold": 10.0}, {"transfer_timeout": 4.0}, Verdict.HOLDS),
        ({"hold": "off"}, {}, Verdict.FAILS),
        ({"hold": "impossible"}, {}, Verdict.FAILS),
        ({"t_hold_kind": "zero"}, {}, Verdict.FAILS),
        ({"t_hold_kind": "nan"}, {}, Verdict.UNKNOWN),
        ({"t_hold_kind": "infinite"}, {}, Verdict.HOLDS),
        ({}, {"prefill_told": False}, Verdict.FAILS),
        ({}, {"backend": "nixl"}, Verdict.UNKNOWN),
        ({}, {"backend": "mori", "mori_timeout_ms": 2000}, Verdict.HOLDS),
    ],
)
def test_verdicts(d: dict[str, object], p: dict[str, object], verdict: Verdict) -> None:
    assert sized(d=d, p=p).margin.verdict is verdict


def test_an_unread_bound_is_assumed_and_said_to_be() -> None:
    found = collected()
    del found.engines[0].facts.entries["transfer_timeout"]
    found.engines[0].facts.miss("transfer_timeout", "not readable", "give it a node")
    call = size(outcomes(), found, POLICY)[0].margin.terms[2]
    assert (call.value, call.known, call.how) == (30.0, Known.ASSUMED, "give it a node")
    assert "not readable" in call.where


def test_the_t_hold_to_set_is_that_of_harden_with_what_it_costs() -> None:
    advice = sized().advice
    assert (advice.value, advice.good) == (60.0, True)
    assert advice.share.value == pytest.approx(0.12)
    assert advice.most.value == pytest.approx(100.0)
    assert any("at most 0.5 s (buckets stop at 5 s)" in r for r in advice.reasons)
    long = sized(p={"transfer_timeout": 200.0}).advice
    assert long.value is None
    assert "lower MC_TRANSFER_TIMEOUT" in long.reasons[0]


def test_advice_that_the_pool_cannot_bear_says_so() -> None:
    (one,) = size(outcomes(prefill(), decode(pool=figure(20_000))), collected(), POLICY)
    assert one.advice.value == 60.0
    assert "do not set less than a call may take" in one.advice.reasons[-1]


def bounds(share: Between | Gap) -> tuple[float, float]:
    assert isinstance(share, Between)
    return share.low, share.high


def test_what_if() -> None:
    found = {w.t_hold: w for w in sized(3.0, 20.0, 60.0, 90.0).what_ifs}
    assert found[20.0].capacity.share.value == pytest.approx(0.04)
    assert bounds(found[3.0].by_timeout) == pytest.approx((0.1, 1.0))
    assert bounds(found[20.0].by_timeout) == pytest.approx((0.0, 0.1))
    assert found[60.0].by_timeout == Between(0.1, 0.1)  # it is the one in force: one of ten did
    assert found[90.0].by_timeout == Between(0.0, 0.1)
    assert found[20.0].margin.verdict is Verdict.FAILS
    assert found[90.0].margin.margin.value == 55.0


def test_what_if_without_a_histogram() -> None:
    seen = outcomes(prefill(), decode(hold_times=UNKNOWN))
    assert size(seen, collected(), POLICY, (20.0,))[0].what_ifs[0].by_timeout == UNKNOWN
    none = outcomes(prefill(), decode(hold_times=times()))
    assert isinstance(size(none, collected(), POLICY, (20.0,))[0].what_ifs[0].by_timeout, Gap)


def test_quantiles_are_linear_inside_a_bucket_and_open_beyond_the_last() -> None:
    even = times(*[7.0] * 10)
    assert quantile(even, 0.5) == pytest.approx(7.5)
    assert quantile(even, 1.0) == 10.0
    assert quantile(times(), 0.5) is None
    assert quantile(times(2.0, 99.0), 0.99) == math.inf
    assert longest(times(2.0, 7.0)) == Between(5.0, 10.0)
    assert longest(times(99.0)) == Between(60.0, math.inf)
    assert longer_than(times(2.0, 7.0), 5.0) == Between(0.5, 0.5)
    assert longer_than(times(), 5.0) is None


@pytest.mark.parametrize(
    ("holds", "code"),
    [((95, 5, 0), 0), ((94, 6, 0), 12), ((90, 0, 10), 12), ((9, 10, 0), 0), ((0, 0, 0), 0)],
)
def test_exit_code_follows_the_ratio(holds: tuple[int, int, int], code: int) -> None:
    counts = {name: figure(n) for name, n in zip(("drained", "timeout", "error"), holds, strict=True)}
    seen = outcomes(prefill(), decode(holds=counts))
    assert exit_code(faults(seen, size(seen, collected(), POLICY), POLICY)) == code


def test_exit_code_follows_a_hold_that_is_too_short() -> None:
    short = size(outcomes(), collected(d={"t_hold": 10.0}), POLICY)
    assert exit_code(faults(outcomes(), short, POLICY)) == 12
    assert "d0: T_hold of 10 s does not outlast one call of 30 s" in str(faults(outcomes(), short, POLICY)[0])


def test_only_prefills_of_its_pairs_count() -> None:
    seen = outcomes(prefill(), replace(prefill(), name="p1"), decode())
    assert size(seen, collected(), POLICY)[0].prefills == ("p0",)
    assert size(seen, None, POLICY)[0].prefills == ("p0", "p1")
