"""Release outcomes and sizing for people: engines, totals, what is unknown, sizing, margin. Imports rich."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pdguard.outcomes import words
from pdguard.outcomes.histogram import last_bound, mean, quantile
from pdguard.outcomes.interface import OUTCOMES, EngineOutcomes, Figure, Gap, HoldTimes, Outcomes, Read
from pdguard.outcomes.judge import timeout_ratio
from pdguard.outcomes.margin import Margin, Verdict
from pdguard.outcomes.sizing import Capacity, DecodeSizing, WhatIf
from pdguard.outcomes.terms import Known, Term
from pdguard.report._paper import Paper

_LABEL = 24
_QUEUES_OF = {
    "prefill": ("prefill_bootstrap", "prefill_inflight"),
    "decode": ("decode_prealloc", "decode_transfer"),
}
_STYLES = {
    Verdict.HOLDS: "ok",
    Verdict.FAILS: "high",
    Verdict.SHORT: "medium",
    Verdict.UNKNOWN: "unknown",
}

_Gaps = dict[tuple[str, str], list[str]]


def as_text(
    outcomes: Outcomes,
    sizing: Sequence[DecodeSizing],
    faults: Sequence[str],
    *,
    width: int = 100,
    color: bool = False,
    unicode: bool = True,
) -> str:
    """The whole page; no line is wider than `width`."""
    paper = Paper(width, color, unicode)
    _head(paper, outcomes, faults)
    gaps: _Gaps = {}
    for role in ("decode", "prefill"):
        for engine in (e for e in outcomes.engines if e.role == role):
            _engine(paper, engine, gaps)
    _totals(paper, outcomes)
    _unknown(paper, gaps)
    for one in sizing:
        _sizing(paper, one)
    if outcomes.notes:
        paper.blank()
        paper.line(("NOTES", "bold"))
        for note in outcomes.notes:
            paper.text(note, lead=(("  - ", ""),), indent=4)
    return paper.result()


def _head(paper: Paper, outcomes: Outcomes, faults: Sequence[str]) -> None:
    began, ended = outcomes.began_at, outcomes.ended_at
    span = f"{outcomes.seconds:,.0f} s, {began} to {ended}" if outcomes.seconds > 0 else f"at {ended}"
    paper.text(f"{outcomes.cluster}: release outcomes over {span}", lead=(("METRICS  ", "bold"),), indent=9)
    for fault in faults:
        paper.text(fault, lead=(("FAULT    ", "high"),), indent=9)


def _row(paper: Paper, label: str, text: str, style: str = "") -> None:
    paper.text(text, lead=((f"  {label:<{_LABEL}}", ""),), indent=_LABEL + 2, style=style)


def _engine(paper: Paper, engine: EngineOutcomes, gaps: _Gaps) -> None:
    paper.blank()
    said = f"{engine.role}  {engine.version or 'version unknown'}"
    if engine.resets:
        said += f"  its counters began again {engine.resets} times"
    paper.text(said, lead=((f"{paper.fit(engine.name, 40)}  ", "bold"),), indent=4)
    if engine.role == "decode":
        _row(paper, "holds", _holds(engine, gaps))
        _row(paper, "hold time", _times(engine, "hold time", engine.hold_times, gaps))
        _row(paper, "held now", _one(engine, "held now", engine.held_now, gaps))
    elif engine.role == "prefill":
        _row(paper, "transfer time", _times(engine, "transfer time", engine.transfer_seconds, gaps))
    _row(paper, "aborts", _per_second(engine, "aborts", engine.aborts, gaps))
    _row(paper, "requests", _per_second(engine, "requests", engine.requests, gaps))
    _row(paper, "failed transfers", _one(engine, "failed transfers", engine.failed_transfers, gaps))
    _row(paper, "failed bootstraps", _one(engine, "failed bootstraps", engine.failed_bootstraps, gaps))
    queues = [n for n in _QUEUES_OF.get(engine.role, tuple(engine.queues)) if n in engine.queues]
    if queues:
        parts = [f"{n} {_one(engine, f'queue {n}', engine.queues[n], gaps)}" for n in queues]
        _row(paper, "queues", paper.dot.join(parts))


def _one(engine: EngineOutcomes, name: str, read: Read, gaps: _Gaps) -> str:
    if isinstance(read, Gap):
        gaps.setdefault((read.why, read.how), []).append(f"{engine.name} {name}")
    return words.read(read)


def _per_second(engine: EngineOutcomes, name: str, read: Read, gaps: _Gaps) -> str:
    text = _one(engine, name, read, gaps)
    if isinstance(read, Gap) or engine.seconds <= 0:
        return text
    return f"{text} ({read.value / engine.seconds:.3g}/s)"


def _holds(engine: EngineOutcomes, gaps: _Gaps) -> str:
    reads = {name: engine.holds.get(name, Gap("no holds were read")) for name in OUTCOMES}
    parts = [f"{name} {_one(engine, f'holds {name}', read, gaps)}" for name, read in reads.items()]
    ratio, total = timeout_ratio(engine)
    if ratio is not None:
        parts.append(f"{ratio:.1%} of {words.count(total)} without proof")
    elif not any(isinstance(r, Gap) for r in reads.values()):
        parts.append("no hold ended, so there is no ratio")
    return ", ".join(parts)


def _times(engine: EngineOutcomes, name: str, times: HoldTimes | Gap, gaps: _Gaps) -> str:
    if isinstance(times, Gap):
        return _one(engine, name, times, gaps)
    average = mean(times)
    if average is None:
        return "none within the window"
    last = last_bound(times)
    tail = [f"p{q * 100:.0f} {words.seconds(quantile(times, q), last)}" for q in (0.5, 0.95, 0.99)]
    return f"mean {words.seconds(average)}, {', '.join(tail)} (buckets end at {last:g} s)"


def _totals(paper: Paper, outcomes: Outcomes) -> None:
    decodes = outcomes.decodes
    rows: dict[str, list[Read]] = {
        f"holds {name}": [e.holds.get(name, Gap("")) for e in decodes] for name in OUTCOMES
    }
    rows["held now"] = [e.held_now for e in decodes]
    rows["aborts on decode"] = [e.aborts for e in decodes]
    for name in ("failed_transfers", "failed_bootstraps"):
        rows[f"{name.replace('_', ' ')} on decode"] = [getattr(e, name) for e in decodes]
    paper.blank()
    paper.line(("CLUSTER", "bold"))
    for label, reads in rows.items():
        known = [r.value for r in reads if isinstance(r, Figure)]
        text = words.count(sum(known)) if known else "unknown"
        if known and len(known) < len(reads):
            text += f" on {len(known)} of {len(reads)} decodes; unknown on the others"
        paper.text(text, lead=((f"  {label:<{_LABEL + 5}}", ""),), indent=_LABEL + 7)


def _unknown(paper: Paper, gaps: Mapping[tuple[str, str], Sequence[str]]) -> None:
    if not gaps:
        return
    paper.blank()
    paper.text("what could not be had, why, and how to get it", lead=(("UNKNOWN  ", "bold"),), indent=9)
    for (why, how), names in gaps.items():
        shown = ", ".join(names[:6]) + (f", +{len(names) - 6} more" if len(names) > 6 else "")
        paper.text(shown, lead=(("  ? ", "unknown"),), indent=4)
        paper.text(why, lead=(("    why: ", ""),), indent=9)
        if how:
            paper.text(how, lead=(("    how: ", ""),), indent=9)


def _sizing(paper: Paper, one: DecodeSizing) -> None:
    paper.blank()
    served = f"served by {', '.join(one.prefills[:4])}{' …' if len(one.prefills) > 4 else ''}"
    said = f"{paper.fit(one.name, 40)}, {served}" if one.prefills else paper.fit(one.name, 40)
    paper.text(said, lead=(("SIZING  ", "bold"),), indent=8)
    _row(paper, "worst case", _capacity(one.worst))
    _row(paper, "as measured", _capacity(one.usual))
    for label, term in _inputs(one):
        _row(paper, f"  {label}", f"{words.term(term)}  {words.known(term)}", "dim")
    advice = one.advice
    value = "none can be advised" if advice.value is None else f"{advice.value:g} s"
    good = {True: "; what is set will do", False: "; what is set will not do", None: ""}[advice.good]
    _row(paper, "T_hold to set", value + good, "bold")
    for reason in advice.reasons:
        _row(paper, "", reason)
    _margin(paper, one.margin)
    for what_if in one.what_ifs:
        _what_if(paper, what_if)


def _capacity(one: Capacity) -> str:
    if one.tokens.value is None:
        return f"unknown ({one.tokens.where})"
    kept = f"{words.term(one.tokens)} in {words.term(one.pages)}"
    if one.share.value is None:
        return f"{kept}; share of the pool unknown ({one.share.where})"
    return f"{kept}, {words.term(one.share)} of the pool"


def _inputs(one: DecodeSizing) -> Iterator[tuple[str, Term]]:
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
                yield term.name, term


def _margin(paper: Paper, one: Margin) -> None:
    text = words.term(one.margin)
    if one.verdict is not Verdict.UNKNOWN:
        text += f", {one.verdict.value}"
    why = f": {one.why}" if one.why else ""
    _row(paper, "margin", f"{text}{why}", _STYLES[one.verdict])
    for sign, term in (("  ", one.t_hold), *(("- ", t) for t in one.terms)):
        how = f" ({term.how})" if term.how and term.known is not Known.CONFIGURED else ""
        line = f"{words.term(term)}  {words.known(term)}{how}"
        _row(paper, f"  {sign}{term.name}", line, "dim")


def _what_if(paper: Paper, one: WhatIf) -> None:
    share = one.capacity.share
    held = f"{words.term(share)} of the pool" if share.value is not None else "share of the pool unknown"
    if isinstance(one.by_timeout, Gap):
        ended = f"share that the clock would end unknown ({one.by_timeout.why})"
    else:
        ended = f"{words.share(one.by_timeout)} of the holds seen would end by the clock"
    margin = f"margin {words.term(one.margin.margin)}"
    if one.margin.verdict is not Verdict.UNKNOWN:
        margin += f", {one.margin.verdict.value}"
    _row(paper, f"if T_hold {one.t_hold:g} s", f"{held}; {ended}; {margin}")
