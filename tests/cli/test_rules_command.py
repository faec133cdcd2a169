"""`pdguard rules` as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from pdguard.outcomes.alerts import ALERTS
from tests.cli.test_commands import pdguard


def test_rules_are_yaml_with_every_alert(tmp_path: Path) -> None:
    file = tmp_path / "pdguard.rules.yml"
    done = pdguard("rules", "--selector", "cluster=prod", "--t-hold", "75", "-o", str(file))
    assert (done.returncode, done.stdout) == (0, "")
    groups = yaml.safe_load(file.read_text())["groups"]
    assert [r["alert"] for r in groups[1]["rules"]] == [a.name for a in ALERTS]
    assert "* 75 *" in file.read_text()
    assert 'cluster="prod"' in file.read_text()


def test_thresholds_reach_the_rules() -> None:
    text = pdguard("rules", "--timeout-ratio", "0.25").stdout
    assert "pdguard:decode_holds_unproven:ratio15m > 0.25" in text


def test_dashboard_and_tests() -> None:
    assert json.loads(pdguard("rules", "--format", "grafana").stdout)["uid"] == "pdguard-outcomes"
    made = yaml.safe_load(pdguard("rules", "-f", "tests").stdout)
    assert made["rule_files"] == ["pdguard.rules.yml"]
    assert len(made["tests"]) >= 2 * len(ALERTS)


def test_an_alert_can_be_left_out_and_the_page_be_another() -> None:
    options = [
        *("--disable", "PdguardPoolBelowContext", "--disable", "PdguardHoldsGrow"),
        *("--runbook-url", "https://wiki/pdguard"),
    ]
    alerts = yaml.safe_load(pdguard("rules", *options).stdout)["groups"][1]["rules"]
    left = [a.name for a in ALERTS if a.name not in options]
    assert [r["alert"] for r in alerts] == left
    assert len(left) == len(ALERTS) - 2
    links = [r["annotations"]["runbook_url"] for r in alerts]
    assert links == [f"https://wiki/pdguard#{name.lower()}" for name in left]
    tested = yaml.safe_load(pdguard("rules", "-f", "tests", *options).stdout)["tests"]
    assert {t["alert_rule_test"][0]["alertname"] for t in tested} == set(left)


@pytest.mark.parametrize("typed", ["PdguardPoolBelowContex", "PoolBelowContext", "pdguardpoolbelowcontext"])
def test_a_misspelt_alert_is_met_with_the_nearest(typed: str) -> None:
    done = pdguard("rules", "--disable", typed)
    assert done.returncode == 2
    assert "Did you mean PdguardPoolBelowContext?" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["--selector", "cluster"],
        ["--selector", "1a=b"],
        ["--selector", "a="],
        ["--selector", "instance=x"],
        ["--selector", "a=b", "--selector", "a=c"],
        ["--t-hold", "0"],
        ["--t-hold", "0.1"],
        ["--selector", "a={{ $value }}"],
        ["--timeout-ratio", "1"],
        ["--format", "xml"],
        ["--disable", "Nothing"],
        ["--runbook-url", "wiki"],
        ["--runbook-url", "https://wiki/{{ $labels }}"],
    ],
)
def test_usage_errors_are_exit_2(arguments: list[str]) -> None:
    done = pdguard("rules", *arguments)
    assert done.returncode == 2, done.stdout
    assert "Traceback" not in done.stderr
