"""Reads the fix catalogue `remediations/<id>/fix.yaml`; every fault of every file is told with its place."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from pdguard._yaml import read_model
from pdguard.errors import InputError, Problem
from pdguard.fingerprint.model import BACKENDS, Fix, Part, Place, State

_FILE = r"^[a-z0-9_/]+\.py$"
Backend = Literal["mooncake", "nixl", "mori", "ascend", "fake"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Place(_Strict):
    file: Annotated[str, Field(pattern=_FILE)]
    path: Annotated[str, Field(pattern=r"^\w+(\.\w+)*$")]
    fixed: dict[str, Any] | None = None
    vulnerable: dict[str, Any] | None = None


class _When(_Strict):
    file: Annotated[str, Field(pattern=_FILE)]
    path: Annotated[str, Field(pattern=r"^\w+(\.\w+)*$")]
    counts: dict[str, Any] | None = None
    counts_not: dict[str, Any] | None = None


class _Part(_Strict):
    name: str
    at: Annotated[list[_Place], Field(min_length=1)]
    aside: bool = False
    backends: list[Backend] = []
    without_file: State = State.UNKNOWN
    without_place: State = State.UNKNOWN
    when: list[_When] = []


class _Fix(_Strict):
    id: Annotated[str, Field(pattern=r"^(\d{5}|X\d)$")]
    title: str
    summary: str
    upstream: list[int] = []
    side: Literal["prefill", "decode", "both"]
    gate: Literal["pool", "admission", "transfer", "lifetime", "router", "visibility"]
    severity: Literal["low", "medium", "high", "critical"]
    backends: list[Backend] = []
    requires: list[str] = []
    refs: list[str] = []
    merged: bool = True
    first_release: str = ""
    parts: Annotated[list[_Part], Field(min_length=1)]


def load_fixes(folder: Path) -> tuple[Fix, ...]:
    """All fixes below `folder`, sorted by id. Raises InputError with every problem found."""
    problems: list[Problem] = []
    fixes = []
    for file in sorted(folder.glob("*/fix.yaml")):
        fix = _load(file, problems)
        if fix is not None:
            fixes.append(fix)
    ids = {f.id for f in fixes}
    for fix in fixes:
        for needed in fix.requires:
            if needed not in ids:
                problems.append(Problem(f"{fix.id}/fix.yaml", 0, 0, f"requires {needed}, which is no fix"))
    if problems:
        raise InputError("the fix catalogue cannot be used", problems)
    return tuple(sorted(fixes, key=lambda f: f.id))


def _load(file: Path, problems: list[Problem]) -> Fix | None:
    data = read_model(file, _Fix, problems)
    if data is None:
        return None
    if file.parent.name != data.id:
        problems.append(Problem(str(file), 0, 0, f"the folder of fix {data.id} bears its id"))
    return Fix(
        id=data.id,
        title=data.title.strip(),
        summary=" ".join(data.summary.split()),
        upstream=tuple(data.upstream),
        side=data.side,
        backends=tuple(b for b in BACKENDS if b in data.backends),
        requires=tuple(data.requires),
        refs=tuple(data.refs),
        gate=data.gate,
        severity=data.severity,
        merged=data.merged,
        first_release=data.first_release,
        parts=tuple(_part(p) for p in data.parts),
    )


def _part(part: _Part) -> Part:
    return Part(
        name=part.name,
        places=tuple(Place(p.file, p.path, p.fixed, p.vulnerable) for p in part.at),
        backends=tuple(part.backends),
        without_file=part.without_file,
        without_place=part.without_place,
        aside=part.aside,
        when=tuple(Place(w.file, w.path, w.counts, w.counts_not) for w in part.when),
    )
