"""Turns the recorded examples of a check into findings, by the same way that an audit goes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from pdguard.facts.interface import Collected, FactSet, Grade, PairSubject, Scalar, Subject, Value
from pdguard.policy.evaluate import evaluate
from pdguard.policy.loader import load_checks
from pdguard.policy.model import Check, Finding, Status

CHECKS = Path(__file__).parents[2] / "checks"

Example = Mapping[str, Mapping[str, object]]


@cache
def catalogue() -> tuple[Check, ...]:
    """The whole shipped catalogue."""
    return load_checks(CHECKS)


def examples_of(check: Check) -> Iterator[tuple[Status, int, Example]]:
    """Every example of a check with the status it must give and its number within that status."""
    by_status = {
        Status.FAIL: check.examples.fail,
        Status.PASS: check.examples.pass_,
        Status.UNKNOWN: check.examples.unknown,
        Status.SKIPPED: check.examples.skipped,
    }
    for status, examples in by_status.items():
        for number, example in enumerate(examples, 1):
            yield status, number, example


def judge(check: Check, example: Example) -> Finding:
    """The one finding that `check` gives on the facts of `example`."""
    (finding,) = evaluate([check], _collected(check.for_each, example))
    return finding


def _collected(kind: str, example: Example) -> Collected:
    collected = Collected(Subject("cluster", "c", _facts(example, "cluster")))
    collected.policy = {name: _scalar(value) for name, value in example.get("policy", {}).items()}
    if kind == "pair":
        p, d = (Subject("engine", half, _facts(example, half)) for half in ("prefill", "decode"))
        collected.pairs = [PairSubject("pair", "p→d", _facts(example, "pair"), prefill=p, decode=d)]
    elif kind in ("router", "node"):
        subject = Subject(kind, "x", _facts(example, kind))
        (collected.routers if kind == "router" else collected.nodes).append(subject)
    elif kind != "cluster":
        engine = Subject("engine", "e", _facts(example, "engine"))
        if kind != "engine" and engine.facts.get("role") is None:
            engine.facts.add("role", kind, Grade.CONFIGURED, "example", "role")
        collected.engines = [engine]
    return collected


def _facts(example: Example, root: str) -> FactSet:
    facts = FactSet()
    for name, value in example.get(root, {}).items():
        facts.add(name, _value(value), Grade.CONFIGURED, "example", name)
    return facts


def _value(value: object) -> Value:
    return tuple(_scalar(v) for v in value) if isinstance(value, list) else _scalar(value)


def _scalar(value: object) -> Scalar:
    assert isinstance(value, str | int | float | bool), f"{value!r} is no value of a fact"
    return value
