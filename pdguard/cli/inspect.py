"""`pdguard inspect TARGET`: which fixes a wheel, a folder, an unpacked image or a process holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("inspect")(inspect)


def inspect(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET", help="A wheel, a package, a folder that holds one, or a process id."
        ),
    ],
    backend: Annotated[
        str, typer.Option("--backend", metavar="NAME", help="Transfer backend to judge for.")
    ] = "mooncake",
    output_format: Annotated[
        str, typer.Option("--format", "-f", metavar="table|json", help="How to print the result.")
    ] = "table",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the result to FILE.")
    ] = None,
    fail_on: Annotated[
        str,
        typer.Option(
            "--fail-on", metavar="SEVERITY", help="Where findings begin to count for the exit code."
        ),
    ] = "low",
    strict: Annotated[bool, typer.Option("--strict", help="Unknown counts as high.")] = False,
    width: Annotated[
        int | None, typer.Option("--width", min=60, max=400, help="Columns of the table.")
    ] = None,
) -> None:
    """Judge an engine by its source, with no cluster and no network: the gate for image pipelines."""
    import sys

    from pdguard.cli.run import catalogue, severity, write_result
    from pdguard.errors import InputError, NothingCollected
    from pdguard.fingerprint.model import BACKENDS, State
    from pdguard.fingerprint.report import as_json, as_table
    from pdguard.fingerprint.targets import open_target
    from pdguard.inspection import inspect_target
    from pdguard.report.interface import options_for
    from pdguard.report.summary import exit_code

    if backend not in BACKENDS:
        raise InputError("no such backend", expected=" | ".join(BACKENDS), found=repr(backend))
    if output_format not in ("table", "json"):
        raise InputError("no such format", expected="table or json", found=repr(output_format))
    threshold = severity(fail_on)
    found = inspect_target(open_target(target), backend, catalogue(None))
    columns = options_for(sys.stdout, width=width).width if sys.stdout else 100
    if found.unreadable:
        raise NothingCollected("no watched file of the package could be read", found=found.unreadable)
    write_result(as_json(found) if output_format == "json" else as_table(found, columns), output)
    code = exit_code(found.findings, threshold, strict)
    unsettled = any(f.state is State.UNKNOWN for f in found.fixes)
    raise typer.Exit(12 if strict and unsettled and code < 12 else code)
