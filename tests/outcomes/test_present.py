"""What people read: the verdict, known figures, the unknown with why and how, sizing; no line too wide."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pdguard.facts.interface import Value
from pdguard.outcomes.interface import Gap, Outcomes
from pdguard.outcomes.present import as_text
from pdguard.outcomes.sizing import size
from tests.outcomes.made import POLICY, UNKNOWN, collected, decode, figure, outcomes, prefill, times


def page(
    seen: Outcomes | None = None,
    width: int = 100,
    unicode: bool = True,
    *what_ifs: float,
    detail: bool = False,
    **more: dict[str, Value],
) -> str:
    read = seen if seen is not None else outcomes(notes=("a note",))
    sizing = size(read, collected(**more), POLICY, what_ifs)
    return as_text(read, sizing, POLICY, detail=detail, width=width, unicode=unicode)


def words(text: str) -> str:
    """With one blank where the page has several."""
    return " ".join(text.split())


def test_the_figures_stand_where_they_belong() -> None:
    text = page(None, 140, True, 90.0, detail=True)
    for line in (
        "QUIET prod: 1 of 10 holds ended without proof on 1 of 1 decode: too few on each decode to judge",
        "window: 100 s, 2026-11-30T12:00:00Z to",
        "drained 9, timeout 1, error 0, 10.0% of 10 without proof",
        "mean 4.8 s, p50 3.22 s, p95 20 s, p99 28 s (buckets end at 60 s)",
        "aborts 20 (0.2/s)",
        "queues prealloc 0 · transfer 2",
        "queues bootstrap 0 · inflight 1",
        "T_hold in force 60 s; sufficient, with 25 s to spare, by what is assumed",
        "12.0% of the pool at worst (12,096 tokens), 0.5% of the pool as measured (484 tokens)",
        "worst case 12,096 tokens in 756 pages, 12.0% of the pool",
        "T_hold to set 60 s; what is in force will do",
        "- abort propagation 5 s assumed: allowed for the abort's way to prefill",
        "if T_hold 90 s 18.0% of the pool; 0.0% to 10.0% of the holds seen",
        "- a note",
    ):
        assert line in words(text)
    assert "unknown" not in text


def test_without_detail_the_terms_are_left_out() -> None:
    text = page(None, 140, True, 90.0)
    assert "T_hold in force" in text
    assert "if T_hold 90 s" in text
    assert "abort propagation" not in text
    assert "worst case" not in text


def test_a_margin_that_rests_on_assumptions_contradicts_nothing() -> None:
    text = words(page(None, 140, d={"t_hold": 30.0}))
    assert "T_hold in force 30 s; not proven sufficient (-5 s by what is assumed)" in text
    assert "T_hold to set 60 s; holds then take" in text
    assert "will do" not in text
    assert "next: raise T_hold to 60 s on d0" in text


def test_a_t_hold_that_was_not_read_is_the_same_everywhere() -> None:
    read = outcomes()
    text = words(as_text(read, size(read, None, POLICY), POLICY, detail=True, width=140))
    assert "T_hold in force not read, so the default of 30 s is assumed" in text
    assert "whether it suffices is not known" in text
    assert "T_hold unknown" not in text
    assert text.count("T_hold 30 s assumed: the default") == 2


def test_engines_that_are_alike_share_their_lines() -> None:
    every = [replace(decode(), name=f"d{i}") for i in range(7)]
    text = page(outcomes(prefill(), *every))
    assert "  d0, d1, d2, d3, d4, +2 more  0.5.23\n" in text
    assert text.count("hold time") == 1
    assert "all decodes  holds drained 63, timeout 7, error 0\n" in text
    assert len(page(outcomes(prefill(), *every), 140).splitlines()) == 30


def test_faults_come_right_after_the_verdict() -> None:
    text = page(None, 100, d={"t_hold": 10.0})
    assert text.startswith(
        "AT RISK  prod: T_hold is off or too short on d0\nnext: raise T_hold to 60 s on d0"
    )
    assert "  ! d0: T_hold of 10 s does not outlast one call of 30 s\n" in text


def test_a_quantile_beyond_the_last_bucket_is_said_to_be() -> None:
    text = page(outcomes(prefill(), decode(hold_times=times(2.0, 99.0))))
    assert "p99 > 60 s (buckets end at 60 s)" in text


def test_what_could_not_be_had_is_told_once_with_why_and_how() -> None:
    gone = decode(holds={}, hold_times=UNKNOWN, held_now=UNKNOWN, aborts=UNKNOWN)
    text = page(outcomes(prefill(), gone))
    figures = words(text.partition("SIZING")[0])
    assert "? unknown: held now, hold time, aborts of d0: " in figures
    assert figures.count(UNKNOWN.why) == 1
    assert figures.count(f"(how: {UNKNOWN.how})") == 1
    assert "0.0% of" not in text


def test_engines_that_lack_the_same_are_told_once() -> None:
    gone = [
        replace(
            decode(held_now=Gap("an old release", f"--log {name}=FILE"), aborts=figure(i)),
            name=name,
        )
        for i, name in enumerate(("d0", "d1"))
    ]
    text = words(page(outcomes(prefill(), *gone)))
    assert "? unknown: held now of d0, d1: an old release (how: --log NAME=FILE)" in text


@pytest.mark.parametrize("width", [60, 80, 100, 200])
@pytest.mark.parametrize("unicode", [True, False])
def test_no_line_is_too_wide_and_ascii_is_ascii(width: int, unicode: bool) -> None:
    text = page(None, width, unicode, 30.0, math.pi, detail=True)
    assert max(map(len, text.splitlines())) <= width
    assert unicode or text.isascii()


def test_hostile_names_do_not_reach_the_terminal() -> None:
    text = page(outcomes(prefill(), replace(decode(), name="d\x1b[31m0", version="\x07")))
    assert "\x1b" not in text
    assert "\x07" not in text
