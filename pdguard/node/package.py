"""The source part of an answer: which package an engine imports, and the bytes of files nobody has yet."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import time
import zlib
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

from pdguard.node import files, imports, pyenv, release
from pdguard.node.argline import split
from pdguard.node.procfs import Clock, Proc, boot_time, descendants, link
from pdguard.node.seen import Mapped, Seen, mapped, variables

MAX_WATCHED = 256
MAX_PROCESSES = 64
MAX_SHOWN = 50
MAX_ITEMS = 1024
MAX_RAW = 48 * 1024 * 1024
MAX_PACKED = 5 * 1024 * 1024
TREE_SECONDS = 1.0
SLACK = 500 * 10**6
"""Nanoseconds by which a file must be newer than a process: clock ticks are coarse."""


class Tree(NamedTuple):
    """What is the same for every engine that imports one package: read once."""

    rows: List[Union[files.Row, str, None]]
    pyc: Dict[str, List[str]]
    listed: List[files.Stat]
    about: Dict[str, Any]


class Place(NamedTuple):
    """One engine: its view, its processes, and where it imports the package from."""

    seen: Seen
    origin: imports.Origin
    maps: Mapped
    tag: str
    pyc_prefix: str


class Sources:
    """Answers about sources for one request."""

    def __init__(self, proc: str, procs: Dict[int, Proc], clock: Clock, wanted: Any) -> None:
        self.proc = proc
        self.procs = procs
        self.clock = clock
        asked = wanted.get("files") if isinstance(wanted, dict) else None
        self.watched = (
            [p for p in asked if isinstance(p, str)][:MAX_WATCHED] if isinstance(asked, list) else []
        )
        self.tree_clock: Optional[Clock] = None
        self._places: Dict[int, Place] = {}
        self._trees: Dict[Tuple[Any, ...], Tree] = {}

    def origin(self, pid: int) -> imports.Origin:
        """Where an engine imports the package from."""
        return self._place(pid).origin

    def describe(self, pid: int) -> Dict[str, Any]:
        """Everything about the source that an engine runs."""
        if self.clock.over():
            return {"status": "unknown", "why": "time ran out before its source was looked at"}
        place = self._place(pid)
        found = place.origin
        parts = [(part, gone) for rows in place.maps.packages.values() for part, gone in rows]
        answer: Dict[str, Any] = {
            "status": found.status,
            "why": found.why,
            "rust": {
                "read": place.maps.read,
                "parts": sorted({_part(part) for part, _ in parts})[:MAX_SHOWN],
                "replaced": any(gone for _, gone in parts),
            },
        }
        if found.status != "found":
            return answer
        tree = self._tree(place)
        answer.update(tree.about)
        answer.update(kind=found.kind, via=found.via, confirmed=found.confirmed, pyc=tree.pyc)
        answer["files"] = [list(row) if isinstance(row, files.Row) else row for row in tree.rows]
        answer["newer"] = self._newer(place.seen.pid, tree)
        return answer

    def _place(self, pid: int) -> Place:
        if pid not in self._places:
            python = self._python(pid)
            seen = Seen(self.proc, python)
            below = descendants(self.procs, python)
            pids = [python, *(p for p in below if self._exe(p) == self._exe(python))][:MAX_PROCESSES]
            env, maps = variables(self.proc, python), mapped(seen, pids)
            argv = split(self.procs[python].cmdline)
            origin = imports.origin(seen, argv, env, pids, maps)
            version = pyenv.minor(os.path.basename(seen.exe)) or maps.version
            tag = "cpython-" + version.replace(".", "") if version else ""
            prefix = (env or {}).get("PYTHONPYCACHEPREFIX", "")
            self._places[pid] = Place(seen, origin, maps, tag, prefix)
        return self._places[pid]

    def _exe(self, pid: int) -> str:
        return link("%s/%d/exe" % (self.proc, pid))

    def _python(self, pid: int) -> int:
        """The process, or the first below it that is a Python where it is a shell."""
        for one in [pid, *descendants(self.procs, pid)]:
            name = os.path.basename(self._exe(one).replace(" (deleted)", ""))
            if pyenv.PYTHON.fullmatch(name):
                return one
        return pid

    def _tree(self, place: Place) -> Tree:
        seen, package = place.seen, place.origin.path
        try:
            info = os.stat(package)
            name = os.stat("%s/%d/ns/mnt" % (self.proc, seen.pid)).st_ino
        except (OSError, ValueError):
            info, name = None, seen.pid
        key = (
            info and (info.st_dev, info.st_ino),
            name,
            seen.back(package),
            place.tag,
            place.origin.site,
        )
        if key not in self._trees:
            self._trees[key] = self._read(place)
        return self._trees[key]

    def _read(self, place: Place) -> Tree:
        seen, package = place.seen, place.origin.path
        own = seen.back(package)
        reader = files.Watched(seen, package, place.tag, place.pyc_prefix)
        rows: List[Union[files.Row, str, None]] = []
        for path in self.watched:
            rows.append("time ran out" if self.clock.over() else reader.read(path))
        cover, mounted = release.mounts(seen, own)
        parent = os.path.dirname(own)
        dist = release.distribution(seen, parent)
        recorded, no_record = release.record(seen, dist)
        if dist.why and place.origin.site:
            dist = release.distribution(seen, place.origin.site)
        version, commit = release.version_file(seen, own)
        checkout = release.revision(seen, own)
        self.tree_clock = self.tree_clock or Clock(TREE_SECONDS)
        listed, whole = files.walk(package + "/srt", "srt", self.tree_clock)
        about: Dict[str, Any] = {
            "cover": cover,
            "mounted": mounted,
            "version": version,
            "dist_version": dist.version,
            "editable": dist.editable,
            "revision": checkout or dist.revision or commit,
            "revision_from": (checkout and "git") or (dist.revision and "direct_url.json") or "_version.py",
            "record": no_record,
            "differs": [],
            "unlisted": [],
        }
        if not no_record:
            for path, row in zip(self.watched, rows, strict=True):
                digest = row.sha256 if isinstance(row, files.Row) else None
                if path not in recorded:
                    about["unlisted"] += [path] if digest else []
                elif digest != recorded[path][0] and not isinstance(row, str):
                    about["differs"].append(path)
            below = {path: entry for path, entry in recorded.items() if path.startswith("srt/")}
            checked, different, missing = files.compare(package + "/", listed, below, self.tree_clock)
            extra = sum(entry.path not in below for entry in listed)
            about["tree"] = {
                "whole": whole and checked + extra == len(listed),
                "files": len(listed),
                "differs": different,
                "missing": missing,
                "extra": extra,
            }
        return Tree(rows, reader.pyc, listed, about)

    def _newer(self, pid: int, tree: Tree) -> Optional[Dict[str, Any]]:
        """Files that were changed after the process began, by each of their two times."""
        start = started(self.proc, self.procs[pid].ticks)
        if start is None:
            return None
        limit = start + SLACK
        times = {
            path: (row.ctime, row.mtime)
            for path, row in zip(self.watched, tree.rows, strict=True)
            if isinstance(row, files.Row)
        }
        for entry in tree.listed:
            times.setdefault(entry.path, (entry.ctime, entry.mtime))
        found: Dict[str, Any] = {}
        for at, name in enumerate(("ctime", "mtime")):
            paths = [path for path, both in times.items() if both[at] > limit]
            found[name] = [p for p in paths if len(p) < 200][:MAX_SHOWN]
            found[name + "_total"] = len(paths)
        return found

    def contents(self, items: List[Any], engine: Any) -> List[List[Optional[str]]]:
        """[sha256, data, why] of each file asked for, where it still holds just that."""
        found: List[List[Optional[str]]] = []
        raw = packed = 0
        for item in items[:MAX_ITEMS]:
            if not isinstance(item, dict):
                continue
            pid, path, digest = item.get("pid"), item.get("path"), item.get("sha256")
            if not isinstance(path, str) or not isinstance(digest, str) or not isinstance(pid, int):
                continue
            data, why = None, "time ran out"
            if raw < MAX_RAW and packed < MAX_PACKED and not self.clock.over():
                data, why = self._content(pid, path, digest, engine)
            text = None
            if data is not None:
                raw += len(data)
                text = base64.b64encode(zlib.compress(data, 6)).decode("ascii")
                packed += len(text)
            found.append([digest[:64], text, why])
        return found

    def _content(self, pid: int, path: str, digest: str, engine: Any) -> Tuple[Optional[bytes], str]:
        if path not in self.watched or not files.WATCHED.fullmatch(path):
            return None, "not a file that is watched"
        if pid not in self.procs or not engine(pid):
            return None, "no engine has this process id"
        place = self._place(pid)
        if place.origin.status != "found":
            return None, place.origin.why
        real = place.seen.at(place.seen.back(place.origin.path) + "/" + path)
        if not real.endswith(".py"):
            return None, "a link to something that is no Python file"
        data, _, why = files.content(real)
        if data is not None and hashlib.sha256(data).hexdigest() != digest:
            return None, "it has changed since"
        return data, why


def started(proc: str, ticks: int) -> Optional[int]:
    """Start of a process in nanoseconds since 1970."""
    since_boot = ticks * 10**9 // (os.sysconf("SC_CLK_TCK") or 100)
    if proc == "/proc":
        return time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME) + since_boot
    boot = boot_time(proc)
    return None if boot is None else boot * 10**9 + since_boot


def _part(path: str) -> str:
    """A word for a library of the package."""
    match = re.fullmatch(r"srt/rust_extensions/_?(\w+)[.\w\-]*\.so", path)
    if match:
        return match.group(1)
    return "tree_core" if "/rust_tree_core/" in path else re.sub(r"\..*", "", path)[:100]
