"""Engine versions, and what a version alone can tell.

A version is the weakest evidence there is. A table lists the releases at which a behaviour changed, and
`EngineVersion.lookup` answers only where the releases that were examined leave no choice: a development
build between two releases, a release that was never looked at between two that differ, and anything newer
than the newest examined one have no answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from packaging.version import InvalidVersion, Version

T = TypeVar("T")

Release = tuple[int, int, int]

OLDEST: Release = (0, 4, 10)
NEWEST: Release = (0, 5, 23)
MAX_TEXT = 64
_HARMLESS_LOCAL = re.compile(r"(cu|rocm)[\d.]*|cpu|xpu|npu")

EXAMINED: tuple[Release, ...] = (
    (0, 4, 10),
    (0, 5, 5),
    (0, 5, 10),
    *((0, 5, n) for n in range(12, 24)),
)
"""Releases whose packages were unpacked and read (FIXMAP, SURFACE): the only ones that tables speak of."""


@dataclass(frozen=True, slots=True)
class EngineVersion:
    """A parsed version. `kind` is release, unexamined, development, or older or newer than the examined."""

    text: str
    release: Release
    kind: str

    def lookup(self, changes: Mapping[Release, T | None]) -> T | None:
        """The value of a behaviour that changed at the releases of `changes`, or None where unknown.

        `changes` maps the first release that shows a value to the value; a value of None says that the
        behaviour of that stretch was never established.
        """
        below, above = self._bounds()
        if below is None or above is None:
            return None
        low, high = _value_at(changes, below), _value_at(changes, above)
        return low if low == high else None

    def _bounds(self) -> tuple[Release | None, Release | None]:
        """The examined releases that this version lies between (both the same where it is one of them)."""
        if self.kind in ("older", "newer"):
            return None, None
        if self.kind == "release":
            return self.release, self.release
        below = max((r for r in EXAMINED if r < self.release), default=None)
        above = min((r for r in EXAMINED if r >= self.release), default=None)
        return below, above


def _value_at(changes: Mapping[Release, T | None], release: Release) -> T | None:
    first = max((r for r in changes if r <= release), default=None)
    return None if first is None else changes[first]


def parse_version(text: str) -> EngineVersion | None:
    """The version in `text`, or None where it is not a version at all (PEP 440).

    Development, alpha, beta and candidate builds and vendors' builds (a local
    version such as `+g680bd4b` or `+acme.7`, an epoch, a fourth number) are `development`: such a tree lies
    somewhere between two releases. Post releases count as their release, and local versions that only name a
    toolkit (`+cu130`) do not count.
    """
    if len(text) > MAX_TEXT:
        return None
    try:
        version = Version(text)
    except InvalidVersion:
        return None
    numbers = (*version.release, 0, 0, 0)[:3]
    release: Release = (numbers[0], numbers[1], numbers[2])
    vendor = version.local is not None and not _HARMLESS_LOCAL.fullmatch(version.local)
    vendor = vendor or version.epoch != 0 or any(version.release[3:])
    # A build after a release (0.5.10.post2.dev346, 0.5.22+acme) may hold what the next release holds.
    if version.is_prerelease or vendor:
        if version.is_postrelease or not version.is_prerelease:
            release = (release[0], release[1], release[2] + 1)
        kind = "development"
    else:
        kind = "release" if release in EXAMINED else "unexamined"
    if release > NEWEST:
        kind = "newer"
    elif release < OLDEST:
        kind = "older"
    return EngineVersion(text, release, kind)
