"""A network namespace around the whole lab: enter one, prepare it, check for one.

Mooncake listens on every interface, whatever address it is told. Inside a namespace that has
nothing but a loopback device, that reaches nobody.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from .errors import IsolationError

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1
_PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_EPHEMERAL = (40000, 60999)


def reexec(command: Sequence[str]) -> NoReturn:
    """Replace this process by `command` inside a new network namespace."""
    unshare = shutil.which("unshare")
    if unshare is None:
        raise IsolationError("the command unshare (package util-linux) is missing")
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    os.execv(unshare, [unshare, *user, "--net", "--", *command])  # noqa: S606


def prepare(highest_port: int) -> None:
    """Bring the loopback up and keep the kernel's own port choices above the lab's ports."""
    require_isolated()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        flags = _flags(sock, "lo")
        if not flags & _IFF_UP:
            fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))
    try:
        _PORT_RANGE.write_text(" ".join(map(str, _EPHEMERAL)), encoding="ascii")
    except OSError as error:  # a read-only /proc/sys is fine as long as the range suits us
        refused = f" ({error.strerror})"
    else:
        refused = ""
    lowest = int(_PORT_RANGE.read_text(encoding="ascii").split()[0])
    if lowest <= highest_port:
        raise IsolationError(f"ephemeral ports start at {lowest}, below the lab's {highest_port}{refused}")


def isolated() -> bool:
    """True when no interface but the loopback is up."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        return not any(_flags(sock, name) & _IFF_UP for _, name in socket.if_nameindex() if name != "lo")


def require_isolated() -> None:
    """Refuse to go on where an engine would listen on a real interface."""
    if not isolated():
        raise IsolationError(
            "this process is not in a network namespace of its own; start it with `python -m tests.lab.run`"
        )


def enter_hint(pid: int) -> str:
    """How to run a command beside the lab from another terminal."""
    mapping = Path("/proc/self/uid_map").read_text(encoding="ascii").split()
    user = "--user --preserve-credentials " if mapping[1] != "0" else ""
    return f"nsenter --target {pid} {user}--net COMMAND"


def _flags(sock: socket.socket, name: str) -> int:
    answer = fcntl.ioctl(sock, _SIOCGIFFLAGS, struct.pack("16sh14x", name.encode(), 0))
    return int(struct.unpack("16sh14x", answer)[1])
