from __future__ import annotations

import dataclasses
import re
import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from pdguard.facts import catalogue
from pdguard.facts.interface import Grade
from pdguard.policy.model import AuditResult, Finding, Severity, Status
from pdguard.report.table import TableRenderer
from tests.report import golden
from tests.report.samples import FINDINGS, RESULTS, WHEN, engine, finding, hostile, large, small

HOW = catalogue.HOW
REACHABLE = catalogue.CATALOGUE["engine"]["reachable"]
ANSI = re.compile(r"\x1b\[[0-9;]*m")


def render(result: AuditResult, width: int = 100) -> str:
    return TableRenderer(width).render(result)


def matrix(text: str) -> dict[str, list[str]]:
    """The rows of the matrix: name to the rest of its columns."""
    lines = text.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("engine"))
    rows = {}
    for line in lines[start + 1 :]:
        if line.startswith("CRIT HIGH"):
            break
        first, *rest = re.split(r" {2,}", line)
        rows[first] = rest
    return rows


def one(*findings: object, engines: int = 1) -> AuditResult:
    subjects = tuple(engine(f"p{n}", "prefill", "0.5.20") for n in range(engines))
    return AuditResult("prod", WHEN, findings, subjects)  # type: ignore[arg-type]


@pytest.mark.parametrize("width", [60, 100])
def test_golden(width: int) -> None:
    golden.check(f"small-{width}.txt", render(small(), width))


def test_golden_colour_ascii_clean_and_unknown() -> None:
    golden.check("small-colour.txt", TableRenderer(100, color=True).render(small()))
    golden.check("hostile-ascii.txt", TableRenderer(80, unicode=False).render(hostile()))
    golden.check("clean.txt", render(one(finding(status=Status.PASS))))
    unknown = finding(status=Status.UNKNOWN, missing=("engine.t_hold",))
    golden.check("unknown.txt", render(one(unknown, finding("PDG201", Status.PASS))))


@given(RESULTS, st.integers(60, 160), st.booleans(), st.booleans())
def test_no_line_is_wider_than_the_width(result: AuditResult, width: int, color: bool, unicode: bool) -> None:
    text = TableRenderer(width, color, unicode).render(result)
    plain = ANSI.sub("", text) if color else text
    assert all(cell_len(line) <= width for line in plain.split("\n"))
    assert not [c for c in plain if c != "\n" and unicodedata.category(c) in {"Cc", "Cf", "Cs", "Zl", "Zp"}]
    assert unicode or plain.isascii()
    assert text == TableRenderer(width, color, unicode).render(result)


@pytest.mark.parametrize("width", [1, 50, 60, 79, 80, 100, 160])
def test_hostile_text_is_shown_and_harmless(width: int) -> None:
    for result in (hostile(), large(60, 60)):
        lines = render(result, width).split("\n")
        assert all(cell_len(line) <= max(width, 50) for line in lines)
    text = render(hostile(), 160)
    assert "\x1b" not in text
    assert "[red]x[/]" in text
    assert "a\\x1b[31mb\\x9b0m" in text
    assert "\\u202eevil\\u2066" in text
    assert "[bold]no[/bold]\\x07" in text


def test_colour_changes_nothing_but_colour() -> None:
    for result in (small(), hostile(), large(50, 12)):
        colored = TableRenderer(90, color=True).render(result)
        assert "\x1b[" in colored
        plain = "\n".join(line.rstrip(" ") for line in ANSI.sub("", colored).split("\n"))
        assert plain == render(result, 90)


def test_the_order_of_arrival_does_not_show() -> None:
    result = small()
    turned = dataclasses.replace(result, findings=result.findings[::-1], engines=result.engines[::-1])
    assert render(result) == render(turned)


def test_a_pair_counts_for_both_engines_and_other_targets_have_rows() -> None:
    rows = matrix(render(small()))
    assert rows["p0"] == ["prefill", "0.5.20", "CRIT", "CRIT", "-", "-", "-", "ok"]
    assert rows["p1"] == ["prefill", "0.5.20", "CRIT", "-", "-", "-", "-", "-"]
    assert rows["d0"] == ["decode", "0.5.20", "-", "CRIT", "ok", "waived", "-", "-"]
    assert rows["d1"] == ["decode", "?", "-", "-", "-", "? 2", "-", "-"]
    assert rows["r0"][-2:] == ["MED", "-"]
    assert list(rows) == ["d0", "d1", "p0", "p1", "r0"]


@pytest.mark.parametrize(
    ("findings", "cell"),
    [
        ([(Status.FAIL, Severity.CRITICAL)] * 2 + [(Status.FAIL, Severity.LOW)], "CRIT 2"),
        ([(Status.FAIL, Severity.HIGH), (Status.PASS, Severity.CRITICAL)], "HIGH"),
        ([(Status.FAIL, Severity.LOW), (Status.UNKNOWN, Severity.CRITICAL)], "low ?"),
        ([(Status.PASS, Severity.LOW)] * 9 + [(Status.UNKNOWN, Severity.LOW)], "?"),
        (
            [(Status.WAIVED, Severity.LOW), (Status.UNKNOWN, Severity.LOW), (Status.UNKNOWN, Severity.LOW)],
            "? 2",
        ),
        ([(Status.PASS, Severity.LOW), (Status.WAIVED, Severity.LOW)], "waived"),
        ([(Status.PASS, Severity.LOW), (Status.SKIPPED, Severity.LOW)], "ok"),
        ([(Status.SKIPPED, Severity.LOW)], "-"),
    ],
)
def test_a_cell_shows_its_worst_state(findings: list[tuple[Status, Severity]], cell: str) -> None:
    text = render(one(*(finding(status=status, severity=severity) for status, severity in findings)))
    assert matrix(text)["p0"][2] == cell


@given(st.lists(FINDINGS, min_size=1).map(tuple), st.integers(60, 160))
def test_unknown_never_looks_like_pass(findings: tuple[Finding, ...], width: int) -> None:
    unknown = tuple(
        dataclasses.replace(
            f, status=Status.UNKNOWN, target="t", engines=(), message="m", missing=(), title="t"
        )
        for f in findings
    )
    text = render(AuditResult("c", WHEN, unknown, ()), width)
    assert text.startswith(f"UNKNOWN  c: nothing failed, but {len(unknown)} verdict")
    row = next(line for line in text.splitlines() if line.startswith("t ")).split()
    assert row.count("?") == len({f.gate for f in unknown})
    assert "ok" not in row


def test_many_engines_share_lines() -> None:
    found = [finding(target=f"p{n}") for n in range(500)]
    rows = matrix(render(one(*found, engines=501)))
    assert list(rows) == ["p0 … p499 (500)", "p500"]
    few = matrix(render(one(*found[:40], engines=40)))
    assert len(few) == 40


def test_long_names_keep_their_count_when_they_share_a_line() -> None:
    subjects = tuple(engine("engine-" + "x" * 60 + f"-{n}", "prefill", "1") for n in range(41))
    text = render(AuditResult("c", WHEN, (finding(target="r0", engines=()),), subjects), 60)
    assert "(41)" in text


def test_findings_that_say_the_same_are_one() -> None:
    found = [finding(target=f"p{n}", message=f"p{n}: pool admits {n} tokens") for n in range(500)]
    text = " ".join(render(one(*found, engines=500)).split())
    assert text.count("pool admits") == 1
    assert "p0, p1, p2, p3, p4, +495 more" in text
    assert "p0: p0: pool admits 0 tokens (the other 499 alike, names and numbers differ)" in text


def test_a_fix_with_numbers_is_said_to_be_one_targets_own() -> None:
    text = render(
        one(*(finding(target=f"p{n}", fix=(f"set it to {n * 1000:,}",)) for n in range(9)), engines=9)
    )
    assert "fix 1 of 1 for p0: set it to 0\n" in text
    assert text.count("set it to") == 3
    last = "next: PDG101 on p0: set it to 0 (8 more, each with numbers of its own: --format json)"
    assert last in " ".join(text.split())


def test_a_stronger_grade_does_not_lend_itself_to_others() -> None:
    text = render(one(finding(), finding(target="p1", grade=Grade.OBSERVED), engines=2))
    assert "known by: configured" in text
    assert "known by: observed" in text


def test_unknowns_name_what_is_missing_why_and_how() -> None:
    text = " ".join(render(small()).split())
    assert "2 verdicts (up to high) on d1 checks:" in text
    assert "why: node gpu-03: connection refused" in text
    assert "how: start sshd on gpu-03, or give the node a transport" in text
    assert "missing: engine.hold how: it follows from other facts" in text


@pytest.mark.parametrize(
    ("missing", "shown"),
    [
        ("engine.pool", "missing: engine.pool how: make the engine's URL reachable"),
        ("engine.pool: timed out", "missing: engine.pool why: timed out how: make the engine's URL"),
        ("engine.pool: timed out; ask Bob; or Al", "missing: engine.pool why: timed out how: ask Bob; or Al"),
        (f"engine.hold: nan; {HOW['derived']}", f"engine.hold why: nan how: {HOW['derived']}"),
        (f"engine.reachable: {REACHABLE.meaning}: not known; {HOW['http']}",
         "missing: engine.reachable how: make the engine's URL reachable"),
        ("PDG101: no such operator", "why: PDG101: no such operator"),
        ("engine.nosuch: odd", "why: engine.nosuch: odd"),
        ("free words", "why: free words"),
    ],
)  # fmt: skip
def test_entries_of_missing_may_carry_their_reason(missing: str, shown: str) -> None:
    assert shown in " ".join(render(one(finding(status=Status.UNKNOWN, missing=(missing,)))).split())


@pytest.mark.parametrize(
    ("findings", "last"),
    [
        ((finding(fix=("a",)), finding("PDG102", target="p1", fix=("b",)),
          finding("PDG102", target="p2", fix=("b",))), "next: PDG102 on p1 and 1 more: b"),
        ((finding(severity=Severity.LOW, fix=("a",)), finding("PDG102", severity=Severity.HIGH)),
         "next: PDG102 on p0: read `pdguard explain PDG102`"),
        ((finding(status=Status.UNKNOWN, missing=("engine.hold",)),
          finding("PDG102", Status.UNKNOWN, missing=("engine.hold",)),
          finding("PDG103", Status.UNKNOWN, missing=("engine.holds_error",))),
         "next: start the engine with --enable-metrics (1 check waits for it)"),
        ((finding(status=Status.UNKNOWN, missing=("engine.hold",)),),
         "next: get what is missing above (1 check waits for it)"),
        ((finding(status=Status.PASS),), "next: nothing to fix;"),
    ],
)  # fmt: skip
def test_the_last_line_is_the_next_step(findings: tuple[object, ...], last: str) -> None:
    assert render(one(*findings), 160).splitlines()[-1].startswith(last)


def test_nothing_at_all() -> None:
    text = render(AuditResult("prod", WHEN, (), ()))
    assert text.startswith("UNKNOWN  prod: nothing failed, but no check was judged\n")


@pytest.mark.bench
def test_sixty_thousand_findings_take_a_few_seconds() -> None:
    result = large(1000, 60)
    start = time.process_time()
    render(result)
    assert time.process_time() - start < 5
