"""Whether the files of a plan can be written here at all: looked up before anything is."""

from __future__ import annotations

import fcntl
import os
import struct

from pdguard.harden.node.entry import Refused
from pdguard.harden.node.swap import Plan

MARGIN = 1024 * 1024
_GET_FLAGS = 0x80086601
_IMMUTABLE, _APPEND_ONLY = 0x10, 0x20


def room(path: str) -> int:
    """Bytes that this user may still write on a file system."""
    info = os.statvfs(path)
    return (info.f_bfree if os.geteuid() == 0 else info.f_bavail) * info.f_frsize


def read_only(path: str) -> bool:
    """Whether a file system is mounted read-only."""
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def fixed(path: str) -> bool:
    """Whether a file or folder is immutable or append-only; False where the file system does not tell."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        flags: int = struct.unpack("l", fcntl.ioctl(handle, _GET_FLAGS, struct.pack("l", 0)))[0]
    except OSError:
        return False
    finally:
        os.close(handle)
    return bool(flags & (_IMMUTABLE | _APPEND_ONLY))


def writable(path: str) -> str:
    """Why a file cannot be replaced by this user, or ""."""
    folder = os.path.dirname(path)
    try:
        if read_only(folder):
            return "the file system is read-only"
        if not os.access(folder, os.W_OK | os.X_OK):
            return "the folder may not be written"
        if fixed(folder) or fixed(path):
            return "it is immutable"
        info = os.lstat(path)
    except FileNotFoundError:
        return ""
    if os.geteuid() not in (0, info.st_uid):
        return f"it has another owner ({info.st_uid})"
    if info.st_dev != os.stat(folder).st_dev:
        return "something is mounted over it"
    return ""


def lockable(root: str) -> None:
    """Refused where not even the state folder could be made."""
    if read_only(root):
        raise Refused("the file system is read-only", root, "a writable one", "read-only", "Remount it")
    if not os.access(root, os.W_OK | os.X_OK):
        todo = "Run it as the owner of the files"
        raise Refused(
            "the folder may not be written", root, "a writable folder", f"user {os.geteuid()}", todo
        )


def possible(root: str, plan: Plan) -> None:
    """Refused with the first obstacle."""
    for move in plan.moves:
        path = root + "/" + move.path
        while not os.path.isdir(os.path.dirname(path)):
            path = os.path.dirname(path)
        why = writable(path)
        if why:
            todo = "Run it as the owner of the files, or as root" if "owner" in why else ""
            raise Refused("a file cannot be replaced", move.path, "a writable file", why, todo)
    entries = [e for m in plan.moves for e in (m.prior, m.after) if e is not None]
    need = 2 * sum(entry.size for entry in entries) + MARGIN
    if room(root) < need:
        raise Refused("too little room", root, f"{need} bytes", f"{room(root)} bytes", "Make room")
    free = _inodes(root)
    if free is not None and free < 2 * len(entries) + 16:
        raise Refused("too few inodes", root, str(2 * len(entries) + 16), str(free), "Remove some files")


def _inodes(root: str) -> int | None:
    info = os.statvfs(root)
    return info.f_favail if info.f_files else None
