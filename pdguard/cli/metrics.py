"""`pdguard metrics`: how holds end, what they cost, and the T_hold to set; once, or as a live table."""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
            " are watched for 1m, and for 10m at most.",
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
    aborts_per_second: Annotated[
        float | None,
        typer.Option(
            "--aborts-per-second",
            metavar="RATE",
            min=0,
            max=1e6,
            help="Aborts on one decode, assumed in sizing in place of those measured.",
        ),
    ] = None,
    detail: Annotated[
        bool, typer.Option("--detail", help="Sizing term by term: every input and where it is from.")
    ] = False,
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

    Read-only. AT RISK, exit code 12: too many holds ended without proof, or a T_hold in force is off or too
    short. UNKNOWN, QUIET (nothing or too little was held to judge) and CLEAN exit with 0.
    """
    from pdguard.cli.run import read_cluster
    from pdguard.errors import InputError
    from pdguard.outcomes.definitions import Limits

    described = read_cluster(cluster)
    output = None if output is not None and str(output) == "-" else output
    logs = _logs(log or [])
    if watch:
        policy = described.policy
        limits = Limits(timeout_ratio=policy.timeout_ratio, min_holds=policy.min_holds)
        _watch(described, source, limits, _seconds(every, "--every", least=1.0))
        return
    if output is not None and not os.access(output.parent, os.W_OK):
        raise InputError(f"{output} cannot be written", expected="a folder that may be written to")
    asked = _Asked(
        cluster,
        _window(described, source, window),
        source,
        logs,
        what_if or [],
        prompt_tokens,
        aborts_per_second,
    )
    _once(described, asked, _Page(output_format, output, detail, width))


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is to be read and what is made of it."""

    file: Path
    window: float
    source: From
    logs: Mapping[str, Path]
    what_ifs: Sequence[float]
    prompt_tokens: int | None
    aborts_per_second: float | None


@dataclass(frozen=True, slots=True)
class _Page:
    """How the result is to be printed."""

    form: Form
    output: Path | None
    detail: bool
    width: int | None


LONGEST_WATCH = 600.0
"""Seconds for which engines may be watched in place of a Prometheus that looks back."""


def _window(cluster: Cluster, source: From, given: str | None) -> float:
    """15 minutes where a Prometheus looks back; a minute where the engines have to be watched for it."""
    from pdguard.errors import InputError

    looks_back = source is From.PROMETHEUS or (source is From.AUTO and cluster.prometheus is not None)
    if given is None:
        return 900.0 if looks_back else 60.0
    seconds = _seconds(given, "--window")
    if not looks_back and seconds > LONGEST_WATCH:
        raise InputError(
            "--window",
            expected=f"at most {LONGEST_WATCH / 60:g}m without a Prometheus, as engines are watched so long",
            found=repr(given)[:60],
            todo="Name `prometheus:` in the cluster file, or take --window 0 (since each engine's start).",
        )
    return seconds


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


def _once(cluster: Cluster, asked: _Asked, page: _Page) -> None:
    import sys

    from pdguard.cli.run import note, write_result
    from pdguard.facts.collect import POLICY_NUMBERS
    from pdguard.outcomes.judge import exit_code, faults
    from pdguard.outcomes.read import read_outcomes
    from pdguard.outcomes.said import said
    from pdguard.outcomes.sizing import size
    from pdguard.report.interface import RenderOptions, options_for

    _check(cluster, asked.source, asked.logs)
    collected = _facts(cluster, needed=cluster.prometheus is None and not asked.logs)
    outcomes = read_outcomes(
        cluster,
        os.environ,
        window=asked.window,
        source=asked.source.value,
        logs=asked.logs,
        versions=_versions(collected),
        progress=note,
    )
    policy = {name: getattr(cluster.policy, name) for name in POLICY_NUMBERS}
    sizing = size(outcomes, collected, policy, asked.what_ifs, asked.prompt_tokens, asked.aborts_per_second)
    found = faults(outcomes, sizing, policy)
    if page.form is Form.JSON:
        from pdguard.outcomes.document import as_json

        text = as_json(outcomes, sizing, found)
    else:
        from pdguard.outcomes.present import as_text

        to_stdout = page.output is None and sys.stdout is not None
        options = options_for(sys.stdout, width=page.width) if to_stdout else RenderOptions(page.width or 100)
        text = as_text(
            outcomes,
            sizing,
            policy,
            detail=page.detail,
            width=options.width,
            color=options.color,
            unicode=options.unicode,
        )
    write_result(text, page.output)
    if page.output is not None:
        verdict = said(outcomes, sizing, found, policy)
        note(f"{verdict.word.value} {verdict.text}; written to {page.output}")
        note(f"next: {verdict.step}")
        if page.form is Form.JSON:
            note(f"then: pdguard audit {asked.file} --with {page.output}")
    raise typer.Exit(exit_code(found))


def _check(cluster: Cluster, source: From, logs: Mapping[str, Path]) -> None:
    from pdguard.errors import InputError
    from pdguard.outcomes.logs import check_log

    if source is From.PROMETHEUS and cluster.prometheus is None:
        raise InputError("--source prometheus", expected="`prometheus:` with its `url:` in the cluster file")
    names = [e.name for e in cluster.engines]
    for name in logs:
        if name not in names:
            raise InputError(
                "--log", expected="the name of an engine: " + ", ".join(names[:8]), found=repr(name)
            )
        check_log(logs[name], name)


def _versions(collected: Collected | None) -> dict[str, str]:
    if collected is None:
        return {}
    told = {e.name: e.facts.text("version") for e in collected.engines}
    return {name: version for name, version in told.items() if version}


def _watch(cluster: Cluster, source: From, limits: Limits, every: float) -> None:
    import datetime
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
