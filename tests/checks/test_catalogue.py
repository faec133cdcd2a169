"""What holds for the catalogue as a whole: ids, facts, words, and steps that lead somewhere."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from pdguard.policy.expression import Expression
from pdguard.policy.loader import FOR_EACH
from pdguard.policy.message import Message
from pdguard.policy.model import GATES, Check, Severity
from tests.checks.recorded import catalogue

SETTINGS = {"batch-cap", "checksum", "context-length", "hold", "metrics", "t-hold"}
"""Settings that steps may name; each has a page under remediations/settings/."""

TAGS = {
    *("by-version", "canary", "checksum", "environment", "hicache", "hold", "incident", "inventory", "keys"),
    *("metrics", "mori", "nixl", "parity", "probe", "ranks", "router", "timeout", "upgrade"),
}

MACHINE = re.compile(r"/(home|root|work|tmp|Users|mnt)/|\b[a-z]+://|\d+\.\d+\.\d+\.\d+|@\w+\.\w+")
each_check = pytest.mark.parametrize("check", [pytest.param(c, id=c.id) for c in catalogue()])


def test_every_gate_has_checks() -> None:
    assert {c.gate for c in catalogue()} == set(GATES)


def test_titles_and_messages_are_told_apart() -> None:
    for words in ([c.title for c in catalogue()], [c.message for c in catalogue()]):
        assert [w for w, n in Counter(words).items() if n > 1] in ([], [SAME_ON_BOTH_ROLES])


SAME_ON_BOTH_ROLES = next(c.message for c in catalogue() if c.id == "PDG101")
"""The one message that two checks share: the same fault on prefill and on decode."""


@each_check
def test_the_hundreds_digit_is_the_gate(check: Check) -> None:
    assert re.fullmatch(r"PDG[1-6][0-9]{2}", check.id)
    assert GATES[int(check.id[3]) - 1] == check.gate
    assert check.file.endswith(f"{check.id}.yaml")


@each_check
def test_braces_are_facts(check: Check) -> None:
    for text in (check.message, *check.fix):
        assert not set("{}") & set(Message(text).fill(lambda ref: 1)), text


@each_check
def test_an_expression_looks_at_the_thing_it_is_about(check: Check) -> None:
    own = set(FOR_EACH[check.for_each]) or {"cluster"}
    assert own & {root for root, _ in Expression(check.fail_if).refs}


@each_check
def test_a_failure_says_what_was_seen(check: Check) -> None:
    """A message that names no fact is fine only where the fact has a single bad value."""
    facts = {ref for ref in Expression(check.fail_if).refs if ref[0] != "policy"}
    assert Message(check.message).refs or len(facts) == 1


@each_check
def test_the_words_are_short_enough_to_be_read_at_night(check: Check) -> None:
    assert 10 <= len(check.title) <= 80
    assert not check.title.endswith(".")
    assert not check.message.endswith(".")
    assert 35 <= len(check.explain.split()) <= 170, len(check.explain.split())
    assert 2 <= len(check.explain.split("\n\n")) <= 4
    assert all(len(line) <= 130 for line in check.explain.splitlines())
    assert "Known" in check.explain or "Seen" in check.explain or "Computed" in check.explain


@each_check
def test_there_is_a_way_out(check: Check) -> None:
    steps = [s for s in check.fix if not s.startswith("setting:")]
    assert steps
    assert all(len(s) <= 130 and not s.endswith(".") for s in steps)
    assert {s.removeprefix("setting:") for s in check.fix if s not in steps} <= SETTINGS


@each_check
def test_tags_and_references_are_of_the_known_kinds(check: Check) -> None:
    assert check.tags
    assert set(check.tags) <= TAGS
    assert all(re.fullmatch(r"sglang#[0-9]+|pdguard:docs/[a-z/-]+\.md", r) for r in check.refs)
    if check.severity >= Severity.HIGH and "by-version" in check.tags:
        assert check.refs, "what a version does was learnt somewhere"


@each_check
def test_no_machine_and_no_address_in_the_text(check: Check) -> None:
    for text in (check.title, check.message, check.explain, *check.fix):
        assert not MACHINE.search(text), text
        assert text.isascii(), text


def test_every_tag_is_used() -> None:
    assert {t for c in catalogue() for t in c.tags} == TAGS


@pytest.mark.parametrize("number", [101, 102, 103, 104, 105, 108, 201, 202, 203, 204, 208])
def test_a_window_is_closed_by_a_number(number: int) -> None:
    """Whoever reads a finding about limits finds the context length to set, in figures."""
    (check,) = (c for c in catalogue() if c.id == f"PDG{number}")
    named = {ref for step in check.fix for ref in Message(step).refs}
    assert {("cluster", "safe_context"), ("pair", "safe_context")} & named
    assert "setting:context-length" in check.fix
