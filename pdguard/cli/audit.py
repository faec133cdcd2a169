"""`pdguard audit`: which gates stand open on which engine, how we know, and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pdguard.facts.observed import Observation


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("audit")(audit)


def audit(
    cluster: Annotated[
        Path, typer.Argument(metavar="CLUSTER", help="Cluster file, or - for stdin.", show_default=True)
    ] = Path("cluster.yaml"),
    output_format: Annotated[
        str, typer.Option("--format", "-f", metavar="table|json", help="How to print the report.")
    ] = "table",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the report to FILE (- is stdout)."),
    ] = None,
    select: Annotated[
        list[str] | None,
        typer.Option("--select", metavar="NAME", help="Only these checks: id, its beginning, gate or tag."),
    ] = None,
    skip: Annotated[
        list[str] | None,
        typer.Option("--skip", metavar="NAME", help="Not these checks: id, its beginning, gate or tag."),
    ] = None,
    fail_on: Annotated[
        str,
        typer.Option(
            "--fail-on", metavar="SEVERITY", help="Where findings begin to count for the exit code."
        ),
    ] = "low",
    strict: Annotated[bool, typer.Option("--strict", help="Unknown counts as high.")] = False,
    folders: Annotated[
        list[Path] | None, typer.Option("--checks", metavar="DIR", help="A folder of checks of your own.")
    ] = None,
    results: Annotated[
        list[Path] | None,
        typer.Option(
            "--with", metavar="FILE", help="A JSON result of pdguard probe or metrics: what was observed."
        ),
    ] = None,
    exercise: Annotated[
        bool,
        typer.Option("--exercise", help="Also run the installed code of engines on local nodes by itself."),
    ] = False,
    width: Annotated[
        int | None,
        typer.Option(
            "--width",
            min=60,
            max=400,
            help="Columns of the table; if not given, the terminal's, at most 100.",
        ),
    ] = None,
) -> None:
    """Audit a cluster: read-only, over HTTP and through the nodes named in the cluster file."""
    import datetime
    import os

    from pdguard.audit import run_audit
    from pdguard.cli.run import catalogue, note, read_cluster, rendering, severity, write_result
    from pdguard.policy.select import select_checks
    from pdguard.report.summary import exit_code, verdict

    output = None if output is not None and str(output) == "-" else output
    threshold = severity(fail_on)
    renderer = rendering(output_format, width, output)
    checks = select_checks(catalogue(folders), select or (), skip or ())
    described = read_cluster(cluster)
    now = datetime.datetime.now(datetime.UTC)
    observations: tuple[Observation, ...] = ()
    if results:
        from pdguard.facts.observed_files import load_observations

        observations = load_observations(results, described, now.timestamp())
    result = run_audit(described, checks, os.environ, now, note, exercise, observations)
    write_result(renderer.render(result), output)
    if output is not None:
        said = verdict(result)
        note(f"{said.word} {said.text}; written to {output}")
    raise typer.Exit(exit_code(result.findings, threshold, strict))
