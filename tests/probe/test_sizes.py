"""Prompt lengths: one on each side of every limit, and never one that only hangs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdguard.facts.interface import PairSubject, Subject
from pdguard.facts.pairing import build_pairs
from pdguard.probe.interface import LeftOut, Length, Side
from pdguard.probe.sizes import lengths, router_lengths
from tests.facts.build import engine, sized


def pair_of(prefill: Subject, decode: Subject) -> PairSubject:
    (pair,) = build_pairs([prefill], [decode], [])
    return pair


def of_pair(
    prefill: Subject, decode: Subject, texts: bool = False
) -> tuple[tuple[Length, ...], tuple[LeftOut, ...]]:
    pair = pair_of(prefill, decode)
    return lengths(prefill.facts, decode.facts, pair.facts, texts)


def tokens(found: Sequence[Length]) -> dict[Side, int]:
    return {one.side: one.tokens for one in found}


def why(left: Sequence[LeftOut], what: str) -> str:
    return next(one.why for one in left if one.what == what)


def test_the_lab_with_a_smaller_prefill() -> None:
    found, left = of_pair(sized("prefill", 1024), sized("decode", 4096))
    assert tokens(found) == {
        Side.CONTEXT: 4100,
        Side.ADMITTED: 1017,
        Side.BOTH: 4090,
        Side.PREFILL: 1018,
    }
    assert left == ()
    assert {one.side: one.new_tokens for one in found} == {
        Side.CONTEXT: 1,
        Side.ADMITTED: 4,
        Side.BOTH: 4,
        Side.PREFILL: 4,
    }
    assert {(one.prefill_limit, one.decode_limit, one.context, one.rank) for one in found} == {
        (1018, 4090, 4096, None)
    }


def test_the_lab_with_a_smaller_decode() -> None:
    found, left = of_pair(sized("prefill", 4096), sized("decode", 1024))
    assert tokens(found) == {
        Side.CONTEXT: 4100,
        Side.ADMITTED: 1008,
        Side.BOTH: 4090,
        Side.DECODE: 1018,
    }
    assert left == ()


def test_equal_pools_have_no_window() -> None:
    found, left = of_pair(sized("prefill", 1024), sized("decode", 1024))
    assert tokens(found) == {Side.CONTEXT: 4100, Side.ADMITTED: 1008, Side.BOTH: 1018}
    assert left == ()


def test_what_decode_cannot_place_is_not_sent() -> None:
    # 513 tokens hang on the real engine: decode keeps 512 of its 1,024 back.
    found, _ = of_pair(sized("prefill", 1024), sized("decode", 1024, reserved_decode_tokens=512))
    assert tokens(found)[Side.ADMITTED] == 512


def test_a_window_that_decode_cannot_place_is_left_out() -> None:
    found, left = of_pair(sized("prefill", 1024), sized("decode", 1400, reserved_decode_tokens=512))
    assert Side.PREFILL not in tokens(found)
    assert "888 is the most" in why(left, "only prefill rejects")


def test_a_reserve_that_is_not_known_leaves_out_what_may_hang() -> None:
    found, left = of_pair(sized("prefill", 1024), sized("decode", 4096, reserved_decode_tokens=None))
    assert tokens(found) == {Side.CONTEXT: 4100, Side.BOTH: 4090}
    assert {one.what for one in left} == {"just admitted", "only prefill rejects"}


@pytest.mark.parametrize("name", ["admission_limit", "context_length", "dp_size"])
def test_a_missing_fact_leaves_everything_out(name: str) -> None:
    prefill = sized("prefill", 1024)
    del prefill.facts.entries[name]
    found, left = of_pair(prefill, sized("decode", 4096))
    assert found == ()
    assert left[0].why
    assert left[0].todo


def test_truncating_engines_get_prompts_well_over_their_limits() -> None:
    cut, _ = of_pair(sized("prefill", 1024, auto_truncate=True), sized("decode", 8192, auto_truncate=True))
    plain, _ = of_pair(sized("prefill", 1024), sized("decode", 8192))
    assert tokens(plain)[Side.PREFILL] == 1018
    assert tokens(cut)[Side.PREFILL] == 1018 + 64
    assert tokens(cut)[Side.BOTH] == 4095  # there is no more room
    assert tokens(cut)[Side.ADMITTED] == tokens(plain)[Side.ADMITTED]


def test_a_prompt_that_decode_cuts_to_what_it_cannot_place_is_not_sent() -> None:
    """On a real pair it stood at the head of decode's queue and held up everybody behind it."""
    found, left = of_pair(sized("prefill", 1024), sized("decode", 4096, auto_truncate=True))
    assert {Side.CONTEXT, Side.BOTH}.isdisjoint(tokens(found))
    assert "decode cuts to 4,090 tokens and can place" in why(left, "both reject")
    assert {one.what: one.lost for one in left}["both reject"] is True


def test_the_tokenizer_bounds_what_both_reject() -> None:
    found, left = of_pair(sized("prefill", 8192, reserved_tokens=8), sized("decode", 8192, reserved_tokens=8))
    assert Side.BOTH not in tokens(found)
    assert why(left, "both reject") == "the tokenizers refuse every prompt that all engines would reject"


def test_other_contexts() -> None:
    # Prefill's tokenizer lets six lengths of the window through, and fewer tokens fit beside the last.
    found, _ = of_pair(sized("prefill", 8192, context=2048), sized("decode", 8192, context=4096))
    one = next(f for f in found if f.side is Side.PREFILL)
    assert (one.tokens, one.context) == (2042, 2048)
    assert tokens(found)[Side.CONTEXT] == 4100


def ranked(role: str, *pools: int) -> Subject:
    limit = min(4095, pools[0] - 1) - 5
    return engine(role, pools=pools, pool=min(pools), dp_size=len(pools), admission_limit=limit)


def test_ranks_with_other_pools_have_lengths_of_their_own() -> None:
    found, _ = of_pair(ranked("prefill", 1024, 2048), ranked("decode", 4096, 4096))
    assert [(one.rank, one.tokens) for one in found if one.side is Side.PREFILL] == [(0, 1018), (1, 2042)]
    assert [(one.rank, one.tokens) for one in found if one.side is Side.ADMITTED] == [(0, 1017), (1, 2041)]


def test_the_smaller_rank_of_decode_places_less() -> None:
    found, _ = of_pair(ranked("prefill", 4096, 4096), ranked("decode", 4096, 1024))
    assert [(one.rank, one.tokens) for one in found if one.side is Side.ADMITTED] == [(0, 4080), (1, 1008)]


def test_ranks_that_are_alike_have_one_set() -> None:
    found, _ = of_pair(ranked("prefill", 1024, 1024), ranked("decode", 4096, 4096))
    assert {one.rank for one in found} == {None}
    assert tokens(found)[Side.PREFILL] == 1018


def test_ranks_of_other_numbers_meet_at_the_first() -> None:
    found, left = of_pair(ranked("prefill", 1024, 2048), sized("decode", 4096))
    assert {one.rank for one in found} == {0}
    assert "only ranks 0" in why(left, "other DP ranks")


def test_texts_keep_away_from_the_limits() -> None:
    found, _ = of_pair(sized("prefill", 1024), sized("decode", 4096), texts=True)
    assert tokens(found) == {
        Side.CONTEXT: 4128,
        Side.ADMITTED: 985,
        Side.BOTH: 4092,
        Side.PREFILL: 1050,
    }


def behind(prefills: Sequence[Subject], decodes: Sequence[Subject]) -> list[PairSubject]:
    return build_pairs(prefills, decodes, [])


def test_behind_a_router_a_length_holds_for_every_pair() -> None:
    pairs = behind(
        [sized("prefill", 1024), sized("prefill", 2048, name="p1")],
        [sized("decode", 4096), sized("decode", 3000, name="d1")],
    )
    found, left = router_lengths(pairs)
    assert tokens(found) == {
        Side.CONTEXT: 4100,
        Side.ADMITTED: 1017,
        Side.BOTH: 4090,
        Side.PREFILL: 2042,
    }
    assert left == ()


def test_behind_a_router_a_window_may_not_be_common() -> None:
    pairs = behind([sized("prefill", 1024), sized("prefill", 4096, name="p1")], [sized("decode", 2048)])
    found, left = router_lengths(pairs)
    assert tokens(found) == {Side.CONTEXT: 4100, Side.ADMITTED: 1017, Side.BOTH: 4090}
    assert {one.what: one.todo for one in left} == {
        "only decode rejects": "--direct",
        "only prefill rejects": "--direct",
    }
    assert "no length in common" in why(left, "only prefill rejects")


def test_behind_a_router_what_is_missing_names_its_pair() -> None:
    pairs = behind([sized("prefill", 1024, admission_limit=None)], [sized("decode", 2048)])
    found, left = router_lengths(pairs)
    assert found == ()
    assert left[0].why.startswith("p0→d0: ")
    assert router_lengths([])[1][0].why == "no pair of engines is behind it"


sizes = st.integers(700, 9000)


@given(st.lists(sizes, min_size=1, max_size=3), st.lists(sizes, min_size=1, max_size=3), st.booleans())
def test_every_length_lies_on_its_side_for_every_pair(
    prefill_pools: list[int], decode_pools: list[int], texts: bool
) -> None:
    prefills = [sized("prefill", pool, name=f"p{n}") for n, pool in enumerate(prefill_pools)]
    decodes = [
        sized("decode", pool, name=f"d{n}", reserved_decode_tokens=512) for n, pool in enumerate(decode_pools)
    ]
    found, _ = router_lengths(behind(prefills, decodes), texts)
    assert {one.side for one in found} >= {Side.CONTEXT, Side.ADMITTED, Side.BOTH}
    for p in prefill_pools:
        for d in decode_pools:
            one, two = (min(4095, pool - 1) - 5 for pool in (p, d))
            for length in found:
                n = length.tokens
                assert length.side is Side.CONTEXT or n + length.new_tokens <= 4096
                rejected = n >= one, n >= two
                if length.side is Side.CONTEXT:
                    assert n > 4096
                elif length.side is Side.ADMITTED:
                    assert rejected == (False, False)
                    assert n + 512 <= d
                elif length.side is Side.BOTH:
                    assert rejected == (True, True)
                elif length.side is Side.PREFILL:
                    assert rejected == (True, False)
                    assert n + 512 <= d
                else:
                    assert rejected == (False, True)
