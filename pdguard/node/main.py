"""One request in, one answer out: finds the engines and routers of a node and reads their processes."""

from __future__ import annotations

import functools
import json
import sys
from typing import Any, Callable, Dict, List, Optional, Tuple

from pdguard.node import argline, process, router
from pdguard.node.package import Sources
from pdguard.node.procfs import Clock, Proc, chain, descendants, parse_stat, read, retitled, table, title
from pdguard.node.sockets import Listener, Sockets, serves, survey

SCHEMA = "pdguard.node/1"
DEFAULT_SECONDS = 20.0
Alike = Callable[["View", int], bool]


class View:
    """The process table and the listeners, read once for all that is asked."""

    def __init__(self, proc: str, ports: set[int], clock: Clock) -> None:
        self.proc = proc
        self.clock = clock
        self.procs: Dict[int, Proc] = table(proc, clock)
        self.sockets: Sockets = survey(proc, self.procs, ports, clock)
        self.sources: Optional[Sources] = None

    def program(self, pid: int) -> str:
        """The SGLang program of a process, or ""."""
        return process.command_of(self.procs[pid].cmdline).program


def _worker(name: str) -> bool:
    return name.startswith("sglang::") and name != "sglang::router"


def engine_like(view: View, pid: int) -> bool:
    """Whether a process is an engine: by its title, its command, or as the Python that started its workers.

    The last must be a Python: an init that has inherited orphaned workers is not their launcher, and its
    environment is not theirs.
    """
    cmdline = view.procs[pid].cmdline
    if _worker(title(cmdline)) or argline.is_engine(view.program(pid)):
        return True
    if not cmdline.split(b"\0", 1)[0].rsplit(b"/", 1)[-1].startswith(b"python"):
        return False
    return any(p.ppid == pid and _worker(title(p.cmdline)) for p in view.procs.values())


def router_like(view: View, pid: int) -> bool:
    """Whether a process is a router."""
    name = title(view.procs[pid].cmdline)
    return name in ("sglang::router", "smg::router") or argline.is_router(view.program(pid))


def top(view: View, pid: int, alike: Alike) -> int:
    """The first ancestor whose environment is its own, or the process itself where that is somebody else.

    A router is told by what it has mapped itself, so there the process stays.
    """
    if alike is router_like:
        return pid
    for ancestor in chain(view.procs, pid):
        if not retitled(view.proc, view.procs[ancestor]):
            return ancestor if alike(view, ancestor) else pid
    return pid


def locate(view: View, port: int, host: str, alike: Alike) -> Tuple[str, str, Optional[int]]:
    """Status, reason and pid of what listens on a port."""
    listeners = [entry for entry in view.sockets.listeners if entry.port == port]
    if not listeners and view.clock.late:
        return "unreadable", "time ran out before every process was looked at", None
    if not listeners and view.sockets.hidden:
        why = "nothing seen on port %d, but %d processes cannot be looked into by this user"
        return "unreadable", why % (port, view.sockets.hidden), None
    if not listeners:
        return "none", "no process listens on port %d" % port, None
    found: Dict[int, List[Listener]] = {}
    for entry in listeners:
        for pid in view.sockets.holders.get(entry.inode, ()):
            found.setdefault(top(view, pid, alike), []).append(entry)
    if not found:
        return "unreadable", "the process behind port %d cannot be seen by this user" % port, None
    mine = {pid: entries for pid, entries in found.items() if alike(view, pid)}
    mine = {p: e for p, e in mine.items() if not any(a in mine for a in chain(view.procs, p)[1:])}
    if not mine:
        return "other", "what listens on port %d does not look like SGLang" % port, None
    if len(mine) > 1 and host:
        near = {p: e for p, e in mine.items() if any(serves(view.proc, one, host) for one in e)}
        mine = near or mine
    if len(mine) > 1:
        return "ambiguous", "%d processes listen on port %d" % (len(mine), port), None
    return "found", "", next(iter(mine))


def follower(view: View, address: str) -> Tuple[str, str, Optional[int]]:
    """The process that runs ranks of an engine whose leader is elsewhere."""
    found: List[int] = []
    for pid in view.procs:
        run = process.command_of(view.procs[pid].cmdline)
        rank = argline.option(run.args, "--node-rank") if argline.is_engine(run.program) else None
        if rank is None or not rank.isdigit() or int(rank) == 0:
            continue
        if not address or argline.option(run.args, "--dist-init-addr", "--nccl-init-addr") == address:
            found.append(pid)
    found = [p for p in found if not any(c in found for c in descendants(view.procs, p))]  # not its shell
    if not found:
        return "none", "no follower with this --dist-init-addr runs here", None
    if len(found) > 1:
        return "ambiguous", "%d followers run here" % len(found), None
    return "found", "", found[0]


def _same(view: View, pid: int) -> bool:
    """Whether the pid still is the process that was read."""
    data, _ = read("%s/%d/stat" % (view.proc, pid), 4096)
    parsed = parse_stat(data) if data is not None else None
    return parsed is not None and parsed[1] == view.procs[pid].ticks


def _answer(view: View, item: Dict[str, Any], kind: str) -> Dict[str, Any]:
    port = item.get("port")
    port = port if isinstance(port, int) and not isinstance(port, bool) else 0
    alike = router_like if kind == "routers" else engine_like
    if item.get("follower") is True:
        status, why, pid = follower(view, str(item.get("dist_init_addr") or ""))
    else:
        status, why, pid = locate(view, port, str(item.get("host") or ""), alike)
    answer: Dict[str, Any] = {"name": item.get("name"), "status": status, "why": why}
    if pid is None:
        return answer
    found = process.describe(view.proc, view.procs, pid)
    if kind == "routers":
        found = {key: found[key] for key in ("pid", "started")}
        found.update(router.identify(view.proc, pid, view.program(pid), view.clock))
    if not _same(view, pid):
        return {"name": item.get("name"), "status": "gone", "why": "the process ended while it was read"}
    answer["process"] = found
    if kind == "engines" and view.sources is not None:
        answer["source"] = _source(view.sources, pid)
    return answer


def _source(sources: Sources, pid: int) -> Dict[str, Any]:
    try:
        return sources.describe(pid)
    except Exception as error:  # noqa: BLE001 - the process has been read and counts without its source
        return {"status": "unknown", "why": "its source could not be read (%s)" % type(error).__name__}


def answer(request: Dict[str, Any]) -> Dict[str, Any]:
    """The whole answer to a request."""
    clock = Clock(float(request.get("seconds") or DEFAULT_SECONDS))
    asked = {
        kind: [i for i in request.get(kind) or [] if isinstance(i, dict)] for kind in ("engines", "routers")
    }
    ports = {i["port"] for items in asked.values() for i in items if isinstance(i.get("port"), int)}
    view = View(str(request.get("proc") or "/proc"), ports, clock)
    result: Dict[str, Any] = {"schema": SCHEMA, "processes": len(view.procs)}
    if isinstance(request.get("source"), dict):
        view.sources = Sources(view.proc, view.procs, clock, request["source"])
        if isinstance(request.get("contents"), list):
            alike = functools.partial(engine_like, view)
            result["contents"] = view.sources.contents(request["contents"], alike)
    for kind, items in asked.items():
        result[kind] = []
        for item in items:
            try:
                result[kind].append(_answer(view, item, kind))
            except Exception as error:  # noqa: BLE001 - one engine must not cost the others
                name = type(error).__name__
                result[kind].append({"name": item.get("name"), "status": "failed", "why": name})
    result["late"] = clock.late
    return result


def run(request: bytes) -> None:
    """Answer the request on standard output."""
    sys.stdout.write(json.dumps(answer(json.loads(request))))
    sys.stdout.flush()
