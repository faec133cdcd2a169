"""A fix as the catalogue states it, and what was found of it in one source tree."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

BACKENDS = ("mooncake", "nixl", "mori", "ascend", "fake")
SIDES = ("prefill", "decode", "both")

Rule = Mapping[str, Any]


class State(enum.StrEnum):
    """What is known about a fix in a source tree."""

    PRESENT = "present"
    PARTIAL = "partial"
    ABSENT = "absent"
    NOT_APPLICABLE = "not-applicable"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Place:
    """Where to look: a file below the package, and a class, function or assignment inside it.

    `path` is dotted (`PrefillBootstrapQueue.add`, `Envs.SGLANG_X`); a name may stand for an inner function.
    `fixed` and `vulnerable` are ast-grep rules over the normalised text of that place.
    """

    file: str
    path: str
    fixed: Rule | None
    vulnerable: Rule | None


@dataclass(frozen=True, slots=True)
class Part:
    """One thing that a fix does in one place, or in the first of several places that exists.

    `without_file` and `without_place` are the states where none of the places exists: `unknown` unless the
    catalogue knows better (a new file that is missing is `absent`, a missing backend `not-applicable`).

    `when` names places that say whether the part counts at all: the first that exists is judged, where its
    `fixed` form is "it counts" and its `vulnerable` form "not applicable"; anything else makes it unknown.

    An `aside` tells of paths that the fix leaves open; it is reported and does not count in the fix's state.
    """

    name: str
    places: tuple[Place, ...]
    backends: tuple[str, ...] = ()
    without_file: State = State.UNKNOWN
    without_place: State = State.UNKNOWN
    when: tuple[Place, ...] = ()
    aside: bool = False


@dataclass(frozen=True, slots=True)
class Fix:
    """One entry of the fix catalogue."""

    id: str
    title: str
    summary: str
    upstream: tuple[int, ...]
    side: str
    parts: tuple[Part, ...]
    backends: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    refs: tuple[str, ...] = ()
    gate: str = "lifetime"
    severity: str = "low"
    """How much it matters that the fix is missing, where the backend uses it."""
    merged: bool = True
    first_release: str = ""


@dataclass(frozen=True, slots=True)
class Spot:
    """A place in a source file: path below the package, line from 1."""

    file: str
    line: int


@dataclass(frozen=True, slots=True)
class PartFinding:
    """What was found of one part, where, and why nothing could be said where it is unknown."""

    part: str
    state: State
    backends: tuple[str, ...]
    spot: Spot | None = None
    why: str = ""
    aside: bool = False


@dataclass(frozen=True, slots=True)
class FixFinding:
    """What was found of one fix: over all, for each backend, and the spots behind it."""

    fix: Fix
    state: State
    backends: Mapping[str, State]
    parts: tuple[PartFinding, ...]

    @property
    def spots(self) -> tuple[Spot, ...]:
        """The places that decided, in order."""
        return tuple(dict.fromkeys(p.spot for p in self.parts if p.spot is not None and not p.aside))
