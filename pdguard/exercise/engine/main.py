"""Serves the runner: imports the engine once; every exercise runs in a fork of its own, with a time limit.

Lines of JSON. In: `{"run": name, "arguments": …, "environment": …, "limit": seconds}` or `{"peer": …}`, until
the end of input. Out: one line `ready`, then one line for each command.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from pdguard.exercise.engine import boot

Contract = Callable[..., "Mapping[str, Any]"]
_MAX_RESULT = 1 << 20


def read_line(descriptor: int = 0) -> bytes:
    """One line, not a byte more: a fork reads on where we stop."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(descriptor, 1)
        if not byte:
            break
        line += byte
    return bytes(line)


def write_line(descriptor: int, what: Mapping[str, Any]) -> None:
    """One line of JSON, whole."""
    data = json.dumps(what).encode("ascii") + b"\n"
    while data:
        data = data[os.write(descriptor, data) :]


def failed(error: BaseException) -> dict[str, Any]:
    """What a contract gives that could not run to its end."""
    if isinstance(error, boot.Unavailable):
        return {"outcome": "unavailable", "state": "not-run", "why": str(error)}
    last = traceback.extract_tb(error.__traceback__)[-1:]
    where = f" ({os.path.basename(last[0].filename)}:{last[0].lineno})" if last else ""
    return {
        "outcome": "broke",
        "state": "not-run",
        "why": f"{type(error).__name__}: {error}"[:300] + where,
    }


def serve(contracts: Mapping[str, Contract], peer: Callable[[int, Mapping[str, Any]], None]) -> None:
    """Answer the runner until its end of the pipe closes."""
    output = boot.private_output()
    settings = json.loads(read_line())
    root = settings.get("engine_path")
    if root:
        sys.path.insert(0, root)
    boot.stand_in_for_the_missing()
    boot.leave_the_network()
    boot.fence(root)
    boot.load()
    write_line(output, {"ready": _self_description()})
    while line := read_line():
        command = json.loads(line)
        if "peer" in command:
            write_line(output, {"ended": _fork_peer(output, peer, command)})
        elif "run" in command:  # anything else was meant for a side that has ended
            write_line(output, {"result": _fork_contract(contracts, command)})


def _self_description() -> dict[str, Any]:
    sglang = sys.modules.get("sglang")
    return {
        "python": sys.version.split()[0],
        "version": str(getattr(sglang, "__version__", None) or _version_of_the_package()),
        "root": os.path.dirname(str(getattr(sglang, "__file__", "") or "")),
        "missing": boot.failures,
        "stand_ins": boot.stand_ins,
        "threads": threading.active_count(),
    }


def _version_of_the_package() -> str:
    import importlib.metadata

    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _fork_contract(contracts: Mapping[str, Contract], command: Mapping[str, Any]) -> dict[str, Any]:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _run(writer, contracts, command)
    os.close(writer)
    data, late = _collect(reader, time.monotonic() + float(command["limit"]))
    os.close(reader)
    if late:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if late:
        return {"outcome": "limit", "state": "not-run", "why": f"no result within {command['limit']:g} s"}
    try:
        result: dict[str, Any] = json.loads(data)
    except ValueError:
        how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit {os.WEXITSTATUS(status)}"
        return {"outcome": "crash", "state": "not-run", "why": f"the process ended without a result ({how})"}
    return result


def _collect(reader: int, deadline: float) -> tuple[bytes, bool]:
    data = bytearray()
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([reader], [], [], left)[0]:
            return bytes(data), True
        chunk = os.read(reader, 65536)
        data += chunk
        if not chunk or data.endswith(b"\n") or len(data) > _MAX_RESULT:
            return bytes(data), False


def _run(writer: int, contracts: Mapping[str, Contract], command: Mapping[str, Any]) -> None:
    """In the fork: never returns."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.environ.update(command.get("environment", {}))
    try:
        result = dict(contracts[command["run"]](**command.get("arguments", {})))
    except BaseException as error:  # noqa: BLE001 - whatever the engine raises is the result
        result = failed(error)
    result["stand_ins"] = boot.stand_ins
    write_line(writer, result)
    os._exit(0)


def _fork_peer(
    output: int, peer: Callable[[int, Mapping[str, Any]], None], command: Mapping[str, Any]
) -> str:
    child = os.fork()
    if child == 0:
        os.environ.update(command.get("environment", {}))
        try:
            peer(output, command["peer"])
        except BaseException as error:  # noqa: BLE001 - reported to the runner as it is
            write_line(output, {"broke": failed(error)})
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "ok"
