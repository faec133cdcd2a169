"""Progress lines. Everything the lab says while it works goes to stderr, through here."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

Progress = Callable[[str], None]

_STARTED = time.monotonic()


def to_stderr(message: str) -> None:
    """Write one line to stderr, with the seconds since the lab was imported."""
    sys.stderr.write(f"[lab {time.monotonic() - _STARTED:6.1f}s] {message}\n")
    sys.stderr.flush()
