"""The same stand-in for the `mamba` submodule."""

from __future__ import annotations

from . import __getattr__

__all__ = ["__getattr__"]
