"""What a transport is: one script, one request, one answer, over one round trip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]

MAX_ANSWER = 8 * 1024 * 1024
"""Bytes of standard output that are read at most."""

BOOTSTRAP = (
    "import sys;REQUEST=sys.stdin.buffer.readline();"
    "exec(compile(sys.stdin.buffer.read(),'pdguard-node','exec'))"
)
"""Run by the node's Python: the first line of standard input is the request, the rest is the script."""

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
        """Run `script` with `request` and return its JSON answer; raises TransportError."""
