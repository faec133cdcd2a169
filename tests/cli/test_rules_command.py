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


@pytest.mark.parametrize(
    "arguments",
    [
        ["--selector", "cluster"],
        ["--selector", "1a=b"],
        ["--selector", "a="],
        ["--selector", "instance=x"],
        ["--selector", "a=b", "--selector", "a=c"],
        ["--t-hold", "0"],
        ["--timeout-ratio", "1"],
        ["--format", "xml"],
    ],
)
def test_usage_errors_are_exit_2(arguments: list[str]) -> None:
    done = pdguard("rules", *arguments)
    assert done.returncode == 2, done.stdout
    assert "Traceback" not in done.stderr
