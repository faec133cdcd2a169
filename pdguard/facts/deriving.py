"""Helpers for facts that follow from other facts: a derived fact is only as strong as its weakest input."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from pdguard.facts.catalogue import CATALOGUE
from pdguard.facts.interface import Evidence, Fact, FactSet, Grade, Missing, Value
from pdguard.facts.versions import EngineVersion, Release, parse_version

T = TypeVar("T", str, bool)


def version_of(facts: FactSet) -> EngineVersion | None:
    """The engine's parsed version, or None where it gives none that is usable."""
    text = facts.text("version")
    return None if text is None else parse_version(text)


def derive(facts: FactSet, name: str, value: Value, inputs: Iterable[Fact | None]) -> None:
    """Add `name`, graded as the weakest of `inputs` and carrying their evidence."""
    used = [f for f in inputs if f is not None]
    evidence: list[Evidence] = []
    for fact in used:
        evidence.extend(e for e in fact.evidence if e not in evidence)
    grade = min((f.grade for f in used), default=Grade.CLAIMED)
    facts.put(name, Fact(value, grade, tuple(evidence)))


def missing_because(subject: str, facts: FactSet, names: Iterable[str]) -> Missing:
    """Why something cannot be derived: the first of `names` that is missing, and how to get that."""
    for name in names:
        if facts.get(name) is None:
            known = facts.why_missing(name)
            spec = CATALOGUE[subject].get(name)
            meaning = name if spec is None else spec.meaning
            reason = f"{meaning}: not known" if known is None else known.reason
            how = (known.how if known else "") or ("" if spec is None else spec.how)
            return Missing(reason, how)
    return Missing("it does not follow from what is known")


def is_final(facts: FactSet, name: str) -> bool:
    """Whether a stronger source than the version was asked for `name`, and does not settle it."""
    why = facts.why_missing(name)
    return why is not None and why.final


def from_version(
    facts: FactSet, name: str, table: Mapping[Release, T | None] | None, needs: tuple[str, ...] = ()
) -> T | None:
    """Add `name` as the version's entry in `table`, or the reason why the version does not tell."""
    if is_final(facts, name):
        return None
    version = version_of(facts)
    if version is None or any(facts.get(n) is None for n in needs):
        why = missing_because("engine", facts, (*needs, "version"))
        facts.miss(name, why.reason, why.how)
        return None
    value = None if table is None else version.lookup(table)
    if value is None:
        facts.miss(name, f"version {version.text} alone does not tell ({_why(version)})")
        return None
    derive(facts, name, value, [facts.get(n) for n in ("version", *needs)])
    return value


def _why(version: EngineVersion) -> str:
    return {
        "newer": "newer than the newest release examined here",
        "older": "older than the oldest release examined here",
        "development": "a development build between releases that differ",
    }.get(version.kind, "this behaviour was not examined on it")
