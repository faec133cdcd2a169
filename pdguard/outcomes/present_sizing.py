"""Sizing for people: one block a decode, decodes that are alike together; term by term if asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pdguard.outcomes import words
from pdguard.outcomes.interface import Gap
from pdguard.outcomes.margin import Margin, Verdict
from pdguard.outcomes.said import some
from pdguard.outcomes.sizing import SHARE_LIMIT, Advice, Capacity, DecodeSizing, WhatIf
from pdguard.outcomes.terms import Known, Term
from pdguard.report._paper import Paper

_LABEL = 20
_STYLES = {
    Verdict.HOLDS: "ok",
    Verdict.FAILS: "high",
    Verdict.SHORT: "medium",
    Verdict.UNKNOWN: "unknown",
}

BY_ASSUMED = " by what is assumed"

_Row = tuple[str, str, str]
"""A label, its text and its style."""


def sizing_blocks(paper: Paper, sizing: Sequence[DecodeSizing], *, detail: bool) -> None:
    """Every decode's block; with `detail` the inputs and the margin follow, each decode by itself."""
    if not sizing:
        return
    paper.blank()
    hint = "" if detail else "T_hold and what it costs; --detail shows every term"
    paper.text(hint or "T_hold and what it costs", lead=(("SIZING  ", "bold"),), indent=8)
    alike: dict[tuple[object, ...], list[DecodeSizing]] = {}
    for place, one in enumerate(sizing):
        rows = tuple(_rows(one))
        alike.setdefault((rows, one.prefills, place if detail else None), []).append(one)
    for several in alike.values():
        one = several[0]
        served = f"served by {some(paper.fit(p, 40) for p in one.prefills)}" if one.prefills else ""
        names = some(paper.fit(each.name, 40) for each in several)
        paper.text(served, lead=((f"  {names}  ", "bold"),), indent=4)
        _write(paper, _rows(one))
        if detail:
            _write(paper, _detail(one))


def _write(paper: Paper, rows: Iterator[_Row]) -> None:
    for label, text, style in rows:
        lead = f"    {label:<{_LABEL}} "
        paper.text(text, lead=((lead, ""),), indent=_LABEL + 5, style=style)


def margin_words(one: Margin) -> str:
    """The one judgement of a T_hold, with the seconds that it rests on."""
    left = words.term(one.margin)
    if one.verdict is Verdict.HOLDS:
        return f"sufficient, with {left} to spare" + (
            "," + BY_ASSUMED if one.margin.known is Known.ASSUMED else ""
        )
    if one.verdict is Verdict.SHORT:
        return f"not proven sufficient ({left}{_assumed(one.margin)})"
    if one.verdict is Verdict.FAILS:
        return f"not sufficient: {one.why}"
    if one.t_hold.known is Known.ASSUMED:
        rest = f" ({left}{_assumed(one.margin)})" if one.margin.value is not None else ""
        return f"whether it suffices is not known{rest}"
    return f"whether it suffices is not known: {one.why}"


def _assumed(margin: Term) -> str:
    return BY_ASSUMED if margin.known is Known.ASSUMED else ""


def _rows(one: DecodeSizing) -> Iterator[_Row]:
    yield (
        "T_hold in force",
        f"{_in_force(one.margin.t_hold)}; {margin_words(one.margin)}",
        _STYLES[one.margin.verdict],
    )
    yield "holds take", _costs(one.worst, one.usual), ""
    yield "T_hold to set", _advised(one.advice), "bold"
    for what_if in one.what_ifs:
        yield f"if T_hold {what_if.t_hold:g} s", _what_if(what_if), ""


def _in_force(t_hold: Term) -> str:
    if t_hold.value is None:
        return f"unknown ({t_hold.where}{_how(t_hold)})"
    if t_hold.known is Known.ASSUMED:
        return f"not read, so the default of {words.term(t_hold)} is assumed{_how(t_hold)}"
    return words.term(t_hold)


def _how(term: Term) -> str:
    return f" ({term.how})" if term.how else ""


def _costs(worst: Capacity, usual: Capacity) -> str:
    """The share of the pool, at worst and as measured; a reason that both have in common is told once."""
    a, b = worst.share, usual.share
    if a.value is None and b.value is None:
        return f"share of the pool unknown: {a.where}{_how(a)}"
    parts = []
    for capacity, word in ((worst, "at worst"), (usual, "as measured")):
        share = capacity.share
        if share.value is None:
            parts.append(f"{word} unknown ({share.where})")
        else:
            parts.append(f"{words.term(share)} of the pool {word} ({words.term(capacity.tokens)})")
    told = ", ".join(parts)
    rates = {c.rate.where for c in (worst, usual) if c.rate.known is Known.ASSUMED}
    return f"{told}, with the assumed {worst.rate.value:g} aborts/s" if rates else told


def _advised(advice: Advice) -> str:
    if advice.value is None:
        return f"none can be advised: {advice.reasons[0]}"
    text = f"{advice.value:g} s"
    if advice.good:
        text += "; what is in force will do"
    if advice.share.value is not None:
        text += f"; holds then take at most {words.term(advice.share)} of the pool"
        if advice.share.value > SHARE_LIMIT:
            text += ", which is much: find out why requests are aborted, or give decode a larger pool"
    return text


def _what_if(one: WhatIf) -> str:
    share = one.capacity.share
    if share.value is not None:
        held = f"{words.term(share)} of the pool"
        if one.capacity.rate.known is Known.ASSUMED:
            held += f" at the assumed {one.capacity.rate.value:g} aborts/s"
    else:
        held = f"share of the pool unknown ({share.where}{'; ' + share.how if share.how else ''})"
    if isinstance(one.by_timeout, Gap):
        ended = f"share that the clock would end unknown ({one.by_timeout.why})"
    else:
        ended = f"{words.share(one.by_timeout)} of the holds seen would end by the clock"
    return f"{held}; {ended}; {margin_words(one.margin)}"


def _detail(one: DecodeSizing) -> Iterator[_Row]:
    yield "worst case", _capacity(one.worst), ""
    yield "as measured", _capacity(one.usual), ""
    for term in _inputs(one):
        yield f"  {term.name}", f"{words.term(term)}  {words.known(term)}", "dim"
    left = one.margin
    yield "margin", words.term(left.margin) + (f": {left.why}" if left.why else ""), ""
    for sign, term in (("  ", left.t_hold), *(("- ", t) for t in left.terms)):
        how = _how(term) if term.known is not Known.CONFIGURED else ""
        yield f"{sign}{term.name}", f"{words.term(term)}  {words.known(term)}{how}", "dim"
    for place, reason in enumerate(one.advice.reasons):
        yield "" if place else "why this T_hold", reason, ""


def _capacity(one: Capacity) -> str:
    if one.tokens.value is None:
        return f"unknown ({one.tokens.where})"
    kept = f"{words.term(one.tokens)} in {words.term(one.pages)}"
    if one.share.value is None:
        return f"{kept}; share of the pool unknown ({one.share.where})"
    return f"{kept}, {words.term(one.share)} of the pool"


def _inputs(one: DecodeSizing) -> Iterator[Term]:
    """Every input once; the worst case and the measured one share most of them."""
    seen = set()
    for capacity in (one.worst, one.usual):
        for term in (
            capacity.rate,
            capacity.seconds,
            capacity.request_pages,
            capacity.page_size,
            capacity.pool,
        ):
            if term.name not in seen:
                seen.add(term.name)
                yield term
