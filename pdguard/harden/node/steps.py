"""Every system call that writes. All goes through here, so that a test can count the calls and break each."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any


def _nothing(name: str, *args: Any) -> None:
    """Called before each step with its name and arguments."""


hook: Callable[..., None] = _nothing

_NEW = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


def create(path: str, mode: int = 0o600) -> int:
    """A handle on a new file; what had the name must be gone."""
    hook("create", path)
    return os.open(path, _NEW | os.O_EXCL, mode)


def reopen(path: str, flags: int, mode: int = 0o644) -> int:
    """A handle on a file that may exist."""
    hook("open", path)
    return os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, mode)


def write(handle: int, data: bytes) -> None:
    """All of `data`."""
    view = memoryview(data)
    while view:
        hook("write", handle, view)
        view = view[os.write(handle, view) :]


def sync(handle: int) -> None:
    """Wait until the file is on the disk."""
    hook("fsync", handle)
    os.fsync(handle)


def sync_folder(path: str) -> None:
    """Wait until the names in a folder are on the disk."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync(handle)
    finally:
        os.close(handle)


def replace(source: str, target: str) -> None:
    """Give `target` the file that is called `source`."""
    hook("replace", source, target)
    os.replace(source, target)


def link(source: str, target: str) -> None:
    """A second name for a file or a symbolic link."""
    hook("link", source, target)
    os.link(source, target, follow_symlinks=False)


def symlink(text: str, path: str) -> None:
    """A symbolic link."""
    hook("symlink", text, path)
    os.symlink(text, path)


def unlink(path: str) -> None:
    """Remove a name."""
    hook("unlink", path)
    os.unlink(path)


def mkdir(path: str, mode: int) -> None:
    """A new folder, with just this mode."""
    hook("mkdir", path)
    os.mkdir(path, mode)


def rmdir(path: str) -> None:
    """Remove an empty folder."""
    hook("rmdir", path)
    os.rmdir(path)


def chmod(path: str, mode: int) -> None:
    """Mode bits of a file."""
    hook("chmod", path)
    os.chmod(path, mode)


def chown(path: str, uid: int, gid: int) -> None:
    """Owner of a file, or of a link itself."""
    hook("chown", path)
    os.chown(path, uid, gid, follow_symlinks=False)


def utime(path: str, mtime_ns: int) -> None:
    """Time of the last change of a file, or of a link itself."""
    hook("utime", path)
    os.utime(path, ns=(mtime_ns, mtime_ns), follow_symlinks=False)


def setxattr(path: str, name: str, value: bytes) -> None:
    """An extended attribute of a file, or of a link itself."""
    hook("setxattr", path)
    os.setxattr(path, name, value, follow_symlinks=False)


def removexattr(path: str, name: str) -> None:
    """Take an extended attribute away."""
    hook("removexattr", path)
    os.removexattr(path, name, follow_symlinks=False)
