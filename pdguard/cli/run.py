"""What several commands share: exit codes as text, reading input, writing the result."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pdguard.errors import InputError

if TYPE_CHECKING:
    from pdguard.cluster.model import Cluster
    from pdguard.policy.model import Check, Severity
    from pdguard.report.interface import Renderer

EXIT_CODES = (
    "Exit codes: 0 clean, 1 internal error, 2 usage or bad input file, 3 nothing could be collected, "
    "10 low, 11 medium, 12 high, 13 critical findings (the highest wins), 20 a probe observed an exposure, "
    "30 harden refused and changed nothing, 31 harden rolled back, 130 interrupted."
)


def catalogue(folders: list[Path] | None) -> tuple[Check, ...]:
    """The bundled checks and those of the operator's own folders."""
    from pdguard._bundle import bundled
    from pdguard.policy.examples import require_examples
    from pdguard.policy.loader import load_checks

    checks = load_checks(bundled("checks"), *(folders or ()))
    if folders:
        require_examples([c for c in checks if Path(c.file).parent != bundled("checks")])
    return checks


def read_cluster(path: Path) -> Cluster:
    """The cluster file at `path`, or on stdin for `-`. Raises InputError where it cannot be used."""
    from pdguard.cluster.loader import load_cluster, parse_cluster

    if str(path) != "-":
        return load_cluster(path)
    if sys.stdin is None:
        raise InputError("stdin is closed", expected="a cluster file on it")
    return parse_cluster(sys.stdin.buffer.read().decode("utf-8", "replace"), "stdin")


def write_result(text: str, output: Path | None) -> None:
    """Write the result to a file, or to stdout where none is named.

    Raises InputError where it cannot be written. A file appears whole or not at all, keeps its mode, and
    stays behind its symbolic link; what is no regular file (a device, a pipe) is written to as it is.
    """
    if output is None:
        _write_stdout(text.encode("utf-8", "replace"))
        return
    try:
        _write_file(text, output)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InputError(f"{output} cannot be written", found=reason.lower()) from error


def _write_file(text: str, output: Path) -> None:
    target = output.resolve()
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a directory")
    if target.exists() and not target.is_file():
        target.write_text(text, "utf-8")
        return
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        part.write_text(text, "utf-8")
        if target.exists():
            part.chmod(target.stat().st_mode & 0o7777)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _write_stdout(data: bytes) -> None:
    if sys.stdout is None:
        raise InputError("stdout is closed", expected="a place for the report", todo="Use --output FILE.")
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            raise InputError("stdout cannot be written", found=(error.strerror or "").lower()) from error
        # The reader of the pipe has what it wanted; the exit code is still the audit's.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def note(text: str) -> None:
    """Say something about the run on stderr; the result has stdout to itself."""
    sys.stderr.write(f"pdguard: {text}\n")
    sys.stderr.flush()


def rendering(name: str, width: int | None, output: Path | None) -> Renderer:
    """The renderer called `name`, set up for stdout or for a file (no colour there).

    Raises InputError, with the nearest name, where there is no such format.
    """
    from pdguard.report.interface import RenderOptions, create, options_for

    if output is None and sys.stdout is None:
        raise InputError("stdout is closed", expected="a place for the report", todo="Use --output FILE.")
    options = options_for(sys.stdout, width=width) if output is None else RenderOptions(width or 100)
    return create(name, options)


def severity(name: str) -> Severity:
    """The severity called `name`; InputError where there is none."""
    from pdguard.policy.model import Severity

    names = {s.label: s for s in Severity}
    if name.lower() not in names:
        raise InputError("no such severity", expected=" | ".join(names), found=repr(name))
    return names[name.lower()]
