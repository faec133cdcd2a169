"""A reading in one word and one sentence, and the most useful next step.

AT RISK where there is a fault; UNKNOWN where no decode tells how its holds ended; QUIET where nothing was
held, or too little on each decode to be judged (`policy.min_holds`); CLEAN otherwise.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pdguard.facts.interface import Scalar
from pdguard.outcomes import words
from pdguard.outcomes.interface import OUTCOMES, EngineOutcomes, Figure, Gap, Outcomes, Source
from pdguard.outcomes.judge import Fault, Kind
from pdguard.outcomes.margin import Verdict
from pdguard.outcomes.sizing import DecodeSizing
from pdguard.outcomes.terms import Known

LONGER = (("1h", 3600.0), ("6h", 21_600.0), ("24h", 86_400.0))
"""Windows to try where a Prometheus looks back."""


class Word(enum.Enum):
    """The verdict on a reading, worst first."""

    AT_RISK = "AT RISK"
    UNKNOWN = "UNKNOWN"
    QUIET = "QUIET"
    CLEAN = "CLEAN"


@dataclass(frozen=True, slots=True)
class Said:
    """The word, its sentence, and what to do next."""

    word: Word
    text: str
    step: str


def said(
    outcomes: Outcomes,
    sizing: Sequence[DecodeSizing],
    faults: Sequence[Fault],
    policy: Mapping[str, Scalar],
) -> Said:
    """The verdict on a reading with everything that was made of it."""
    told = [engine for engine in outcomes.decodes if knows_outcomes(engine)]
    held = [engine for engine in told if total(engine) > 0]
    least = float(policy["min_holds"])
    judged = [engine for engine in held if total(engine) >= least]
    if faults:
        which, text = Word.AT_RISK, _risks(faults)
    elif not told:
        which, text = Word.UNKNOWN, "no decode tells how its holds ended; unknown is not a pass"
    elif not held:
        which, text = Word.QUIET, f"nothing was held on {_of(len(told), outcomes)}, so nothing is proven"
    elif not judged:
        few = f"too few on each decode to judge (policy.min_holds is {least:g})"
        which, text = Word.QUIET, f"{_unproven(held)} on {_of(len(held), outcomes)}: {few}"
    else:
        which, text = Word.CLEAN, f"{_unproven(judged)} on {_of(len(judged), outcomes)}"
        few_of = len(held) - len(judged)
        text += f"; too few to judge on {few_of}" if few_of else ""
    dark = len(outcomes.decodes) - len(told)
    if dark and told:
        text += f"; how holds ended is unknown on {_of(dark, outcomes)}"
    step = _risk_step(sizing, faults) if faults else _step(which, outcomes, sizing)
    return Said(which, f"{outcomes.cluster}: {text}", step)


def knows_outcomes(engine: EngineOutcomes) -> bool:
    """Whether it is known how often each outcome came."""
    return all(isinstance(engine.holds.get(outcome), Figure) for outcome in OUTCOMES)


def total(engine: EngineOutcomes) -> float:
    """The holds that are known to have ended."""
    return sum(h.value for o in OUTCOMES if isinstance(h := engine.holds.get(o), Figure))


def some(names: Iterable[str], shown: int = 5) -> str:
    """`d0, d1, +3 more`."""
    every = list(names)
    return ", ".join(every[:shown]) + (f", +{len(every) - shown} more" if len(every) > shown else "")


def _of(number: int, outcomes: Outcomes) -> str:
    decodes = len(outcomes.decodes)
    return f"{number} of {decodes} decode{'s' * (decodes != 1)}"


def _unproven(engines: Sequence[EngineOutcomes]) -> str:
    drained = sum(h.value for e in engines if isinstance(h := e.holds["drained"], Figure))
    every = sum(map(total, engines))
    return f"{words.count(every - drained)} of {words.count(every)} holds ended without proof"


def _risks(faults: Sequence[Fault]) -> str:
    parts = []
    for kind in Kind:
        names = [fault.engine for fault in faults if fault.kind is kind]
        if names:
            parts.append(f"{kind.value} on {some(names)}")
    return "; ".join(parts)


def _risk_step(sizing: Sequence[DecodeSizing], faults: Sequence[Fault]) -> str:
    short = {fault.engine for fault in faults if fault.kind is Kind.T_HOLD}
    settable = [one for one in sizing if one.name in short and one.advice.value is not None]
    untold = [one for one in sizing if one.name in short and _never_told(one)]
    if untold:
        return (
            f"update or harden the prefills of {some(one.name for one in untold)}, which are never told of an"
            " abort: `pdguard audit` names them, `pdguard harden` plans it"
        )
    if settable:
        return f"{_set(settable)}: `pdguard harden` plans it"
    if short:
        return next(one.advice.reasons[0] for one in sizing if one.name in short)
    names = some(fault.engine for fault in faults)
    return (
        f"find out why prefill's word does not reach {names}: `pdguard metrics … -f json -o metrics.json`,"
        " then `pdguard audit … --with metrics.json`"
    )


def _never_told(one: DecodeSizing) -> bool:
    return any(term.value == float("inf") for term in one.margin.terms)


def _set(several: Sequence[DecodeSizing]) -> str:
    """Turn on or raise, with the number; the decodes that need the largest."""
    most = max(one.advice.value or 0.0 for one in several)
    names = [one.name for one in several if one.advice.value == most]
    zero = all(one.margin.t_hold.value == 0.0 for one in several if one.name in names)
    verb = "turn the hold on, with T_hold" if zero else "raise T_hold to"
    return f"{verb} {most:g} s on {some(names)}"


def _step(which: Word, outcomes: Outcomes, sizing: Sequence[DecodeSizing]) -> str:
    gap = _widest_gap(outcomes)
    if which is Word.UNKNOWN:
        if not outcomes.decodes:
            return "name the decodes in the cluster file (`role: decode`)"
        return gap or "see what is unknown below"
    short = [s for s in sizing if s.margin.verdict is Verdict.SHORT and s.advice.value is not None]
    if short:
        return f"{_set(short)}, or measure what is assumed: `pdguard probe --abort`"
    if gap:
        return gap
    unread = [s for s in sizing if s.margin.t_hold.known in (Known.ASSUMED, Known.UNKNOWN)]
    if unread and unread[0].margin.t_hold.how:
        return f"{unread[0].margin.t_hold.how}, so that T_hold is read on {some(s.name for s in unread)}"
    if which is Word.QUIET:
        return _longer(outcomes)
    return "nothing to do; `pdguard rules` prints alerts that keep watch"


def _widest_gap(outcomes: Outcomes) -> str:
    """How to get outcomes where they are unknown: the way that helps most decodes."""
    ways: dict[str, list[str]] = {}
    for engine in outcomes.decodes:
        gap = next((h for h in engine.holds.values() if isinstance(h, Gap) and h.how), None)
        if gap is not None:
            ways.setdefault(anyone(gap.how, engine.name), []).append(engine.name)
    if not ways:
        return ""
    how = max(ways, key=lambda way: len(ways[way]))
    return f"{how} ({some(ways[how])})"


def anyone(text: str, name: str) -> str:
    """`text` without the engine's own name in an option, so that engines alike have the same text."""
    return text.replace(f"--log {name}=FILE", "--log NAME=FILE")


def _longer(outcomes: Outcomes) -> str:
    if outcomes.seconds <= 0:
        return "come back when clients have left in mid-transfer, or make one: `pdguard probe --abort`"
    reads = [read for e in outcomes.decodes for read in e.holds.values() if isinstance(read, Figure)]
    if not any(read.source is Source.PROMETHEUS for read in reads):
        return "count since each engine's start: --window 0"
    longer = next((text for text, seconds in LONGER if seconds > outcomes.seconds), "7d")
    return f"look at a longer window: --window {longer}"
