"""Engine packages on disk: the files of a real release that harden looks at, as pip would lay them down."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from pdguard.harden.operate import Operator, Wanted
from pdguard.harden.plan import interesting
from tests.wheels import wheel

MTIME = 1_700_000_000.123456789


@functools.cache
def _members(version: str) -> dict[str, bytes]:
    """The watched files of a release, its version file and its distribution's metadata."""
    operator = Operator(Wanted())
    files = {f"sglang/{f}" for f in interesting(operator.backports, operator.matcher, operator.payload)}
    files |= {"sglang/version.py", "sglang/_version.py", "sglang/__init__.py", "sglang/srt/__init__.py"}
    with zipfile.ZipFile(wheel(version)) as archive:
        names = [n for n in archive.namelist() if n in files or (".dist-info/" in n and not n.endswith("/"))]
        return {name: archive.read(name) for name in names}


def install(version: str, folder: Path) -> Path:
    """Lay the package down below `folder` and give its path."""
    for name, data in _members(version).items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        file.chmod(0o644)
        os.utime(file, (MTIME, MTIME))
    return folder / "sglang"


def snapshot(root: Path) -> dict[str, tuple[Any, ...]]:
    """Everything about every file below `root` that a rollback must bring back."""
    found: dict[str, tuple[Any, ...]] = {}
    for path in sorted(root.rglob("*")):
        info = path.lstat()
        link = os.readlink(path) if path.is_symlink() else None
        data = None if path.is_dir() or link is not None else hashlib.sha256(path.read_bytes()).hexdigest()
        mtime = None if path.is_dir() else info.st_mtime_ns
        found[str(path.relative_to(root))] = (info.st_mode, info.st_uid, info.st_gid, mtime, link, data)
    return found


def patch(diff: bytes, folder: Path) -> None:
    """What `patch -p1` makes of `folder`; skips the test where there is no such program."""
    if shutil.which("patch") is None:
        pytest.skip("no patch on this machine")
    subprocess.run(["patch", "-p1", "--binary", "-s"], input=diff, cwd=folder, check=True)


def contents(root: Path) -> dict[str, bytes]:
    """Bytes of every file below `root` but pdguard's own notes and bytecode."""
    passed = {".pdguard", "__pycache__"}
    files = (p for p in sorted(root.rglob("*")) if p.is_file() and not passed & set(p.parts))
    return {str(p.relative_to(root)): p.read_bytes() for p in files}
