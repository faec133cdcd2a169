"""A reading for people: the verdict, what each engine told, what is unknown, sizing. Imports rich."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pdguard.facts.interface import Scalar
from pdguard.outcomes import words
from pdguard.outcomes.histogram import last_bound, mean, quantile
from pdguard.outcomes.interface import OUTCOMES, EngineOutcomes, Figure, Gap, HoldTimes, Outcomes, Read
from pdguard.outcomes.judge import Fault, faults, timeout_ratio
from pdguard.outcomes.present_sizing import sizing_blocks
from pdguard.outcomes.said import Word, anyone, said, some
from pdguard.outcomes.sizing import DecodeSizing
from pdguard.report._paper import Paper

_LABEL = 15
_QUEUES_OF = {
    "prefill": ("prefill_bootstrap", "prefill_inflight"),
    "decode": ("decode_prealloc", "decode_transfer"),
}
_STYLES = {Word.AT_RISK: "high", Word.UNKNOWN: "unknown", Word.QUIET: "medium", Word.CLEAN: "ok"}
_COUNTS = ("requests", "aborts", "failed_transfers", "failed_bootstraps")


def as_text(
    outcomes: Outcomes,
    sizing: Sequence[DecodeSizing],
    policy: Mapping[str, Scalar],
    *,
    detail: bool = False,
    width: int = 100,
    color: bool = False,
    unicode: bool = True,
) -> str:
    """The whole page; no line is wider than `width`. With `detail`, sizing comes term by term."""
    paper = Paper(width, color, unicode)
    found = faults(outcomes, sizing, policy)
    verdict = said(outcomes, sizing, found, policy)
    word = verdict.word.value
    paper.text(verdict.text, lead=((word, _STYLES[verdict.word]), ("  ", "")), indent=len(word) + 2)
    paper.text(verdict.step, lead=(("next: ", "bold"),), indent=6)
    paper.text(_window(outcomes), lead=(("window: ", ""),), indent=8, style="dim")
    _faults(paper, found)
    for role in ("decode", "prefill"):
        _role(paper, role, [e for e in outcomes.engines if e.role == role])
    sizing_blocks(paper, sizing, detail=detail)
    if outcomes.notes:
        paper.blank()
        paper.line(("NOTES", "bold"))
        for note in outcomes.notes:
            paper.text(note, lead=(("  - ", ""),), indent=4)
    return paper.result()


def _window(outcomes: Outcomes) -> str:
    if outcomes.seconds <= 0:
        return f"since each engine started, read at {outcomes.ended_at}"
    return f"{outcomes.seconds:,.0f} s, {outcomes.began_at} to {outcomes.ended_at}"


def _faults(paper: Paper, found: Sequence[Fault]) -> None:
    if not found:
        return
    alike: dict[str, list[str]] = {}
    for fault in found:
        alike.setdefault(fault.text, []).append(paper.fit(fault.engine, 40))
    paper.blank()
    paper.line(("FAULTS", "bold"))
    for text, names in alike.items():
        paper.text(f"{some(names)}: {text}", lead=(("  ! ", "high"),), indent=4)


def _role(paper: Paper, role: str, engines: Sequence[EngineOutcomes]) -> None:
    """The engines of one role, those that are alike together, then what could not be had of them."""
    if not engines:
        return
    paper.blank()
    paper.line((role.upper(), "bold"))
    alike: dict[tuple[str, tuple[tuple[str, str], ...]], list[str]] = {}
    for engine in engines:
        told = engine.version or "version unknown"
        if engine.resets:
            told += f", its counters began again {engine.resets} time{'s' * (engine.resets != 1)}"
        alike.setdefault((told, tuple(_rows(paper, engine))), []).append(paper.fit(engine.name, 40))
    for (told, rows), names in alike.items():
        paper.text(told, lead=((f"  {some(names)}  ", "bold"),), indent=4)
        for label, text in rows:
            paper.text(text, lead=((f"    {label:<{_LABEL}}", ""),), indent=_LABEL + 4)
    if len(engines) > 1 and role == "decode":
        _totals(paper, engines)
    _unknown(paper, engines)


def _rows(paper: Paper, engine: EngineOutcomes) -> Iterator[tuple[str, str]]:
    """What is known of one engine; what is not is told once for all."""
    holds = _holds(engine)
    if holds:
        yield "holds", holds
    for label, times in _histograms(engine):
        if isinstance(times, HoldTimes):
            yield label, _times(times)
    counts = [(n.replace("_", " "), getattr(engine, n)) for n in _COUNTS]
    known = [_per_second(engine, name, read) for name, read in counts if isinstance(read, Figure)]
    if known:
        yield "requests", paper.dot.join(known)
    queues = [(n, r) for n in _queues(engine) if isinstance(r := engine.queues[n], Figure)]
    if queues:
        parts = (f"{_plain(engine, n)} {words.count(r.value)}" for n, r in queues)
        yield "queues", paper.dot.join(parts)


def _histograms(engine: EngineOutcomes) -> list[tuple[str, HoldTimes | Gap]]:
    if engine.role == "decode":
        return [("hold time", engine.hold_times)]
    return [("transfer time", engine.transfer_seconds)]


def _queues(engine: EngineOutcomes) -> list[str]:
    return [n for n in _QUEUES_OF.get(engine.role, tuple(engine.queues)) if n in engine.queues]


def _plain(engine: EngineOutcomes, queue: str) -> str:
    return queue.removeprefix(f"{engine.role}_")


def _per_second(engine: EngineOutcomes, name: str, read: Figure) -> str:
    rate = f" ({read.value / engine.seconds:.3g}/s)" if engine.seconds > 0 and read.value else ""
    return f"{name} {words.count(read.value)}{rate}"


def _holds(engine: EngineOutcomes) -> str:
    known = [(n, r) for n in OUTCOMES if isinstance(r := engine.holds.get(n), Figure)]
    parts = [f"{name} {words.count(read.value)}" for name, read in known]
    ratio, total = timeout_ratio(engine)
    if ratio is not None:
        parts.append(f"{ratio:.1%} of {words.count(total)} without proof")
    elif len(known) == len(OUTCOMES):
        parts = ["none ended"]
    if engine.role == "decode" and isinstance(engine.held_now, Figure):
        parts.append(f"held now {words.count(engine.held_now.value)}")
    return ", ".join(parts)


def _times(times: HoldTimes) -> str:
    average = mean(times)
    if average is None:
        return "none within the window"
    last = last_bound(times)
    tail = [f"p{q * 100:.0f} {words.seconds(quantile(times, q), last)}" for q in (0.5, 0.95, 0.99)]
    return f"mean {words.seconds(average)}, {', '.join(tail)} (buckets end at {last:g} s)"


def _totals(paper: Paper, decodes: Sequence[EngineOutcomes]) -> None:
    """The holds of all decodes, as far as they are known."""
    parts = []
    for name in OUTCOMES:
        reads = [r.value for e in decodes if isinstance(r := e.holds.get(name), Figure)]
        if reads:
            some_of = f" on {len(reads)} of {len(decodes)}" if len(reads) < len(decodes) else ""
            parts.append(f"{name} {words.count(sum(reads))}{some_of}")
    if parts:
        paper.text("holds " + ", ".join(parts), lead=(("  all decodes  ", "bold"),), indent=4)


def _unknown(paper: Paper, engines: Sequence[EngineOutcomes]) -> None:
    """One line for each reason: who lacks what, why, and how to get it."""
    reasons: dict[tuple[str, str], dict[str, list[str]]] = {}
    for engine in engines:
        for name, read in _reads(engine):
            if isinstance(read, Gap):
                key = (read.why, anyone(read.how, engine.name))
                reasons.setdefault(key, {}).setdefault(engine.name, []).append(name)
    for (why, how), lacking in reasons.items():
        same: dict[tuple[str, ...], list[str]] = {}
        for name, figures in lacking.items():
            same.setdefault(tuple(figures), []).append(paper.fit(name, 40))
        who = "; ".join(f"{', '.join(figures)} of {some(names)}" for figures, names in same.items())
        todo = f" (how: {how})" if how else ""
        paper.text(f"unknown: {who}: {why}{todo}", lead=(("  ? ", "unknown"),), indent=4)


def _reads(engine: EngineOutcomes) -> Iterator[tuple[str, Read | HoldTimes]]:
    """Every figure of the page by the name that people know it by; outcomes are one if they lack alike."""
    if engine.role == "decode":
        holds = [engine.holds.get(name, Gap("no holds were read")) for name in OUTCOMES]
        if isinstance(holds[0], Gap) and all(read == holds[0] for read in holds):
            yield "holds", holds[0]
        else:
            yield from ((f"holds {name}", read) for name, read in zip(OUTCOMES, holds, strict=True))
        yield "held now", engine.held_now
    yield from _histograms(engine)
    for name in _COUNTS:
        yield name.replace("_", " "), getattr(engine, name)
    for name in _queues(engine):
        yield f"queue {_plain(engine, name)}", engine.queues[name]
