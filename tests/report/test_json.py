from __future__ import annotations

import dataclasses
import json
import re
import time
from typing import Any

import pytest
from hypothesis import given
from jsonschema import Draft202012Validator

from pdguard import __version__
from pdguard.facts.interface import Grade, Value
from pdguard.policy.model import GATES, AuditResult, Severity, Status
from pdguard.report.json import JsonRenderer
from pdguard.report.schema import SCHEMA_ID, report_schema
from tests.report import golden
from tests.report.samples import RESULTS, WHEN, engine, finding, hostile, large, small

VALIDATOR = Draft202012Validator(report_schema())


def strict(text: str) -> Any:
    """The parsed report; NaN and Infinity, which are not JSON, are refused."""

    def refuse(word: str) -> None:
        raise AssertionError(word)

    return json.loads(text, parse_constant=refuse)


def escaped(match: re.Match[str]) -> str:
    """The character behind an escape: which ones are escaped may differ, what they say may not."""
    return chr(int(match.group()[2:], 16))


def render(result: AuditResult) -> Any:
    report = strict(JsonRenderer().render(result))
    VALIDATOR.validate(report)
    return report


def test_golden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pdguard.report.json.__version__", "0.1.0")
    golden.check("small.json", JsonRenderer().render(small()))


def test_keys_and_their_order() -> None:
    report = render(small())
    assert list(report) == ["schema", "pdguard", "cluster", "generated_at", "engines", "findings", "summary"]
    assert report["schema"] == SCHEMA_ID == "pdguard.report/1"
    assert report["pdguard"] == __version__
    assert list(report["summary"]) == ["fail", "pass", "unknown", "skipped", "waived", "by_severity"]
    for item in report["findings"]:
        assert list(item) == ["check", "gate", "severity", "status", "grade", "target", "message", "missing",
                              "evidence", "fix", "refs"]  # fmt: skip
        for evidence in item["evidence"]:
            assert list(evidence) == ["source", "ref", "value"]


def test_engines_have_every_known_fact_and_null_for_three_names_only() -> None:
    p0, d1 = (
        engine("p0", "prefill", "0.5.20", pool=7, admission_limit=1),
        engine("d1", declared_role="decode"),
    )
    d1.facts.miss("pool", "unreachable")
    report = render(AuditResult("c", WHEN, (), (p0, d1)))
    first, second = report["engines"]
    assert list(first.items()) == [
        ("name", "d1"),
        ("role", None),
        ("version", None),
        ("declared_role", "decode"),
    ]
    assert list(second) == ["name", "role", "version", "admission_limit", "pool"]


def test_findings_of_every_status_are_listed_worst_first() -> None:
    report = render(small())
    assert {f["status"] for f in report["findings"]} == {s.value for s in Status}
    order = ["critical", "high", "medium", "low"]
    keys = [(order.index(f["severity"]), f["check"], f["target"]) for f in report["findings"]]
    assert keys == sorted(keys)


def test_by_severity_is_worst_first_without_zeros() -> None:
    found = [finding(severity=s) for s in (Severity.LOW, Severity.CRITICAL, Severity.HIGH)]
    found.append(finding(severity=Severity.MEDIUM, status=Status.UNKNOWN))
    report = render(AuditResult("c", WHEN, tuple(found), ()))
    assert list(report["summary"]["by_severity"].items()) == [("critical", 1), ("high", 1), ("low", 1)]


def test_same_evidence_same_bytes_but_for_the_time() -> None:
    one = small()
    other = dataclasses.replace(
        one, findings=one.findings[::-1], engines=one.engines[::-1], generated_at="2031-01-01T00:00:00Z"
    )
    first, second = JsonRenderer().render(one), JsonRenderer().render(other)
    assert first.replace(WHEN, "") == second.replace("2031-01-01T00:00:00Z", "")


def test_harmful_characters_are_escaped_and_utf8_holds() -> None:
    text = JsonRenderer().render(hostile())
    text.encode("utf-8")
    assert "引擎" in text
    assert not set(text) & {"\x1b", "\x9b", "\u202e", "\u2066", "\udcff"}
    targets = {f["target"] for f in render(hostile())["findings"]}
    assert {"\u202eevil\u2066", "a\x1b[31mb\x9b0m", "bad\ufffd"} <= targets


def test_values_keep_their_types() -> None:
    values: dict[str, Value] = {"a": True, "b": 1, "c": 1.0, "d": "1", "e": (1, True, "x"), "f": ()}
    p0 = engine("p0")
    for name, value in values.items():
        p0.facts.add(name, value, Grade.CLAIMED, "http", "x")
    got = render(AuditResult("c", WHEN, (), (p0,)))["engines"][0]
    assert [repr(got[k]) for k in "abcdef"] == ["True", "1", "1.0", "'1'", "[1, True, 'x']", "[]"]


def test_floats_that_are_not_finite_become_words() -> None:
    report = render(
        AuditResult("c", WHEN, (), (engine("p0", a=float("inf"), b=float("-inf"), c=float("nan")),))
    )
    assert [report["engines"][0][k] for k in "abc"] == ["inf", "-inf", "nan"]


@given(RESULTS)
def test_any_result_meets_the_schema_and_reads_like_the_standard_library(result: AuditResult) -> None:
    text = JsonRenderer().render(result)
    report = strict(text)
    VALIDATOR.validate(report)
    assert len(report["findings"]) == len(result.findings)
    again = json.dumps(report, indent=1, ensure_ascii=False) + "\n"
    assert re.sub(r"\\u[0-9a-f]{4}", escaped, text) == re.sub(r"\\u[0-9a-f]{4}", escaped, again)


def test_the_schema_is_valid_and_knows_the_model() -> None:
    schema = report_schema()
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["$id"] == "pdguard.report/1"
    known = schema["$defs"]["finding"]["properties"]
    assert known["gate"]["enum"] == list(GATES)
    assert set(known["severity"]["enum"]) == {s.label for s in Severity}
    assert set(known["status"]["enum"]) == {s.value for s in Status}
    assert known["grade"]["enum"] == [*(g.label for g in Grade), None]


def test_each_call_gives_a_schema_of_its_own() -> None:
    report_schema().clear()
    assert report_schema()


def spoiled(**path: Any) -> Any:
    report = render(small())
    for where, value in path.items():
        place: Any = report
        *parents, last = where.split("__")
        for key in parents:
            place = place[int(key)] if isinstance(place, list) else place[key]
        place[last] = value
    return report


@pytest.mark.parametrize(
    "change",
    [
        {"extra": 1},
        {"schema": "pdguard.report/2"},
        {"summary__extra": 1},
        {"summary__by_severity__low": 0},
        {"summary__by_severity__severe": 1},
        {"findings__0__extra": 1},
        {"findings__0__severity": "CRITICAL"},
        {"findings__0__grade": "guessed"},
        {"findings__0__status": "ok"},
        {"findings__0__evidence": [{"source": "a", "ref": "b"}]},
        {"findings__0__evidence": [{"source": "a", "ref": "b", "value": {}}]},
        {"findings__0__evidence": [{"source": "a", "ref": "b", "value": 1, "extra": 1}]},
        {"engines__0__pool": {}},
    ],
)
def test_the_schema_is_strict(change: dict[str, Any]) -> None:
    assert not VALIDATOR.is_valid(spoiled(**change))


@pytest.mark.bench
def test_sixty_thousand_findings_take_about_a_second() -> None:
    result = large(1000, 60)
    start = time.process_time()
    JsonRenderer().render(result)
    assert time.process_time() - start < 2
