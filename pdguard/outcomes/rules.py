"""Prometheus recording and alerting rules, generated from the table of figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from pdguard.outcomes.alerts import ALERTS, Alert
from pdguard.outcomes.definitions import DEFINITIONS, Limits, expand, matchers

RULE_FILE = "pdguard.rules.yml"
"""The name under which generated unit tests look for the rules."""

RUNBOOK = "docs/metrics.md"
INTERVAL = "30s"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which alerts are printed, and the page that they point to (a URL of the operator's, if not ours)."""

    disabled: frozenset[str] = frozenset()
    runbook_url: str = ""

    @property
    def alerts(self) -> tuple[Alert, ...]:
        """The alerts that are left."""
        return tuple(alert for alert in ALERTS if alert.name not in self.disabled)


EVERY = Wanted()


def rules_text(limits: Limits, selector: Mapping[str, str], wanted: Wanted = EVERY) -> str:
    """The rules as YAML. `selector` narrows every expression and is put on every result as labels."""
    return HEAD + dump({"groups": rule_groups(limits, selector, wanted)})


HEAD = "# Written by `pdguard rules`; docs/metrics.md of pdguard says what each figure and alert means.\n"


def rule_groups(limits: Limits, selector: Mapping[str, str], wanted: Wanted = EVERY) -> list[dict[str, Any]]:
    """The two groups: figures first, then the alerts that read them."""
    chosen = matchers(selector)
    records = [
        {
            "record": figure.record,
            "expr": expand(figure.expression, limits, chosen, recorded=True),
            "labels": dict(sorted(selector.items())),
        }
        for figure in DEFINITIONS
    ]
    alerts = [
        {
            "alert": alert.name,
            "expr": expand(alert.expression, limits, chosen, recorded=True),
            "for": alert.wait,
            "labels": {"severity": alert.severity, **dict(sorted(selector.items()))},
            "annotations": annotations_of(alert, limits, wanted),
        }
        for alert in wanted.alerts
    ]
    return [
        {"name": "pdguard-figures", "interval": INTERVAL, "rules": records},
        {"name": "pdguard-alerts", "interval": INTERVAL, "rules": alerts},
    ]


def annotations_of(alert: Alert, limits: Limits, wanted: Wanted = EVERY) -> dict[str, str]:
    """Summary and description with the limits filled in, and where to read on."""
    return {
        "summary": alert.summary.replace("$shown", f"$value | {alert.shown}"),
        "description": _filled(alert.description, limits),
        "runbook_url" if wanted.runbook_url else "runbook": (
            f"{wanted.runbook_url or RUNBOOK}#{alert.name.lower()}"
        ),
    }


def _filled(text: str, limits: Limits) -> str:
    for name, word in sorted(limits.words().items(), key=lambda item: -len(item[0])):
        text = text.replace(f"${name}", word)
    return text


def dump(content: Any) -> str:
    """YAML in the order given, long expressions on one line."""
    text: str = yaml.safe_dump(content, sort_keys=False, width=10**6, allow_unicode=True)
    return text
