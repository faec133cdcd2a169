"""Runs the node script on this machine, in a Python of its own."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

from pdguard.errors import TransportError
from pdguard.transport.interface import BOOTSTRAP, MAX_ANSWER, PYTHON_FLAGS, Json

MAX_STDERR = 16 * 1024
_CHUNK = 65536


@dataclass(frozen=True, slots=True)
class LocalTransport:
    """The node is this machine."""

    python: str = sys.executable
    name: str = "local"

    def run_script(self, script: bytes, request: Mapping[str, Json], timeout: float) -> Json:
        """Run `script` in `python`; the whole process group is ended when this returns."""
        line = json.dumps(request).encode("ascii") + b"\n"
        environment = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"}
        try:
            child = subprocess.Popen(
                [self.python, *PYTHON_FLAGS, "-c", BOOTSTRAP],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise TransportError(
                "the node script could not be started",
                expected=f"a Python 3.10 or newer at {self.python}",
                found=type(error).__name__,
                todo="Name one with `python:` of the node",
            ) from error
        try:
            output, errors = _converse(child, line + script, time.monotonic() + timeout, timeout)
        finally:
            _end(child)
        return _answer(output, errors, child.returncode)


def _converse(
    child: subprocess.Popen[bytes], data: bytes, deadline: float, timeout: float
) -> tuple[bytes, bytes]:
    """Feed `data` and collect both outputs until the child has closed them."""
    if child.stdin is None or child.stdout is None or child.stderr is None:
        raise AssertionError
    output, errors, sent = bytearray(), bytearray(), 0
    with selectors.DefaultSelector() as selector:
        os.set_blocking(child.stdin.fileno(), False)
        selector.register(child.stdin, selectors.EVENT_WRITE)
        selector.register(child.stdout, selectors.EVENT_READ)
        selector.register(child.stderr, selectors.EVENT_READ)
        while selector.get_map():
            left = deadline - time.monotonic()
            if left <= 0:
                raise TransportError(
                    "the node script did not finish",
                    expected=f"an answer within {timeout:g} s",
                    found="none",
                    todo="Try again, or raise --timeout",
                )
            for key, _ in selector.select(left):
                if key.fileobj is child.stdin:
                    try:
                        sent += os.write(key.fd, data[sent : sent + _CHUNK])
                    except BrokenPipeError:
                        sent = len(data)
                    if sent >= len(data):
                        selector.unregister(child.stdin)
                        child.stdin.close()
                    continue
                part = os.read(key.fd, _CHUNK)
                if not part:
                    selector.unregister(key.fileobj)
                elif key.fileobj is child.stdout:
                    output += part
                elif len(errors) < MAX_STDERR:
                    errors += part
                if len(output) > MAX_ANSWER:
                    raise TransportError(
                        "the node script wrote too much",
                        expected=f"at most {MAX_ANSWER} bytes",
                        found="more",
                        todo="Report it: the script never should",
                    )
        try:
            child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired as error:
            raise TransportError(
                "the node script did not end", expected=f"its end within {timeout:g} s", found="still running"
            ) from error
    return bytes(output), bytes(errors)


def _end(child: subprocess.Popen[bytes]) -> None:
    """End what is left of the child's own process group, and reap the child."""
    if child.returncode is None:  # not reaped, so its id still names its own group and nobody else's
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    for stream in (child.stdin, child.stdout, child.stderr):
        if stream is not None:
            stream.close()


def _answer(output: bytes, errors: bytes, code: int) -> Json:
    if code != 0:
        raise TransportError(
            "the node script failed",
            expected="exit code 0",
            found=f"{code}{_last_error(errors)}",
            todo="Check that `python:` of the node is Python 3.10 or newer",
        )
    try:
        answer: Json = json.loads(output)
    except (ValueError, RecursionError) as error:
        raise TransportError(
            "the node's answer makes no sense",
            expected="JSON",
            found=f"{len(output)} bytes of something else",
        ) from error
    return answer


def _last_error(errors: bytes) -> str:
    """The class of the last exception on stderr; its text may quote anything and is left out."""
    lines = errors.decode("utf-8", "replace").strip().splitlines()
    word = lines[-1].partition(":")[0].strip() if lines else ""
    return f" ({word})" if word.isidentifier() and word.isascii() and len(word) < 60 else ""
