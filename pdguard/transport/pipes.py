"""One exchange with a child process: all in, all out, limits of time and size, and nothing left of it."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time

from pdguard.errors import TransportError
from pdguard.transport.interface import MAX_ANSWER, Json

MAX_STDERR = 16 * 1024
_CHUNK = 65536


def converse(child: subprocess.Popen[bytes], data: bytes, timeout: float) -> tuple[bytes, bytes]:
    """Feed `data` and collect both outputs until standard output is closed and the child has ended.

    Standard input stays open until then. Of standard error the end is kept, `MAX_STDERR` bytes.
    """
    if child.stdin is None or child.stdout is None or child.stderr is None:
        raise AssertionError
    deadline = time.monotonic() + timeout
    output, errors, sent = bytearray(), bytearray(), 0
    with selectors.DefaultSelector() as selector:
        for stream in (child.stdin, child.stderr):
            os.set_blocking(stream.fileno(), False)
        selector.register(child.stdin, selectors.EVENT_WRITE)
        selector.register(child.stderr, selectors.EVENT_READ)
        reading = selector.register(child.stdout, selectors.EVENT_READ)
        while reading.fd in selector.get_map():
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
                    continue
                part = os.read(key.fd, _CHUNK)
                if not part:
                    selector.unregister(key.fileobj)
                elif key.fileobj is child.stdout:
                    output += part
                else:
                    errors += part
                    del errors[:-MAX_STDERR]
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
    # Not to its end: something that outlives the child (ssh's shared connection) may hold it open.
    with contextlib.suppress(BlockingIOError):
        while part := os.read(child.stderr.fileno(), _CHUNK):
            errors += part
            del errors[:-MAX_STDERR]
    return bytes(output), bytes(errors)


def end(child: subprocess.Popen[bytes]) -> None:
    """End what is left of the child's own process group, and reap the child."""
    if child.returncode is None:  # not reaped, so its id still names its own group and nobody else's
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    for stream in (child.stdin, child.stdout, child.stderr):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):
                stream.close()


def answer(output: bytes, errors: bytes, code: int) -> Json:
    """The JSON that the script wrote; raises TransportError where it failed or wrote something else."""
    if code != 0:
        raise TransportError(
            "the node script failed",
            expected="exit code 0",
            found=f"{code}{_last_error(errors)}",
            todo="Check that `python:` of the node is Python 3.10 or newer",
        )
    try:
        said: Json = json.loads(output)
    except (ValueError, RecursionError) as error:
        raise TransportError(
            "the node's answer makes no sense",
            expected="JSON",
            found=f"{len(output)} bytes of something else",
        ) from error
    return said


def _last_error(errors: bytes) -> str:
    """The class of the last exception on stderr; its text may quote anything and is left out."""
    lines = errors.decode("utf-8", "replace").strip().splitlines()
    word = lines[-1].partition(":")[0].strip() if lines else ""
    return f" ({word})" if word.isidentifier() and word.isascii() and len(word) < 60 else ""
