from __future__ import annotations

import dataclasses
from itertools import permutations

import pytest

from pdguard.policy.model import AuditResult, Finding, Severity, Status
from pdguard.report.summary import exit_code, ordered, summarise, verdict
from tests.report.samples import WHEN, engine, finding, small

LOW, MEDIUM, HIGH, CRITICAL = Severity


def of(status: Status, severity: Severity = Severity.CRITICAL) -> Finding:
    return finding(status=status, severity=severity)


@pytest.mark.parametrize(
    ("findings", "fail_on", "strict", "code"),
    [
        ((), LOW, False, 0),
        ((of(Status.FAIL, LOW),), LOW, False, 10),
        ((of(Status.FAIL, MEDIUM), of(Status.FAIL, LOW)), LOW, False, 11),
        ((of(Status.FAIL, LOW), of(Status.FAIL, HIGH)), LOW, False, 12),
        ((of(Status.FAIL, CRITICAL),), CRITICAL, False, 13),
        ((of(Status.FAIL, MEDIUM),), HIGH, False, 0),
        ((of(Status.FAIL, MEDIUM), of(Status.FAIL, CRITICAL)), HIGH, False, 13),
        ((of(Status.UNKNOWN, CRITICAL),), LOW, False, 0),
        ((of(Status.UNKNOWN, LOW),), LOW, True, 12),
        ((of(Status.UNKNOWN, CRITICAL),), CRITICAL, True, 0),
        ((of(Status.UNKNOWN), of(Status.FAIL, CRITICAL)), LOW, True, 13),
        ((of(Status.UNKNOWN), of(Status.FAIL, LOW)), LOW, True, 12),
        ((of(Status.WAIVED), of(Status.SKIPPED), of(Status.PASS)), LOW, True, 0),
    ],
)
def test_exit_code(findings: tuple[Finding, ...], fail_on: Severity, strict: bool, code: int) -> None:
    assert exit_code(findings, fail_on, strict) == code


def test_only_failures_count_by_severity() -> None:
    assert summarise(small().findings).as_dict() == {
        "fail": 4, "pass": 2, "unknown": 2, "skipped": 1, "waived": 1,
        "by_severity": {"critical": 3, "medium": 1},
    }  # fmt: skip


def test_the_order_does_not_depend_on_the_order_of_arrival() -> None:
    few = small().findings[:5]
    assert len({tuple(f.message for f in ordered(p)) for p in permutations(few)}) == 1


@pytest.mark.parametrize(
    ("findings", "line"),
    [
        (small().findings, "EXPOSED prod: 3 critical, 1 medium on 3 of 4 engines and 1 other;"
         " 2 verdicts unknown (2 checks)"),
        ((of(Status.FAIL, HIGH), of(Status.UNKNOWN)), "AT RISK prod: 1 high on 1 of 4 engines;"
         " 1 verdict unknown (1 check)"),
        ((of(Status.FAIL, LOW),), "FINDINGS prod: 1 low on 1 of 4 engines"),
        ((of(Status.FAIL, MEDIUM),), "FINDINGS prod: 1 medium on 1 of 4 engines"),
        ((finding(target="r0", engines=()),), "EXPOSED prod: 1 critical on r0"),
        ((of(Status.PASS), of(Status.UNKNOWN)),
         "UNKNOWN prod: nothing failed, but 1 verdict unknown (1 check)"),
        (
            (of(Status.PASS), of(Status.WAIVED)),
            "WAIVED prod: 1 check passed on 4 engines; 1 finding accepted by waiver (up to critical)",
        ),
        ((of(Status.SKIPPED),), "UNKNOWN prod: nothing failed, but no check was judged"),
        ((), "UNKNOWN prod: nothing failed, but no check was judged"),
    ],
)  # fmt: skip
def test_verdict(findings: tuple[Finding, ...], line: str) -> None:
    said = verdict(dataclasses.replace(small(), findings=findings))
    assert f"{said.word} {said.text}" == line


def test_a_single_engine_is_not_plural() -> None:
    said = verdict(AuditResult("c", WHEN, (of(Status.FAIL),), (engine("p0"),)))
    assert said.text == "c: 1 critical on 1 of 1 engine"
