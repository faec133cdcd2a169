"""A small package of every kind of file that installers leave behind, and what is done to it."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pdguard.harden.node import main, steps

OLD = 1_600_000_000_123_456_789
SET = {"id": "core-1", "base": "0.5.20", "tool": "0.1.0", "fixes": ["38935"]}
KILLED = 77
Snapshot = dict[str, tuple[Any, ...]]


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def change(path: str, before: bytes | None, after: bytes | None) -> dict[str, Any]:
    return {
        "path": path,
        "before": None if before is None else sha(before),
        "after": None if after is None else base64.b64encode(zlib.compress(after)).decode(),
        "after_sha": None if after is None else sha(after),
    }


class Package:
    """site-packages with the package, and a cache that other environments share."""

    def __init__(self, path: Path) -> None:
        self.site = path / "site-packages"
        self.root = self.site / "sglang"
        self.cache = path / "cache"
        self.cache.mkdir(parents=True)
        self.write("__init__.py", b"")
        self.write("_version.py", b"__version__ = version = '0.5.20'\n")
        self.write("srt/__init__.py", b"")
        self.write("srt/plain.py", b"x = 1\n")
        os.chmod(self.root / "srt/plain.py", 0o640)
        with contextlib.suppress(OSError):  # not on this file system
            os.setxattr(self.root / "srt/plain.py", "user.note", b"kept\0")
        (self.cache / "linked.py").write_bytes(b"y = 1\n")
        (self.root / "srt/linked.py").symlink_to("../../../cache/linked.py")
        os.utime(self.root / "srt/linked.py", ns=(OLD, OLD + 5), follow_symlinks=False)
        (self.cache / "hard.py").write_bytes(b"z = 1\n")
        os.utime(self.cache / "hard.py", ns=(OLD, OLD))
        os.link(self.cache / "hard.py", self.root / "srt/hard.py")
        self.write("srt/old.py", b"w = 1\n")
        self.write("srt/__pycache__/plain.cpython-311.pyc", b"compiled plain")
        self.write("srt/__pycache__/plain.cpython-311.opt-1.pyc", b"compiled plain, optimised")
        self.write("srt/__pycache__/plainer.cpython-311.pyc", b"another module")
        info = self.site / "sglang-0.5.20.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Name: sglang\nVersion: 0.5.20\n")
        rows = []
        for file in sorted(self.root.rglob("*.py")):
            digest = base64.urlsafe_b64encode(hashlib.sha256(file.read_bytes()).digest()).decode().rstrip("=")
            rows.append(f"{file.relative_to(self.site)},sha256={digest},{file.stat().st_size}\n")
        (info / "RECORD").write_text("".join(rows))
        for file in info.iterdir():
            os.utime(file, ns=(OLD, OLD))

    def write(self, path: str, data: bytes) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        os.utime(file, ns=(OLD, OLD))

    def ask(self, do: str, **more: Any) -> dict[str, Any]:
        request = {"do": do, "root": str(self.root), **more}
        answer = main.answer(json.loads(json.dumps(request)))
        json.dumps(answer)
        return answer

    def apply(self, changes: list[dict[str, Any]] | None = None, **more: Any) -> dict[str, Any]:
        return self.ask("apply", **{"set": SET, "changes": changes or first(), **more})

    def snapshot(self) -> Snapshot:
        found: Snapshot = {}
        for folder, folders, names in os.walk(self.site):
            for name in [*folders, *names]:
                path = os.path.join(folder, name)
                if path.endswith((".pdguard/lock", ".pdguard/journal.jsonl")):
                    continue
                info = os.lstat(path)
                row: tuple[Any, ...] = (oct(info.st_mode), info.st_uid, info.st_gid)
                if not os.path.isdir(path):
                    names_ = os.listxattr(path, follow_symlinks=False)
                    xattrs = {n: os.getxattr(path, n, follow_symlinks=False) for n in names_}
                    link = os.readlink(path) if os.path.islink(path) else None
                    row += (info.st_mtime_ns, xattrs, link, Path(path).read_bytes())
                found[os.path.relpath(path, self.site)] = row
        return found

    def sources(self) -> dict[str, bytes]:
        """What Python would run, and nothing of ours."""
        return {
            str(p.relative_to(self.root)): p.read_bytes()
            for p in self.root.rglob("*")
            if p.is_file() and ".pdguard" not in p.parts
        }


def first() -> list[dict[str, Any]]:
    """A set that replaces, removes and creates."""
    return [
        change("srt/plain.py", b"x = 1\n", b"x = 2\n"),
        change("srt/linked.py", b"y = 1\n", b"y = 2\n"),
        change("srt/hard.py", b"z = 1\n", b"z = 2\n"),
        change("srt/old.py", b"w = 1\n", None),
        change("srt/payload/__init__.py", None, b""),
        change("srt/payload/deep/door.py", None, b"def door():\n    return 1\n"),
    ]


def second() -> list[dict[str, Any]]:
    """A newer set: one file further, two back, one of the payload gone, one new."""
    return [
        change("srt/plain.py", b"x = 2\n", b"x = 3\n"),
        change("srt/linked.py", b"y = 2\n", b"y = 1\n"),
        change("srt/hard.py", b"z = 2\n", b"z = 2\n"),
        change("srt/old.py", None, b"w = 1\n"),
        change("srt/payload/__init__.py", b"", b""),
        change("srt/payload/deep/door.py", b"def door():\n    return 1\n", None),
        change("srt/payload/more.py", None, b"more = 1\n"),
    ]


NEW = {"srt/plain.py": b"x = 2\n", "srt/linked.py": b"y = 2\n", "srt/hard.py": b"z = 2\n"}
NEW |= {"srt/payload/__init__.py": b"", "srt/payload/deep/door.py": b"def door():\n    return 1\n"}
STALE = ("srt/__pycache__/plain.cpython-311.pyc", "srt/__pycache__/plain.cpython-311.opt-1.pyc")


def after_first(before: dict[str, bytes]) -> dict[str, bytes]:
    """What `sources` are once `first` is applied."""
    return {p: d for p, d in {**before, **NEW}.items() if p not in (*STALE, "srt/old.py")}


def killed_at(number: int, action: Callable[[], Any]) -> bool:
    """Run in a child that dies just before its `number`th writing call; False where it got through."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            steps.hook = _counter(number, _die)
            action()
            code = 0
        finally:
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, KILLED), status
    return status == KILLED


def _die(name: str, args: Sequence[Any]) -> None:
    if name == "write":  # half a write is the worst of it
        os.write(args[0], args[1][: len(args[1]) // 2])
    os._exit(KILLED)


def _counter(number: int, act: Callable[[str, Sequence[Any]], None]) -> Any:
    seen = 0

    def hook(name: str, *args: Any) -> None:
        nonlocal seen
        seen += name != "fsync"  # to die before one is to die after the call before it
        if seen == number and name != "fsync":
            act(name, args)

    return hook


class Breaker:
    """A hook that lets the `number`th writing call fail, and every later one of `names` too where lasting."""

    def __init__(self, number: int, code: int, lasting: Sequence[str] = ()) -> None:
        self.number, self.code, self.lasting = number, code, lasting
        self.seen = 0
        self.broke = ""

    def __call__(self, name: str, *args: Any) -> None:
        self.seen += 1
        if self.seen == self.number or (self.seen > self.number and name in self.lasting):
            self.broke = self.broke or name
            raise OSError(self.code, os.strerror(self.code))
