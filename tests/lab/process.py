"""Child processes that never outlive the lab."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LIBC = ctypes.CDLL(None, use_errno=True)
_TAIL_BYTES = 20_000
_KILL_WAIT = 10.0


def kill_with_parent() -> None:
    """Between fork and exec: have the kernel kill this process when its parent ends.

    The engines ask for the same in their own children.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def terminate_with_parent() -> None:
    """The gentle form, for a child that has something to clean up."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent ends, so that none gets away."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_descendants() -> None:
    """Kill whatever is still running below this process, and reap it. The last thing a process does."""
    _kill_until_gone(lambda: _descendants(os.getpid()))
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return  # all are reaped


class Server:
    """A long-running child in a session of its own, with its output in a log file."""

    def __init__(self, name: str, command: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        self.name = name
        self.command = tuple(command)
        self.log = log
        with log.open("wb") as out:
            self._popen = subprocess.Popen(
                self.command,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=kill_with_parent,  # noqa: PLW1509 - nothing but one system call
            )

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._popen.poll()

    def members(self) -> list[int]:
        """The process and everything it started, as far as it stayed in the session."""
        return [entry.pid for entry in _processes() if entry.session == self.pid]

    def tail(self, lines: int = 25) -> str:
        """The last lines of the log."""
        with self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - _TAIL_BYTES))
            text = log.read().decode(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def terminate(self) -> None:
        """Ask the process to end."""
        if self.exit_code is None:
            self._popen.terminate()

    def finish(self, grace: float) -> None:
        """Wait up to `grace` seconds for the end, then kill what is left of the session."""
        try:
            self._popen.wait(grace)
        except subprocess.TimeoutExpired:
            self._popen.kill()
        self._popen.wait()
        _kill_until_gone(self.members)


def stop_all(servers: Sequence[Server], grace: float = 3.0) -> None:
    """End several servers at once; `grace` is for all of them together.

    An idle engine takes longer than that to end by itself, and has nothing to lose.
    """
    deadline = time.monotonic() + grace
    for server in servers:
        server.terminate()
    for server in servers:
        server.finish(max(0.0, deadline - time.monotonic()))


def _kill_until_gone(find: Callable[[], list[int]]) -> None:
    deadline = time.monotonic() + _KILL_WAIT
    while (pids := find()) and time.monotonic() < deadline:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.05)


def _descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in _processes():
        children.setdefault(entry.parent, []).append(entry.pid)
    found, queue = [], [root]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


@dataclass(frozen=True)
class _Process:
    pid: int
    parent: int
    session: int


def _processes() -> list[_Process]:
    """Everything that runs. A process that has ended but was not reaped is left out."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            stat = Path("/proc", pid, "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue  # it ended meanwhile
        state, parent, _group, session = stat.rpartition(")")[2].split()[:4]
        if state not in "ZX":
            found.append(_Process(int(pid), int(parent), int(session)))
    return found
