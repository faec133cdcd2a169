"""Which package each engine of a node imports, with which interpreter: what there is to harden."""

from __future__ import annotations

import os
from typing import Any

from pdguard.node.main import View, engine_like, follower, locate
from pdguard.node.package import Sources
from pdguard.node.procfs import Clock, link

SECONDS = 20.0


def find(request: dict[str, Any]) -> dict[str, Any]:
    """One row for each engine asked for by its port: status, why, and package, interpreter and process."""
    asked: list[dict[str, Any]] = [one for one in request.get("engines") or [] if isinstance(one, dict)]
    ports = {one["port"] for one in asked if isinstance(one.get("port"), int)}
    clock = Clock(float(request.get("seconds") or SECONDS))
    view = View(str(request.get("proc") or "/proc"), ports, clock)
    sources = Sources(view.proc, view.procs, clock, {"files": []})
    return {"engines": [_row(view, sources, one) for one in asked]}


def _row(view: View, sources: Sources, one: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {"name": one.get("name"), "status": "unknown", "why": ""}
    port = one.get("port") if isinstance(one.get("port"), int) else 0
    if one.get("follower") is True:
        status, why, pid = follower(view, "")
    else:
        status, why, pid = locate(view, int(port or 0), str(one.get("host") or ""), engine_like)
    if pid is None:
        row.update(status=status, why=why)
        return row
    row["pid"] = pid
    try:
        place = sources.origin(pid)
        elsewhere = _elsewhere(view.proc, pid)
    except OSError as error:
        row["why"] = f"its process cannot be read ({type(error).__name__})"
        return row
    if elsewhere:
        row.update(status="elsewhere", why="the engine lives in another file system, such as a container's")
        return row
    if place.status != "found":
        row["why"] = place.why or place.status
        return row
    row.update(status="found", root=os.path.realpath(place.path), python=_python(view, pid))
    return row


def _elsewhere(proc: str, pid: int) -> bool:
    mine, its = os.stat(f"{proc}/self/root"), os.stat(f"{proc}/{pid}/root")
    if (mine.st_dev, mine.st_ino) != (its.st_dev, its.st_ino):
        return True
    return os.readlink(f"{proc}/self/ns/mnt") != os.readlink(f"{proc}/{pid}/ns/mnt")


def _python(view: View, pid: int) -> str:
    """The interpreter as it was called: a virtual environment is known by that name."""
    called = view.procs[pid].cmdline.split(b"\0", 1)[0].decode("utf-8", "replace")
    if (
        called.startswith("/")
        and os.path.basename(called).startswith("python")
        and os.access(called, os.X_OK)
    ):
        return called
    return link(f"{view.proc}/{pid}/exe")
