"""What the node's harden script is asked for and answers, as types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Why:
    """Why the node did not do it. `path` is below the package, or a whole path, or empty."""

    what: str
    path: str = ""
    expected: str = ""
    found: str = ""
    todo: str = ""


@dataclass(frozen=True, slots=True)
class SetLabel:
    """What a set of changes is called: its id, the engine version it is for, who made it, its fixes."""

    id: str
    base: str
    tool: str
    fixes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """One file: its SHA-256 now (None: there must be none) and its new bytes (None: it goes)."""

    path: str
    before: str | None
    after: bytes | None


@dataclass(frozen=True, slots=True)
class FileSurvey:
    """One file of the package. `why` says why it could not be read, `unwritable` why it cannot be replaced.

    `sha` and `mode` are those of the file behind a symbolic link, the rest is the link's own.
    """

    path: str
    exists: bool
    why: str = ""
    sha: str | None = None
    size: int = 0
    mode: int = 0
    uid: int = 0
    gid: int = 0
    mtime_ns: int = 0
    nlink: int = 0
    link: str | None = None
    xattrs: tuple[str, ...] = ()
    unwritable: str = ""


@dataclass(frozen=True, slots=True)
class StateFile:
    """One file of an applied set: its hashes (None: no file) before, after and now."""

    path: str
    before: str | None
    after: str | None
    now: str | None
    match: Literal["before", "after", "neither"]


@dataclass(frozen=True, slots=True)
class TreeState:
    """What an earlier run left.

    `interrupted`: it was cut off before its end. `running`: the pid of a run that goes on now (0: unknown).
    """

    status: Literal["none", "hardened", "partial", "edited", "replaced", "broken"]
    files: tuple[StateFile, ...] = ()
    interrupted: bool = False
    running: int | None = None
    set: SetLabel | None = None
    run: str = ""
    folders: tuple[str, ...] = ()
    swapped_ns: int = 0
    python: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class EngineProcessSeen:
    """An engine that imports this tree (`same_tree` None: not known, see `why`).

    `started`: seconds since 1970. `older`: it began before the newest swap and runs the code of before.
    """

    pid: int
    started: float | None
    title: str
    workers: int
    same_tree: bool | None
    why: str
    older: bool | None


@dataclass(frozen=True, slots=True)
class Processes:
    """The engines of a node; `late` where time ran out before all were looked at."""

    seen: tuple[EngineProcessSeen, ...]
    late: bool


@dataclass(frozen=True, slots=True)
class Survey:
    """A package on a node. All but `status` and `why` is empty where the root is none (status refused)."""

    status: Literal["found", "refused", "failed"]
    why: Why | None = None
    root: str = ""
    real_root: str = ""
    version: str = ""
    revision: str = ""
    dist_info: str = ""
    dist_version: str = ""
    editable: bool = False
    free_bytes: int = 0
    read_only: bool = False
    may_write: bool = False
    user: int = -1
    files: tuple[FileSurvey, ...] = ()
    state: TreeState | None = None
    payload: bool | None = None
    processes: Processes | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """Paths that a run has replaced, created and removed, and bytecode that it removed or restored."""

    replaced: tuple[str, ...]
    created: tuple[str, ...]
    removed: tuple[str, ...]
    bytecode: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Proved:
    """The interpreter (path "": the node script's own) that compiled the files and imported the modules."""

    path: str
    version: str
    compiled: tuple[str, ...]
    imported: tuple[str, ...]
    lost: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Applied:
    """How an apply or a rollback ended.

    applied, unchanged (it already was so), refused (nothing was changed), rolled-back (of an apply: it failed
    and all was put back; of a rollback: done), failed (`troubles` names what could not be put back).
    `recovered`: an interrupted run was put right first. `left`: why not all could be tidied up.
    """

    status: Literal["applied", "unchanged", "refused", "rolled-back", "failed"]
    why: Why | None = None
    troubles: tuple[Why, ...] = ()
    recovered: bool = False
    state: TreeState | None = None
    done: Done | None = None
    python: Proved | None = None
    left: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Bytecode:
    """A compiled file that is not of its source: stale is passed over by Python, unchecked is run."""

    path: str
    why: Literal["stale", "unchecked"]


@dataclass(frozen=True, slots=True)
class Verified:
    """Whether every file is as it was written: verified, differs, none (nothing is applied)."""

    status: Literal["verified", "differs", "none", "refused", "failed"]
    why: Why | None = None
    state: TreeState | None = None
    differs: tuple[StateFile, ...] = ()
    bytecode: tuple[Bytecode, ...] = ()
    processes: Processes | None = None


@dataclass(frozen=True, slots=True)
class EngineFound:
    """The package and interpreter of an engine that listens on a port: empty unless `status` is found."""

    name: str
    status: str
    why: str
    pid: int | None = None
    root: str = ""
    python: str = ""
