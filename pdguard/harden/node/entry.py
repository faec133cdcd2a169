"""One file of the tree: how it is found, and how the same is made again under another name."""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import stat
from typing import Any, NamedTuple

from pdguard.harden.node import steps

MAX_FILE = 64 * 1024 * 1024
_OF_THE_KERNEL = ("security.ima", "security.evm")
"""Measurements of the content: those of the old one would be wrong on the new one."""


class Refused(Exception):
    """The request cannot be done, and nothing was changed."""

    def __init__(
        self, what: str, path: str = "", expected: str = "", found: str = "", todo: str = ""
    ) -> None:
        super().__init__(what)
        self.why = {"what": what, "path": path, "expected": expected, "found": found, "todo": todo}


class Entry(NamedTuple):
    """A file, or a symbolic link to one.

    `sha` and `mode` are those of the file behind a link; everything else is the link's own.
    """

    sha: str
    size: int
    mode: int
    uid: int
    gid: int
    mtime_ns: int
    xattrs: dict[str, str]
    link: str | None


def look(path: str) -> Entry | None:
    """What is there, or None; Refused for what is neither a file nor a link to one."""
    try:
        info = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    link, mode = None, info.st_mode
    if stat.S_ISLNK(mode):
        link = os.readlink(path)
        try:
            mode = os.stat(path).st_mode
        except OSError as error:
            raise Refused("a link leads nowhere", path, "a file", _words(error)) from error
    if not stat.S_ISREG(mode):
        raise Refused("this is no regular file", path, "a file, or a link to one", stat.filemode(mode))
    data = read(path)
    return Entry(
        sha=digest(data),
        size=len(data),
        mode=mode & 0o7777,
        uid=info.st_uid,
        gid=info.st_gid,
        mtime_ns=info.st_mtime_ns,
        xattrs=_xattrs(path),
        link=link,
    )


def shape(path: str, found: Entry) -> Entry:
    """What a plain file has to look like that takes the place of a link: the same file, the link's owner."""
    if found.link is None:
        return found
    behind = look(os.path.realpath(path))
    return found if behind is None else behind._replace(uid=found.uid, gid=found.gid)


def digest(data: bytes) -> str:
    """SHA-256 in hex."""
    return hashlib.sha256(data).hexdigest()


def read(path: str) -> bytes:
    """A whole file."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(handle, "rb") as file:
        data = file.read(MAX_FILE + 1)
    if len(data) > MAX_FILE:
        raise Refused("a file is too large", path, f"at most {MAX_FILE} bytes", "more")
    return data


def _words(error: OSError) -> str:
    return (error.strerror or type(error).__name__).lower()


def failure(error: BaseException, path: str = "") -> dict[str, str]:
    """What an answer says about an error."""
    if isinstance(error, Refused):
        return error.why
    if isinstance(error, OSError):
        name = error.filename if isinstance(error.filename, str) else path
        todo = ""
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            todo = "Make room and try again"
        elif error.errno in (errno.EPERM, errno.EACCES):
            todo = "Run it as the owner of the files, or take the immutable attribute away"
        return Refused("a system call failed", name, "", _words(error), todo).why
    return Refused("the node script failed", path, "", type(error).__name__).why


def _xattrs(path: str) -> dict[str, str]:
    try:
        names = os.listxattr(path, follow_symlinks=False)
    except OSError as error:
        if error.errno in (errno.ENOTSUP, errno.ENOSYS):
            return {}
        raise
    return {
        name: base64.b64encode(os.getxattr(path, name, follow_symlinks=False)).decode("ascii")
        for name in sorted(names)
        if name not in _OF_THE_KERNEL
    }


def make(path: str, entry: Entry, data: bytes) -> None:
    """Write a file (or link) that is just as `entry` says, and check that it is. `mtime_ns` 0 means now."""
    if os.path.lexists(path):
        steps.unlink(path)
    if entry.link is not None:
        steps.symlink(entry.link, path)
        _dress(path, entry)
    else:
        handle = steps.create(path)
        try:
            steps.write(handle, data)
            _dress(path, entry)
            steps.sync(handle)
        finally:
            os.close(handle)
    found = look(path)
    wanted = entry._replace(mtime_ns=entry.mtime_ns or (found.mtime_ns if found else 0))
    if found != wanted:
        names = [n for n in Entry._fields if getattr(found, n, None) != getattr(wanted, n)]
        raise Refused("a copy does not come out as the file was", path, "the same " + ", ".join(names))


def _dress(path: str, entry: Entry) -> None:
    info = os.lstat(path)
    if (info.st_uid, info.st_gid) != (entry.uid, entry.gid):
        steps.chown(path, entry.uid, entry.gid)
    found = _xattrs(path)
    for name in sorted(set(found) - set(entry.xattrs)):
        steps.removexattr(path, name)
    for name, value in entry.xattrs.items():
        if found.get(name) != value:
            steps.setxattr(path, name, base64.b64decode(value))
    if entry.link is None:
        steps.chmod(path, entry.mode)
    if entry.mtime_ns:
        steps.utime(path, entry.mtime_ns)


def parse(raw: Any) -> Entry | None:
    """An entry of the state or the journal; ValueError where it makes no sense."""
    if raw is None:
        return None
    try:
        entry = Entry(**raw)
    except TypeError as error:
        raise ValueError from error
    numbers = (entry.size, entry.mode, entry.uid, entry.gid, entry.mtime_ns)
    if not isinstance(entry.sha, str) or not all(isinstance(n, int) for n in numbers):
        raise ValueError
    plain = isinstance(entry.xattrs, dict) and (entry.link is None or isinstance(entry.link, str))
    if not plain:
        raise ValueError
    return entry
