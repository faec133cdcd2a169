"""Which interpreter and which package to exercise, for an engine that runs on this machine."""

from __future__ import annotations

import os
from pathlib import Path

from pdguard.errors import InputError
from pdguard.node.main import View
from pdguard.node.package import Sources
from pdguard.node.procfs import Clock

SECONDS = 20.0


def interpreter_of(pid: int) -> tuple[str, str]:
    """(interpreter, folder to put first on sys.path) of the engine behind process `pid`.

    Raises InputError where it lives in another file system (a container), where its package is not known, or
    where its interpreter cannot be told.
    """
    try:
        if os.stat(f"/proc/{pid}/root").st_ino != os.stat("/").st_ino or _namespace(pid) != _namespace(
            "self"
        ):
            raise InputError(
                "the engine lives in another file system", todo="Run pdguard exercise inside it."
            )
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode("utf-8", "replace")
        executable = os.readlink(f"/proc/{pid}/exe")
    except OSError as error:
        raise InputError(f"process {pid} cannot be read", found=(error.strerror or "").lower()) from error
    view = View("/proc", set(), Clock(SECONDS))
    if pid not in view.procs:
        raise InputError(f"there is no process {pid}")
    origin = Sources(view.proc, view.procs, view.clock, {"files": []}).origin(pid)
    if origin.status != "found":
        raise InputError("its sglang package is not known", found=origin.why)
    # A virtual environment is found by the name that it was started under, not by what that links to.
    python = command if command.startswith("/") and os.access(command, os.X_OK) else executable
    return python, str(Path(origin.path).parent)


def _namespace(pid: int | str) -> str:
    return os.readlink(f"/proc/{pid}/ns/mnt")
