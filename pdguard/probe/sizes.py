"""Prompt lengths to probe with: one on each side of every limit, from the facts of a pair or of many.

A limit of L admits L - 1 tokens and refuses L. Engines that truncate refuse nothing; they get the same
lengths, taken from the limits as they stand, so that the probe shows what they do with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pdguard.facts.deriving import missing_because
from pdguard.facts.interface import FactSet, Missing, PairSubject, Subject
from pdguard.facts.windows import NEEDS, RANKS_UNKNOWN, _limit, rank_limits
from pdguard.probe.interface import LeftOut, Length, Side

NEW_TOKENS = 4
BEYOND = 4
"""A prompt for the tokenizer is longer than the context by so many tokens."""

CUT = 64
"""A prompt for a half that truncates is over its limit by so many tokens, where there is room."""

TEXT_SLACK = 32
"""A text comes to about as many tokens as are wanted: it keeps this far from a limit, where there is room."""

ALL = "over-pool lengths"
ELSEWHERE = "--direct"
"""What to do about a length that the pairs behind a router do not have in common."""

_FIRST = "a tokenizer refuses these lengths first"
Sizes = tuple[tuple[Length, ...], tuple[LeftOut, ...]]


@dataclass(frozen=True, slots=True)
class _Limits:
    """The limits that may meet: (lowest, highest) of each role, in tokens.

    Prompts shorter than `opens` pass every tokenizer. `place` is the longest prompt that every decode rank
    can place, or why that is not known.
    """

    prefill: tuple[int, int]
    decode: tuple[int, int]
    contexts: tuple[int, int]
    opens: int
    place: int | Missing
    cuts: tuple[bool, bool]
    """Whether a prefill, and whether a decode, truncates what is over its limit."""


def lengths(prefill: FactSet, decode: FactSet, pair: FactSet, texts: bool = False) -> Sizes:
    """The lengths for one pair, one set a DP rank where ranks differ, and what cannot be probed and why.

    With `texts` they keep some distance from each limit. `pair` holds what follows from the two halves.
    """
    missing = _missing(prefill, decode, pair)
    if missing is not None:
        return (), (LeftOut(ALL, missing.reason, missing.how),)
    ranks, unmet = _ranks(prefill, decode)
    every = [one for r in ranks for one in _sides(_of_halves([prefill], [decode], r), r, texts)]
    if unmet:
        every.append(LeftOut("other DP ranks", unmet))
    return _sorted(every)


def router_lengths(pairs: Sequence[PairSubject], texts: bool = False) -> Sizes:
    """Lengths that say something whichever of `pairs` serves them, and what has none in common."""
    if not pairs:
        return (), (LeftOut(ALL, "no pair of engines is behind it", "check `engines:` of the router"),)
    for pair in pairs:
        missing = _missing(pair.prefill.facts, pair.decode.facts, pair.facts)
        if missing is not None:
            return (), (LeftOut(ALL, f"{pair.name}: {missing.reason}", missing.how),)
    limits = _of_halves(_facts(p.prefill for p in pairs), _facts(p.decode for p in pairs), None)
    return _sorted(_sides(limits, None, texts, ELSEWHERE))


def _sorted(every: Iterable[Length | LeftOut]) -> Sizes:
    kept = tuple(dict.fromkeys(every))
    return tuple(k for k in kept if isinstance(k, Length)), tuple(k for k in kept if isinstance(k, LeftOut))


def _facts(subjects: Iterable[Subject]) -> list[FactSet]:
    return list({s.name: s.facts for s in subjects}.values())


def _missing(prefill: FactSet, decode: FactSet, pair: FactSet) -> Missing | None:
    for half in (prefill, decode):
        if any(half.get(n) is None for n in (*NEEDS[:2], "dp_size")):
            return missing_because("engine", half, (*NEEDS[:2], "dp_size"))
        if rank_limits(half) is None:
            return pair.why_missing("longest_prompt") or Missing(RANKS_UNKNOWN)
    return None


def _ranks(prefill: FactSet, decode: FactSet) -> tuple[tuple[int | None, ...], str]:
    """The ranks to probe one by one, or (None,) where all are alike; and why others are not met."""
    if _alike(prefill) and _alike(decode):
        return (None,), ""
    one, two = prefill.integer("dp_size") or 1, decode.integer("dp_size") or 1
    if one == two:
        return tuple(range(one)), ""
    return (0,), f"prefill has {one} DP ranks and decode {two}: only ranks 0 are sure to meet"


def _alike(facts: FactSet) -> bool:
    pools = facts.items("pools")
    low, high = rank_limits(facts) or (0, 0)
    return low == high and (pools is None or len(set(pools)) <= 1 or facts.integer("dp_size") == 1)


def _of_halves(prefills: Sequence[FactSet], decodes: Sequence[FactSet], rank: int | None) -> _Limits:
    contexts = [f.integer("context_length") or 0 for f in (*prefills, *decodes)]
    opens = [
        (f.integer("context_length") or 0) - (f.integer("reserved_tokens") or 0)
        for f in (*prefills, *decodes)
    ]
    return _Limits(
        _span(prefills, rank),
        _span(decodes, rank),
        (min(contexts), max(contexts)),
        min(opens),
        _place(decodes, rank),
        (_cuts(prefills), _cuts(decodes)),
    )


def _cuts(halves: Sequence[FactSet]) -> bool:
    return any(f.flag("auto_truncate") for f in halves)


def _span(halves: Sequence[FactSet], rank: int | None) -> tuple[int, int]:
    spans = [_rank_limit(f, rank) for f in halves]
    return min(low for low, _ in spans), max(high for _, high in spans)


def _rank_limit(facts: FactSet, rank: int | None) -> tuple[int, int]:
    low, high = rank_limits(facts) or (0, 0)
    pools = facts.items("pools") or ()
    if rank is None or low == high or rank >= len(pools):
        return low, high
    # rank_limits gives two limits only where the formula holds for this engine.
    limit = _limit(facts.integer("context_length") or 0, int(pools[rank]))
    return limit, limit


def _place(decodes: Sequence[FactSet], rank: int | None) -> int | Missing:
    """Decode keeps tokens back for decoding: what then does not fit waits for ever."""
    most: list[int] = []
    for facts in decodes:
        pools = facts.items("pools") or ()
        pool = int(pools[rank]) if rank is not None and rank < len(pools) else facts.integer("pool")
        reserved = facts.integer("reserved_decode_tokens")
        if pool is None or reserved is None:
            why = missing_because("engine", facts, ("pool", "reserved_decode_tokens"))
            return Missing(f"whether decode can place it is not known ({why.reason})", why.how)
        most.append(pool - reserved)
    return min(most)


def _sides(m: _Limits, rank: int | None, texts: bool, elsewhere: str = "") -> Iterator[Length | LeftOut]:
    beyond = m.contexts[1] + (TEXT_SLACK if texts else BEYOND)
    stuck = _stuck(m)
    if stuck:
        yield LeftOut(Side.CONTEXT.value, stuck, lost=False)
    else:
        yield _length(m, rank, Side.CONTEXT, beyond)
    admitted = _admitted(m)
    if isinstance(admitted, int):
        admitted -= min(TEXT_SLACK, admitted // 2) if texts else 0
        yield _length(m, rank, Side.ADMITTED, admitted)
    else:
        yield admitted
    windows = (_both(m), _mirror(m, elsewhere), _over_read(m, elsewhere))
    for side, window in zip((Side.BOTH, Side.DECODE, Side.PREFILL), windows, strict=True):
        if isinstance(window, LeftOut):
            yield window
        elif window is not None and stuck and side is not Side.PREFILL:
            yield LeftOut(side.value, stuck)
        elif window is not None:
            low, end = window
            more = min(TEXT_SLACK, (end - 1 - low) // 2) if texts else 0
            if any(m.cuts):
                more = max(more, min(CUT, end - 1 - low))
            yield _length(m, rank, side, low + more)


def _stuck(m: _Limits) -> str:
    """Why no prompt over decode's limit may be sent, if so: one cut to a length that decode never places."""
    if not m.cuts[1]:
        return ""
    if isinstance(m.place, Missing):
        return m.place.reason
    if m.decode[1] <= m.place:
        return ""
    return (
        f"decode cuts to {m.decode[1]:,} tokens and can place {m.place:,} at the most: such a prompt would "
        "wait for ever at the head of its queue"
    )


def _length(m: _Limits, rank: int | None, side: Side, tokens: int) -> Length:
    """A length with the limit, of all that may meet, that decides on its side."""
    prefill = m.prefill[side in (Side.BOTH, Side.PREFILL)]
    decode = m.decode[side in (Side.BOTH, Side.DECODE)]
    new = max(1, min(NEW_TOKENS, m.opens - tokens))
    return Length(side, tokens, prefill, decode, m.contexts[0], new, rank)


def _admitted(m: _Limits) -> int | LeftOut:
    if isinstance(m.place, Missing):
        return LeftOut(Side.ADMITTED.value, m.place.reason, m.place.how, lost=False)
    most = min(m.prefill[0] - 1, m.decode[0] - 1, m.place, m.opens - 1)
    if most >= 1:
        return most
    why = "no prompt fits: decode's pool is no larger than what it keeps back for decoding"
    todo = "lower --num-reserved-decode-tokens, or raise the pool"
    return LeftOut(Side.ADMITTED.value, why, todo, lost=False)


Window = tuple[int, int] | LeftOut | None
"""From the first length to the first beyond; None where no half has such a window."""


def _both(m: _Limits) -> Window:
    low = max(m.prefill[1], m.decode[1])
    if low < m.opens:
        return low, m.opens
    why = "the tokenizers refuse every prompt that all engines would reject"
    return LeftOut(Side.BOTH.value, why, lost=False)


def _mirror(m: _Limits, elsewhere: str) -> Window:
    if m.decode[0] >= m.prefill[1]:
        return None
    if m.decode[1] >= m.prefill[0]:
        what = "every decode rejects and every prefill admits"
        return LeftOut(Side.DECODE.value, f"the pairs have no length in common that {what}", elsewhere)
    if m.decode[1] >= m.opens:
        return LeftOut(Side.DECODE.value, _FIRST, lost=False)
    return m.decode[1], min(m.prefill[0], m.opens)


def _over_read(m: _Limits, elsewhere: str) -> Window:
    if m.prefill[0] >= m.decode[1]:
        return None
    if m.prefill[1] >= m.decode[0]:
        what = "every prefill rejects and every decode admits"
        return LeftOut(Side.PREFILL.value, f"the pairs have no length in common that {what}", elsewhere)
    if m.prefill[1] >= m.opens:
        return LeftOut(Side.PREFILL.value, _FIRST, lost=False)
    if isinstance(m.place, Missing):
        return LeftOut(Side.PREFILL.value, m.place.reason, m.place.how)
    if m.prefill[1] > m.place:
        why = (
            f"decode admits {m.prefill[1]:,} tokens but can never place them: with what it keeps back for"
            f" decoding, {m.place:,} is the most"
        )
        return LeftOut(Side.PREFILL.value, why)
    return m.prefill[1], min(m.decode[0], m.opens, m.place + 1)
