"""`pdguard rules`: Prometheus rules, their unit tests and a Grafana dashboard, from one table of figures."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer


class Form(enum.StrEnum):
    """What can be printed."""

    PROMETHEUS = "prometheus"
    GRAFANA = "grafana"
    TESTS = "tests"


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("rules")(rules)


def rules(
    output_format: Annotated[
        Form, typer.Option("--format", "-f", help="Rules, a dashboard, or unit tests for promtool.")
    ] = Form.PROMETHEUS,
    selector: Annotated[
        list[str] | None,
        typer.Option("--selector", metavar="LABEL=VALUE", help="Only series with this label."),
    ] = None,
    t_hold: Annotated[
        float,
        typer.Option("--t-hold", min=0.001, max=86_400, metavar="S", help="T_hold in force, in seconds."),
    ] = 30.0,
    timeout_ratio: Annotated[
        float,
        typer.Option(
            "--timeout-ratio",
            min=0.0001,
            max=0.9999,
            metavar="R",
            help="Share of holds without proof to alert at.",
        ),
    ] = 0.05,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to FILE (- is stdout).")
    ] = None,
) -> None:
    """Print recording and alerting rules for Prometheus, a Grafana dashboard, or tests of the rules.

    The tests look for the rules in pdguard.rules.yml beside them.
    """
    from pdguard.cli.run import write_result
    from pdguard.outcomes.definitions import Limits

    chosen = _selector(selector or [])
    limits = Limits(t_hold=t_hold, timeout_ratio=timeout_ratio)
    if output_format is Form.GRAFANA:
        from pdguard.outcomes.dashboard import dashboard_text as text
    elif output_format is Form.TESTS:
        from pdguard.outcomes.rule_tests import unit_tests_text as text
    else:
        from pdguard.outcomes.rules import rules_text as text
    output = None if output is not None and str(output) == "-" else output
    write_result(text(limits, chosen), output)


def _selector(given: list[str]) -> dict[str, str]:
    import re

    from pdguard.errors import InputError

    found: dict[str, str] = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name) or not value.isprintable():
            raise InputError("--selector", expected="LABEL=VALUE, such as cluster=prod", found=repr(one))
        if name in found or name in RESERVED or not value:
            why = "once a label, and none that the rules use themselves"
            raise InputError("--selector", expected=why, found=repr(one))
        found[name] = value
    return found


RESERVED = frozenset(
    (
        *("instance", "engine_type", "outcome", "severity", "alertname", "le"),
        *("tp_rank", "dp_rank", "pp_rank", "moe_ep_rank", "__name__"),
    )
)
"""Labels that expressions and alerts use themselves."""
