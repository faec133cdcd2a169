"""A check as text: for `pdguard explain`, and as a section of docs/checks.md."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from pdguard.facts.catalogue import spec
from pdguard.policy.expression import Expression
from pdguard.policy.message import Message
from pdguard.policy.model import GATES, Check

GATE_QUESTIONS = {
    "pool": "does the declared context fit what the running pools admit, on both roles?",
    "admission": "does a rejected request end at the door, before any handoff state?",
    "transfer": "does what was written cover what is read; is any integrity check really on?",
    "lifetime": "after any failure, when may a page be reused; do both sides hold and acknowledge?",
    "router": "are both halves of a pair cancelled together?",
    "visibility": "would the operator see it: metrics, logs, outcomes, drift?",
}


def explain_check(check: Check, width: int) -> str:
    """The whole check as plain text of at most `width` columns."""
    blocks = [
        f"{check.id}  {check.title}",
        f"{check.severity.label}, gate {check.gate}, for each {check.for_each}",
        "",
        *_paragraphs(check.explain, width),
        "What to do",
        *(line for i, step in enumerate(_steps(check), 1) for line in _item(f"{i}. ", step, width)),
        "",
        "When it fails",
        *_item("  ", " ".join(check.fail_if.split()), width),
    ]
    if check.when != "true":
        blocks += ["Where it applies", *_item("  ", " ".join(check.when.split()), width)]
    blocks += ["", "Facts it looks at"]
    for name, meaning in facts_of(check):
        blocks += _item("  ", f"{name}: {meaning}", width)
    if check.refs:
        blocks += ["", *_item("References: ", ", ".join(check.refs), width)]
    if check.tags:
        blocks += _item("Tags: ", ", ".join(check.tags), width)
    return "\n".join(blocks) + "\n"


def facts_of(check: Check) -> list[tuple[str, str]]:
    """The facts that the check's expressions and message use, with their meaning."""
    refs = dict.fromkeys(
        (*Expression(check.when).refs, *Expression(check.fail_if).refs, *Message(check.message).refs)
    )
    found = ((f"{root}.{name}", spec(root, name)) for root, name in refs)
    return [(name, entry.meaning) for name, entry in found if entry is not None]


def _steps(check: Check) -> list[str]:
    """The steps in words, with the facts that an audit fills in named instead of braced."""
    return [Message(s).fill(lambda r: f"<{r[0]}.{r[1]}>") for s in check.fix if not s.startswith("setting:")]


def _paragraphs(text: str, width: int) -> list[str]:
    lines: list[str] = []
    for paragraph in text.split("\n\n"):
        lines += [*textwrap.wrap(" ".join(paragraph.split()), width), ""]
    return lines


def _item(mark: str, text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=mark, subsequent_indent=" " * len(mark))


def checks_page(checks: Sequence[Check]) -> str:
    """docs/checks.md: one section a check, by gate."""
    parts = [
        "# Checks",
        "",
        "Printed from `checks/` by `make docs`; a test holds this page to the catalogue. "
        "`pdguard explain ID` shows the same on the command line.",
        "",
    ]
    for gate in GATES:
        parts += [f"## {gate}: {GATE_QUESTIONS[gate]}", ""]
        for check in (c for c in checks if c.gate == gate):
            parts += _section(check)
    return "\n".join(parts).rstrip() + "\n"


def _section(check: Check) -> list[str]:
    lines = [
        f"### {check.id}: {check.title}",
        "",
        f"**{check.severity.label}**, for each {check.for_each}. Fails if `{' '.join(check.fail_if.split())}`"
        + ("" if check.when == "true" else f", where `{' '.join(check.when.split())}`")
        + ".",
        "",
    ]
    for paragraph in check.explain.split("\n\n"):
        lines += [" ".join(paragraph.split()), ""]
    lines += [f"{i}. {step}" for i, step in enumerate(_steps(check), 1)]
    tail = [f"References: {', '.join(check.refs)}."] if check.refs else []
    tail += [f"Tags: {', '.join(check.tags)}."] if check.tags else []
    return [*lines, "", *([" ".join(tail), ""] if tail else [])]
