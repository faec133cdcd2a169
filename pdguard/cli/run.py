"""What several commands share: exit codes as text, reading input, writing the result."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pdguard.errors import InputError

if TYPE_CHECKING:
    from pdguard.policy.model import Check, Severity
    from pdguard.report.interface import Renderer

EXIT_CODES = (
    "Exit codes: 0 clean, 1 internal error, 2 usage or bad input file, 3 nothing could be collected, "
    "10 low, 11 medium, 12 high, 13 critical findings (the highest wins)."
)


def catalogue(folders: list[Path] | None) -> tuple[Check, ...]:
    """The bundled checks and those of the operator's own folders."""
    from pdguard._bundle import bundled
    from pdguard.policy.loader import load_checks

    return load_checks(bundled("checks"), *(folders or ()))


def write_result(text: str, output: Path | None) -> None:
    """Write the result to a file, or to stdout where none is named.

    Raises InputError where the file cannot be written. A file appears whole or not at all.
    """
    if output is None:
        sys.stdout.buffer.write(text.encode("utf-8", "replace"))
        sys.stdout.buffer.flush()
        return
    part = output.with_name(f".{output.name}.{os.getpid()}.part")
    try:
        part.write_text(text, "utf-8")
        part.replace(output)
    except OSError as error:
        part.unlink(missing_ok=True)
        reason = error.strerror or type(error).__name__
        raise InputError(f"{output} cannot be written", found=reason.lower()) from error


def note(text: str) -> None:
    """Say something about the run on stderr; the result has stdout to itself."""
    sys.stderr.write(f"pdguard: {text}\n")
    sys.stderr.flush()


def rendering(name: str, width: int | None, output: Path | None) -> Renderer:
    """The renderer called `name`, set up for stdout or for a file (no colour there).

    Raises InputError, with the nearest name, where there is no such format.
    """
    from pdguard.report.interface import RenderOptions, create, options_for

    options = options_for(sys.stdout, width=width) if output is None else RenderOptions(width or 100)
    return create(name, options)


def severity(name: str) -> Severity:
    """The severity called `name`; InputError where there is none."""
    from pdguard.policy.model import Severity

    names = {s.label: s for s in Severity}
    if name.lower() not in names:
        raise InputError("no such severity", expected=" | ".join(names), found=repr(name))
    return names[name.lower()]
