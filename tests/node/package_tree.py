"""A fake process with a package of the engine's name in its own root."""

from __future__ import annotations

import base64
import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pdguard.node.main import answer
from tests.node.tree import ANY, LAUNCH, Tree, title

PREFILL = "srt/disaggregation/prefill.py"
DECODE = "srt/disaggregation/decode.py"
WATCHED = [PREFILL, DECODE, "srt/managers/scheduler.py"]
VENV = "/opt/venv"
SITE = f"{VENV}/lib/python3.11/site-packages"
EXE = "/usr/bin/python3.11"
BOOT = 1_700_000_000
OLD = (BOOT - 1000) * 10**9
PLAIN_MOUNT = "22 1 0:21 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"


@dataclass
class Machine:
    """A root with a Python, a virtual environment and one engine with a scheduler."""

    path: Path
    tree: Tree = field(init=False)
    env: dict[str, str] | bytes = field(default_factory=lambda: {"HOME": "/root", "PATH": f"{VENV}/bin"})
    argv: list[str] = field(default_factory=lambda: [f"{VENV}/bin/python", *LAUNCH[1:]])

    def __post_init__(self) -> None:
        self.tree = Tree(self.path / "proc")
        (self.root / "work").mkdir(parents=True)
        self.write(EXE, "")
        self.write(f"{VENV}/pyvenv.cfg", "home = /usr/bin\ninclude-system-site-packages = false\n")
        (self.root / VENV[1:] / "bin").mkdir()
        (self.root / VENV[1:] / "bin/python").symlink_to(EXE)
        (self.root / SITE[1:]).mkdir(parents=True)

    @property
    def root(self) -> Path:
        return self.path / "root"

    def write(self, path: str, text: str | bytes, mtime: int = OLD) -> Path:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        os.utime(file, ns=(mtime, mtime))
        return file

    def package(self, folder: str, mark: str = "x = 1\n") -> str:
        """A package in `folder`, without the third watched file."""
        for name in ("__init__.py", "srt/__init__.py", PREFILL, DECODE):
            self.write(f"{folder}/sglang/{name}", f"{mark}# {name}\n")
        self.write(f"{folder}/sglang/version.py", '__version__ = "0.5.20"\n')
        return f"{folder}/sglang"

    def dist(self, folder: str = SITE, version: str = "0.5.20", **files: str) -> None:
        info = f"{folder}/sglang-{version}.dist-info"
        self.write(
            f"{info}/METADATA", f"Metadata-Version: 2.4\nName: sglang\nVersion: {version}\n\nName: x\n"
        )
        rows = []
        for file in sorted((self.root / folder.lstrip("/") / "sglang").rglob("*.py")):
            digest = (
                base64.urlsafe_b64encode(hashlib.sha256(file.read_bytes()).digest()).rstrip(b"=").decode()
            )
            below = file.relative_to(self.root / folder.lstrip("/"))
            rows.append(f"{below},sha256={digest},{file.stat().st_size}")
        self.write(
            f"{info}/RECORD", "\n".join([*rows, '"sglang/a,b.json",sha256=x,1', f"{info}/RECORD,,", ""])
        )
        for name, text in files.items():
            self.write(f"{info}/{name.replace('__', '.')}", text)

    def start(self, maps: str = "", mounts: str = PLAIN_MOUNT, child_cwd: str = "/work") -> None:
        scheduler = title("sglang::scheduler_TP0")
        self.tree.add(1, 0, ["init"], {})
        self.tree.add(20, 1, self.argv, self.env, listens=[(ANY, 30000)], root=self.root)
        self.tree.add(21, 20, scheduler, b"\0" * 300, root=self.root)
        for pid in (20, 21):
            base = self.tree.path / str(pid)
            (base / "exe").symlink_to(EXE)
            (base / "ns" / "mnt").symlink_to("mnt:[1]")
            (base / "maps").write_text(maps if pid == 21 else "")
            (base / "mountinfo").write_text(mounts)
        (self.tree.path / "21" / "cwd").unlink()
        (self.tree.path / "21" / "cwd").symlink_to(child_cwd)

    def ask(self, **more: Any) -> Any:
        request = {
            "engines": [{"name": "e", "port": 30000}],
            "proc": str(self.tree.path),
            "source": {"files": WATCHED},
        }
        return answer({**request, **more})

    def source(self) -> Any:
        return self.ask()["engines"][0]["source"]


def mapped(path: str, gone: bool = False) -> str:
    return f"7f00-7f01 r-xp 00000000 fe:00 123                {path}{' (deleted)' if gone else ''}\n"
