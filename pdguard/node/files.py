"""The source files of a package: what they hold, what Python would run in their place, which are newer."""

from __future__ import annotations

import _imp
import hashlib
import os
import re
import stat
from typing import Dict, List, NamedTuple, Optional, Set, Tuple, Union

from pdguard.node.procfs import Clock, open_file, read, reason
from pdguard.node.seen import Seen

MAX_SOURCE = 4 * 1024 * 1024
MAX_FILES = 20000
MAX_NAMES = 100000
WATCHED = re.compile(r"(?:[A-Za-z0-9_]{1,80}/){0,8}[A-Za-z0-9_]{1,80}\.py")
_UNCHECKED = 1


class Row(NamedTuple):
    """One file as it was read; times in nanoseconds since 1970."""

    sha256: str
    size: int
    mtime: int
    ctime: int


class Stat(NamedTuple):
    """One file as it was listed."""

    path: str
    size: int
    mtime: int
    ctime: int


def content(path: str) -> Tuple[Optional[bytes], Optional[os.stat_result], str]:
    """A whole source file with its times, or the reason; `gone` where there is none."""
    try:
        handle = open_file(path)
    except (NotADirectoryError, IsADirectoryError):
        return None, None, "gone"
    except (OSError, ValueError) as error:
        return None, None, reason(error)
    try:
        for _ in range(2):  # once more where it changed meanwhile
            os.lseek(handle, 0, os.SEEK_SET)
            before = os.fstat(handle)
            if before.st_size > MAX_SOURCE:
                return None, None, "larger than 4 MiB"
            data = b"".join(iter(lambda: os.read(handle, 1024 * 1024), b""))
            after = os.fstat(handle)
            if len(data) == after.st_size and before.st_mtime_ns == after.st_mtime_ns:
                return data, after, ""
    except OSError as error:
        return None, None, reason(error)
    finally:
        os.close(handle)
    return None, None, "it changed while it was read"


class Watched:
    """Reads the watched files of one package; folders are listed once."""

    def __init__(self, seen: Seen, package: str, tag: str, pyc_prefix: str) -> None:
        self.seen = seen
        self.package = seen.back(package)
        self.tag = tag
        self.pyc_prefix = pyc_prefix.rstrip("/")
        self.pyc: Dict[str, List[str]] = {"stale": [], "unchecked": [], "older": [], "lone": []}
        self._names: Dict[str, Optional[Set[str]]] = {}

    def read(self, path: str) -> Union[Row, str, None]:
        """The row of a file, None where there is none, or why it cannot be told."""
        if not WATCHED.fullmatch(path):
            return "not a path below the package"
        data, info, why = content(self.seen.at(self.package + "/" + path))
        folder, _, name = ("/" + path).rpartition("/")
        stem = name[: -len(".py")]
        names = self._list(self.package + folder)
        shadow = self._shadow(self.package + folder, stem, names or set())
        if shadow:
            return shadow
        if data is None or info is None:
            if why != "gone":
                return why
            if names is not None and stem + ".pyc" in names:
                self.pyc["lone"].append(path)
                return "only its compiled form is there"
            return None
        self._compiled(path, folder, stem, data, info)
        return Row(hashlib.sha256(data).hexdigest(), info.st_size, info.st_mtime_ns, info.st_ctime_ns)

    def _list(self, folder: str) -> Optional[Set[str]]:
        if folder not in self._names:
            try:
                self._names[folder] = set(os.listdir(self.seen.at(folder))[:MAX_NAMES])
            except (OSError, ValueError):
                self._names[folder] = None
        return self._names[folder]

    def _shadow(self, folder: str, stem: str, names: Set[str]) -> str:
        """Why Python would not run the file of that name: a package or an extension module comes first."""
        if stem in names and self.seen.kind(folder + "/" + stem + "/__init__.py") == "file":
            return "a package of the same name stands before it"
        native = (stem + ".so", stem + ".abi3.so")
        tagged = stem + "." + (self.tag or "cpython-")
        if any(n in names for n in native) or any(n.startswith(tagged) and n.endswith(".so") for n in names):
            return "a compiled extension of the same name stands before it"
        return ""

    def _compiled(self, path: str, folder: str, stem: str, data: bytes, info: os.stat_result) -> None:
        """Sort what is compiled from a file into `pyc`."""
        cache = self.package + folder + "/__pycache__"
        if self.pyc_prefix:
            cache = self.pyc_prefix + self.package + folder
        prefix = stem + "." + (self.tag or "cpython-")
        for name in sorted(self._list(cache) or ()):
            if not (name.startswith(prefix) and name.endswith(".pyc") and name[len(prefix) :][:1] == "."):
                continue
            file = self.seen.at(cache + "/" + name)
            state = judge(read(file, 16)[0] or b"", data, info)
            if not state and _ctime(file) and info.st_ctime_ns > _ctime(file) + 10**9:
                state = "older"
            if state and path not in self.pyc[state]:
                self.pyc[state].append(path)


def judge(head: bytes, source: bytes, info: os.stat_result) -> str:
    """stale, unchecked, or "" for what is no concern: it matches, or Python compares it by content itself."""
    if len(head) < 16 or head[2:4] != b"\r\n":
        return ""  # not a .pyc, so Python passes over it
    flags = int.from_bytes(head[4:8], "little")
    if flags & 1:
        if flags != _UNCHECKED:
            return ""
        key = int.from_bytes(head[:4], "little")
        return "" if _imp.source_hash(key, source) == head[8:16] else "unchecked"
    mtime, size = int.from_bytes(head[8:12], "little"), int.from_bytes(head[12:16], "little")
    same = mtime == int(info.st_mtime) & 0xFFFFFFFF and size == info.st_size & 0xFFFFFFFF
    return "" if same else "stale"


def _ctime(path: str) -> int:
    try:
        return os.stat(path).st_ctime_ns
    except (OSError, ValueError):
        return 0


def walk(top: str, below: str, clock: Clock) -> Tuple[List[Stat], bool]:
    """Every .py file in a folder, links not followed, and whether that is all of them."""
    found: List[Stat] = []
    todo = [(top, below)]
    whole = True
    while todo:
        folder, name = todo.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if len(found) >= MAX_FILES or clock.over():
                        return found, False
                    path = name + "/" + entry.name
                    if entry.is_dir(follow_symlinks=False):
                        if entry.name != "__pycache__":
                            todo.append((entry.path, path))
                    elif entry.name.endswith(".py"):
                        info = entry.stat(follow_symlinks=False)
                        if stat.S_ISREG(info.st_mode):
                            found.append(Stat(path, info.st_size, info.st_mtime_ns, info.st_ctime_ns))
                        else:
                            whole = False
        except (OSError, ValueError):
            whole = False
    return found, whole


def compare(
    top: str, listed: List[Stat], record: Dict[str, Tuple[str, int]], clock: Clock
) -> Tuple[int, int, int]:
    """(files compared with RECORD, of these different, in RECORD but not on disk) of the listed ones."""
    checked = different = 0
    for entry in listed:
        expected = record.get(entry.path)
        if expected is None:
            continue
        if expected[1] != entry.size:
            checked, different = checked + 1, different + 1
            continue
        if clock.over():
            continue
        data, _, _ = content(top + entry.path)
        if data is not None:
            checked += 1
            different += hashlib.sha256(data).hexdigest() != expected[0]
    return checked, different, len(set(record) - {entry.path for entry in listed})
