"""Reuse of one running deployment by several tests."""

from __future__ import annotations

import os
from contextlib import ExitStack

from .lab import Lab, running
from .progress import Progress, to_stderr
from .spec import VERSIONS, LabSpec

VERSIONS_ENV = "PDGUARD_LAB_VERSIONS"
DEFAULT_VERSIONS = ("0.5.20", "0.5.22")
ALWAYS_SET_UP = VERSIONS
"""Versions that some tests name themselves, whatever the runner asks for."""


def versions_from_env() -> tuple[str, ...]:
    """The versions that the runner asked for, as a comma-separated variable."""
    named = tuple(filter(None, os.environ.get(VERSIONS_ENV, "").split(",")))
    if unknown := set(named) - set(VERSIONS):
        raise ValueError(f"{VERSIONS_ENV} names {', '.join(sorted(unknown))}; known: {', '.join(VERSIONS)}")
    return named or DEFAULT_VERSIONS


class LabSession:
    """Keeps at most one deployment up, and replaces it when another spec is asked for."""

    def __init__(self, progress: Progress = to_stderr) -> None:
        self._progress = progress
        self._stack = ExitStack()
        self._lab: Lab | None = None

    def get(self, spec: LabSpec) -> Lab:
        """The running deployment of `spec`; a dead one is started afresh."""
        if self._lab is None or self._lab.spec != spec or not self._alive(self._lab):
            self.close()
            self._lab = self._stack.enter_context(running(spec, progress=self._progress))
        return self._lab

    def say(self, message: str) -> None:
        """Tell whoever watches the tests, as the lab itself does."""
        self._progress(message)

    def close(self) -> None:
        """Stop what runs."""
        self._lab = None
        self._stack.close()

    @staticmethod
    def _alive(lab: Lab) -> bool:
        return all(server.exit_code is None for server in lab.servers)
