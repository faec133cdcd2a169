"""Runs the node script, and commands, on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pdguard.errors import TransportError
from pdguard.transport import pipes
from pdguard.transport.interface import BOOTSTRAP, PYTHON_FLAGS, Json, Started, framed


@dataclass(frozen=True, slots=True)
class LocalTransport:
    """The node is this machine."""

    python: str = sys.executable
    name: str = "local"

    def run_script(self, script: bytes, request: Mapping[str, Json], timeout: float) -> Json:
        """Run `script` in `python`; the whole process group is ended when this returns."""
        data = framed(script, json.dumps(request).encode("ascii"))
        environment = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"}
        try:
            child = _child([self.python, *PYTHON_FLAGS, "-c", BOOTSTRAP], environment)
        except (OSError, ValueError) as error:
            raise TransportError(
                "the node script could not be started",
                expected=f"a Python 3.10 or newer at {self.python}",
                found=type(error).__name__,
                todo="Name one with `python:` of the node",
            ) from error
        try:
            output, errors = pipes.converse(child, data, timeout)
        finally:
            pipes.end(child)
        return pipes.answer(output, errors, child.returncode)

    def start(
        self, argv: Sequence[str], environment: Mapping[str, str], keep: Sequence[str] = ("PATH",)
    ) -> Started:
        """As `Starter.start`."""
        kept = {name: os.environ[name] for name in keep if name in os.environ}
        try:
            child = _child(list(argv), {**kept, **environment})
        except (OSError, ValueError) as error:
            raise TransportError(
                "the command could not be started",
                expected=f"a program at {argv[0]}",
                found=type(error).__name__,
            ) from error
        return Started(child, b"", lambda *_seen: None)


def _child(argv: list[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )
