"""Wires the commands together, and turns errors into text and exit codes. Nothing heavy is imported here."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from pdguard import __version__
from pdguard.cli import audit, checks, demo, exercise, explain, harden, inspect, metrics, probe, rules, schema
from pdguard.cli.run import EXIT_CODES
from pdguard.errors import PdguardError

app = typer.Typer(
    name="pdguard",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EXIT_CODES,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pdguard {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Find cross-request KV-cache exposure in SGLang prefill/decode deployments, and what closes it."""


audit.register(app)
checks.register(app)
explain.register(app)
inspect.register(app)
exercise.register(app)
harden.register(app)
probe.register(app)
metrics.register(app)
rules.register(app)
schema.register(app)
demo.register(app)


def main() -> None:
    """Entry point. Every error becomes one plain message on stderr and a documented exit code."""
    if sys.stderr is None:
        # Closed by the caller: what would be said there is lost, the result is not.
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    try:
        app()
    except PdguardError as error:
        sys.stderr.write(f"pdguard: {error}\n")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.stderr.write("pdguard: interrupted\n")
        sys.exit(130)
    except Exception as error:
        if os.environ.get("PDGUARD_DEBUG"):
            raise
        # The text of an unexpected error may hold anything; only its kind is safe to show.
        kind = type(error).__name__
        sys.stderr.write(f"pdguard: internal error ({kind}). PDGUARD_DEBUG=1 shows where.\n")
        sys.exit(1)
