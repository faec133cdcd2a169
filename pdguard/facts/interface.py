"""The seam between collectors and policy: a fact, how it is known, and why one is missing."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

Scalar = str | int | float | bool
Value = Scalar | tuple[Scalar, ...]


class Grade(enum.IntEnum):
    """The evidence ladder: how a fact is known, weakest first."""

    CLAIMED = 1
    CONFIGURED = 2
    FINGERPRINTED = 3
    EXERCISED = 4
    OBSERVED = 5

    @property
    def label(self) -> str:
        """The word used in reports."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Evidence:
    """Where a fact was read.

    `source` is the kind of collector (cluster, http, metrics, process, version, derived), `ref` the place
    within it (a path and a field, a variable), `value` what stood there, already redacted.
    """

    source: str
    ref: str
    value: Value | None = None


@dataclass(frozen=True, slots=True)
class Fact:
    """A value with its grade and the evidence behind it."""

    value: Value
    grade: Grade
    evidence: tuple[Evidence, ...]


@dataclass(frozen=True, slots=True)
class Missing:
    """A fact that could not be had: why not, and how the operator can get it.

    `final` says that a stronger source was asked and does not settle it, so that no weaker one may.
    """

    reason: str
    how: str = ""
    final: bool = False


@dataclass(slots=True)
class FactSet:
    """The facts about one subject, by catalogue name. The strongest grade wins; evidence of all is kept."""

    entries: dict[str, Fact | Missing] = field(default_factory=dict)

    def add(
        self, name: str, value: Value, grade: Grade, source: str, ref: str, shown: Value | None = None
    ) -> None:
        """Record that `name` is `value`, read at `ref` by `source`.

        `shown` replaces the value in the evidence (a raw spelling, say). A weaker source never overrides a
        stronger one; of two equal ones the first stays and the second is kept as further evidence.
        """
        fact = Fact(value, grade, (Evidence(source, ref, value if shown is None else shown),))
        self.put(name, fact)

    def put(self, name: str, fact: Fact) -> None:
        """Record a ready-made fact under the same rules as `add`."""
        old = self.entries.get(name)
        if isinstance(old, Fact):
            best, other = (fact, old) if fact.grade > old.grade else (old, fact)
            more = tuple(e for e in other.evidence if e not in best.evidence)
            fact = Fact(best.value, best.grade, best.evidence + more)
        self.entries[name] = fact

    def miss(self, name: str, reason: str, how: str = "") -> None:
        """Record why `name` is not known, unless it already is known; the first reason stays."""
        self.entries.setdefault(name, Missing(reason, how))

    def get(self, name: str) -> Fact | None:
        """The fact, or None where it is missing."""
        entry = self.entries.get(name)
        return entry if isinstance(entry, Fact) else None

    def value(self, name: str) -> Value | None:
        """The bare value, or None where it is missing."""
        fact = self.get(name)
        return None if fact is None else fact.value

    def why_missing(self, name: str) -> Missing | None:
        """The reason recorded for a missing fact, if any collector gave one."""
        entry = self.entries.get(name)
        return entry if isinstance(entry, Missing) else None

    def known(self) -> Iterator[tuple[str, Fact]]:
        """All facts that are known, by name."""
        for name in sorted(self.entries):
            entry = self.entries[name]
            if isinstance(entry, Fact):
                yield name, entry

    # Typed readers: a collector has checked the type when it added the fact, these only narrow it.
    def text(self, name: str) -> str | None:
        """The value if it is a string."""
        v = self.value(name)
        return v if isinstance(v, str) else None

    def integer(self, name: str) -> int | None:
        """The value if it is a whole number."""
        v = self.value(name)
        return v if isinstance(v, int) and not isinstance(v, bool) else None

    def number(self, name: str) -> float | None:
        """The value if it is a number."""
        v = self.value(name)
        return float(v) if isinstance(v, int | float) and not isinstance(v, bool) else None

    def flag(self, name: str) -> bool | None:
        """The value if it is a boolean."""
        v = self.value(name)
        return v if isinstance(v, bool) else None

    def items(self, name: str) -> tuple[Scalar, ...] | None:
        """The value if it is a list."""
        v = self.value(name)
        return v if isinstance(v, tuple) else None


@dataclass(slots=True)
class Subject:
    """Something that checks are about: an engine, a pair, a router, a node or the cluster."""

    kind: str
    name: str
    facts: FactSet = field(default_factory=FactSet)


@dataclass(slots=True)
class PairSubject(Subject):
    """One prefill with one decode, or many pairs that are alike.

    `members` names the engines that the two halves stand for, these two first.
    """

    prefill: Subject = field(default_factory=lambda: Subject("engine", ""))
    decode: Subject = field(default_factory=lambda: Subject("engine", ""))
    members: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())

    @property
    def alike(self) -> int:
        """How many pairs this one stands for."""
        return max(1, len(self.members[0])) * max(1, len(self.members[1]))


@dataclass(slots=True)
class Collected:
    """Everything that was collected about a cluster: the only thing that policy sees."""

    cluster: Subject
    engines: list[Subject] = field(default_factory=list)
    pairs: list[PairSubject] = field(default_factory=list)
    routers: list[Subject] = field(default_factory=list)
    nodes: list[Subject] = field(default_factory=list)
    policy: Mapping[str, Scalar] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """Sentences about the collection itself, such as a deadline that cut it short."""
