"""Server-sent events out of bytes that come in any pieces."""

from __future__ import annotations

from collections.abc import Iterator

from pdguard.errors import PdguardError

MIB = 1024 * 1024
LARGEST, MOST, TOTAL = MIB, 100_000, 8 * MIB
"""One event or line in bytes, the number of events, and the bytes of a whole stream."""

DONE = b"[DONE]"
_BOM = b"\xef\xbb\xbf"


class TooMuch(PdguardError):
    """A stream went beyond what is read of it; its text says beyond which limit and quotes nothing."""


class Events:
    """Reads one stream; what comes out is the same however the bytes were cut."""

    def __init__(self, *, largest: int = LARGEST, most: int = MOST, total: int = TOTAL) -> None:
        self._largest, self._most, self._left = largest, most, total
        self._line = bytearray()
        self._data: list[bytes] = []
        self._size = 0
        self._first = True
        self._after_cr = False
        self.count = 0

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """The data of every event that `piece` completes; to be run to its end. Raises TooMuch."""
        over, piece = len(piece) > self._left, piece[: self._left]
        self._left -= len(piece)
        if piece and self._after_cr:
            self._after_cr = False
            piece = piece.removeprefix(b"\n") if piece[:1] == b"\n" else piece
        self._after_cr = piece.endswith(b"\r") if piece else self._after_cr
        *lines, rest = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        for part in lines:
            self._extend(part)
            line = bytes(self._line)
            self._line.clear()
            yield from self._take(line)
        self._extend(rest)
        if over:
            raise TooMuch("the stream is longer than what is read of one")

    def end(self) -> Iterator[bytes]:
        """What was begun when the stream ended; a whole event has been given before. Raises TooMuch."""
        line = bytes(self._line)
        self._line.clear()
        if line:
            yield from self._take(line)
        yield from self._take(b"")

    def _extend(self, part: bytes) -> None:
        if len(self._line) + len(part) > self._largest:
            raise TooMuch("a line of the stream is longer than what is read of one")
        self._line += part

    def _take(self, line: bytes) -> Iterator[bytes]:
        if self._first:
            self._first = False
            line = line.removeprefix(_BOM)
        if not line:
            if self._data:
                data = b"\n".join(self._data)
                self._data, self._size = [], 0
                self.count += 1
                if self.count > self._most:
                    raise TooMuch("the stream has more events than are read of one")
                yield data
            return
        name, _, value = line.partition(b":")
        if name != b"data":
            return
        value = value.removeprefix(b" ")
        self._size += len(value) + 1
        if self._size > self._largest:
            raise TooMuch("an event is longer than what is read of one")
        self._data.append(value)
