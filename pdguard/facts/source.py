"""Facts from the source that an engine runs: what its node tells, checked, and a reader of its files."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pdguard.facts.interface import FactSet, Grade, Value
from pdguard.fingerprint.match import Reader
from pdguard.transport.interface import Json

SOURCE = "source"
SOURCE_FACTS = (
    *("source_unread", "source_root_kind", "source_cover", "source_mounted", "source_version"),
    *("source_revision", "source_differs", "source_tree_differs", "newer_by_ctime", "newer_by_mtime"),
    *("stale_pyc", "unchecked_pyc", "older_pyc", "lone_pyc", "rust_parts", "rust_replaced"),
)
"""Every fact that this collector answers for: each is known afterwards, or missing with a reason."""

PYC_FACTS = {"stale": "stale_pyc", "unchecked": "unchecked_pyc", "older": "older_pyc", "lone": "lone_pyc"}

_HASH = re.compile(r"[0-9a-f]{64}")
_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_\-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.\-]*){0,12}(?:\.[a-z]{1,4})?")
_HOW = "run pdguard as root, or as the user of the engine"
_NONSENSE = "the node's answer about its source makes no sense"
_HIDDEN = "its .pyc is run unchecked and may hold other code"
_Text = Annotated[str, Field(max_length=200)]
_Count = Annotated[int, Field(ge=0, le=1_000_000)]
_Paths = Annotated[list[str], Field(max_length=1024)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


class _Newer(_Strict):
    ctime: _Paths
    mtime: _Paths
    ctime_total: _Count
    mtime_total: _Count


class _Tree(_Strict):
    whole: bool
    files: _Count
    differs: _Count
    missing: _Count
    extra: _Count


class _Pyc(_Strict):
    stale: _Paths = []
    unchecked: _Paths = []
    older: _Paths = []
    lone: _Paths = []


class _Rust(_Strict):
    read: bool
    parts: _Paths
    replaced: bool


class _Answer(_Strict):
    status: str = Field(pattern="^(found|ambiguous|unknown)$")
    why: _Text = ""
    rust: _Rust | None = None
    kind: str = Field("other", pattern="^(site-packages|editable|pythonpath|other)$")
    via: _Text = ""
    confirmed: bool = False
    cover: str = Field("unknown", pattern="^(plain|overlay|bind|volume|unknown)$")
    mounted: _Paths = []
    version: str = Field("", pattern=r"^[0-9A-Za-z.+!_\-]{0,64}$")
    dist_version: str = Field("", pattern=r"^[0-9A-Za-z.+!_\-]{0,64}$")
    revision: str = Field("", pattern=r"^[0-9a-f]{0,64}$")
    revision_from: str = Field("", pattern=r"^[a-z_.]{0,20}$")
    record: _Text = "it was not looked at"
    differs: _Paths = []
    unlisted: _Paths = []
    tree: _Tree | None = None
    newer: _Newer | None = None
    pyc: _Pyc = _Pyc()
    files: list[Any] = Field(default_factory=list, max_length=1024)


@dataclass(frozen=True, slots=True)
class SourceFileRow:
    """One source file on a node; times in nanoseconds since 1970."""

    sha256: str
    size: int
    mtime: int
    ctime: int


@dataclass(frozen=True, slots=True)
class EngineSource:
    """What a node tells of one engine's source; `files` holds a row, None (no such file) or a reason."""

    status: str
    why: str = ""
    answer: _Answer | None = None
    files: Mapping[str, SourceFileRow | str | None] = field(default_factory=dict)

    def unread(self) -> str:
        """Why the source, or part of it, could not be read; "" where all of it was."""
        if self.status != "found":
            return self.why or self.status
        whys = [row for row in self.files.values() if isinstance(row, str)]
        return f"{len(whys)} of {len(self.files)} files: {', '.join(sorted(set(whys))[:3])}" if whys else ""

    def hashes(self) -> dict[str, str]:
        """sha256 of every file that was read, by its path below the package."""
        return {path: row.sha256 for path, row in self.files.items() if isinstance(row, SourceFileRow)}


def source_request(watched: Iterable[str]) -> dict[str, Json]:
    """The part of a node request that asks for the source of every engine found."""
    return {"files": list(watched)}


def parse_source(answer: object, watched: Sequence[str]) -> EngineSource:
    """What the node said about one engine's source, checked part by part; nonsense is `unknown`."""
    if answer is None:
        return EngineSource("unknown", "the node's answer does not mention its source")
    try:
        made = _Answer.model_validate(answer)
    except (ValidationError, RecursionError):
        return EngineSource("unknown", _NONSENSE)
    if made.status != "found":
        return EngineSource(made.status, made.why, made)
    if len(made.files) != len(watched):
        return EngineSource("unknown", _NONSENSE)
    files = {path: _row(value) for path, value in zip(watched, made.files, strict=True)}
    for path in made.pyc.unchecked:
        if isinstance(files.get(path), SourceFileRow):
            files[path] = _HIDDEN
    return EngineSource("found", "", made, files)


def _row(value: object) -> SourceFileRow | str | None:
    if value is None:
        return None
    if isinstance(value, str):
        return value[:200] or _NONSENSE
    if not isinstance(value, list) or len(value) != 4 or not isinstance(value[0], str):
        return _NONSENSE
    numbers = value[1:]
    if not _HASH.fullmatch(value[0]) or any(type(n) is not int or not 0 <= n < 2**63 for n in numbers):
        return _NONSENSE
    return SourceFileRow(sys.intern(value[0]), *numbers)


def changed_since_start(source: EngineSource) -> str:
    """Why the disk is not what the process runs; "" where nothing watched changed after its start."""
    newer = None if source.answer is None else source.answer.newer
    if newer is None:
        return "the start of the process is not known"
    changed = sorted({*newer.ctime, *newer.mtime} & set(source.files))
    more = newer.ctime_total > len(newer.ctime) or newer.mtime_total > len(newer.mtime)
    if changed:
        return f"{len(changed)} watched files changed after the process began, {changed[0]} first"
    return "many files changed after the process began" if more else ""


def tree_reader(source: EngineSource | None, text: Callable[[str], str | None]) -> Reader:
    """A reader of one engine's files for the fingerprints.

    `text` gives a content by its hash, from the content store. The reader raises LookupError where a file is
    there and cannot be told, and also for one that was not asked for: that is not the same as none.
    """

    def read(path: str) -> tuple[str, str] | None:
        if source is None:
            raise LookupError("the source of the engine was not read")
        if source.status != "found":
            raise LookupError(source.unread())
        if path not in source.files:
            raise LookupError("it was not asked for")
        row = source.files[path]
        if row is None:
            return None
        if isinstance(row, str):
            raise LookupError(row)  # noqa: TRY004
        found = text(row.sha256)
        if found is None:
            raise LookupError("its content could not be fetched")
        return row.sha256, found

    return read


def apply_source(facts: FactSet, source: EngineSource | None, why: str = "its node was not read") -> None:
    """Add what is known about the source of an engine, and the reason for what is not."""
    made = None if source is None else source.answer
    if source is not None:
        facts.add("source_unread", source.unread() or "no", Grade.CONFIGURED, SOURCE, "node script")
        why = source.unread()
    if made is not None:
        _rust(facts, made.rust)
    if made is not None and made.status == "found":
        _about(facts, made)
        _content(facts, made)
        _newer(facts, made.newer)
        for name, fact in PYC_FACTS.items():
            _list(facts, fact, getattr(made.pyc, name), Grade.CONFIGURED, "__pycache__")
    for name in SOURCE_FACTS:
        facts.miss(name, why or "the node did not tell", _HOW)


def _about(facts: FactSet, made: _Answer) -> None:
    how = f"{made.via}, confirmed by its mapped libraries" if made.confirmed else made.via
    _add(facts, "source_root_kind", made.kind, Grade.CONFIGURED, how)
    if made.cover == "unknown":
        facts.miss("source_cover", "the mounts of the process could not be read", _HOW)
        facts.miss("source_mounted", "the mounts of the process could not be read", _HOW)
    else:
        _add(facts, "source_cover", made.cover, Grade.CONFIGURED, "mountinfo")
        _list(facts, "source_mounted", made.mounted, Grade.CONFIGURED, "mountinfo")
    for version, where in ((made.version, "version file"), (made.dist_version, "METADATA")):
        if version:
            _add(facts, "source_version", version, Grade.CLAIMED, where)
    facts.miss("source_version", "neither a version file nor a distribution tells it")
    if made.revision:
        _add(facts, "source_revision", made.revision, Grade.CLAIMED, made.revision_from)
    facts.miss("source_revision", "it is not in a git checkout, and its package names no revision")


def _content(facts: FactSet, made: _Answer) -> None:
    if made.record:
        facts.miss("source_differs", made.record, "compare with a release: pdguard inspect")
        facts.miss("source_tree_differs", made.record, "compare with a release: pdguard inspect")
        return
    _list(facts, "source_differs", [*made.differs, *made.unlisted], Grade.FINGERPRINTED, "RECORD")
    tree = made.tree
    if tree is None or not tree.whole:
        facts.miss("source_tree_differs", "not every file could be compared in the time given")
    else:
        count = tree.differs + tree.missing + tree.extra
        _add(facts, "source_tree_differs", count, Grade.FINGERPRINTED, f"RECORD, {tree.files} files of srt/")


def _newer(facts: FactSet, newer: _Newer | None) -> None:
    if newer is None:
        for name in ("newer_by_ctime", "newer_by_mtime"):
            facts.miss(name, "the start of the process is not known")
        return
    for name, paths, total in (
        ("newer_by_ctime", newer.ctime, newer.ctime_total),
        ("newer_by_mtime", newer.mtime, newer.mtime_total),
    ):
        more = [f"+{total - len(paths)} others not shown"] if total > len(paths) else []
        _list(facts, name, paths, Grade.CONFIGURED, f"{name[9:]} of the file, start of the process", more)


def _rust(facts: FactSet, rust: _Rust | None) -> None:
    if rust is None or not rust.read:
        for name in ("rust_parts", "rust_replaced"):
            facts.miss(name, "what the engine has mapped cannot be read", _HOW)
        return
    _list(facts, "rust_parts", rust.parts, Grade.CONFIGURED, "/proc/PID/maps")
    _add(facts, "rust_replaced", rust.replaced, Grade.CONFIGURED, "/proc/PID/maps")


def _list(
    facts: FactSet, name: str, paths: Iterable[str], grade: Grade, where: str, more: Iterable[str] = ()
) -> None:
    """A list of paths below the package; one that is not of that form is named so, and not shown."""
    shown = [p if len(p) < 200 and _PATH.fullmatch(p) else "an odd name" for p in paths]
    _add(facts, name, (*dict.fromkeys(shown), *more), grade, where)


def _add(facts: FactSet, name: str, value: Value, grade: Grade, where: str) -> None:
    facts.add(name, value, grade, SOURCE, where)
