"""Terms of a calculation: a value, its unit, and how it is known."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from pdguard.facts.deriving import missing_because
from pdguard.facts.interface import FactSet
from pdguard.outcomes.interface import Gap, Read

NEEDS = "needs "
"""How the reason begins where an input of a calculation is missing."""


class Known(enum.Enum):
    """How a value is known."""

    MEASURED = "measured"
    CONFIGURED = "configured"
    ASSUMED = "assumed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Term:
    """One input. `value` is None where `known` is UNKNOWN; `where` then says why, and `how` how to get it."""

    name: str
    unit: str
    value: float | None
    known: Known
    where: str
    how: str = ""

    def renamed(self, name: str) -> Term:
        """The same under another name."""
        return Term(name, self.unit, self.value, self.known, self.where, self.how)


def unknown(name: str, unit: str, why: str, how: str = "") -> Term:
    """A term without a value."""
    return Term(name, unit, None, Known.UNKNOWN, why, how)


def measured(name: str, unit: str, read: Read, factor: float = 1.0) -> Term:
    """A term from a figure, times `factor`."""
    if isinstance(read, Gap):
        return unknown(name, unit, read.why, read.how)
    return Term(name, unit, read.value * factor, Known.MEASURED, f"{read.source.value}: {read.ref}")


def configured(name: str, unit: str, facts: FactSet, fact: str) -> Term:
    """A term from a fact of the audit."""
    value = facts.number(fact)
    if value is None:
        why = missing_because("engine", facts, (fact,))
        return unknown(name, unit, why.reason, why.how)
    found = facts.get(fact)
    evidence = found.evidence[0] if found is not None and found.evidence else None
    return Term(name, unit, value, Known.CONFIGURED, evidence.ref if evidence else fact)


def first_known(*terms: Term) -> Term:
    """The first that has a value, else the first."""
    return next((t for t in terms if t.value is not None), terms[0])


def product(name: str, unit: str, terms: tuple[Term, ...]) -> Term:
    """The product; unknown with the first reason, else known as its weakest factor."""
    result = 1.0
    for term in terms:
        if term.value is None:
            # A factor that is itself a product has said already what it lacks.
            why = term.where if term.where.startswith(NEEDS) else f"{NEEDS}{term.name}: {term.where}"
            return unknown(name, unit, why, term.how)
        result *= term.value
    return Term(name, unit, result, weakest(terms), " × ".join(t.name for t in terms))


def weakest(terms: tuple[Term, ...]) -> Known:
    """Assumed before configured before measured."""
    order = (Known.UNKNOWN, Known.ASSUMED, Known.CONFIGURED, Known.MEASURED)
    return min((t.known for t in terms), key=order.index, default=Known.UNKNOWN)
