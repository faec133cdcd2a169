"""Ten thousand hostile answers: in four parts: each is seen within its time, and nothing of any is kept."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import os
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from pdguard.probe.interface import Api, Ask, End, Role, Seen, Target
from pdguard.probe.wire import Wire
from tests.probe.hostile import KINDS, MARKER, MARKER_ID, RARE, SLOW, Hostile, hostile, maker_of

ANSWERS, SLICES = 10_000, 4
OPEN, WAITING, WAIT = 6, 20, 1.0
LATE = 5.0
"""Seconds by which a busy machine may be late."""
_WRITES = ("w", "a", "x", "+")


class _Writes:
    """Files that this process opens for writing, as the interpreter's own audit events tell."""

    def __init__(self) -> None:
        self.on = False
        self.found: list[str] = []

    def __call__(self, event: str, args: tuple[object, ...]) -> None:
        if not self.on or event != "open":
            return
        path, mode, flags = (*args, None, None, None)[:3]
        writes = isinstance(mode, str) and any(letter in mode for letter in _WRITES)
        if writes or (
            mode is None and isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        ):
            self.found.append(str(path))


async def run(server: Hostile, numbers: range) -> list[tuple[Seen, float]]:
    wire = Wire()
    apis = tuple(Api)
    # Answers that never end cost time and no work: they may wait side by side.
    busy, idle = asyncio.Semaphore(OPEN), asyncio.Semaphore(WAITING)

    async def one(number: int) -> tuple[Seen, float]:
        async with idle if maker_of(number) in SLOW else busy:
            target = Target("x", Role.DECODE, f"{server.base}/{number}", key=f"{MARKER}-key")
            ask = Ask(
                apis[number % 3], 20, f"pdguard-probe-{MARKER}-{number}", stream=number % 2 == 0, model="m"
            )
            began = time.monotonic()
            seen = await wire.send(target, ask, WAIT)
            return seen, time.monotonic() - began

    results = await asyncio.gather(*(one(number) for number in numbers))
    await wire.close()
    return results


@pytest.mark.parametrize("part", range(SLICES))
def test_ten_thousand_hostile_answers(
    part: int,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    # For each of its locks httpcore looks for this package along the whole path; without it, in vain.
    if importlib.util.find_spec("sniffio") is None:
        monkeypatch.setitem(sys.modules, "sniffio", None)
    numbers = range(part * ANSWERS // SLICES, (part + 1) * ANSWERS // SLICES)
    writes = _Writes()
    sys.addaudithook(writes)

    async def whole() -> tuple[Hostile, list[tuple[Seen, float]]]:
        async with hostile() as server:
            return server, await run(server, numbers)

    with caplog.at_level(logging.DEBUG):
        writes.on = True
        server, results = asyncio.run(whole())
        writes.on = False

    assert len(results) == ANSWERS // SLICES
    # On a busy machine a request's time may run out before the server has read it; it is seen all the same.
    assert len(server.numbers & set(numbers)) >= 0.9 * len(numbers)
    assert set(server.served) == {maker.__name__ for maker in (*RARE, *(maker for maker, _ in KINDS))}
    assert all(type(seen) is Seen for seen, _ in results)
    assert max(took for _, took in results) < WAIT + LATE
    ends = Counter(seen.end for seen, _ in results)
    assert set(ends) == {End.COMPLETE, End.CLOSED, End.BROKEN, End.UNREADABLE, End.TOO_LARGE}
    assert min(ends.values()) >= 3
    assert sum(seen.outputs > 0 for seen, _ in results) > 100
    assert sum(seen.refused for seen, _ in results) > 100

    kept = repr([seen for seen, _ in results])
    printed = capfd.readouterr()
    for text in (kept, printed.out, printed.err, caplog.text):
        assert MARKER not in text
        assert str(MARKER_ID) not in text
    assert writes.found == []
    assert list(tmp_path.iterdir()) == []


def test_the_marker_would_be_found() -> None:
    """The run above can fail: what it looks for is really sent."""

    async def body() -> bytes:
        async with hostile() as server:
            host, port = server.base.removeprefix("http://").split(":")
            total = b""
            for number in range(1, 40):
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(b"POST /%d/generate HTTP/1.1\r\nhost: x\r\n\r\n" % number)
                with contextlib.suppress(TimeoutError, ConnectionError):
                    total += await asyncio.wait_for(reader.read(4096), 1)
                writer.close()
            return total

    sent = asyncio.run(body())
    assert MARKER.encode() in sent
    assert str(MARKER_ID).encode() in sent


def test_writing_would_be_seen(tmp_path: Path) -> None:
    writes = _Writes()
    sys.addaudithook(writes)
    writes.on = True
    (tmp_path / "x").write_text("y", encoding="utf-8")
    os.close(os.open(tmp_path / "z", os.O_WRONLY | os.O_CREAT))
    writes.on = False
    assert [Path(one).name for one in writes.found] == ["x", "z"]
