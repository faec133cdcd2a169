"""`pdguard checks`: the catalogue as a list."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("checks")(checks)


def checks(
    output_format: Annotated[
        str, typer.Option("--format", metavar="table|json", help="How to print the list.")
    ] = "table",
    select: Annotated[
        list[str] | None, typer.Option("--select", help="Only these: id, beginning of an id, gate or tag.")
    ] = None,
    skip: Annotated[
        list[str] | None, typer.Option("--skip", help="Not these: id, beginning of an id, gate or tag.")
    ] = None,
    folders: Annotated[
        list[Path] | None, typer.Option("--checks", metavar="DIR", help="A folder of checks of your own.")
    ] = None,
) -> None:
    """List the checks: id, severity, gate, target and title."""
    import json

    from pdguard.cli.run import catalogue, write_result
    from pdguard.errors import InputError
    from pdguard.policy.select import select_checks

    if output_format not in ("table", "json"):
        raise InputError("no such format", expected="table or json", found=repr(output_format))
    chosen = select_checks(catalogue(folders), select or (), skip or ())
    if output_format == "json":
        rows = [
            {
                "id": c.id,
                "title": c.title,
                "gate": c.gate,
                "severity": c.severity.label,
                "for_each": c.for_each,
                "when": c.when,
                "fail_if": c.fail_if,
                "tags": list(c.tags),
                "fix": list(c.fix),
                "refs": list(c.refs),
            }
            for c in chosen
        ]
        write_result(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", None)
        return
    lines = [f"{c.id}  {c.severity.label:8}  {c.gate:10}  {c.for_each:7}  {c.title}" for c in chosen]
    write_result("\n".join([*lines, f"{len(chosen)} checks. `pdguard explain ID` tells more.", ""]), None)
