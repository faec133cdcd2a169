"""What people read: every figure, the unknown with why and how, sizing and margin; no line too wide."""

from __future__ import annotations

import math

import pytest

from pdguard.outcomes.judge import faults
from pdguard.outcomes.present import as_text
from pdguard.outcomes.sizing import size
from tests.outcomes.made import POLICY, UNKNOWN, collected, decode, outcomes, prefill, times


def page(seen: object = None, width: int = 100, unicode: bool = True, *what_ifs: float) -> str:
    read = seen if seen is not None else outcomes(notes=("a note",))
    sizing = size(read, collected(), POLICY, what_ifs)  # type: ignore[arg-type]
    return as_text(read, sizing, faults(read, sizing, POLICY), width=width, unicode=unicode)  # type: ignore[arg-type]


def words(text: str) -> str:
    """With one blank where the page has several."""
    return " ".join(text.split())


def test_the_figures_stand_where_they_belong() -> None:
    text = page(None, 120, True, 90.0)
    for line in (
        "METRICS prod: release outcomes over 100 s",
        "drained 9, timeout 1, error 0, 10.0% of 10 without proof",
        "mean 4.8 s, p50 3.22 s, p95 20 s, p99 28 s (buckets end at 60 s)",
        "20 (0.2/s)",
        "decode_prealloc 0 · decode_transfer 2",
        "prefill_bootstrap 0 · prefill_inflight 1",
        "worst case 12,096 tokens in 756 pages, 12.0% of the pool",
        "T_hold to set 60 s; what is set will do",
        "margin 25 s, holds",
        "- abort propagation 5 s assumed: allowed for the abort's way to prefill",
        "if T_hold 90 s 18.0% of the pool; 0.0% to 10.0% of the holds seen",
        "- a note",
    ):
        assert line in words(text)
    assert "UNKNOWN" not in text


def test_a_quantile_beyond_the_last_bucket_is_said_to_be() -> None:
    text = page(outcomes(prefill(), decode(hold_times=times(2.0, 99.0))))
    assert "p99 > 60 s (buckets end at 60 s)" in text


def test_what_could_not_be_had_is_told_once_with_why_and_how() -> None:
    gone = decode(holds={}, hold_times=UNKNOWN, held_now=UNKNOWN, aborts=UNKNOWN)
    text = page(outcomes(prefill(), gone))
    assert "held now unknown" in words(text)
    unknown = text.partition("UNKNOWN")[2].partition("SIZING")[0]
    assert unknown.count(f"    why: {UNKNOWN.why}\n") == 1
    assert unknown.count(f"    how: {UNKNOWN.how}\n") == 1
    assert "0.0% of" not in text


@pytest.mark.parametrize("width", [60, 80, 100, 200])
@pytest.mark.parametrize("unicode", [True, False])
def test_no_line_is_too_wide_and_ascii_is_ascii(width: int, unicode: bool) -> None:
    text = page(None, width, unicode, 30.0, math.pi)
    assert max(map(len, text.splitlines())) <= width
    assert unicode or text.isascii()


def test_hostile_names_do_not_reach_the_terminal() -> None:
    from dataclasses import replace

    text = page(outcomes(prefill(), replace(decode(), name="d\x1b[31m0", version="\x07")))
    assert "\x1b" not in text
    assert "\x07" not in text
