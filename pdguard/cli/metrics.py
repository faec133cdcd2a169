"""`pdguard metrics`: how holds end, what they cost, and the T_hold to set; once, or as a live table."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pdguard.cluster.model import Cluster
    from pdguard.facts.interface import Collected
    from pdguard.outcomes.definitions import Limits


class From(enum.StrEnum):
    """Where figures may be read."""

    AUTO = "auto"
    PROMETHEUS = "prometheus"
    ENGINES = "engines"


class Form(enum.StrEnum):
    """How the result can be printed."""

    TABLE = "table"
    JSON = "json"


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("metrics")(metrics)


def metrics(
    cluster: Annotated[
        Path, typer.Argument(metavar="CLUSTER", help="Cluster file, or - for stdin.", show_default=True)
    ] = Path("cluster.yaml"),
    window: Annotated[
        str | None,
        typer.Option(
            "--window",
            metavar="15m|1h|0",
            help="How far back; 0 is since each engine's start. 15m with Prometheus; without, engines"
            " are watched for 1m.",
        ),
    ] = None,
    source: Annotated[From, typer.Option("--source", help="Where to read.")] = From.AUTO,
    log: Annotated[
        list[str] | None,
        typer.Option("--log", metavar="NAME=FILE", help="An engine's log, for engines that count no holds."),
    ] = None,
    what_if: Annotated[
        list[float] | None,
        typer.Option("--what-if", metavar="T_HOLD", min=0, max=86_400, help="Another T_hold, in seconds."),
    ] = None,
    prompt_tokens: Annotated[
        int | None,
        typer.Option(
            "--prompt-tokens",
            metavar="N",
            min=1,
            max=10**9,
            help="Tokens of an aborted request, if not the mean.",
        ),
    ] = None,
    output_format: Annotated[Form, typer.Option("--format", "-f", help="How to print it.")] = Form.TABLE,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to FILE (- is stdout).")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="A live table until Ctrl-C, which exits 0.")] = False,
    every: Annotated[
        str, typer.Option("--every", metavar="5s", help="With --watch: time from one reading to the next.")
    ] = "5s",
    width: Annotated[
        int | None, typer.Option("--width", min=60, max=400, help="Columns of the table.")
    ] = None,
) -> None:
    """Holds by outcome, hold times, aborts and failures over a window, and the T_hold that suits them.

    Read-only. Exit code 12 where too many holds ended without proof, or a T_hold in force is too short.
    """
    from pdguard.cli.run import read_cluster
    from pdguard.outcomes.definitions import Limits

    described = read_cluster(cluster)
    output = None if output is not None and str(output) == "-" else output
    logs = _logs(log or [])
    if watch:
        policy = described.policy
        limits = Limits(timeout_ratio=policy.timeout_ratio, min_holds=policy.min_holds)
        _watch(described, source, limits, _seconds(every, "--every", least=1.0))
        return
    seconds = _default_window(described, source) if window is None else _seconds(window, "--window")
    _once(described, seconds, source, logs, what_if or [], prompt_tokens, output_format, output, width)


def _default_window(cluster: Cluster, source: From) -> float:
    """15 minutes where a Prometheus looks back; a minute where the engines have to be watched for it."""
    asked = source is From.PROMETHEUS or (source is From.AUTO and cluster.prometheus is not None)
    return 900.0 if asked else 60.0


def _seconds(text: str, option: str, least: float = 0.0) -> float:
    import re

    from pdguard.errors import InputError

    match = re.fullmatch(r"(\d{1,7}(?:\.\d{1,3})?)(s|m|h|d)?", text.strip())
    value = float(match[1]) * _UNITS[match[2] or "s"] if match else -1.0
    if not least <= value <= _UNITS["d"] * 30:
        expected = f"a time such as 30s, 15m or 1h, at least {least:g} s and at most 30d"
        raise InputError(option, expected=expected, found=repr(text)[:60])
    return value


_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def _logs(given: list[str]) -> dict[str, Path]:
    from pdguard.errors import InputError

    found: dict[str, Path] = {}
    for one in given:
        name, equals, path = one.partition("=")
        if not equals or not name or not path or name in found:
            raise InputError(
                "--log", expected="NAME=FILE, once an engine, such as d0=decode.log", found=repr(one)[:200]
            )
        found[name] = Path(path)
    return found


def _facts(cluster: Cluster, needed: bool) -> Collected | None:
    """The engines' settings; None where nothing answered but figures may come from elsewhere."""
    import os

    from pdguard.cli.run import note
    from pdguard.errors import NothingCollected
    from pdguard.facts.collect import collect

    try:
        return collect(cluster, os.environ, note)
    except NothingCollected:
        if needed:
            raise
        note("no engine or node gave its settings; what depends on them is unknown")
        return None


def _once(
    cluster: Cluster,
    window: float,
    source: From,
    logs: Mapping[str, Path],
    what_ifs: Sequence[float],
    prompt_tokens: int | None,
    form: Form,
    output: Path | None,
    width: int | None,
) -> None:
    import os
    import sys

    from pdguard.cli.run import note, write_result
    from pdguard.facts.collect import POLICY_NUMBERS
    from pdguard.outcomes.judge import exit_code, faults
    from pdguard.outcomes.read import read_outcomes
    from pdguard.outcomes.sizing import size
    from pdguard.report.interface import RenderOptions, options_for

    _check(cluster, source, logs)
    collected = _facts(cluster, needed=cluster.prometheus is None and not logs)
    outcomes = read_outcomes(
        cluster,
        os.environ,
        window=window,
        source=source.value,
        logs=logs,
        versions=_versions(collected),
        progress=note,
    )
    policy = {name: getattr(cluster.policy, name) for name in POLICY_NUMBERS}
    sizing = size(outcomes, collected, policy, what_ifs, prompt_tokens)
    found = faults(outcomes, sizing, policy)
    if form is Form.JSON:
        from pdguard.outcomes.document import as_json

        text = as_json(outcomes, sizing, found)
    else:
        from pdguard.outcomes.present import as_text

        to_stdout = output is None and sys.stdout is not None
        options = options_for(sys.stdout, width=width) if to_stdout else RenderOptions(width or 100)
        text = as_text(
            outcomes, sizing, found, width=options.width, color=options.color, unicode=options.unicode
        )
    write_result(text, output)
    raise typer.Exit(exit_code(found))


def _check(cluster: Cluster, source: From, logs: Mapping[str, Path]) -> None:
    from pdguard.errors import InputError

    if source is From.PROMETHEUS and cluster.prometheus is None:
        raise InputError("--source prometheus", expected="`prometheus:` with its `url:` in the cluster file")
    names = [e.name for e in cluster.engines]
    for name in logs:
        if name not in names:
            raise InputError(
                "--log", expected="the name of an engine: " + ", ".join(names[:8]), found=repr(name)
            )


def _versions(collected: Collected | None) -> dict[str, str]:
    if collected is None:
        return {}
    told = {e.name: e.facts.text("version") for e in collected.engines}
    return {name: version for name, version in told.items() if version}


def _watch(cluster: Cluster, source: From, limits: Limits, every: float) -> None:
    import datetime
    import os
    import sys
    import time

    from pdguard.cli.run import note
    from pdguard.errors import InputError
    from pdguard.outcomes.interface import Outcomes
    from pdguard.outcomes.meter import Meter
    from pdguard.outcomes.read import read_outcomes
    from pdguard.outcomes.watch import LiveScreen, PlainScreen, Screen, watch
    from pdguard.report.interface import options_for

    if sys.stdout is None:
        raise InputError("stdout is closed", expected="a place for the table")
    _check(cluster, source, {})
    versions = _versions(_facts(cluster, needed=cluster.prometheus is None))

    def read() -> Outcomes:
        return read_outcomes(cluster, os.environ, window=0.0, source=source.value, versions=versions)

    def run(screen: Screen) -> None:
        watch(
            read,
            screen,
            Meter(limits),
            every=every,
            clock=time.monotonic,
            time_of_day=lambda: f"{datetime.datetime.now():%H:%M:%S}",
            sleep=time.sleep,
        )

    note(f"a reading every {every:g} s; Ctrl-C ends it")
    if sys.stdout.isatty():
        with LiveScreen(unicode=options_for(sys.stdout).unicode).shown() as screen:
            run(screen)
    else:
        run(PlainScreen(sys.stdout))
    note("stopped")
