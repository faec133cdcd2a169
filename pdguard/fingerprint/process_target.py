"""The source that a process of this machine runs, by the node's own rules, for `pdguard inspect PID`."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from typing import Any

from pdguard.node.main import View
from pdguard.node.package import Sources
from pdguard.node.procfs import Clock

SECONDS = 20.0


def describe_pid(pid: int, watched: Sequence[str]) -> tuple[Any, dict[str, str]]:
    """What the node script would say of the source of process `pid`, and the contents by their hash."""
    view = View("/proc", set(), Clock(SECONDS))
    if pid not in view.procs:
        return {"status": "unknown", "why": "there is no such process"}, {}
    sources = Sources(view.proc, view.procs, view.clock, {"files": list(watched)})
    answer = sources.describe(pid)
    rows = zip(watched, answer.get("files") or (), strict=False)
    items = [
        {"pid": pid, "path": path, "sha256": row[0]} for path, row in rows if isinstance(row, list | tuple)
    ]
    texts = {}
    for digest, packed, _ in sources.contents(items, lambda _: True):
        if digest is not None and packed is not None:
            data = zlib.decompress(base64.b64decode(packed))
            texts[digest] = data.decode("utf-8", "replace")
    return _plain(answer), texts


def _plain(value: Any) -> Any:
    """Tuples as lists, as they are after a trip through JSON."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
