"""What a step may do to others, from what is known of the engines that it meets, and how that is known."""

from __future__ import annotations

from collections.abc import Sequence

from pdguard.facts.handshake import DRAINED
from pdguard.facts.history import RETIRED_AT_DOOR, RETIRED_LATE
from pdguard.facts.interface import Fact, FactSet, PairSubject, Subject
from pdguard.probe.interface import Danger, Kind, Length, Side

LARGE = 32_768
"""Tokens from which on an admitted prompt may well outlast what it is waited for."""

_NAMED = 5
Judged = tuple[Danger, tuple[str, ...]]
"""The danger; where it is an exposure, a sentence for each engine or pair that is not known to be safe."""


def danger_of(
    kind: Kind, length: Length, prefills: Sequence[Subject], pairs: Sequence[PairSubject]
) -> Judged:
    """How dangerous a step is to the requests of others."""
    side = length.side
    if kind is Kind.ABORT:
        return _abort(pairs)
    if side is Side.ADMITTED and length.tokens > LARGE:
        return _large(length, pairs)
    if side is Side.PREFILL:
        return _over_read(prefills)
    if side is Side.BOTH:
        door = all(p.facts.text("reject_fate") == RETIRED_AT_DOOR for p in prefills)
        return (Danger.ORDINARY if door else Danger.HOLDS), ()
    return (Danger.HOLDS if side is Side.DECODE else Danger.ORDINARY), ()


def _over_read(prefills: Sequence[Subject]) -> Judged:
    why = [
        f"{p.name} cuts prompts to its limit, and decode may read what it has not written"
        for p in prefills
        if p.facts.flag("auto_truncate")
    ]
    why += [
        f"{p.name}: {_what(p.facts, 'reject_fate')}"
        for p in prefills
        if p.facts.text("reject_fate") not in (RETIRED_AT_DOOR, RETIRED_LATE)
    ]
    return (Danger.EXPOSES, _few(why)) if why else (Danger.HOLDS, ())


def _abort(pairs: Sequence[PairSubject]) -> Judged:
    """Without a hold that drains, writes still under way may land in pages that another request owns."""
    why: dict[str, None] = {}
    for pair in pairs:
        if pair.decode.facts.text("hold") != "on":
            why[f"{pair.decode.name}: {_what(pair.decode.facts, 'hold')}"] = None
        elif pair.facts.text("handshake") != DRAINED:
            why[f"{pair.name}: {_what(pair.facts, 'handshake')}"] = None
    return (Danger.EXPOSES, _few(list(why))) if why else (Danger.HOLDS, ())


def _large(length: Length, pairs: Sequence[PairSubject]) -> Judged:
    danger, why = _abort(pairs)
    if danger is not Danger.EXPOSES:
        return Danger.ORDINARY, ()
    large = f"a prompt of {length.tokens:,} tokens may outlast the run"
    text = f"{large}, and closing it is an abort in mid-transfer"
    return danger, (f"{text} ({'; '.join(why)})",)


_WORDS = {
    "reject_fate": ("a refused prompt", "what becomes of a refused prompt"),
    "hold": ("the hold is", "whether its hold is on"),
    "handshake": ("an abort in mid-transfer ends so:", "how an abort in mid-transfer ends"),
}
"""How a fact is said, and how its lack is."""


def _what(facts: FactSet, name: str) -> str:
    fact = facts.get(name)
    if fact is None:
        missing = facts.why_missing(name)
        reason = f" ({missing.reason})" if missing is not None else ""
        return f"{_WORDS[name][1]} is not known{reason}"
    return f"{_WORDS[name][0]} {fact.value} ({_how(fact)})"


def _how(fact: Fact) -> str:
    refs = ", ".join(dict.fromkeys(e.ref for e in fact.evidence[:2]))
    return f"{fact.grade.label}: {refs}" if refs else fact.grade.label


def _few(sentences: Sequence[str]) -> tuple[str, ...]:
    more = len(sentences) - _NAMED
    return (*sentences[:_NAMED], *((f"and {more} more",) if more > 0 else ()))
