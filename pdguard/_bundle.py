"""Finds `checks/` and `remediations/`: inside an installed wheel, or beside the package in a checkout."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from pdguard.errors import PdguardError


def bundled(kind: str) -> Path:
    """The folder of bundled data called `kind` (checks or remediations).

    Raises PdguardError where neither the wheel's copy nor the checkout's folder exists.
    """
    package = Path(str(files("pdguard")))
    for place in (package / "_bundle" / kind, package.parent / kind):
        if place.is_dir():
            return place
    raise PdguardError(
        f"the bundled {kind} are missing",
        expected=f"pdguard/_bundle/{kind} or {kind}/ beside the package",
        todo="Install pdguard again.",
    )
