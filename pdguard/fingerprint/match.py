"""Finds the fixes of the catalogue in a source tree: present, partial, absent, not applicable, or unknown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pdguard.fingerprint.model import Fix, FixFinding, Part, PartFinding, Place, Rule, Spot, State
from pdguard.fingerprint.source import Normal, SourceFile

Reader = Callable[[str], tuple[str, str] | None]
"""Gives (sha256, text) of a file by its path below the package, or None where there is none.

Raises LookupError with the reason where there is one and it could not be read."""

_NO_FILE = "no such file"


@dataclass(slots=True)
class Matcher:
    """Looks for fixes in any number of trees; a file content is looked at once, however often it comes."""

    fixes: Sequence[Fix]
    _files: dict[str, SourceFile] = field(default_factory=dict)
    _found: dict[tuple[str, int], tuple[State, int | None, str] | None] = field(default_factory=dict)

    def watched(self) -> tuple[str, ...]:
        """Every file that a fix looks at, sorted."""
        parts = [part for fix in self.fixes for part in fix.parts]
        return tuple(sorted({place.file for part in parts for place in (*part.when, *part.places)}))

    def find(self, read: Reader) -> list[FixFinding]:
        """The state of every fix in the tree that `read` gives access to."""
        return [self._fix(fix, read) for fix in self.fixes]

    def _fix(self, fix: Fix, read: Reader) -> FixFinding:
        parts = tuple(self._part(part, read) for part in fix.parts)
        counted = [p for p in parts if not p.aside]
        named = fix.backends or tuple(dict.fromkeys(b for p in counted for b in p.backends))
        backends = {b: _of_backend(b, counted) for b in named}
        return FixFinding(fix, _together(p.state for p in counted), backends, parts)

    def _part(self, part: Part, read: Reader) -> PartFinding:
        found = self._counted(part, read)
        return replace(found, aside=True) if part.aside else found

    def _counted(self, part: Part, read: Reader) -> PartFinding:
        if part.when:
            counts = self._first(part, part.when, State.UNKNOWN, State.UNKNOWN, read)
            if counts.state is State.ABSENT:
                return PartFinding(part.name, State.NOT_APPLICABLE, part.backends, why="not needed here")
            if counts.state is not State.PRESENT:
                return counts
        return self._first(part, part.places, part.without_file, part.without_place, read)

    def _first(
        self, part: Part, places: tuple[Place, ...], without_file: State, without_place: State, read: Reader
    ) -> PartFinding:
        """The finding of the first of the places that exists."""
        state, why = without_file, _NO_FILE
        for place in places:
            try:
                got = read(place.file)
            except LookupError as error:
                return PartFinding(
                    part.name, State.UNKNOWN, part.backends, why=f"{place.file}: {_reason(error)}"
                )
            if got is None:
                continue
            found = self._place(got[0], got[1], place)
            if found is None:
                state, why = without_place, f"{place.file} has no {place.path}"
                continue
            spot = Spot(place.file, found[1]) if found[1] is not None else None
            return PartFinding(part.name, found[0], part.backends, spot, found[2])
        return PartFinding(part.name, state, part.backends, why=why)

    def _place(self, digest: str, text: str, place: Place) -> tuple[State, int | None, str] | None:
        """(state, line, why) of one place, or None where the file has no such place."""
        key = (digest, id(place))
        if key not in self._found:
            source = self._files.get(digest)
            if source is None:
                source = self._files[digest] = SourceFile(text)
            self._found[key] = _judge(source, place)
        return self._found[key]


def _of_backend(backend: str, parts: Sequence[PartFinding]) -> State:
    """The state for one backend; one whose own files are all missing is not there, whatever is shared."""
    own = [p for p in parts if backend in p.backends]
    if own and all(p.state is State.NOT_APPLICABLE and p.why == _NO_FILE for p in own):
        return State.NOT_APPLICABLE
    return _together(p.state for p in parts if not p.backends or backend in p.backends)


def _reason(error: LookupError) -> str:
    return str(error.args[0]) if error.args else "it could not be read"


def _judge(source: SourceFile, place: Place) -> tuple[State, int | None, str] | None:
    try:
        if source.find(place.path) is None:
            return None
    except LookupError as error:
        return State.UNKNOWN, None, _reason(error)
    normal = source.normal(place.path)
    if normal is None:
        return State.UNKNOWN, None, f"{place.path} is not Python that can be read here"
    fixed, vulnerable = (_match(normal, rule) for rule in (place.fixed, place.vulnerable))
    if (fixed is None) == (vulnerable is None):
        both = (
            "both the fixed and the vulnerable form"
            if fixed is not None
            else "neither the fixed nor the vulnerable form"
        )
        return State.UNKNOWN, normal.start, f"{place.path} shows {both}"
    if fixed is not None:
        return State.PRESENT, fixed, ""
    return State.ABSENT, vulnerable, ""


def _match(normal: Normal, rule: Rule | None) -> int | None:
    """The original line of the first match, or None."""
    if rule is None:
        return None
    config: Any = dict(rule) if "rule" in rule else {"rule": dict(rule)}
    found = normal.root.find(config)
    return None if found is None else normal.original_line(found.range().start.line + 1)


def _together(states: Iterable[State]) -> State:
    """One state for several: any unknown makes it unknown, present and absent together are partial."""
    found = set(states) - {State.NOT_APPLICABLE}
    if not found:
        return State.NOT_APPLICABLE
    if State.UNKNOWN in found:
        return State.UNKNOWN
    return found.pop() if len(found) == 1 else State.PARTIAL
