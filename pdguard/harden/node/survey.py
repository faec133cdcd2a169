"""What a package and its earlier hardening look like. Nothing is written here."""

from __future__ import annotations

import base64
import os
import re
import stat
import zlib
from typing import Any

from pdguard.harden.node import check
from pdguard.harden.node.entry import Refused, digest, failure, look, read
from pdguard.harden.node.places import checked
from pdguard.harden.node.store import FOLDER, State, Store
from pdguard.harden.node.undo import bytecode, unfinished
from pdguard.node.files import judge
from pdguard.node.main import View, engine_like, top
from pdguard.node.package import Sources, started
from pdguard.node.procfs import Clock, descendants, title
from pdguard.node.release import distribution, record, version_file
from pdguard.node.seen import Seen

MAX_FILES = 1000
MAX_PACKED = 5 * 1024 * 1024
MAX_PROCESSES = 256
_SHA = re.compile(r"[0-9a-f]{64}")
_TITLE = re.compile(r"[A-Za-z0-9_.:\-]{1,80}")


class _Here(Seen):
    """The files as this process sees them, for readers that expect the view of another."""

    def __init__(self) -> None:
        super().__init__("/proc", os.getpid())

    def at(self, path: str) -> str:
        return path

    def own(self, path: str) -> str:
        return path


def about(root: str, real: str) -> dict[str, Any]:
    """Version, distribution, and whether this user could write."""
    here = _Here()
    dist = distribution(here, os.path.dirname(root))
    version, commit = version_file(here, real)
    return {
        "version": version or dist.version,
        "revision": commit,
        "dist_info": "" if dist.why else os.path.basename(dist.folder),
        "dist_version": dist.version,
        "editable": dist.editable,
        "free_bytes": check.room(real),
        "read_only": check.read_only(real),
        "may_write": not check.writable(real + "/" + FOLDER),
        "user": os.geteuid(),
    }


def file(root: str, path: Any) -> dict[str, Any]:
    """One file; `why` where it is none that could be changed."""
    answer: dict[str, Any] = {"path": path if isinstance(path, str) else "", "exists": False, "why": ""}
    try:
        full = root + "/" + checked(root, path)
        if not os.path.lexists(full):
            return answer
        answer["exists"] = True
        found, info = look(full), os.lstat(full)
    except (Refused, OSError) as error:
        why = failure(error)
        answer["why"] = why["what"] + (": " + why["found"] if why["found"] else "")
        return answer
    if found is not None:
        answer.update({k: v for k, v in found._asdict().items() if k != "xattrs"})
        answer.update(nlink=info.st_nlink, xattrs=sorted(found.xattrs), unwritable=check.writable(full))
    return answer


def _sha(path: str) -> str | None:
    try:
        return digest(read(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, Refused):
        return "unreadable"


def replaced(root: str, state: State) -> bool:
    """Whether an installer has put other files in place: none of ours is called any more.

    A file that somebody edited is no such thing, so each must be what RECORD or the original says, or gone.
    """
    edited = {p: f for p, f in state.files.items() if f.before is not None and f.after is not None}
    if not edited:
        return bool(state.files) and all(_sha(root + "/" + p) != f.after for p, f in state.files.items())
    recorded, _ = record(_Here(), distribution(_Here(), os.path.dirname(root)))
    fresh = 0
    for path, one in edited.items():
        found = _sha(root + "/" + path)
        if found == one.after:
            return False
        before = one.before.sha if one.before else None
        listed = recorded.get(path, ("", 0))[0]
        if found not in (None, before, listed):
            return False
        fresh += found is None or found == listed
    return fresh > 0


def state(store: Store) -> dict[str, Any]:
    """The earlier hardening: none, hardened, partial, edited, replaced or broken."""
    answer: dict[str, Any] = {"status": "none", "files": [], "interrupted": False, "running": store.holder()}
    try:
        found = store.state()
        answer["interrupted"] = unfinished(store)
    except (ValueError, KeyError, OSError, Refused) as error:
        answer.update(status="broken", why=type(error).__name__)
        return answer
    if found is None:
        return answer
    rows = []
    for path, one in found.files.items():
        now, before = _sha(store.root + "/" + path), one.before.sha if one.before else None
        match = "after" if now == one.after else "before" if now == before else "neither"
        rows.append({"path": path, "before": before, "after": one.after, "now": now, "match": match})
    matches = {row["match"] for row in rows}
    status = "hardened" if matches <= {"after"} else "partial"
    if "neither" in matches:
        status = "edited"
    if status != "hardened" and replaced(store.root, found):
        status = "replaced"
    answer.update(status=status, files=rows, set=found.set, run=found.run, folders=found.folders)
    answer.update(swapped_ns=found.swapped_ns, python=found.python)
    return answer


def verify(store: Store) -> dict[str, Any]:
    """Differences from the state, and bytecode that Python would run, or pass over, instead of a source."""
    answer = state(store)
    stale: list[dict[str, str]] = []
    for row in answer["files"]:
        path = store.root + "/" + row["path"]
        names = bytecode(store.root, row["path"])
        if not names or not os.path.isfile(path):
            continue
        source, info = read(path), os.stat(path)
        for name in names:
            verdict = (
                judge(_head(store.root + "/" + name), source, info) if "__pycache__" in name else "stale"
            )
            if verdict:
                stale.append({"path": name, "why": verdict})
    differs = [row for row in answer["files"] if row["match"] != "after"]
    return {"state": answer, "differs": differs, "bytecode": stale}


def _head(path: str) -> bytes:
    try:
        with open(path, "rb") as handle:
            return handle.read(16)
    except OSError:
        return b""


def processes(real: str, newest_ns: int, proc: str, seconds: float) -> dict[str, Any]:
    """Engines of this node that import this very tree, or of which that is not known."""
    clock = Clock(seconds)
    view = View(proc, set(), clock)
    view.sources = Sources(proc, view.procs, clock, {"files": []})
    rows: list[dict[str, Any]] = []
    done: set[int] = set()
    for pid in view.procs:
        if clock.over() or len(rows) >= MAX_PROCESSES:
            break
        first = top(view, pid, engine_like) if engine_like(view, pid) else -1
        if first < 0 or first in done:
            continue
        done.add(first)
        same, why = _imports(view.sources, first, real)
        if same is False:
            continue
        begun = started(proc, view.procs[first].ticks)
        name = title(view.procs[first].cmdline) or view.program(first)
        workers = [p for p in descendants(view.procs, first) if engine_like(view, p)]
        rows.append(
            {
                "pid": first,
                "started": None if begun is None else begun / 10**9,
                "title": name if _TITLE.fullmatch(name) else "",
                "workers": len(workers),
                "same_tree": same,
                "why": why,
                "older": None if begun is None or not newest_ns else begun < newest_ns,
            }
        )
    return {"seen": rows, "late": clock.late}


def _imports(sources: Sources, pid: int, real: str) -> tuple[bool | None, str]:
    try:
        found = sources.origin(pid)
        if found.status != "found":
            return None, found.why
        return os.path.samefile(found.path, real), ""
    except Exception as error:  # noqa: BLE001 - a process may end or hide at any moment
        return None, f"its source could not be read ({type(error).__name__})"


def contents(store: Store, wanted: Any, hints: Any) -> dict[str, Any]:
    """Bytes by hash: kept originals first, then the files that were named, then every source file."""
    asked = (
        [s for s in wanted if isinstance(s, str) and _SHA.fullmatch(s)] if isinstance(wanted, list) else []
    )
    need = dict.fromkeys(asked[:MAX_FILES])
    found: dict[str, str] = {}
    size = 0
    for path in _sources(store, list(need), hints if isinstance(hints, list) else []):
        if not need or size > MAX_PACKED:
            break
        try:
            data = read(path)
        except (OSError, Refused):
            continue
        sha = digest(data)
        if sha in need:
            del need[sha]
            found[sha] = base64.b64encode(zlib.compress(data, 6)).decode("ascii")
            size += len(found[sha])
    return {"contents": found, "left": list(need), "cut": size > MAX_PACKED}


def _sources(store: Store, need: list[str], hints: list[Any]) -> Any:
    for sha in need:
        yield store.at("originals/" + sha)
    for path in hints[:MAX_FILES]:
        try:
            yield store.root + "/" + checked(store.root, path)
        except Refused:
            continue
    for folder, folders, names in os.walk(store.root):
        folders[:] = sorted(f for f in folders if f not in (FOLDER, "__pycache__"))
        for name in sorted(names):
            path = folder + "/" + name
            if name.endswith(".py") and stat.S_ISREG(os.lstat(path).st_mode):
                yield path
