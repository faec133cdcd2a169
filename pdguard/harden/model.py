"""What a backport is: the seams of one fix for one base, and the code that goes there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pdguard.fingerprint.model import State

Rule = Mapping[str, Any]
Put = Literal["before", "after", "instead", "first", "last"]
PUTS: tuple[Put, ...] = ("before", "after", "instead", "first", "last")

PAYLOAD_FOLDER = "srt/disaggregation/pdguard"
"""Where the payload goes, below the engine's package."""

PAYLOAD_PACKAGE = "sglang.srt.disaggregation.pdguard"


@dataclass(frozen=True, slots=True)
class Seam:
    """One place in the engine where an edit goes.

    `path` is a dotted name (`PrefillBootstrapQueue.add`) inside `file`, which is a path below the package; a
    name may stand for an inner function. `find` is an ast-grep rule over the text of that place and matches
    exactly one node there; None stands for the place itself. `put` says where `code` goes: before, after or
    instead of that node, or first or last in the body of the function that it is. `$NAME` in `code` is the
    text that the rule's `$NAME` matched. Empty code with `instead` takes the node away.
    """

    name: str
    file: str
    path: str
    find: Rule | None
    put: Put
    code: str


@dataclass(frozen=True, slots=True)
class Backport:
    """One fix for one base: its seams. Their code calls the payload as `pdguard_<module>.<function>`."""

    fix: str
    base: str
    seams: tuple[Seam, ...]
    requires: tuple[str, ...] = ()
    partial: bool = False
    """Only a part of upstream's fix: the catalogue then finds it `partial`, and that is as it should be."""
    proves: tuple[str, ...] = ()
    """Contracts of the exercise, or beginnings of their ids, that must pass once it is in."""

    def is_in(self, state: State) -> bool:
        """Whether a package in which the catalogue finds the fix so holds all that this brings."""
        return state is State.PRESENT or (self.partial and state is State.PARTIAL)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A seam that was not found, or not only once; nothing is edited where one exists.

    `fix` is empty where the whole package is refused, `file` and `path` where no single place is the reason.
    """

    fix: str
    seam: str
    file: str
    path: str
    reason: str
    nearest: str = ""

    def __str__(self) -> str:
        """One line: fix, place, reason, nearest."""
        where = f"{self.file} {self.path}".strip()
        text = f"{self.fix}, seam '{self.seam}' in {where}: {self.reason}" if where else self._plain()
        return f"{text}; nearest: {self.nearest}" if self.nearest else text

    def _plain(self) -> str:
        return f"{self.fix}: {self.reason}" if self.fix else self.reason


@dataclass(frozen=True, slots=True)
class Edited:
    """A file's new content, and the fixes that have a seam in it."""

    file: str
    before: str
    after: str
    fixes: tuple[str, ...]
