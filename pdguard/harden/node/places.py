"""Where the package is, and which paths below it may be written."""

from __future__ import annotations

import os
import re

from pdguard.harden.node.entry import Refused
from pdguard.harden.node.store import FOLDER

PACKAGE = "sglang"
_PATH = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.\-]{0,120}/){0,12}[A-Za-z0-9_][A-Za-z0-9_.\-]{0,120}")
_MARKS = ("__init__.py", "version.py", "_version.py", "srt")


def locate(path: object) -> tuple[str, str]:
    """The package folder as it was named, and with links followed. Refused where there is none."""
    if not isinstance(path, str) or not path.startswith("/") or "\0" in path:
        raise Refused("the root is no absolute path", str(path)[:200], "the folder of the package")
    root = path.rstrip("/") or "/"
    if not os.path.lexists(root):
        raise Refused("the root does not exist", root, "a folder", "nothing")
    if not os.path.isdir(root):
        raise Refused("the root is not a folder", root, "a folder", "a file")
    around = [root] + [root.rstrip("/") + below + PACKAGE for below in ("/", "/python/")]
    root = next((path for path in around if _is_package(path)), root)
    if not _is_package(root):
        raise Refused("this is not the package, nor a folder around it", root, "a folder called " + PACKAGE)
    return root, os.path.realpath(root)


def _is_package(root: str) -> bool:
    """By its name, or that of the folder that a link of another name leads to, and by what it holds."""
    names = (os.path.basename(root), os.path.basename(os.path.realpath(root)))
    return PACKAGE in names and any(os.path.exists(root + "/" + mark) for mark in _MARKS)


def checked(root: str, path: object) -> str:
    """A path of a request, where it is plain, below `root`, and in a folder that no link leads to."""
    if not isinstance(path, str) or not _PATH.fullmatch(path) or len(path) > 1000:
        raise Refused("a path is not allowed", str(path)[:200], "a plain path below the package")
    parts = path.split("/")
    if parts[0] == FOLDER or "__pycache__" in parts or path.endswith(".pyc"):
        raise Refused("a path is not allowed", path, "a source file")
    folder = root
    for part in parts[:-1]:
        folder += "/" + part
        if os.path.islink(folder):
            found = os.path.realpath(folder)
            raise Refused("a folder on the way is a link, and others may share it", path, "a folder", found)
        if os.path.lexists(folder) and not os.path.isdir(folder):
            raise Refused("what should be a folder is not", path, "a folder", folder)
    return path
