"""Pairs: windows of prompt lengths, parity, the checksum, and fleets too large to list pair by pair."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdguard.facts import pairing
from pdguard.facts.interface import Grade, PairSubject, Subject, Value
from pdguard.facts.pairing import build_pairs
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
    prefill = engine("prefill", pools=(4096, 1024), pool=1024, dp_size=2, admission_limit=4090)
    facts = pair_of(prefill, sized("decode", 4096)).facts
    assert facts.value("over_read_from") == 1018


def test_a_limit_that_the_formula_does_not_give_is_taken_as_told() -> None:
    prefill = engine("prefill", pools=(1024, 1024), dp_size=2, admission_limit=2042)  # context parallel
    assert pair_of(prefill, sized("decode", 4096)).facts.value("over_read_from") == 2042


@pytest.mark.parametrize(
    ("prefill", "decode", "checksum"),
    [
        ({"checksum": False}, {"checksum": False}, "off"),
        ({"checksum": True}, {"checksum": False}, "one side"),
        ({"checksum": True}, {"checksum": True}, "both"),
        ({"checksum": True, "page_size": 64}, {"checksum": True}, "layouts differ"),
        ({"checksum": True, "page_size": None}, {"checksum": True}, None),
        ({"checksum": True, "tp_size": 8}, {"checksum": True, "tp_size": 4}, None),
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
    assert len(pairs) < 1500
    assert max(p.facts.integer("over_read_lengths") or 0 for p in pairs) == 50_000
    # No engine is left out.
    assert {n for p in pairs for n in p.members[0]} == {p.name for p in prefills}
    assert {n for p in pairs for n in p.members[1]} == {d.name for d in decodes}


def test_equal_engines_are_one_class_with_all_names() -> None:
    prefills = [sized("prefill", 1024, name=f"p{i}") for i in range(300)]
    decodes = [sized("decode", 4096, name=f"d{i}") for i in range(200)]
    (pair,) = build_pairs(prefills, decodes, [])
    assert pair.alike == 60_000
    assert len(pair.members[0]) == 300


def test_engines_that_a_waiver_tells_apart_are_never_one_class() -> None:
    prefills = [sized("prefill", 1024, name=f"p{i}") for i in range(20)]
    decodes = [sized("decode", 4096, name=f"d{i}") for i in range(20)]
    pairs = build_pairs(prefills, decodes, [], ["p0→d0", "*"])
    assert [p.name for p in pairs if p.alike == 1] == ["p0→d0"]
    assert sum(p.alike for p in pairs) == 400


_POOLS = st.sampled_from([1000, 2000, 4300, 9000])


@given(
    st.lists(st.tuples(_POOLS, _POOLS), min_size=2, max_size=5),
    st.lists(st.tuples(_POOLS, _POOLS), min_size=2, max_size=5),
)
def test_collapsing_loses_no_verdict(p_pools: list[tuple[int, int]], d_pools: list[tuple[int, int]]) -> None:
    """What is open somewhere for an engine with every pair listed is open with the extremes alone."""

    def fleet(role: str, pools: list[tuple[int, int]]) -> list[Subject]:
        return [
            engine(
                role,
                "0.5.19",
                name=f"{role}{i}",
                dp_size=2,
                pools=p,
                pool=min(p),
                reserved_decode_tokens=512,
                admission_limit=min(4095, p[0] - 1) - 5,
            )
            for i, p in enumerate(pools)
        ]

    prefills, decodes = fleet("prefill", p_pools), fleet("decode", d_pools)
    names = ("over_read_lengths", "mirror_lengths", "exposed_lengths", "never_admitted_lengths")

    def bad(pairs: list[PairSubject]) -> set[tuple[str, str]]:
        return {(n, e) for p in pairs for n in names if p.facts.integer(n) for m in p.members for e in m}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairing, "MAX_PAIRS", 0)
        patch.setattr(pairing, "MAX_CLASS_PAIRS", 0)
        few = build_pairs(prefills, decodes, [])
    every = build_pairs(prefills, decodes, [])
    assert bad(few) == bad(every)
    safe = [min(p.facts.integer("safe_context") or 0 for p in pairs) for pairs in (few, every)]
    assert safe[0] == safe[1]


def test_a_half_that_truncates_admits_whatever_comes() -> None:
    facts = pair_of(
        sized("prefill", 1024, "0.5.19"), sized("decode", 1024, "0.5.19", auto_truncate=True)
    ).facts
    assert facts.value("over_read_from") == 1018
    assert facts.value("over_read_to") == 4095
    assert facts.value("exposed_lengths") == 4096 - 1018
    assert facts.value("cut_differs") is True
    both = pair_of(
        sized("prefill", 1024, auto_truncate=True), sized("decode", 1024, auto_truncate=True)
    ).facts
    assert (both.value("over_read_lengths"), both.value("cut_differs")) == (0, False)


@pytest.mark.parametrize(
    ("prefill", "decode", "cuts", "unwritten"),
    [
        (1024, 8192, True, 4090 - 1018),  # decode cuts to its own limit of 4,090
        (1024, 8192, False, 4089 - 1018),  # decode admits up to 4,089
        (1024, 1024, True, 0),
        (8192, 1024, True, 0),
    ],
)
def test_what_a_truncating_prefill_does_not_write(
    prefill: int, decode: int, cuts: bool, unwritten: int
) -> None:
    one, two = sized("prefill", prefill, auto_truncate=True), sized("decode", decode, auto_truncate=cuts)
    assert pair_of(one, two).facts.value("unwritten_tokens") == unwritten
    plain = pair_of(sized("prefill", prefill), two).facts
    assert plain.value("unwritten_tokens") == 0


def test_ranks_that_are_not_known_are_not_taken_as_equal() -> None:
    prefill = engine("prefill", "0.5.19", dp_size=2)
    facts = pair_of(prefill, sized("decode", 1024, "0.5.19")).facts
    assert facts.get("over_read_lengths") is None
    why = facts.why_missing("over_read_lengths")
    assert why is not None
    assert "ranks" in why.reason


def test_a_sliding_window_limit_bounds_the_safe_context() -> None:
    prefill = engine("prefill", pool=3000, pools=(3000,), admission_limit=294)
    assert pair_of(prefill, sized("decode", 9000)).facts.value("safe_context") == 300


def test_engines_behind_no_router_meet_each_other() -> None:
    prefills = [engine("prefill", name=n) for n in ("p0", "p1")]
    decodes = [engine("decode", name=n) for n in ("d0", "d1")]
    pairs = build_pairs(prefills, decodes, [(Subject("router", "r0"), frozenset({"p0", "d0"}))])
    assert [p.name for p in pairs] == ["p0→d0", "p1→d1"]
    assert build_pairs(prefills[:1], decodes[:1], [(Subject("router", "r0"), frozenset({"p0"}))]) == []
