"""What a report format is, and how one is found by its name."""

from __future__ import annotations

import difflib
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TextIO, runtime_checkable

from pdguard.errors import InputError
from pdguard.policy.model import AuditResult

DEFAULT_WIDTH = 100
"""Columns of a report for people where nothing else is said."""

MIN_WIDTH = 50
"""Narrower than this no table can be read; smaller widths are raised to it."""

GLYPHS = "…·"
"""What a report for people uses beyond ASCII, besides the operator's own names."""


@runtime_checkable
class Renderer(Protocol):
    """A report format. `render` is pure: the same result gives the same text."""

    @property
    def name(self) -> str:
        """The word after `--format`."""

    def render(self, result: AuditResult) -> str:
        """The whole report, ending in a newline."""


@dataclass(frozen=True, slots=True)
class RenderOptions:
    """How a report for people may look. Formats for machines ignore all of it."""

    width: int = DEFAULT_WIDTH
    color: bool = False
    unicode: bool = True


Factory = Callable[[RenderOptions], Renderer]


def _table(options: RenderOptions) -> Renderer:
    from pdguard.report.table import TableRenderer

    return TableRenderer(options.width, options.color, options.unicode)


def _json(options: RenderOptions) -> Renderer:
    from pdguard.report.json import JsonRenderer

    return JsonRenderer()


_REGISTRY: dict[str, Factory] = {"table": _table, "json": _json}


def register(name: str, factory: Factory) -> None:
    """Make a format available under `name`. A name is given once only."""
    if name in _REGISTRY:
        raise ValueError(f"report format {name!r} is registered already")
    _REGISTRY[name] = factory


def formats() -> tuple[str, ...]:
    """The names of all formats, sorted."""
    return tuple(sorted(_REGISTRY))


def create(name: str, options: RenderOptions | None = None) -> Renderer:
    """The renderer called `name`; InputError with the nearest name where there is none."""
    factory = _REGISTRY.get(name)
    if factory is None:
        near = difflib.get_close_matches(name.lower(), formats(), n=1, cutoff=0.5)
        raise InputError(
            "unknown report format",
            expected="one of " + ", ".join(formats()),
            found=repr(name),
            todo=f"Did you mean {near[0]}?" if near else "",
        )
    return factory(options or RenderOptions())


def options_for(
    stream: TextIO, environ: Mapping[str, str] | None = None, width: int | None = None
) -> RenderOptions:
    """What `stream` can show: colour only on a terminal without NO_COLOR, Unicode only where it encodes.

    `width` is the operator's own; else the terminal's, at most the default of 100.
    """
    env = os.environ if environ is None else environ
    tty = stream.isatty()
    if width is None:
        width = min(DEFAULT_WIDTH, shutil.get_terminal_size().columns) if tty else DEFAULT_WIDTH
    return RenderOptions(
        width=max(MIN_WIDTH, width),
        color=tty and not env.get("NO_COLOR") and env.get("TERM") != "dumb",
        unicode=_encodes(getattr(stream, "encoding", None)),
    )


def _encodes(encoding: str | None) -> bool:
    """Whether a stream of this encoding can write everything a report may hold."""
    try:
        (GLYPHS + "\u4e00").encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
