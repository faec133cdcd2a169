"""A process's own view of its files, its variables and what it has mapped."""

from __future__ import annotations

import os
import re
import stat
from typing import Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

from pdguard.node import pyenv
from pdguard.node.procfs import ENVIRON_LIMIT, inside, link, read

PACKAGE = "sglang"
MAPS_LIMIT = 16 * 1024 * 1024
_NAMES = frozenset(
    ("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONNOUSERSITE", "PYTHONSAFEPATH", "PATH", "HOME")
) | {"PYTHONPYCACHEPREFIX"}
_MAPPED = (b"/%s/" % PACKAGE.encode(), b"/lib-dynload/")


class Mapped(NamedTuple):
    """What an engine's processes have mapped: libraries of the package by its folder, and their Python."""

    read: bool
    packages: Dict[str, Set[Tuple[str, bool]]]
    base: str
    version: str


class Seen:
    """A process's own view of its files."""

    def __init__(self, proc: str, pid: int) -> None:
        self.proc = proc
        self.pid = pid
        root = link("%s/%d/root" % (proc, pid))
        self.prefix = "" if root in ("", "/") or not proc.startswith("/proc") else root
        self.cwd = self.own(link("%s/%d/cwd" % (proc, pid)))
        self.exe = self.own(link("%s/%d/exe" % (proc, pid)).replace(" (deleted)", ""))

    def own(self, path: str) -> str:
        """A path that the kernel told, as the process itself would write it (they differ after a chroot)."""
        if self.prefix and path.startswith(self.prefix + "/"):
            return path[len(self.prefix) :]
        return path

    def at(self, path: str) -> str:
        """Where to open a path of the process from here."""
        return inside(self.proc, self.pid, path if path.startswith("/") else self.cwd + "/" + path)

    def back(self, path: str) -> str:
        """The reverse: the path without the process's root."""
        return path[len("%s/%d/root" % (self.proc, self.pid)) :] or "/"

    def kind(self, path: str) -> str:
        """dir, file, none or error."""
        try:
            mode = os.stat(self.at(path)).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return "none"
        except (OSError, ValueError):
            return "error"
        return "dir" if stat.S_ISDIR(mode) else "file"


def variables(proc: str, pid: int) -> Optional[Dict[str, str]]:
    """The variables that Python's path depends on, or None where they cannot be known. They stay here."""
    data, _ = read("%s/%d/environ" % (proc, pid), ENVIRON_LIMIT)
    if not data or not data.strip(b"\0") or len(data) >= ENVIRON_LIMIT:
        return None
    found: Dict[str, str] = {}
    for entry in data.split(b"\0"):
        name, equals, value = entry.decode("utf-8", "surrogateescape").partition("=")
        if equals and name in _NAMES:
            found.setdefault(name, value)
    return found


def mapped(seen: Seen, pids: List[int]) -> Mapped:
    """What is mapped in any of the processes."""
    packages: Dict[str, Set[Tuple[str, bool]]] = {}
    any_read, base, version = False, "", ""
    for pid in pids:
        data, _ = read("%s/%d/maps" % (seen.proc, pid), MAPS_LIMIT)
        any_read = any_read or bool(data)
        for needle in _MAPPED:
            for told in set(_paths(data or b"", needle)):
                gone = told.endswith(" (deleted)")
                path = seen.own(told[: -len(" (deleted)")] if gone else told)
                match = re.fullmatch(r"(/(?:.*/)?%s)/(srt/[\w./\-]{1,200}\.so)" % PACKAGE, path)
                if match:
                    packages.setdefault(match.group(1), set()).add((match.group(2), gone))
                elif pid == pids[0] and not base:
                    base, version = pyenv.lib_dynload(path)
    return Mapped(any_read, packages, base, version)


def _paths(data: bytes, needle: bytes) -> Iterator[str]:
    at = data.find(needle)
    while at >= 0:
        start, end = data.rfind(b"\n", 0, at) + 1, data.find(b"\n", at)
        end = len(data) if end < 0 else end
        words = data[start:end].split(None, 5)
        if len(words) == 6:
            yield words[5].decode("utf-8", "surrogateescape")
        at = data.find(needle, end)
