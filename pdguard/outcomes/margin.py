"""The inequality of the hold, term by term.

T_hold > abort propagation + remaining chunks + call in flight.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pdguard.facts.deriving import missing_because
from pdguard.facts.interface import FactSet, Subject
from pdguard.harden.settings.values import CALL_MARGIN, Audience
from pdguard.outcomes.definitions import DEFAULT_T_HOLD
from pdguard.outcomes.histogram import Between
from pdguard.outcomes.interface import Figure, Read
from pdguard.outcomes.terms import NEEDS, Known, Term, configured, measured, unknown, weakest

MOONCAKE = ("mooncake", "ascend")
"""Backends whose calls MC_TRANSFER_TIMEOUT bounds."""


class Verdict(enum.Enum):
    """What the terms come to."""

    HOLDS = "holds"
    FAILS = "fails"
    SHORT = "not proven"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Margin:
    """`margin` is T_hold less the other terms, in seconds.

    FAILS is said only where settings alone show it, as check PDG407 does. SHORT is a margin that is not
    positive because of what is assumed. UNKNOWN also stands where T_hold itself is the assumed default.
    """

    t_hold: Term
    terms: tuple[Term, ...]
    margin: Term
    verdict: Verdict
    why: str


def t_hold_of(facts: FactSet) -> Term:
    """T_hold in force on a decode; 0 where nothing is held."""
    name, unit = "T_hold", "s"
    hold, kind = facts.text("hold"), facts.text("t_hold_kind")
    if hold in ("off", "impossible"):
        why = "the hold is off" if hold == "off" else "this engine cannot hold"
        return Term(name, unit, 0.0, Known.CONFIGURED, why)
    if kind in ("zero", "negative"):
        return Term(name, unit, 0.0, Known.CONFIGURED, f"set to a {kind} number: pages go at the first look")
    if kind == "infinite":
        return Term(name, unit, math.inf, Known.CONFIGURED, "no bound is set")
    if kind == "nan":
        return unknown(name, unit, "it is set to nan", "set a plain number of seconds")
    return configured(name, unit, facts, "t_hold")


def in_force(facts: FactSet, logged: Read) -> Term:
    """The T_hold that all sizing of a decode rests on: from its settings, else its log, else the default.

    The default is assumed, so nothing is said to suffice by it. Unknown where it is set to no number.
    """
    told = t_hold_of(facts)
    if told.value is not None or facts.text("t_hold_kind") == "nan":
        return told
    if isinstance(logged, Figure):
        return measured("T_hold", "s", logged)
    return Term("T_hold", "s", DEFAULT_T_HOLD, Known.ASSUMED, f"the default; {told.where}", told.how)


def margin_of(
    decode: Subject, prefills: Sequence[Subject], audience: Audience, seen: Between | None, t_hold: Term
) -> Margin:
    """The terms for one decode with the prefills that may serve it; of each term the worst prefill.

    `seen` is the bucket of the longest transfer that was seen, in seconds, if any was.
    """
    call = _worst("call in flight", prefills, _call)
    terms = (
        _worst("abort propagation", prefills, _propagation),
        _remaining(prefills, audience, seen, call),
        call,
    )
    margin = _difference(t_hold, terms)
    verdict, why = _judge(decode.facts.text("hold_scope"), t_hold, terms, margin)
    return Margin(t_hold, terms, margin, verdict, why)


def _worst(name: str, prefills: Sequence[Subject], term: Callable[[str, Subject], Term]) -> Term:
    """The largest over prefills; infinite is known enough, else one that is unknown decides."""
    found = [term(name, p) for p in prefills]
    if not found:
        return unknown(name, "s", "no prefill is known to serve this decode")
    endless = [t for t in found if t.value == math.inf]
    missing = [t for t in found if t.value is None]
    return (endless or missing or [max(found, key=lambda t: t.value or 0.0)])[0]


def _propagation(name: str, prefill: Subject) -> Term:
    if prefill.facts.flag("prefill_told") is False:
        why = f"{prefill.name} is never told of an abort (its version and backend)"
        return Term(name, "s", math.inf, Known.CONFIGURED, why)
    why = "allowed for the abort's way to prefill"
    return Term(name, "s", CALL_MARGIN, Known.ASSUMED, why, "`pdguard probe --abort` measures it")


def _call(name: str, prefill: Subject) -> Term:
    facts, unit = prefill.facts, "s"
    backend = facts.text("backend")
    if backend is None:
        missing = missing_because("engine", facts, ("backend",))
        return unknown(name, unit, f"{prefill.name}: {missing.reason}", missing.how)
    if backend in MOONCAKE:
        known = configured(name, unit, facts, "transfer_timeout")
        if known.value is not None:
            where = f"MC_TRANSFER_TIMEOUT of {prefill.name}"
            return Term(name, unit, known.value, known.known, where)
        bound, _, _ = Audience([prefill], {}).slowest_call
        where = f"Mooncake's default; {prefill.name}: {known.where}"
        return Term(name, unit, bound, Known.ASSUMED, where, known.how)
    limit = facts.number("mori_timeout_ms")
    if backend == "mori" and limit:
        where = f"SGLANG_MORI_TRANSFER_TIMEOUT_MS of {prefill.name}"
        return Term(name, unit, limit / 1000, Known.CONFIGURED, where)
    return unknown(name, unit, f"no setting bounds a call of {prefill.name} ({backend})")


def _remaining(prefills: Sequence[Subject], audience: Audience, seen: Between | None, call: Term) -> Term:
    name, unit = "remaining chunks", "s"
    caps = [(p, p.facts.integer("batch_cap")) for p in prefills]
    capped = [p.name for p, cap in caps if cap]
    if capped or audience.slowest_call[1]:
        first = f"calls of {', '.join(capped[:3])} are capped and follow one another"
        if seen is not None and math.isfinite(seen.high):
            where = f"{first}; the longest transfer seen took at most {seen.high:g} s"
            return Term(name, unit, seen.high, Known.MEASURED, where)
        if call.value is None:
            return unknown(name, unit, f"{first}, and one call is not bounded", call.how)
        left = max(0.0, call.value - CALL_MARGIN)
        where = f"{first}; with the abort's way as long as one call"
        return Term(name, unit, left, Known.ASSUMED, where, "read a window with transfers in it")
    for prefill, cap in caps:
        if cap is None and prefill.facts.flag("batch_cap_support") is not False:
            missing = missing_because("engine", prefill.facts, ("batch_cap",))
            return unknown(name, unit, f"{prefill.name}: {missing.reason}", missing.how)
    if not prefills:
        return unknown(name, unit, "no prefill is known to serve this decode")
    return Term(name, unit, 0.0, Known.CONFIGURED, "no batch cap: one call is all that follows an abort")


def _difference(t_hold: Term, terms: tuple[Term, ...]) -> Term:
    name, unit, every = "margin", "s", (t_hold, *terms)
    if any(t.value == math.inf for t in terms):
        return Term(name, unit, -math.inf, weakest(terms), "a term has no end")
    missing = next((t for t in every if t.value is None), None)
    if missing is not None:
        return unknown(name, unit, f"{NEEDS}{missing.name}: {missing.where}", missing.how)
    value = (t_hold.value or 0.0) - sum(t.value or 0.0 for t in terms)
    return Term(name, unit, value, weakest(every), "T_hold less the three terms")


def _judge(scope: str | None, t_hold: Term, terms: tuple[Term, ...], margin: Term) -> tuple[Verdict, str]:
    endless = next((t for t in terms if t.value == math.inf), None)
    if endless is not None:
        return Verdict.FAILS, f"{endless.name}: {endless.where}"
    call = terms[-1]
    if t_hold.value == 0.0:
        return Verdict.FAILS, f"nothing is held: {t_hold.where}"
    settings = t_hold.known in (Known.CONFIGURED, Known.MEASURED) and call.known is Known.CONFIGURED
    if settings and t_hold.value is not None and call.value is not None:
        rest = t_hold.value - call.value
        if rest < 0 or (rest == 0 and scope == "decode aborts"):
            why = f"T_hold of {t_hold.value:g} s does not outlast one call of {call.value:g} s"
            return Verdict.FAILS, why
    if margin.value is None:
        return Verdict.UNKNOWN, margin.where
    if t_hold.known is Known.ASSUMED:
        return Verdict.UNKNOWN, f"T_hold was not read: {t_hold.where}"
    if margin.value > 0:
        return Verdict.HOLDS, ""
    assumed = [f"{t.name} {t.value:g} s" for t in terms if t.known is Known.ASSUMED]
    return Verdict.SHORT, f"assumed are {', '.join(assumed)}"
