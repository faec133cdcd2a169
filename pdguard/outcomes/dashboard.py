"""A Grafana dashboard, ready to import, generated from the table of figures."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pdguard.outcomes.definitions import DEFINITIONS, GROUPS, POOL, Definition, Limits, expand, matchers

UID = "pdguard-outcomes"
_UNITS = {
    "requests": "short",
    "per second": "reqps",
    "share": "percentunit",
    "seconds": "s",
    "tokens": "short",
}
_WIDTH, _HEIGHT = 8, 8
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def dashboard_text(limits: Limits, selector: Mapping[str, str]) -> str:
    """The dashboard as JSON. Its panels query the engines' own series; no rule needs to be loaded."""
    return json.dumps(dashboard(limits, selector), indent=2, ensure_ascii=False) + "\n"


def dashboard(limits: Limits, selector: Mapping[str, str]) -> dict[str, Any]:
    """One row for each group of figures, one panel for each figure."""
    return {
        "uid": UID,
        "title": "pdguard: how holds of decode KV end (SGLang PD)",
        "tags": ["pdguard", "sglang"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "timezone": "",
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": _variables(selector)},
        "annotations": {"list": []},
        "panels": list(_panels(limits, selector)),
    }


def _variables(selector: Mapping[str, str]) -> list[dict[str, Any]]:
    query = f"label_values({POOL}{{{matchers(selector).removeprefix(',')}}}, instance)"
    return [
        {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
        {
            "name": "instance",
            "label": "Engine",
            "type": "query",
            "datasource": _SOURCE,
            "query": {"query": query, "refId": "instances"},
            "refresh": 2,
            "sort": 1,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": ["All"], "value": ["$__all"]},
        },
    ]


def _panels(limits: Limits, selector: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    number, top = 1, 0
    chosen = matchers(selector) + ',instance=~"$instance"'
    for title in GROUPS:
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "panels": [],
            "gridPos": {"x": 0, "y": top, "w": 24, "h": 1},
        }
        number, top = number + 1, top + 1
        members = [f for f in DEFINITIONS if f.group == title]
        for place, figure in enumerate(members):
            where = {"x": place % 3 * _WIDTH, "y": top + place // 3 * _HEIGHT, "w": _WIDTH, "h": _HEIGHT}
            yield _panel(figure, number, where, expand(figure.expression, limits, chosen), limits)
            number += 1
        top += -(-len(members) // 3) * _HEIGHT


def _panel(
    figure: Definition, number: int, where: Mapping[str, int], query: str, limits: Limits
) -> dict[str, Any]:
    edge = {"timeout_ratio": limits.timeout_ratio, "held_share": limits.held_share}.get(figure.name)
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if edge is not None:
        steps.append({"color": "red", "value": edge})
    return {
        "id": number,
        "type": "timeseries",
        "title": figure.title,
        "description": expand(figure.meaning, limits),
        "datasource": _SOURCE,
        "gridPos": dict(where),
        "fieldConfig": {
            "defaults": {
                "unit": _UNITS[figure.unit],
                "min": 0,
                "thresholds": {"mode": "absolute", "steps": steps},
                "custom": {"thresholdsStyle": {"mode": "off" if edge is None else "line"}},
            },
            "overrides": [],
        },
        "options": {"legend": {"showLegend": True, "displayMode": "list", "placement": "bottom"}},
        "targets": [
            {
                "refId": "A",
                "datasource": _SOURCE,
                "expr": query,
                "legendFormat": " ".join(f"{{{{{label}}}}}" for label in figure.by),
            }
        ],
    }
