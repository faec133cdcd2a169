"""The examples in the catalogue are its tests: each one gives the status it is listed under."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import pytest

from pdguard.facts.catalogue import spec
from pdguard.policy.model import Check, Status
from tests.checks.recorded import Example, catalogue, examples_of, judge

TYPES: dict[str, type] = {"text": str, "int": int, "float": float, "bool": bool, "list": list}

EXAMPLES = [
    pytest.param(check, status, example, id=f"{check.id}-{status}-{number}")
    for check in catalogue()
    for status, number, example in examples_of(check)
]
each_example = pytest.mark.parametrize(("check", "status", "example"), EXAMPLES)
each_check = pytest.mark.parametrize("check", [pytest.param(c, id=c.id) for c in catalogue()])


@each_example
def test_an_example_gives_the_status_it_is_listed_under(
    check: Check, status: Status, example: Example
) -> None:
    finding = judge(check, example)
    assert finding.status is status, f"{dict(example)} gave {finding.status}: {finding.message}"


@each_example
def test_an_unknown_names_what_was_missing(check: Check, status: Status, example: Example) -> None:
    finding = judge(check, example)
    assert bool(finding.missing) == (status is Status.UNKNOWN)


@each_example
def test_values_are_of_the_catalogue_s_type(check: Check, status: Status, example: Example) -> None:
    for root, facts in example.items():
        for name, value in facts.items():
            known = spec(root, name)
            assert known is not None, f"there is no fact {root}.{name}"
            assert type(value) is TYPES[known.type], f"{root}.{name} is {known.type}, not {value!r}"


@each_example
def test_a_fact_taken_away_never_turns_a_verdict_round(
    check: Check, status: Status, example: Example
) -> None:
    """Less knowledge may make a verdict unknown; it must not make a failure pass, or a pass fail."""
    opposite = {Status.FAIL: {Status.PASS, Status.SKIPPED}, Status.UNKNOWN: {Status.PASS, Status.FAIL}}
    for less in _poorer(example):
        found = judge(check, less).status
        assert found not in opposite.get(status, {Status.FAIL}), f"{less} gave {found}"


@each_check
def test_knowing_nothing_is_unknown(check: Check) -> None:
    assert judge(check, {}).status is Status.UNKNOWN


@each_check
def test_the_first_failing_example_fills_the_message(check: Check) -> None:
    """It is shown in the documentation, so it carries every fact that the message speaks of."""
    message = judge(check, check.examples.fail[0]).message
    assert "?" not in message, message
    assert len(message) <= 120, f"{len(message)} columns: {message}"


def _poorer(example: Example) -> Iterator[Mapping[str, Mapping[str, object]]]:
    """The example with every proper subset of its facts."""
    names = [(root, name) for root, facts in example.items() for name in facts if root != "policy"]
    policy = {root: facts for root, facts in example.items() if root == "policy"}
    for size in range(len(names)):
        for kept in itertools.combinations(names, size):
            facts: dict[str, dict[str, object]] = {}
            for root, name in kept:
                facts.setdefault(root, {})[name] = example[root][name]
            yield {**facts, **policy}
