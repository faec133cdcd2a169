"""The rules as the real promtool sees them: each alert fires and stays silent; broken rules are caught."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
import yaml

from pdguard.outcomes.alerts import ALERTS
from pdguard.outcomes.definitions import DEFINITIONS, Limits, expand, matchers
from pdguard.outcomes.rule_tests import unit_tests_text
from pdguard.outcomes.rules import RULE_FILE, Wanted, annotations_of, rule_groups, rules_text
from pdguard.outcomes.scenarios import scenarios
from tests.docs_pages import ROOT
from tests.outcomes.promtool import needs_promtool, promtool

SETTINGS = [
    (Limits(), {}),
    (Limits(t_hold=75.5, timeout_ratio=0.2, min_holds=7), {"cluster": 'pr"od', "zone": "$x\\y"}),
]


def write(folder: Path, limits: Limits, selector: dict[str, str]) -> Path:
    rules = folder / RULE_FILE
    rules.write_text(rules_text(limits, selector), "utf-8")
    (folder / "tests.yml").write_text(unit_tests_text(limits, selector), "utf-8")
    return rules


def escape_names(file: Path) -> None:
    """Series as a Prometheus stores them that was answered in OpenMetrics."""
    content = yaml.safe_load(file.read_text("utf-8"))
    for series in (one for test in content["tests"] for one in test["input_series"]):
        assert series["series"].startswith("sglang:")
        series["series"] = series["series"].replace("sglang:", "sglang_", 1)
    file.write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True), "utf-8")


@needs_promtool
@pytest.mark.parametrize(("limits", "selector"), SETTINGS)
def test_promtool_passes_rules_and_their_tests(
    limits: Limits, selector: dict[str, str], tmp_path: Path
) -> None:
    write(tmp_path, limits, selector)
    if selector:
        escape_names(tmp_path / "tests.yml")
    checked = promtool("check", "rules", RULE_FILE, cwd=tmp_path)
    assert checked.returncode == 0, checked.stderr
    assert f"{len(ALERTS) + len(DEFINITIONS)} rules found" in checked.stdout
    tested = promtool("test", "rules", "tests.yml", cwd=tmp_path)
    assert tested.returncode == 0, tested.stdout + tested.stderr


@needs_promtool
@pytest.mark.parametrize(
    "disabled", [frozenset({"PdguardPoolBelowContext"}), frozenset(a.name for a in ALERTS)]
)
def test_promtool_passes_with_alerts_left_out(disabled: frozenset[str], tmp_path: Path) -> None:
    wanted = Wanted(disabled, "https://wiki/pdguard")
    (tmp_path / RULE_FILE).write_text(rules_text(Limits(), {}, wanted), "utf-8")
    (tmp_path / "tests.yml").write_text(unit_tests_text(Limits(), {}, wanted), "utf-8")
    tested = promtool("test", "rules", "tests.yml", cwd=tmp_path)
    assert tested.returncode == 0, tested.stdout + tested.stderr


MUTATIONS = [
    ("Ratio", "max by (instance, outcome, dp_rank)", "sum by (instance, outcome, dp_rank)"),
    ("Ratio", ' unless {__name__=~"sglang:decode_deferred', ' and {__name__=~"sglang:decode_deferred'),
    ("Ratio", " offset 15m)) or max", " offset 1m)) or max"),
    ("Ratio", "timeout|error", "timeout"),
    ("Ratio", 'increase({__name__=~"sglang:decode_deferred', 'delta({__name__=~"sglang:decode_deferred'),
    ("Ratio", "or 0 * sum by (instance)", "and 0 * sum by (instance)"),
    ("Ratio", " and on (instance) sum by (instance) (pdguard:decode_holds:increase15m) >= 20", ""),
    (
        "Grow",
        '(max by (instance, dp_rank) ({__name__=~"sglang:num_dec',
        '(sum by (instance, dp_rank) ({__name__=~"sglang:num_dec',
    ),
    ("Transfer", "max by (instance, engine_type, dp_rank)", "sum by (instance, engine_type, dp_rank)"),
    ("Pool", "sglang:context_len|sglang_context_len", "sglang:no_such_series"),
    ("Missing", "unless on (instance) count_over_time", "and on (instance) count_over_time"),
]


def keep_only(folder: Path, word: str) -> None:
    """Leave only the tests of the alerts with this word in their name."""
    file = folder / "tests.yml"
    content = yaml.safe_load(file.read_text("utf-8"))
    content["tests"] = [t for t in content["tests"] if word in t["name"].partition(":")[0]]
    assert content["tests"]
    file.write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True), "utf-8")


@needs_promtool
@pytest.mark.parametrize(("alert", "right", "wrong"), MUTATIONS)
def test_a_broken_expression_is_caught(alert: str, right: str, wrong: str, tmp_path: Path) -> None:
    rules = write(tmp_path, Limits(), {})
    keep_only(tmp_path, alert)
    text = rules.read_text("utf-8")
    assert right in text
    rules.write_text(text.replace(right, wrong), "utf-8")
    assert promtool("check", "rules", RULE_FILE, cwd=tmp_path).returncode == 0
    assert promtool("test", "rules", "tests.yml", cwd=tmp_path).returncode == 1


@needs_promtool
@pytest.mark.parametrize("alert", [a.name for a in ALERTS])
def test_an_alert_that_never_or_always_fires_is_caught(alert: str, tmp_path: Path) -> None:
    rules = write(tmp_path, Limits(), {})
    keep_only(tmp_path, alert)
    content = yaml.safe_load(rules.read_text("utf-8"))
    (one,) = (r for r in content["groups"][1]["rules"] if r["alert"] == alert)
    content["groups"][1]["rules"] = [one]
    content["groups"][0]["rules"] = []
    for expression, told in (
        ("vector(1) > 2", "got:[]"),
        ('label_replace(vector(1), "instance", "d0:30000", "", "")', "exp:[\n        ]"),
    ):
        one["expr"] = expression
        rules.write_text(yaml.safe_dump(content), "utf-8")
        done = promtool("test", "rules", "tests.yml", cwd=tmp_path)
        assert done.returncode == 1
        said = done.stderr.replace(" ", "").replace("\n", "")
        assert told.replace(" ", "").replace("\n", "") in said


def test_every_alert_has_scenarios_of_both_kinds() -> None:
    kinds: dict[str, set[bool]] = defaultdict(set)
    for one in scenarios(Limits()):
        kinds[one.alert].add(one.fires is not None)
    assert kinds == {a.name: {True, False} for a in ALERTS}


def test_every_expression_is_narrowed_to_the_selector() -> None:
    for group in rule_groups(Limits(), {"cluster": "prod"}):
        for rule in group["rules"]:
            series = rule["expr"].count("sglang:") + rule["expr"].count("pdguard:")
            assert rule["expr"].count('cluster="prod"') == series
            assert rule["labels"]["cluster"] == "prod"


def test_names_follow_level_metric_operations() -> None:
    for one in DEFINITIONS:
        assert len(one.record.split(":")) == 3, one.record
    names = [one.name for one in DEFINITIONS]
    assert len(set(names)) == len(names)


def test_an_expression_can_be_written_out_without_rules() -> None:
    for expression in (*(d.expression for d in DEFINITIONS), *(a.expression for a in ALERTS)):
        text = expand(expression, Limits(), matchers({"a": "b"}))
        assert "pdguard:" not in text
        assert "@" not in text
        assert "$" not in text


def test_the_page_has_every_figure_and_a_section_of_each_alert() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text("utf-8")
    for alert in ALERTS:
        assert f"\n## {alert.name}\n\nSeverity {alert.severity}, after {alert.wait}. " in page
        filled = annotations_of(alert, Limits())["description"]
        assert filled in page.partition(f"\n## {alert.name}\n")[2].partition("\n\n")[0]
    for one in DEFINITIONS:
        assert f"| {one.title} | `{one.record}` | {expand(one.meaning, Limits())} | {one.unit} |" in page


def test_rules_are_the_same_each_time() -> None:
    assert rules_text(Limits(), {"b": "1", "a": "2"}) == rules_text(Limits(), {"a": "2", "b": "1"})
    assert "&id" not in rules_text(Limits(), {"a": "2"})
