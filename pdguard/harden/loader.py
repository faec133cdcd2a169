"""Reads `remediations/<id>/backport.yaml` and the payload; every fault is told with its place."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pdguard._yaml import read_model
from pdguard.errors import InputError, Problem
from pdguard.harden.model import Backport, Seam

_Base = Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Seam(_Strict):
    name: str
    file: Annotated[str, Field(pattern=r"^[a-z0-9_/]+\.py$")]
    path: Annotated[str, Field(pattern=r"^\w+(\.\w+)*$")]
    find: dict[str, Any] | None = None
    put: Literal["before", "after", "instead", "first", "last"]
    code: str = ""

    @model_validator(mode="after")
    def _does_something(self) -> _Seam:
        if not self.code.strip() and self.put != "instead":
            raise ValueError("code is empty, which only `instead` may be")
        return self


class _OfBase(_Strict):
    requires: list[str] = []
    partial: bool = False
    proves: list[str] = []
    seams: Annotated[list[_Seam], Field(min_length=1)]


class _File(_Strict):
    bases: Annotated[dict[_Base, _OfBase], Field(min_length=1)]


def load_backports(folder: Path) -> tuple[Backport, ...]:
    """All backports below `folder`, by fix and base. Raises InputError with every problem found."""
    problems: list[Problem] = []
    found: list[Backport] = []
    for file in sorted(folder.glob("*/backport.yaml")):
        data = read_model(file, _File, problems)
        if data is None:
            continue
        for base, what in data.bases.items():
            seams = tuple(Seam(s.name, s.file, s.path, s.find, s.put, s.code) for s in what.seams)
            found.append(
                Backport(
                    file.parent.name, base, seams, tuple(what.requires), what.partial, tuple(what.proves)
                )
            )
    for backport in found:
        if not (folder / backport.fix / "fix.yaml").is_file():
            problems.append(Problem(f"{backport.fix}/backport.yaml", 0, 0, "there is no fix.yaml beside it"))
    if problems:
        raise InputError("the backports cannot be used", problems)
    return tuple(sorted(found, key=lambda b: (b.fix, b.base)))


def load_payload(folder: Path) -> dict[str, str]:
    """The payload's modules, by file name, from `folder`/payload."""
    return {file.name: file.read_text("utf-8") for file in sorted((folder / "payload").glob("*.py"))}
