"""Runs the examples of checks: each must give the status that it stands under."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping

from pdguard.errors import CheckFileError, Problem
from pdguard.facts.catalogue import CATALOGUE, ROOTS
from pdguard.policy.evaluate import Judge
from pdguard.policy.model import Check, Status

Example = Mapping[str, Mapping[str, object]]


def require_examples(checks: Iterable[Check]) -> None:
    """Raise CheckFileError for every example that names no fact or gives another status than it should."""
    problems = [Problem(c.file, 0, 0, text) for c in checks for text in wrong_examples(c)]
    if problems:
        raise CheckFileError("examples of checks do not hold", problems)


def wrong_examples(check: Check) -> Iterator[str]:
    """One sentence for each example that does not hold."""
    judge = Judge(check)
    kinds = {
        Status.FAIL: check.examples.fail,
        Status.PASS: check.examples.pass_,
        Status.UNKNOWN: check.examples.unknown,
        Status.SKIPPED: check.examples.skipped,
    }
    for status, examples in kinds.items():
        for number, example in enumerate(examples):
            name = f"example {status.value}[{number}]"
            yield from (f"{name}: {text}" for text in _strangers(example))
            verdict = judge.verdict(_values(example))
            if verdict.broken:
                yield f"{name}: {verdict.broken}"
            elif verdict.status is not status:
                yield f"{name} gives {verdict.status.value}, expected {status.value}"


def _strangers(example: Example) -> Iterator[str]:
    for root, facts in example.items():
        if root not in ROOTS:
            yield f"there is no {root}; use {', '.join(ROOTS)}"
            continue
        known = CATALOGUE[ROOTS[root]]
        for fact in facts:
            if fact not in known:
                near = difflib.get_close_matches(str(fact), known, 1)
                yield f"there is no fact {root}.{fact}" + (f", did you mean {near[0]}?" if near else "")


def _values(example: Example) -> dict[tuple[str, str], object]:
    return {
        (root, str(name)): tuple(value) if isinstance(value, list) else value
        for root, facts in example.items()
        for name, value in facts.items()
    }
