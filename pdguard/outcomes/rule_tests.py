"""Unit tests of the rules, for `promtool test rules`: the scenarios in promtool's own format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pdguard.outcomes.alerts import ALERTS, Alert
from pdguard.outcomes.definitions import Limits, matchers, quoted
from pdguard.outcomes.rules import EVERY, HEAD, RULE_FILE, Wanted, annotations_of, dump
from pdguard.outcomes.scenarios import Scenario, Series, scenarios

_ALERTS = {alert.name: alert for alert in ALERTS}


def unit_tests_text(limits: Limits, selector: Mapping[str, str], wanted: Wanted = EVERY) -> str:
    """The tests as YAML. promtool looks for the rules in RULE_FILE, beside the tests."""
    return HEAD + dump(
        {
            "rule_files": [RULE_FILE],
            "evaluation_interval": "1m",
            "group_eval_order": ["pdguard-figures", "pdguard-alerts"],
            "tests": [
                _test(one, limits, selector, wanted)
                for one in scenarios(limits)
                if one.alert not in wanted.disabled
            ],
        }
    )


def _test(one: Scenario, limits: Limits, selector: Mapping[str, str], wanted: Wanted) -> dict[str, Any]:
    alert = _ALERTS[one.alert]
    at = f"{one.at}m"
    test: dict[str, Any] = {
        "name": f"{one.alert}: {one.title}",
        "interval": "1m",
        "input_series": [_series(series, selector) for series in one.series],
        "alert_rule_test": [
            {
                "alertname": one.alert,
                "eval_time": at,
                "exp_alerts": _expected(one, alert, limits, selector, wanted),
            }
        ],
    }
    if one.figures:
        test["promql_expr_test"] = [
            {
                "expr": record + "{" + matchers({**labels, **selector}).removeprefix(",") + "}",
                "eval_time": at,
                "exp_samples": [{"labels": record + _written({**labels, **selector}), "value": value}],
            }
            for record, labels, value in one.figures
        ]
    return test


def _series(series: Series, selector: Mapping[str, str]) -> dict[str, str]:
    return {"series": series.name + _written({**series.labels, **selector}), "values": series.values}


def _written(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f"{name}={quoted(value)}" for name, value in labels.items()) + "}"


def _expected(
    one: Scenario, alert: Alert, limits: Limits, selector: Mapping[str, str], wanted: Wanted
) -> list[dict[str, Any]]:
    if one.fires is None:
        return []
    labels, shown = one.fires
    texts = annotations_of(alert, limits, wanted)
    value = f"{{{{ $value | {alert.shown} }}}}"
    summary = texts["summary"].replace("{{ $labels.instance }}", labels["instance"]).replace(value, shown)
    return [
        {
            "exp_labels": {**labels, "severity": alert.severity, **selector},
            "exp_annotations": {**texts, "summary": summary},
        }
    ]
