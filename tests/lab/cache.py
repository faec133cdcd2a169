"""The lab's cache folder: where things lie, a lock, and all-or-nothing publishing."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .progress import Progress, to_stderr

ENV = "PDGUARD_LAB_CACHE"
_KEEP_RUNS = 20


def default_root() -> Path:
    """`PDGUARD_LAB_CACHE`, or `pdguard/lab` below the user's cache folder."""
    if named := os.environ.get(ENV):
        return Path(named).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "pdguard" / "lab"


@dataclass(frozen=True)
class Cache:
    """Paths below the cache root. A path that exists under its final name is complete."""

    root: Path

    @classmethod
    def default(cls) -> Cache:
        return cls(default_root())

    @property
    def python(self) -> Path:
        """The interpreter of the lab's virtual environment."""
        return self.root / "venv" / "bin" / "python"

    def wheel_dir(self, version: str) -> Path:
        return self.root / "wheels" / version

    def engine(self, version: str) -> Path:
        """The unpacked wheel of one SGLang version: an entry for PYTHONPATH."""
        return self.root / "engines" / version

    def site(self, name: str) -> Path:
        """An extra folder of packages (`nixl`, `smg`) that only some runs put on PYTHONPATH."""
        return self.root / "sites" / name

    def engine_copy(self, version: str, target: Path) -> Path:
        """Copy an engine to `target`, for tests that edit its files. Pass it as `engine_root`."""
        shutil.copytree(self.engine(version), target)
        return target

    @contextmanager
    def locked(self, name: str, progress: Progress = to_stderr) -> Iterator[None]:
        """Hold the lock `name` of this cache; say so when another process makes us wait."""
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / f"{name}.lock").open("a+", encoding="ascii") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                handle.seek(0)
                progress(f"waiting for the {name} lock, held by process {handle.read().strip() or '?'}")
                fcntl.flock(handle, fcntl.LOCK_EX)
            handle.seek(0)
            handle.truncate()
            handle.write(str(os.getpid()))
            handle.flush()
            yield

    @contextmanager
    def building(self, target: Path) -> Iterator[Path]:
        """A scratch folder that becomes `target` if the block succeeds, and vanishes if not.

        Call it under a lock. What a killed process left behind is cleared by `clear_scratch`.
        """
        scratch_root = self.root / "scratch"
        scratch_root.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f"{target.name}-", dir=scratch_root))
        try:
            content = scratch / "content"
            content.mkdir()
            yield content
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.exists():
                shutil.rmtree(target)
            content.rename(target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def clear_scratch(self) -> None:
        """Drop half-finished work of earlier processes. Call it under the set-up lock."""
        shutil.rmtree(self.root / "scratch", ignore_errors=True)

    def new_run_dir(self) -> Path:
        """A fresh folder for the logs of one run; only the newest few are kept."""
        runs = self.root / "runs"
        runs.mkdir(parents=True, exist_ok=True)
        for old in sorted(runs.iterdir())[: -_KEEP_RUNS + 1]:
            shutil.rmtree(old, ignore_errors=True)
        return Path(tempfile.mkdtemp(prefix=time.strftime("%Y%m%d-%H%M%S-"), dir=runs))
