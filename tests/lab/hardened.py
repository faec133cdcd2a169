"""A copy of an engine, hardened as an operator would do it: by the command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from .cache import Cache
from .errors import LabError
from .provision import STUBS

_TIMEOUT = 900


def harden_engine(cache: Cache, version: str, target: Path) -> Path:
    """Copy an engine to `target`, harden it there, and return `target` for `engine_root`."""
    cache.engine_copy(version, target)
    python = _interpreter(cache, target.with_name(f"{target.name}-python"))
    _run(
        f"hardening {version}",
        *(sys.executable, "-m", "pdguard", "harden", "--target", str(target)),
        *("--backport", f"v{version}", "--apply", "--yes", "--no-diff", "--python", str(python)),
    )
    return target


def _interpreter(cache: Cache, folder: Path) -> Path:
    """The engines' interpreter, complete: with the lab's packages and stubs among its own.

    The engines themselves find the stubs by PYTHONPATH, which a careful caller keeps out.
    """
    _run("creating an interpreter", str(cache.python), "-m", "venv", "--without-pip", str(folder))
    packages = _only(cache.python.parent.parent)
    _only(folder).joinpath("lab.pth").write_text(f"{STUBS}\n{packages}\n", "utf-8")
    return folder / "bin" / "python"


def _only(environment: Path) -> Path:
    """The package folder of a virtual environment."""
    (found,) = environment.glob("lib/python3*/site-packages")
    return found


def _run(what: str, *command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT)
    if done.returncode != 0:
        raise LabError(f"{what} failed with exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
