"""Expressions are three-valued: what is missing makes a verdict unknown exactly where it matters."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdguard.policy.expression import Expression, ExpressionError

A, B = ("engine", "pool"), ("engine", "context_length")


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ("engine.pool < engine.context_length", {A: 1, B: 2}, True),
        ("engine.pool < engine.context_length", {A: 2, B: 2}, False),
        ("engine.pool < engine.context_length", {B: 2}, None),
        ("engine.pool < 3 && engine.context_length > 3", {B: 1}, False),
        ("engine.pool < 3 && engine.context_length > 3", {B: 9}, None),
        ("engine.pool < 3 || engine.context_length > 3", {B: 9}, True),
        ("engine.pool < 3 || engine.context_length > 3", {B: 1}, None),
        ("engine.pool < 2.5", {A: 2}, True),
        ("size(cluster.prefill_limits) > 1", {("cluster", "prefill_limits"): (1, 2)}, True),
        ("'x' in pair.differs", {("pair", "differs"): ("y",)}, False),
        ("true", {}, True),
    ],
)
def test_three_values(text: str, values: dict[tuple[str, str], object], expected: bool | None) -> None:
    assert Expression(text).evaluate(values) is expected


def test_refs_are_the_facts_used_once_and_not_what_stands_in_quotes() -> None:
    expression = Expression("engine.pool > 1 && engine.pool < 9 && engine.hold == 'pair.over_read_from'")
    assert expression.refs == (A, ("engine", "hold"))


@pytest.mark.parametrize("text", ["engine.pool <", "nobody.pool < 1", "1 + 1", "engine.pool + 1", ""])
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError):
        Expression(text)


@pytest.mark.parametrize("text", ["engine.pool / 0 > 1", "engine.pool < 1"])
def test_an_expression_that_breaks_is_no_verdict(text: str) -> None:
    with pytest.raises(ExpressionError):
        Expression(text).evaluate({A: "text" if "/" not in text else 1})


@given(st.text(max_size=60))
def test_no_text_escapes_as_another_error(text: str) -> None:
    with contextlib.suppress(ExpressionError):
        assert Expression(text).evaluate({A: 1, B: 2}) in (True, False, None)


@given(st.booleans() | st.none(), st.booleans() | st.none())
def test_and_or_follow_kleene(one: bool | None, two: bool | None) -> None:
    values: dict[tuple[str, str], object] = {}
    if one is not None:
        values["engine", "metrics_on"] = one
    if two is not None:
        values["engine", "checksum"] = two
    both = False if False in (one, two) else None if None in (one, two) else True
    either = True if True in (one, two) else None if None in (one, two) else False
    assert Expression("engine.metrics_on && engine.checksum").evaluate(values) is both
    assert Expression("engine.metrics_on || engine.checksum").evaluate(values) is either
