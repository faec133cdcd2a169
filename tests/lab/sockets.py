"""Which TCP ports a process listens on, and which of its connections lead where. Read from /proc."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_SOCKET = re.compile(r"socket:\[(\d+)\]")
_ESTABLISHED, _LISTENING = "01", "0A"
_LOOPBACK = "0100007F"


@dataclass(frozen=True)
class Listening:
    """A listening port; `everywhere` when it is not bound to the loopback address alone."""

    port: int
    everywhere: bool


@dataclass(frozen=True)
class Connection:
    """An established connection as seen from the process that has it."""

    local_port: int
    remote_port: int


def listening(pids: Iterable[int]) -> set[Listening]:
    """The ports that any of the processes listens on."""
    return {
        Listening(_port(row[1]), not row[1].partition(":")[0].endswith(_LOOPBACK))
        for row in _rows(pids, _LISTENING)
    }


def connections(pids: Iterable[int]) -> set[Connection]:
    """The established connections of the processes."""
    return {Connection(_port(row[1]), _port(row[2])) for row in _rows(pids, _ESTABLISHED)}


def _port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)


def _rows(pids: Iterable[int], state: str) -> Iterator[list[str]]:
    """Lines of the kernel's tables that belong to the processes, in the namespace of this one."""
    held = {inode for pid in pids for inode in _inodes(pid)}
    for table in ("tcp", "tcp6"):
        try:
            text = Path("/proc/net", table).read_text(encoding="ascii")
        except FileNotFoundError:  # a kernel without IPv6
            continue
        for line in text.splitlines()[1:]:
            row = line.split()
            if row[3] == state and row[9] in held:
                yield row


def _inodes(pid: int) -> Iterator[str]:
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return  # it has ended
    for name in names:
        try:
            match = _SOCKET.fullmatch(os.readlink(f"/proc/{pid}/fd/{name}"))
        except OSError:
            continue  # closed meanwhile
        if match:
            yield match[1]
