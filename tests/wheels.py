"""Files out of real SGLang wheels, downloaded once into a cache."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import zipfile
from pathlib import Path


def cache_folder() -> Path:
    return Path(os.environ.get("PDGUARD_WHEEL_CACHE") or "~/.cache/pdguard/wheels").expanduser()


@functools.cache
def wheel(version: str, package: str = "sglang") -> Path:
    """The wheel of a release; only downloaded, never installed."""
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    pattern = f"{package.replace('-', '_')}-{version}-*.whl"
    found = sorted(folder.glob(pattern))
    if not found:
        # Any platform and Python will do: nothing of it is run but plain Python files.
        subprocess.run(
            [
                *[sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"],
                *["--python-version", "3.11", "--dest", str(folder), f"{package}=={version}"],
            ],
            check=True,
            timeout=280,
        )
        found = sorted(folder.glob(pattern))
    return found[0]


def wheel_file(version: str, member: str, package: str = "sglang") -> bytes:
    """One file of a wheel, by its path in it."""
    with zipfile.ZipFile(wheel(version, package)) as archive:
        return archive.read(member)
