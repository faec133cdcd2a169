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
    sure: bool = True
    """False where what it imports could not be seen."""


@dataclass(frozen=True, slots=True)
class Site:
    """One engine package on one node, and the engines of the cluster file that import it."""

    node: str
    root: str
    engines: tuple[str, ...] = ()
    python: str | None = None

    def name(self) -> str:
        """How it is called in messages."""
        return ": ".join(part for part in (self.node, self.root) if part)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One package after a run.

    `status` is planned, unchanged, applied, rolled back, restored, refused, failed, not reached, hardened,
    verified, not restarted, unproven, stock, interrupted, edited or not tried; `lines` are the details worth
    a line each.
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


_BAD = (
    "refused",
    "rolled back",
    "failed",
    "not reached",
    "interrupted",
    "edited",
    "not tried",
    "not restarted",
    "unproven",
)


def exit_code(outcomes: Sequence[Outcome], verified: bool = False) -> int:
    """31 where something was rolled back, 30 where something was refused, 3 where nothing was reached.

    12 where a package is not as pdguard left it, or with `verified` where the fixes are not at work in it.
    """
    statuses = {o.status for o in outcomes}
    if statuses & {"rolled back", "failed"}:
        return 31
    if "refused" in statuses:
        return 30
    if statuses & {"interrupted", "edited", "not restarted", "unproven"} or (
        verified and "stock" in statuses
    ):
        return 12
    return 3 if "not reached" in statuses or not outcomes else 0
