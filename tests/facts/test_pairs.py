"""Pairs: windows of prompt lengths, parity, the checksum, and fleets too large to list pair by pair."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdguard.facts.interface import Grade, PairSubject, Subject, Value
from pdguard.facts.pairs import build_pairs
from tests.facts.build import engine, sized


def pair_of(prefill: Subject, decode: Subject) -> PairSubject:
    (pair,) = build_pairs([prefill], [decode], [])
    return pair


def test_windows_of_the_lab() -> None:
    facts = pair_of(sized("prefill", 1024, "0.5.19"), sized("decode", 4096, "0.5.19")).facts
    assert [facts.value(n) for n in ("over_read_from", "over_read_to", "over_read_lengths")] == [
        1018,
        4089,
        3072,
    ]
    assert facts.value("mirror_lengths") == 0
    assert facts.value("longest_prompt") == 1017


def test_windows_of_the_incident() -> None:
    prefill = sized("prefill", 681_280, context=1_048_576)
    decode = sized("decode", 1_100_000, context=1_048_576)
    facts = pair_of(prefill, decode).facts
    assert facts.value("over_read_from") == 681_274
    assert facts.value("over_read_to") == 1_048_569
    assert facts.value("safe_context") == 681_280


def test_the_tokenizer_of_prefill_bounds_what_walks_on() -> None:
    # Prefill declares a shorter context: its tokenizer refuses all but six lengths of the window.
    facts = pair_of(sized("prefill", 8192, context=2048), sized("decode", 8192, context=4096)).facts
    assert facts.value("over_read_lengths") == 2048
    assert facts.value("exposed_lengths") == 6


def test_prompts_that_decode_never_places() -> None:
    facts = pair_of(sized("prefill", 1024), sized("decode", 1024, reserved_decode_tokens=512)).facts
    assert facts.value("never_admitted_from") == 513
    assert facts.value("never_admitted_lengths") == 1018 - 513
    assert facts.value("safe_context") == 519


@given(st.integers(8, 9000), st.integers(8, 9000), st.integers(8, 9000), st.integers(1, 600))
def test_safe_context_closes_every_window(p_pool: int, d_pool: int, context: int, reserved: int) -> None:
    first = pair_of(
        sized("prefill", p_pool, context=context),
        sized("decode", d_pool, context=context, reserved_decode_tokens=reserved),
    )
    safe = first.facts.integer("safe_context")
    assert safe is not None
    assert 1 <= safe <= min(p_pool, d_pool, context)
    again = pair_of(
        sized("prefill", p_pool, context=safe),
        sized("decode", d_pool, context=safe, reserved_decode_tokens=reserved),
    ).facts
    assert again.value("over_read_lengths") == 0
    assert again.value("mirror_lengths") == 0
    assert again.value("never_admitted_lengths") == 0


def test_ranks_that_differ_widen_the_window() -> None:
    prefill = engine("prefill", pools=(4096, 1024), pool=1024, admission_limit=4090)
    facts = pair_of(prefill, sized("decode", 4096)).facts
    assert facts.value("over_read_from") == 1018


def test_a_limit_that_the_formula_does_not_give_is_taken_as_told() -> None:
    prefill = sized("prefill", 1024, pools=(1024, 512), admission_limit=2042)  # context parallel
    assert pair_of(prefill, sized("decode", 4096)).facts.value("over_read_from") == 2042


@pytest.mark.parametrize(
    ("prefill", "decode", "checksum"),
    [
        ({"checksum": False}, {"checksum": False}, "off"),
        ({"checksum": True}, {"checksum": False}, "one side"),
        ({"checksum": True}, {"checksum": True}, "both"),
        ({"checksum": True, "page_size": 64}, {"checksum": True}, "layouts differ"),
        ({"checksum": True, "page_size": None}, {"checksum": True}, None),
        ({"checksum": None}, {"checksum": True}, None),
        ({"checksum_supported": False, "checksum": None}, {"checksum": True}, "not supported"),
    ],
)
def test_checksum(
    prefill: dict[str, Value | None], decode: dict[str, Value | None], checksum: str | None
) -> None:
    pair = pair_of(engine("prefill", "0.5.22", **prefill), engine("decode", "0.5.22", **decode))
    assert pair.facts.value("checksum") == checksum


def test_a_difference_is_known_even_where_other_settings_are_not() -> None:
    pair = pair_of(engine("prefill", page_size=64, kv_cache_dtype=None), engine("decode"))
    assert pair.facts.value("differs") == ("page_size",)
    same = pair_of(engine("prefill", kv_cache_dtype=None), engine("decode"))
    assert same.facts.value("differs") is None
    assert same.facts.why_missing("differs") is not None


def test_versions_across_the_border_end_in_timeouts() -> None:
    prefill = engine("prefill", "0.5.21", hold_setting=True, t_hold_kind="finite")
    facts = pair_of(prefill, engine("decode", hold_setting=True, t_hold_kind="finite")).facts
    assert facts.value("formats") == "different"
    assert facts.value("handshake") == "timeout"
    fact = facts.get("handshake")
    assert fact is not None
    assert fact.grade is Grade.CLAIMED


def test_a_half_that_did_not_answer_is_named_as_the_reason() -> None:
    silent = Subject("engine", "d0")
    silent.facts.miss("admission_limit", "connection refused", "start it")
    pair = pair_of(engine("prefill"), silent)
    why = pair.facts.why_missing("over_read_lengths")
    assert why is not None
    assert why.reason == "connection refused"


def test_routers_say_which_engines_meet() -> None:
    prefills = [engine("prefill", name=n) for n in ("p0", "p1")]
    decodes = [engine("decode", name=n) for n in ("d0", "d1")]
    one, two = Subject("router", "r0"), Subject("router", "r1")
    one.facts.add("retries", 5, Grade.CLAIMED, "cluster", "r0")
    fronts = [(one, frozenset({"p0", "d0"})), (two, frozenset({"p1", "d1"}))]
    pairs = build_pairs(prefills, decodes, fronts)
    assert [p.name for p in pairs] == ["p0→d0", "p1→d1"]
    assert [p.facts.value("retries") for p in pairs] == [5, None]


def test_a_large_fleet_is_judged_by_its_extremes() -> None:
    prefills = [sized("prefill", 100_000 + i, context=200_000, name=f"p{i}") for i in range(300)]
    decodes = [sized("decode", 150_000 - i, context=200_000, name=f"d{i}") for i in range(200)]
    pairs = build_pairs(prefills, decodes, [])
    assert len(pairs) == 4
    assert sum(p.alike for p in pairs) == 60_000
    assert max(p.facts.integer("over_read_lengths") or 0 for p in pairs) == 50_000
