"""Source trees for tests: a release out of its wheel, with files of it edited."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pdguard.fingerprint.loader import load_fixes
from pdguard.fingerprint.match import Matcher
from pdguard.fingerprint.model import Fix, FixFinding, Place, State
from pdguard.fingerprint.source import SourceFile
from tests.wheels import wheel_file

CATALOGUE = Path(__file__).parents[2] / "remediations"


@functools.cache
def catalogue() -> dict[str, Fix]:
    return {fix.id: fix for fix in load_fixes(CATALOGUE)}


@functools.cache
def original(version: str, file: str) -> str | None:
    """A file of a release, by its path below the package; None where the release has none."""
    try:
        return wheel_file(version, f"sglang/{file}").decode()
    except KeyError:
        return None


@dataclass
class Tree:
    """A release and the edits made to it."""

    version: str
    files: dict[str, str] = field(default_factory=dict)

    def text(self, file: str) -> str | None:
        return self.files[file] if file in self.files else original(self.version, file)

    def read(self, file: str) -> tuple[str, str] | None:
        text = self.text(file)
        return None if text is None else (hashlib.sha256(text.encode()).hexdigest(), text)

    def edited(self, file: str, edit: Callable[..., str], *more: Any) -> Tree:
        """The tree with one file changed by `edit(text, *more)`, which has to change something."""
        text = self.text(file)
        assert text is not None, f"{self.version} has no {file}"
        new = edit(text, *more)
        assert new != text, f"nothing of {file} was changed"
        return Tree(self.version, {**self.files, file: new})

    def find(self, *ids: str) -> dict[str, FixFinding]:
        """What is found of the fixes `ids`."""
        known = _known(self.version, ids)
        # What was found in files that were not edited need not be found again.
        matcher = replace(known, _files=dict(known._files), _found=dict(known._found))
        return {found.fix.id: found for found in matcher.find(self.read)}


@functools.cache
def _known(version: str, ids: tuple[str, ...]) -> Matcher:
    matcher = Matcher([catalogue()[one] for one in ids])
    matcher.find(Tree(version).read)
    return matcher


def places(tree: Tree, fix: Fix) -> list[Place]:
    """The places that decide about a fix: of each part, and of its `when`, the first that exists."""
    found: dict[tuple[str, str], Place] = {}
    for part, told in zip(fix.parts, tree.find(fix.id)[fix.id].parts, strict=True):
        counted = () if told.state is State.NOT_APPLICABLE else part.places
        for several in (part.when, counted):
            for place in several:
                text = tree.text(place.file)
                if text is not None and SourceFile(text).find(place.path) is not None:
                    found[place.file, place.path] = place
                    break
    return list(found.values())
