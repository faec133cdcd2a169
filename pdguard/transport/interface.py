"""What a transport is: a script with one request and one answer, or a command to talk with, on some node."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pdguard.errors import TransportError

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]

MAX_ANSWER = 8 * 1024 * 1024
"""Bytes of standard output that are read at most."""

BOOTSTRAP = (
    "import io,os,threading;"
    "F=io.BufferedReader(io.FileIO(0,closefd=False),1);"
    "REQUEST,SCRIPT=[F.read(int(n)) for n in F.readline().split()];"
    "os.getpgrp()==os.getpid() or os.setpgid(0,0);"
    "threading.Thread(target=lambda:(os.read(0,1),os.killpg(0,9)),daemon=True).start();"
    "exec(compile(SCRIPT,'pdguard-node','exec'))"
)
"""Run by the node's Python. Standard input: a line with two lengths, then the request and the script.

It stays open: where it breaks, whoever asked is gone, and the script and all that it started end at once.
"""

PYTHON_FLAGS = ("-I", "-S", "-B")
"""Isolated from the node's packages and variables, and without writing a byte of bytecode."""


class NodeSpec(Protocol):
    """What a transport needs to know about a node of cluster.yaml."""

    @property
    def transport(self) -> str:
        """local, ssh, kubectl or docker."""

    @property
    def python(self) -> str | None:
        """The Python to run there, where it is not the usual one."""


class Transport(Protocol):
    """Runs the node script somewhere."""

    @property
    def name(self) -> str:
        """The word for it in cluster.yaml."""

    def run_script(self, script: bytes, request: Mapping[str, Json], timeout: float) -> Json:
        """Run `script` with `request` for its JSON answer; `timeout` in seconds. Raises TransportError."""


@dataclass(frozen=True, slots=True)
class Started:
    """A command that runs on a node, with its three pipes here.

    `child` leads a process group of its own on this machine; who started it ends it. What comes on standard
    output before the line `begin` is not the command's (empty: all of it is). `explain` turns what came
    before that line (None: the line came), standard error and the exit code into what went wrong on the way,
    or None where that is the command's own affair.
    """

    child: subprocess.Popen[bytes]
    begin: bytes
    explain: Callable[[bytes | None, bytes, int], TransportError | None]


class Starter(Protocol):
    """Starts commands somewhere."""

    def start(
        self, argv: Sequence[str], environment: Mapping[str, str], keep: Sequence[str] = ("PATH",)
    ) -> Started:
        """Start `argv` with `environment` and those variables of the node that `keep` names, no others.

        Does not wait for the node: what goes wrong there is told by `Started.explain`. Raises TransportError.
        """


class NodeTransport(Transport, Starter, Protocol):
    """Both: what a node of cluster.yaml is reached by."""


def framed(script: bytes, request: bytes) -> bytes:
    """What `BOOTSTRAP` reads."""
    return b"%d %d\n%b%b" % (len(request), len(script), request, script)
