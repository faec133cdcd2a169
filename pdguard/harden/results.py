"""What harden tells about one package: where it is, what would change, and how it went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pdguard.harden.plan import Plan


@dataclass(frozen=True, slots=True)
class Running:
    """An engine process that imports the package; `stale` where it began before the newest change."""

    pid: int
    title: str = ""
    stale: bool = False


@dataclass(frozen=True, slots=True)
class Site:
    """One engine package on one node, and the engines of the cluster file that import it."""

    node: str
    root: str
    engines: tuple[str, ...] = ()
    python: str | None = None

    def name(self) -> str:
        """How it is called in messages."""
        return f"{self.node}: {self.root}" if self.node else self.root


@dataclass(frozen=True, slots=True)
class Outcome:
    """One package after a run.

    `status` is planned, unchanged, applied, rolled back, restored, refused, failed, not reached, hardened,
    verified, stock, interrupted, edited or not tried; `lines` are the details worth a line each.
    """

    site: Site
    status: str
    why: str = ""
    plan: Plan | None = None
    running: tuple[Running, ...] = ()
    fixes: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()

    @property
    def bad(self) -> bool:
        """Whether this is not as it should be."""
        return self.status in _BAD


_BAD = ("refused", "rolled back", "failed", "not reached", "interrupted", "edited", "not tried")


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """31 where something was rolled back, 30 where something was refused, 3 where nothing was reached."""
    statuses = {o.status for o in outcomes}
    if statuses & {"rolled back", "failed"}:
        return 31
    if "refused" in statuses:
        return 30
    if statuses & {"interrupted", "edited"}:
        return 12
    return 3 if "not reached" in statuses or not outcomes else 0
