"""Packs the node side of the harden command into one script."""

from __future__ import annotations

import functools

from pdguard.node import bundle

MODULES = (
    "steps",
    "entry",
    "store",
    "undo",
    "swap",
    "places",
    "plan",
    "check",
    "proof",
    "survey",
    "find",
    "main",
)
"""In the order of their imports."""


@functools.cache
def script() -> bytes:
    """The script; it expects the request in the global `REQUEST` and writes JSON to standard output."""
    shared = [f"pdguard.node.{name}" for name in bundle.MODULES]
    return bundle.pack([*shared, *(f"pdguard.harden.node.{name}" for name in MODULES)])
