"""`pdguard rules`: Prometheus rules, their unit tests and a Grafana dashboard, from one table of figures."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pdguard.outcomes.rules import Wanted


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
        typer.Option("--t-hold", min=1, max=86_400, metavar="S", help="T_hold in force, in seconds."),
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
    disable: Annotated[
        list[str] | None,
        typer.Option("--disable", metavar="ALERT", help="Leave this alert out of rules and tests."),
    ] = None,
    runbook_url: Annotated[
        str,
        typer.Option(
            "--runbook-url",
            metavar="BASE",
            help="Where alerts point to, with #alert added; docs/metrics.md if not given.",
        ),
    ] = "",
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
    wanted = _wanted(disable or [], runbook_url)
    if output_format is Form.GRAFANA:
        from pdguard.outcomes.dashboard import dashboard_text

        text = dashboard_text(limits, chosen)
    elif output_format is Form.TESTS:
        from pdguard.outcomes.rule_tests import unit_tests_text

        text = unit_tests_text(limits, chosen, wanted)
    else:
        from pdguard.outcomes.rules import rules_text

        text = rules_text(limits, chosen, wanted)
    output = None if output is not None and str(output) == "-" else output
    write_result(text, output)


def _wanted(disabled: list[str], runbook_url: str) -> Wanted:
    import re

    from pdguard.cluster.links import nearest
    from pdguard.errors import InputError
    from pdguard.outcomes.alerts import ALERTS
    from pdguard.outcomes.rules import Wanted

    names = [alert.name for alert in ALERTS]
    for one in disabled:
        if one not in names:
            near = nearest(one, names) or nearest(f"Pdguard{one}", names)
            raise InputError(
                "--disable",
                expected="the name of an alert: " + ", ".join(names),
                found=repr(one)[:80],
                todo=f"Did you mean {near}?" if near else "",
            )
    # Prometheus expands braces in an annotation, and the alert's name follows a # of ours.
    if runbook_url and not re.fullmatch(r"https?://[^\s#{}\x00-\x1f\x7f]{1,1000}", runbook_url):
        raise InputError(
            "--runbook-url",
            expected="the URL of a page, such as https://wiki/pdguard",
            found=repr(runbook_url)[:80],
        )
    return Wanted(frozenset(disabled), runbook_url)


def _selector(given: list[str]) -> dict[str, str]:
    import re

    from pdguard.errors import InputError

    found: dict[str, str] = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name) or not value.isprintable():
            raise InputError("--selector", expected="LABEL=VALUE, such as cluster=prod", found=repr(one))
        if "{{" in value:
            # Prometheus expands templates in the labels of alerts.
            raise InputError("--selector", expected="a value without {{", found=repr(one))
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
