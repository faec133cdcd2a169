"""From release outcomes over a window to facts of grade observed, for `pdguard audit --with`."""

from __future__ import annotations

from collections.abc import Iterator

from pdguard.facts.interface import Value
from pdguard.facts.observed import METRICS, Observation
from pdguard.outcomes.interface import OUTCOMES, EngineOutcomes, Figure, Outcomes, Read, Source

_MAX_REF = 160


def observations(outcomes: Outcomes) -> tuple[Observation, ...]:
    """Every fact that was measured, dated by the window's beginning; what is a gap is left out."""
    return tuple(
        Observation("engine", engine.name, fact, value, METRICS, ref, outcomes.began_at)
        for engine in outcomes.decodes
        for fact, value, ref in _facts(engine)
    )


def _facts(engine: EngineOutcomes) -> Iterator[tuple[str, Value, str]]:
    holds = {o: f for o in OUTCOMES if isinstance(f := engine.holds.get(o), Figure)}
    if holds:
        yield "hold_window_seconds", round(float(engine.seconds), 1), "the window"
    for outcome, figure in holds.items():
        yield f"window_holds_{outcome}", max(0, round(figure.value)), _ref(figure)
    counted = [f for f in holds.values() if f.source is not Source.LOG and round(f.value) > 0]
    if counted:
        yield "outcomes", "counted", _ref(counted[0])
    share = _share(engine)
    if share is not None:
        yield "held_share", *share


def _share(engine: EngineOutcomes) -> tuple[float, str] | None:
    """Held requests by the mean prompt, over the pool. Pages are not counted, so it is an estimate."""
    held, prompt, pool = (_figure(r) for r in (engine.held_now, engine.prompt_tokens, engine.pool))
    if held is None or pool is None or pool.value < 1:
        return None
    if held.value <= 0:
        return 0.0, _ref(held)
    if prompt is None:
        return None
    share = held.value * max(0.0, prompt.value) / pool.value
    ref = f"{held.value:,.0f} held x {prompt.value:,.0f} tokens of {pool.value:,.0f}"
    return round(share, 4), ref


def _figure(read: Read) -> Figure | None:
    return read if isinstance(read, Figure) else None


def _ref(figure: Figure) -> str:
    """Where it was read, on one line of bounded length."""
    text = " ".join(f"{figure.source.value}: {figure.ref}".split())
    printable = "".join(c if c.isprintable() else "?" for c in text)
    return printable if len(printable) <= _MAX_REF else printable[: _MAX_REF - 1] + "…"
