"""Bounded reads of /proc: every function answers with something, whatever a process does meanwhile."""

from __future__ import annotations

import os
import re
import stat
import time
from typing import Dict, List, NamedTuple, Optional, Tuple

CMDLINE_LIMIT = 256 * 1024
ENVIRON_LIMIT = 1024 * 1024
MAX_PIDS = 131072
MAX_DEPTH = 64
_TITLE = re.compile(r"(?:sglang|smg)::[A-Za-z0-9_:.\-]{1,80}")


class Clock:
    """A deadline that every long loop asks."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self.late = False

    def over(self) -> bool:
        """Whether time is up; remembered, so that the answer can say so."""
        if time.monotonic() > self._end:
            self.late = True
        return self.late


class Proc(NamedTuple):
    """One process as the table saw it."""

    pid: int
    ppid: int
    ticks: int
    cmdline: bytes


def open_file(path: str) -> int:
    """A handle on a regular file; a pipe or a device is refused without waiting for it."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError("not a regular file")
    return handle


def read(path: str, limit: int) -> Tuple[Optional[bytes], str]:
    """Up to `limit` bytes of a regular file and "", or None and the reason."""
    try:
        handle = open_file(path)
    except (OSError, ValueError) as error:
        return None, reason(error)
    try:
        parts: List[bytes] = []
        left = limit
        while left > 0:
            part = os.read(handle, min(left, 65536))
            if not part:
                break
            parts.append(part)
            left -= len(part)
        return b"".join(parts), ""
    except OSError as error:
        return None, reason(error)
    finally:
        os.close(handle)


def reason(error: Exception) -> str:
    """Why a read failed, without the path in it."""
    if isinstance(error, PermissionError):
        return "permission denied"
    if isinstance(error, (FileNotFoundError, ProcessLookupError)):
        return "gone"
    return type(error).__name__


def link(path: str) -> str:
    """Where a symbolic link points, or ""."""
    try:
        return os.readlink(path)
    except (OSError, ValueError):
        return ""


def pids(proc: str) -> List[int]:
    """Process ids, ascending."""
    try:
        names = os.listdir(proc)
    except OSError:
        return []
    found = sorted(int(n) for n in names if n.isascii() and n.isdigit() and len(n) < 10)
    return found[:MAX_PIDS]


def parse_stat(data: bytes) -> Optional[Tuple[int, int]]:
    """Parent pid and start ticks of a /proc/PID/stat line; the command name may hold anything."""
    end = data.rfind(b")")
    fields = data[end + 1 :].split()
    if end < 0 or len(fields) < 20:
        return None
    if not (fields[1].isdigit() and fields[19].isdigit()):
        return None
    return int(fields[1]), int(fields[19])


def table(proc: str, clock: Clock) -> Dict[int, Proc]:
    """All processes that could be read."""
    found: Dict[int, Proc] = {}
    for pid in pids(proc):
        if clock.over():
            break
        base = "%s/%d/" % (proc, pid)
        data, _ = read(base + "stat", 4096)
        parsed = parse_stat(data) if data is not None else None
        if parsed is None:
            continue
        cmdline, _ = read(base + "cmdline", CMDLINE_LIMIT)
        found[pid] = Proc(pid, parsed[0], parsed[1], cmdline or b"")
    return found


def boot_time(proc: str) -> Optional[int]:
    """Seconds since 1970 at boot."""
    data, _ = read(proc + "/stat", 1024 * 1024)
    for line in (data or b"").splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == b"btime" and words[1].isdigit():
            return int(words[1])
    return None


def started(proc: str, ticks: int) -> Optional[int]:
    """Start of a process in seconds since 1970."""
    boot = boot_time(proc)
    return None if boot is None else boot + ticks // (os.sysconf("SC_CLK_TCK") or 100)


def title(cmdline: bytes) -> str:
    """The setproctitle name in a command line, or ""."""
    text = cmdline.split(b"\0", 1)[0].strip().decode("ascii", "replace")
    match = _TITLE.match(text)
    return match.group(0) if match else ""


def retitled(proc: str, entry: Proc) -> bool:
    """Whether setproctitle has overwritten this process's arguments and environment."""
    if title(entry.cmdline):
        return True
    data, _ = read("%s/%d/environ" % (proc, entry.pid), ENVIRON_LIMIT)
    return data is not None and len(data) > 0 and not data.strip(b"\0")


def chain(procs: Dict[int, Proc], pid: int) -> List[int]:
    """The process and its ancestors, nearest first."""
    found: List[int] = []
    while pid in procs and pid not in found and len(found) < MAX_DEPTH:
        found.append(pid)
        pid = procs[pid].ppid
    return found


def descendants(procs: Dict[int, Proc], pid: int) -> List[int]:
    """Every process below `pid`."""
    children: Dict[int, List[int]] = {}
    for entry in procs.values():
        children.setdefault(entry.ppid, []).append(entry.pid)
    found: List[int] = []
    seen = {pid}
    todo = [pid]
    while todo:
        for child in children.get(todo.pop(), []):
            if child not in seen:
                seen.add(child)
                found.append(child)
                todo.append(child)
    return found


def inside(proc: str, pid: int, path: str) -> str:
    """A path as the process sees it, from here: below its root, with its links followed inside that root.

    Opening /proc/PID/root/PATH plainly would follow an absolute link into this container's own files.
    """
    if not path.startswith("/"):
        path = link("%s/%d/cwd" % (proc, pid)) + "/" + path
    return within("%s/%d/root" % (proc, pid), path)


def within(root: str, path: str) -> str:
    """A path below `root`, with its links followed inside `root`; "" for a loop of links."""
    todo = [p for p in path.split("/") if p][::-1]
    done: List[str] = []
    for _ in range(400):
        if not todo:
            break
        part = todo.pop()
        if part == ".":
            continue
        if part == "..":
            del done[-1:]
            continue
        target = link("/".join([root, *done, part]))
        if not target:
            done.append(part)
            continue
        if target.startswith("/"):
            done = []
        todo.extend([p for p in target.split("/") if p][::-1])
    else:
        return ""
    return "/".join([root, *done])
