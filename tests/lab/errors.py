"""What can go wrong in the lab, as types that a caller can tell apart."""

from __future__ import annotations

from pathlib import Path


class LabError(Exception):
    """Base of everything the lab raises on purpose."""


class ProvisionError(LabError):
    """A package, a tool or a system library is missing and could not be installed."""


class IsolationError(LabError):
    """The lab is not in a network namespace of its own, so no engine may be started."""


class StartError(LabError):
    """A server ended, or was not ready in time. Carries the last lines of its log."""

    def __init__(self, name: str, reason: str, log: Path, tail: str) -> None:
        super().__init__(f"{name}: {reason}; log: {log}\n{tail}")
        self.name = name
        self.reason = reason
        self.log = log
        self.tail = tail
