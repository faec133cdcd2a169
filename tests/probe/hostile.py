"""A loopback server whose every answer is hostile; answer number N is the same for the same N.

A request to `/N/...` gets answer N. Markers are planted wherever a body, a header or a name can hold one.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

MARKER = "mkq7zz"
"""In every text that the server sends; its letters occur in no sentence of ours."""

MARKER_ID = 987_654_321_077
"""A token id that tells that ids were kept."""

_MARK = MARKER.encode()
_SSE = b"content-type: text/event-stream\r\n"
_CHUNKED = b"transfer-encoding: chunked\r\n\r\n"
_STATUSES = (200, 200, 200, 200, 302, 400, 401, 404, 422, 500, 503, 999)
_SLOW = 0.03
_SENTENCES = (
    f"Input length (1500 tokens) exceeds the maximum allowed length (1018 tokens). {MARKER}",
    f"{MARKER} is longer than the model's context length",
    f"Decode transfer failed for request rid='{MARKER}' timed out after 8.0s in KVPoll.WaitingForInput",
    f"Input length ({'9' * 5000} tokens) exceeds {MARKER}",
    MARKER,
)

Pieces = AsyncIterator[bytes]
Maker = Callable[[random.Random], Pieces]


def value(rng: random.Random, depth: int = 0) -> Any:
    """Any JSON value, often in nearly the right form."""
    kind = rng.randrange(12 if depth < 4 else 7)
    if kind < 7:
        scalars: tuple[Any, ...] = (
            MARKER,
            MARKER_ID,
            rng.choice(_SENTENCES),
            None,
            rng.random() * 10 ** rng.randrange(30),
            10 ** rng.randrange(40),
            rng.random() < 0.5,
        )
        return scalars[kind]
    if kind < 9:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    names: tuple[str, ...] = (
        "error",
        "message",
        "code",
        "detail",
        "meta_info",
        "output_ids",
        "text",
        "choices",
        "usage",
    )
    names += ("finish_reason", "prompt_tokens", "completion_tokens", "delta", "content", "rid", "id", MARKER)
    return {rng.choice(names): value(rng, depth + 1) for _ in range(rng.randrange(6))}


def likely(rng: random.Random) -> Any:
    """An answer in the engine's form, with markers as output, ids and errors."""
    reason = {"type": "abort", "message": rng.choice(_SENTENCES), "status_code": rng.choice([400, "x", -1])}
    meta = {"id": MARKER, "finish_reason": rng.choice([None, reason, MARKER]), "prompt_tokens": 1}
    choice = {"index": 0, "text": MARKER, "finish_reason": rng.choice([None, MARKER])}
    error = {
        "object": "error",
        "message": rng.choice(_SENTENCES),
        "code": rng.choice([400, "decode_" + MARKER]),
    }
    forms: tuple[Any, ...] = (
        {"text": MARKER, "output_ids": [MARKER_ID, 5], "meta_info": meta, "rid": MARKER},
        {"choices": [choice], "usage": value(rng), "model": MARKER},
        {"choices": [{"delta": {"content": MARKER}, "message": {"content": MARKER}}]},
        {"error": error},
        error,
        {"detail": [{"msg": MARKER, "loc": [MARKER]}]},
        value(rng),
    )
    return rng.choice(forms)


def head(rng: random.Random, *, status: int | None = None) -> bytes:
    """A status line and a header or two with markers."""
    chosen = rng.choice(_STATUSES) if status is None else status
    return b"HTTP/1.1 %d %s\r\nx-request-id: %s\r\nserver: %s\r\n" % (chosen, _MARK, _MARK, _MARK)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


async def json_body(rng: random.Random) -> Pieces:
    body = json.dumps(likely(rng)).encode()
    yield head(rng) + b"content-length: %d\r\n\r\n" % len(body) + body


async def cut_body(rng: random.Random) -> Pieces:
    body = json.dumps(likely(rng)).encode()
    yield head(rng) + b"content-length: %d\r\n\r\n" % len(body) + body[: rng.randrange(len(body))]


async def events(rng: random.Random) -> Pieces:
    yield head(rng) + _SSE + _CHUNKED
    for _ in range(rng.randrange(6)):
        yield chunk(
            b"data: " + json.dumps(likely(rng)).encode() + rng.choice([b"\n\n", b"\r\n\r\n", b"\r\r"])
        )
    yield rng.choice([chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n", b"0\r\n\r\n", b""])


async def malformed_events(rng: random.Random) -> Pieces:
    yield head(rng, status=200) + _SSE + b"\r\n"
    parts: tuple[bytes, ...] = (
        b"data: {",
        b"data",
        b": " + _MARK,
        b"\n",
        b"\r",
        b"\n\n",
        b"\x00\xff",
        b"data: " + _MARK,
    )
    parts += (
        b"data: [DONE",
        b"event: " + _MARK,
        b'data: {\'error\': {"message":"' + _MARK,
        b'data: {"text":"',
    )
    yield b"".join(rng.choices(parts, k=rng.randrange(40)))


async def noise(rng: random.Random) -> Pieces:
    yield rng.choice([b"", head(rng) + b"\r\n", head(rng) + _SSE + _CHUNKED]) + rng.randbytes(400) + _MARK


async def bad_head(rng: random.Random) -> Pieces:
    lines = (
        b"HTTP/1.1 " + _MARK + b"\r\n\r\n",
        b"220 " + _MARK + b"\r\n\r\n",
        b"HTTP/9.9 200 OK\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\n" + _MARK + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n" + _MARK,
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n" + _MARK,
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n" + _MARK,
        b"HTTP/1.1 200 OK\r\ncontent-length: " + b"9" * 3000 + b"\r\n\r\n" + _MARK,
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: " + _MARK + b"\r\n\r\n" + _MARK,
        b"HTTP/1.1 200 OK\r\n" + _CHUNKED + b"zz\r\n" + _MARK,
        b"HTTP/1.1 101 Switching\r\nupgrade: x\r\n\r\n" + _MARK,
        b"HTTP/1.1 100 Continue\r\n\r\n" * 20 + _MARK,
        b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 9\r\n\r\n" + _MARK + b"abc",
        b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/" + _MARK + b"\r\n\r\n",
        b"",
    )
    yield rng.choice(lines)


async def huge_head(rng: random.Random) -> Pieces:
    yield b"HTTP/1.1 200 OK\r\n"
    for number in range(rng.choice([300, 3000])):
        yield b"x-%d: %s\r\n" % (number, _MARK * 8)
    yield b"\r\n{}"


async def nested(rng: random.Random) -> Pieces:
    mark, depth = rng.choice([b"[", b'{"error":', b'{"a":[']), rng.choice([100, 900, 20_000])
    yield head(rng) + b"\r\n" + mark * depth + rng.choice([b"", b'"' + _MARK])


async def numbers(rng: random.Random) -> Pieces:
    number = rng.choice([b"9" * 6000, b"NaN", b"-Infinity", b"1e999", b"0" * 50, b"9" * 4000])
    body = b'{"meta_info":{"prompt_tokens":%s,"id":"%s"},"output_ids":[%s]}' % (number, _MARK, number)
    yield head(rng, status=200) + b"content-length: %d\r\n\r\n" % len(body) + body


async def silence(rng: random.Random) -> Pieces:
    yield rng.choice([b"", b"HTTP/1.1 200", head(rng) + b"content-length: 99\r\n\r\n" + _MARK])
    await asyncio.sleep(60)


async def trickle(rng: random.Random) -> Pieces:
    form = rng.randrange(3)
    yield (
        b"HTTP/1.1 200 OK\r\n"
        if form == 0
        else head(rng) + (b"content-length: 9999\r\n\r\n" if form == 1 else _SSE)
    )
    if form == 2:
        yield b"\r\n"
    while True:
        yield b"x-y: %s\r\n" % _MARK if form == 0 else _MARK
        await asyncio.sleep(_SLOW)


async def endless(rng: random.Random) -> Pieces:
    block = rng.choice(
        [
            chunk(b": " + _MARK + b"\n") * 40,
            chunk(b'data: {"output_ids":[1],"text":"%s","meta_info":{"completion_tokens":1}}\n\n' % _MARK)
            * 20,
            chunk(b"data: " + _MARK),
            chunk(b"\n" * 500),
            chunk(_MARK * 100),
        ]
    )
    yield head(rng, status=200) + _SSE + _CHUNKED
    while True:
        yield block
        await asyncio.sleep(_SLOW)


async def flood(rng: random.Random) -> Pieces:
    """More than is ever read, as fast as it is taken."""
    yield head(rng, status=200) + rng.choice([_SSE, b""]) + _CHUNKED
    block = chunk(rng.choice([_MARK * 10_000, (b"data: " + _MARK + b"\n\n") * 4000, b"\r\n" * 30_000]))
    while True:
        yield block


KINDS: tuple[tuple[Maker, int], ...] = (
    (json_body, 28),
    (cut_body, 8),
    (events, 22),
    (malformed_events, 12),
    (noise, 6),
    (bad_head, 10),
    (nested, 4),
    (numbers, 4),
    (silence, 2),
    (trickle, 2),
    (endless, 2),
)
RARE: tuple[Maker, ...] = (flood, huge_head)
"""Kinds that cost much: one in a hundred; a flood, which takes most of a second, one in a thousand."""


SLOW: tuple[Maker, ...] = (silence, trickle, endless)
"""Kinds that end only when the other side leaves."""


def maker_of(number: int) -> Maker:
    """What makes answer N."""
    if number % 100 == 0:
        return flood if number % 1000 == 0 else huge_head
    makers, weights = zip(*KINDS, strict=True)
    chosen: Maker = random.Random(-number).choices(makers, weights)[0]  # noqa: S311
    return chosen


class Hostile:
    """What was served, by kind."""

    def __init__(self) -> None:
        self.served: Counter[str] = Counter()
        self.numbers: set[int] = set()
        self.base = ""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection, and end it however that goes."""
        try:
            line = await reader.readuntil(b"\r\n")
            number = int(line.split(b"/")[1])
            rng = random.Random(number)  # noqa: S311 - no secret
            maker = maker_of(number)
            if rng.random() < 0.9:
                await reader.readuntil(b"\r\n\r\n")
            self.served[maker.__name__] += 1
            self.numbers.add(number)
            async for piece in maker(rng):
                writer.write(piece)
                await writer.drain()
        except (
            ConnectionError,
            asyncio.IncompleteReadError,
            asyncio.LimitOverrunError,
            asyncio.CancelledError,
        ):
            pass
        finally:
            writer.transport.abort() if writer.transport.get_write_buffer_size() else writer.close()


@asynccontextmanager
async def hostile() -> AsyncIterator[Hostile]:
    """A server on loopback, for as long as the context lasts."""
    one = Hostile()
    server = await asyncio.start_server(one.handle, "127.0.0.1", 0, backlog=1024)
    one.base = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield one
    finally:
        server.close()
