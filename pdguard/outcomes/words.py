"""How figures are put into words for people, the same in the table and in the live view."""

from __future__ import annotations

import math

from pdguard.outcomes.histogram import Between
from pdguard.outcomes.interface import Gap, Read
from pdguard.outcomes.terms import Known, Term


def count(value: float) -> str:
    """A count: whole if it is whole, else to three digits."""
    return f"{value:,.0f}" if abs(value - round(value)) < 0.005 or value >= 1000 else f"{value:.3g}"


def seconds(value: float | None, last: float = 0.0) -> str:
    """Seconds, or that it lies beyond the last bucket."""
    if value is None:
        return "none"
    if not math.isfinite(value):
        return f"> {last:g} s" if last else ("no end" if value > 0 else "no end below 0 s")
    return f"{value:.3g} s"


def read(one: Read) -> str:
    """A figure, or `unknown`."""
    return "unknown" if isinstance(one, Gap) else count(one.value)


def share(one: Between) -> str:
    """A share between two bounds."""
    if abs(one.high - one.low) < 0.0005:
        return f"{one.high:.1%}"
    return f"{one.low:.1%} to {one.high:.1%}"


def term(one: Term) -> str:
    """A term's value with its unit; `unknown` without one."""
    if one.value is None:
        return "unknown"
    if one.unit == "share":
        return f"{one.value:.1%}"
    if one.unit == "s":
        return seconds(one.value)
    if one.unit == "/s":
        return f"{one.value:.3g}/s"
    return f"{count(one.value)} {one.unit}"


def known(one: Term) -> str:
    """How a term is known and where, for the end of a line."""
    return f"{'why' if one.known is Known.UNKNOWN else one.known.value}: {one.where}"
