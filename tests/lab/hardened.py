"""A copy of an engine, hardened as an operator would do it: by the command. And the deployments of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from .cache import Cache
from .errors import LabError
from .provision import STUBS
from .race import HOLD
from .spec import Backend, LabSpec, Role, pair

Engines = Callable[[str], Path]
"""The hardened engine of a version."""

WAIT = 8.0
_TIMEOUT = 900


def stock(version: str, pools: tuple[int, int], backend: Backend = "mooncake") -> LabSpec:
    """A pair whose greedy answers do not depend on what else is in the batch: with 32 bits, not with 16."""
    spec = pair(version, pools, router="sglang-router", backend=backend, waiting_timeout=WAIT)
    prefill, decode = (replace(role, flags=("--dtype", "float32")) for role in (spec.prefill, spec.decode))
    return replace(spec, prefill=prefill, decode=decode)


def with_hold(spec: LabSpec, root: Path) -> LabSpec:
    """The spec on hardened engines, with the setting that the plan asks for."""
    env = ((HOLD, "1"),)
    prefill, decode = (replace(role, env=env) for role in (spec.prefill, spec.decode))
    return replace(spec, prefill=prefill, decode=decode, engine_root=root)


def mixed(spec: LabSpec, root: Path, role: Role) -> LabSpec:
    """The spec with one role hardened; the other stays as it comes."""
    hardened = replace(spec.role(role), env=((HOLD, "1"),), engine_root=root)
    return replace(spec, prefill=hardened) if role == "prefill" else replace(spec, decode=hardened)


def harden_engine(cache: Cache, version: str, target: Path, *, exercise: bool = True) -> Path:
    """Copy an engine to `target`, harden it there, and return `target` for `engine_root`."""
    cache.engine_copy(version, target)
    python = _interpreter(cache, target.with_name(f"{target.name}-python"))
    _run(
        f"hardening {version}",
        *(sys.executable, "-m", "pdguard", "harden", "--target", str(target)),
        *("--backport", f"v{version}", "--apply", "--yes", "--no-diff", "--python", str(python)),
        *(() if exercise else ("--no-exercise",)),
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
