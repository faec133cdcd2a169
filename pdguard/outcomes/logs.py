"""Releases that ended by timeout, from an engine's own log: for releases that count none.

A hold that drains leaves no line, so a log gives a lower bound and no ratio. Of the log nothing is kept but
numbers: how many, the T_hold that the lines name, and the log's own times.
"""

from __future__ import annotations

import gzip
import math
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import BinaryIO, cast

from pdguard.errors import InputError
from pdguard.facts._fetch import MIB

MAX_PLAIN = 256 * MIB
MAX_UNPACKED = 1024 * MIB
MAX_EVENTS = 200_000

_EPOCH = datetime(1970, 1, 1)
_LINE = 16 * 1024
_PREFIX = 64  # what a container's log puts before the engine's own line
_STAMP = re.compile(rb"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:[.,]\d+)?(?: [^\]]{0,80})?\]")
_RANK = re.compile(rb"\[[^\]]{0,120} DP(\d{1,6})\b")
_MARK = b"Deferred KV release"
_TIMED_OUT = re.compile(
    rb"Deferred KV release for room (-?\d{1,40}) timed out after "
    rb"([0-9.aeinf+-]{1,32})s without a full drain ack"
)
_FAILED = re.compile(rb"Deferred KV release failed for room (-?\d{1,40})")


@dataclass(frozen=True, slots=True)
class LogCount:
    """What a log tells of one window: requests, whose holds ended by timeout or with an error.

    `t_hold` is the last T_hold named, in seconds, None where no line names one. `began` and `ended` are by
    the engine's own clock, empty where no line is dated. `cut` tells that older lines were not read.
    """

    timeouts: int
    errors: int
    t_hold: float | None
    began: str
    ended: str
    cut: bool


def read_log(path: Path, window: float, name: str) -> LogCount:
    """Count over the last `window` seconds that the log covers; 0 takes all of it.

    The log's clock has no zone, so its newest line is the window's end. `name` is the engine's, for errors.
    Raises InputError for a file that cannot be read.
    """
    problem = ""
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            if packed:
                with gzip.open(raw) as unpacked:
                    return _count(_lines(cast(BinaryIO, unpacked), MAX_UNPACKED), window, cut=False)
            size = raw.seek(0, 2)
            cut = size > MAX_PLAIN
            raw.seek(max(0, size - MAX_PLAIN))
            if cut:
                raw.readline(_LINE)
            return _count(_lines(raw, 2 * MAX_PLAIN), window, cut=cut)  # it may grow meanwhile
    except (OSError, EOFError, zlib.error) as error:
        problem = _reason(error)
    except ValueError:
        problem = f"more than {MAX_UNPACKED // MIB:,} MiB once unpacked"
    raise _unreadable(name, problem)


def check_log(path: Path, name: str) -> None:
    """Raise the InputError of `read_log` for a file that cannot be opened; nothing is counted."""
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            if packed:
                with gzip.open(raw) as unpacked:
                    unpacked.read(1)
    except (OSError, EOFError, zlib.error) as error:
        raise _unreadable(name, _reason(error)) from None


def _reason(error: Exception) -> str:
    told = error.strerror if isinstance(error, OSError) else None
    return (told or "not a whole gzip file").lower()


def _unreadable(name: str, found: str) -> InputError:
    return InputError(f"the log of {name} cannot be read", expected="a log file, plain or .gz", found=found)


def _lines(stream: BinaryIO, limit: int) -> Iterator[bytes]:
    """Lines without what goes beyond _LINE; ValueError where there is more than the limit."""
    size, inside = 0, False
    while piece := stream.readline(_LINE):
        size += len(piece)
        if size > limit:
            raise ValueError("more than is read")
        if not inside:
            yield piece
        inside = not piece.endswith(b"\n")


@dataclass(frozen=True, slots=True)
class _Event:
    at: float | None
    room: tuple[bytes, bytes]
    error: bool
    t_hold: float | None


def _count(lines: Iterator[bytes], window: float, *, cut: bool) -> LogCount:
    first = last = None
    events: list[_Event] = []
    latest = b""
    for line in lines:
        if b"[20" in line[:_PREFIX]:
            latest = line[: _PREFIX + 100]
            if first is None:
                first = _time(latest)
        if _MARK in line:
            last = _time(latest) or last
            event = _event(line, last)
            if event is not None:
                events.append(event)
                if len(events) > 2 * MAX_EVENTS:
                    del events[:MAX_EVENTS]
                    cut = True
    last = _time(latest) or last
    if window > 0 and last is not None:
        start = last - window
        events = [e for e in events if e.at is None or e.at > start]
        cut = cut and first is not None and first > start
        first = start if first is None else max(first, start)
    failed = {e.room for e in events if e.error}
    late = {e.room for e in events if not e.error} - failed
    named = [e.t_hold for e in events if e.t_hold is not None]
    return LogCount(len(late), len(failed), named[-1] if named else None, _shown(first), _shown(last), cut)


def _event(line: bytes, at: float | None) -> _Event | None:
    timed_out = _TIMED_OUT.search(line)
    failed = None if timed_out else _FAILED.search(line)
    found = timed_out or failed
    if found is None:
        return None
    rank = _RANK.search(line[:200])
    t_hold = None
    if timed_out is not None:
        try:
            named = float(timed_out[2])
        except ValueError:
            named = math.nan
        t_hold = named if math.isfinite(named) else None
    return _Event(at, (found[1], rank[1] if rank else b""), failed is not None, t_hold)


def _time(line: bytes) -> float | None:
    """A line's time in seconds, by a clock without a zone."""
    found = _STAMP.search(line)
    if found is None:
        return None
    try:
        moment = datetime.fromisoformat(found[1].decode("ascii"))
    except ValueError:
        return None
    return (moment - _EPOCH).total_seconds()


def _shown(seconds: float | None) -> str:
    return "" if seconds is None else (_EPOCH + timedelta(seconds=round(seconds))).isoformat(" ")
