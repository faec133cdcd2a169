"""Lines to and from a started command, without ever blocking on either."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
import time
from typing import IO

from pdguard.errors import TransportError
from pdguard.transport.interface import Started

GRACE = 2.0
"""Seconds for an end that was asked for."""

_MAX_LINE = 4 * 1024 * 1024
_MAX_ERRORS = 64 * 1024
_MAX_BEFORE = 64 * 1024


class Talk:
    """Threads that serve the three pipes of `started`. Whoever makes one calls `end`."""

    def __init__(self, started: Started) -> None:
        self._started, self._child = started, started.child
        self._begun, self._closed = not started.begin, False
        self._before, self._errors = bytearray(), bytearray()
        self._in: queue.Queue[bytes | None] = queue.Queue()
        self._out: queue.Queue[bytes | None] = queue.Queue()
        stdin, stdout, stderr = self._child.stdin, self._child.stdout, self._child.stderr
        if stdin is None or stdout is None or stderr is None:
            raise AssertionError
        self._threads = [
            (threading.Thread(target=serve, args=(stream,), daemon=True), stream)
            for serve, stream in ((self._write, stdin), (self._read, stdout), (self._read_errors, stderr))
        ]
        for thread, _ in self._threads:
            thread.start()

    def write(self, data: bytes) -> None:
        """Send `data` as soon as the command takes it; where it has ended, nothing happens."""
        self._out.put(data)

    def read(self, deadline: float) -> bytes | None:
        """The next line, or None where there will be none; raises TimeoutError at `deadline` (monotonic)."""
        try:
            line = self._in.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise TimeoutError from None
        if line is None:
            self._in.put(None)  # for whoever asks again
        return line

    @property
    def closed(self) -> bool:
        """Whether no line will come any more, but for those that were not read yet."""
        return self._closed

    @property
    def errors(self) -> bytes:
        """The end of standard error. It may quote anything."""
        return bytes(self._errors)

    def how_it_ended(self) -> os.waitid_result | None:
        """How the child ended, or None. Looked at, not reaped, so that its id stays its own until `end`.

        A process closes its pipes a moment before its end can be seen, so this waits for that moment.
        """
        deadline = time.monotonic() + GRACE
        while (seen := os.waitid(os.P_PID, self._child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is None:
            if time.monotonic() > deadline:
                return None
            time.sleep(0.01)
        return seen

    def problem(self) -> TransportError | None:
        """What went wrong on the way to the command, where it ended for such a reason."""
        seen = self.how_it_ended()
        self._threads[2][0].join(GRACE)
        code = -1 if seen is None or seen.si_code != os.CLD_EXITED else seen.si_status
        return self._started.explain(None if self._begun else bytes(self._before), self.errors, code)

    def end(self) -> None:
        """Close standard input, at which the far side ends all that it started; then end what is left."""
        self._out.put(None)
        if self.how_it_ended() is not None:
            self._threads[1][0].join(GRACE)  # the far side has tidied up when it closes its outputs
        os.killpg(self._child.pid, signal.SIGKILL)  # never reaped before, so its id is still its own
        self._child.wait()
        for thread, stream in self._threads:
            thread.join(GRACE)
            if not thread.is_alive():
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def _write(self, stream: IO[bytes]) -> None:
        with contextlib.suppress(OSError, ValueError):
            while data := self._out.get():
                stream.write(data)
                stream.flush()
        with contextlib.suppress(OSError):
            stream.close()

    def _read(self, stream: IO[bytes]) -> None:
        with contextlib.suppress(ValueError):
            while line := stream.readline(_MAX_LINE):
                if self._begun:
                    self._in.put(line)
                elif line == self._started.begin:
                    self._begun = True
                elif len(self._before) < _MAX_BEFORE:
                    self._before += line
        self._closed = True
        self._in.put(None)

    def _read_errors(self, stream: IO[bytes]) -> None:
        with contextlib.suppress(ValueError):
            while part := stream.readline(_MAX_ERRORS):
                self._errors += part
                del self._errors[:-_MAX_ERRORS]
