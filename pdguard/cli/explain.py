"""`pdguard explain PDG101`: one check in full."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("explain")(explain)


def explain(
    check_id: Annotated[str, typer.Argument(metavar="ID", help="Id of a check, such as PDG101.")],
    folders: Annotated[
        list[Path] | None, typer.Option("--checks", metavar="DIR", help="A folder of checks of your own.")
    ] = None,
    width: Annotated[int | None, typer.Option("--width", min=60, max=400, help="Columns to use.")] = None,
) -> None:
    """Explain one check: why it matters, how it is known, what to do, and what it looks at."""
    import sys

    from pdguard.cli.run import catalogue, write_result
    from pdguard.policy.document import explain_check
    from pdguard.policy.select import find_check
    from pdguard.report.interface import options_for

    check = find_check(catalogue(folders), check_id)
    write_result(explain_check(check, options_for(sys.stdout, width=width).width), None)
