"""Every fact that a collector gives is in the catalogue, with the type that it says; usable by any test."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from datetime import date

from pdguard.facts.catalogue import CATALOGUE
from pdguard.facts.interface import Fact, Missing, Subject, Value

MAX_CEL_INT = 2**63 - 1
_TYPES: dict[str, type] = {"text": str, "int": int, "float": float, "bool": bool, "list": tuple}


def assert_in_catalogue(*subjects: Subject) -> None:
    """Fail where a subject has a name, a type or a value that policy could not use."""
    for subject in subjects:
        specs = CATALOGUE[subject.kind]
        for name, entry in subject.facts.entries.items():
            assert name in specs, f"{subject.name}: {name} is not a fact of an {subject.kind}"
            if isinstance(entry, Missing):
                assert entry.reason, f"{subject.name}: {name} is missing without a reason"
                continue
            _check(f"{subject.name}: {name}", specs[name].type, entry)


def _check(where: str, kind: str, fact: Fact) -> None:
    assert type(fact.value) is _TYPES[kind], (
        f"{where} is {type(fact.value).__name__}, the catalogue says {kind}"
    )
    values = fact.value if isinstance(fact.value, tuple) else (fact.value,)
    for value in values:
        assert type(value) in (str, int, float, bool), f"{where} holds a {type(value).__name__}"
        if isinstance(value, int):
            assert abs(value) <= MAX_CEL_INT, f"{where} does not fit policy's integers"
        if isinstance(value, float):
            assert math.isfinite(value), f"{where} is not finite"
    assert fact.evidence, f"{where} has no evidence"


def texts(*subjects: Subject) -> Iterator[str]:
    """Every string that a report could show: values, evidence, reasons and advice."""
    for subject in subjects:
        yield subject.name
        for name, entry in subject.facts.entries.items():
            yield name
            if isinstance(entry, Missing):
                yield entry.reason
                yield entry.how
            else:
                yield from _strings(entry.value)
                for evidence in entry.evidence:
                    yield evidence.source
                    yield evidence.ref
                    yield from _strings(evidence.value)


def _strings(value: Value | date | None) -> Iterable[str]:
    parts = value if isinstance(value, tuple) else (value,)
    return [str(part) for part in parts if part is not None]


def assert_free_of(secrets: Iterable[str], *subjects: Subject) -> None:
    """Fail where one of the secrets stands anywhere in what was collected."""
    everything = "\n".join(texts(*subjects))
    for secret in secrets:
        assert secret not in everything, "a planted secret was kept"
