"""A room for an engine's interpreter: a scratch folder, few variables, and somebody who tidies up after it.

Runs on the engine's machine before anything else, in the same interpreter, which it then starts anew inside.
Who tidies up is a process of its own session: when standard input breaks (whoever asked is gone), when
the interpreter ends or its time is up, it ends the interpreter's whole process group and removes the folder.
Outputs stay open until it has, so their end says that nothing is left.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

KEPT = ("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD")
_PLACES = ("HOME", "TMPDIR", "XDG_CACHE_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "HF_HOME")
_PAUSE = 0.2


def enter(request: bytes) -> None:
    """Never returns. `request`: seconds to live, arguments of the interpreter, further variables."""
    asked = json.loads(request)
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    scratch = tempfile.mkdtemp(prefix="pdguard-exercise-")
    if os.fork() == 0:
        try:
            _tidy_up(os.getppid(), scratch, time.monotonic() + asked["seconds"])
        finally:
            os._exit(0)
    os.chdir(scratch)
    variables = {**environment(Path(scratch)), **asked["variables"]}
    os.execve(sys.executable, [sys.executable, *asked["arguments"]], variables)  # noqa: S606 - no shell


def environment(scratch: Path) -> dict[str, str]:
    """Nothing of ours but where to find programs and libraries; every cache goes to the scratch folder."""
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    return {"PATH": os.defpath, **kept, **dict.fromkeys(_PLACES, str(scratch))}


def _tidy_up(interpreter: int, scratch: str, deadline: float) -> None:
    os.setsid()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    poll = select.poll()
    poll.register(0, select.POLLRDHUP)
    pause = _PAUSE
    try:
        poll.register(os.pidfd_open(interpreter), select.POLLIN)
        pause = 60.0
    except (AttributeError, OSError):
        pass  # an old kernel, or a container that forbids it: looked at from time to time
    while os.getppid() == interpreter and time.monotonic() < deadline:
        if poll.poll(pause * 1000):
            break
    with contextlib.suppress(ProcessLookupError):
        os.killpg(interpreter, signal.SIGKILL)
    for _ in range(40):  # what was just killed may still be writing
        shutil.rmtree(scratch, ignore_errors=True)
        if not os.path.lexists(scratch):
            break
        time.sleep(0.05)
