"""One request over HTTP, and what was seen of its answer: the only module that sends prompts.

A request is sent once: no redirect is followed, nothing is tried again, no proxies are read from the
environment, no cookies are kept. Its connection is its own and is closed with it, which is how a server
learns that a client has left. What goes wrong becomes part of `Seen`, in words written here.

As in the fetching of facts, requests go through httpx's transport rather than its client.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import ssl
import time
from dataclasses import dataclass, field

import httpx

from pdguard.facts._fetch import HOW_KEY, HOW_TLS, Tls, Transport, _explain, _join
from pdguard.probe.events import DONE, MIB, Events, TooMuch
from pdguard.probe.interface import Ask, End, Seen, Target
from pdguard.probe.prompts import request_content, request_headers
from pdguard.probe.reading import Reader, Unreadable, parse
from pdguard.probe.sentences import LONGEST

MAX_BODY = 8 * MIB
MAX_PIECES = 50_000
CLOSING = 0.5
"""Seconds within which a connection must have been closed."""

_LONG = 50_000
_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.InvalidURL, httpx.UnsupportedProtocol)
_ENDED_EARLY = ("Server disconnected", "peer closed connection")
"""How h11 and httpcore begin when a connection ended before its answer did."""


@dataclass(slots=True)
class _Progress:
    """What is known of an exchange while it runs, so that it can be cut off at any time."""

    reader: Reader
    began: float = field(default_factory=time.monotonic)
    end: End | None = None
    status: int = 0
    headers_after: float | None = None
    first_output_after: float | None = None
    received: int = 0
    events: int = 0
    unreadable: int = 0
    trouble: str = ""

    @property
    def now(self) -> float:
        """Seconds since the request was sent."""
        return time.monotonic() - self.began

    def ended(self, end: End, trouble: str = "") -> None:
        """Note the end; the first one stays."""
        if self.end is None:
            self.end, self.trouble = end, trouble

    def judge_status(self) -> None:
        """Let a status of 400 or more tell the error where nothing else did."""
        if self.status >= 400 and not self.reader.known:
            self.reader.text("", status=self.status)

    def seen(self) -> Seen:
        """What came of it; an exchange without an end was closed from here."""
        after = self.now
        self.judge_status()
        read = self.reader.reading()
        return Seen(
            end=self.end or End.CLOSED,
            ended_after=after,
            status=self.status,
            headers_after=self.headers_after,
            first_output_after=self.first_output_after,
            error=read.error,
            inner_status=read.inner_status,
            error_side=read.error_side,
            said_tokens=read.said_tokens,
            said_limit=read.said_limit,
            said_seconds=read.said_seconds,
            prompt_tokens=read.prompt_tokens,
            completion_tokens=read.completion_tokens,
            finish=read.finish,
            outputs=read.outputs,
            digest=read.digest,
            marks=read.marks,
            received=self.received,
            events=self.events,
            trouble=self.trouble,
        )


class Wire:
    """Sends for one run. `transport` replaces the network in tests.

    Hashes are keyed with a key made here: those of two wires cannot be compared.
    """

    def __init__(self, *, transport: Transport | None = None) -> None:
        self._key = secrets.token_bytes(32)
        self._given = transport
        self._contexts: dict[Tls | None, ssl.SSLContext] = {}
        # At DEBUG it logs headers and quotes what it cannot parse.
        logging.getLogger("httpcore").setLevel(logging.WARNING)

    async def close(self) -> None:
        """Forget the TLS settings; every connection was closed with its request."""
        self._contexts.clear()

    async def send(self, target: Target, ask: Ask, wait: float, leave: asyncio.Event | None = None) -> Seen:
        """Send one request; after `wait` seconds, or once `leave` is set, the connection is closed.

        Returns within `wait` and a second, whatever the other side does; `wait` begins when the body of the
        request is made. Raises nothing but CancelledError, with the connection closed.
        """
        content = await _content(ask)
        progress = _Progress(Reader(ask.api, self._key))
        exchange = asyncio.create_task(self._exchange(target, ask, content, progress))
        del content
        waiting: set[asyncio.Task[object]] = {exchange}
        if leave is not None:
            waiting.add(asyncio.create_task(leave.wait()))
        try:
            await asyncio.wait(waiting, timeout=max(0.0, wait), return_when=asyncio.FIRST_COMPLETED)
            return progress.seen()
        finally:
            for task in waiting:
                task.cancel()
            # The connection is closed inside the task, which takes a moment.
            await asyncio.wait(waiting, timeout=CLOSING)

    def _transport(self, target: Target) -> Transport:
        """A transport for one request: no pool outlives it, so nothing can be left open in one."""
        if self._given is not None:
            return self._given
        tls = target.tls if target.base[:6].lower() == "https:" else None
        context = self._contexts.get(tls)
        if context is None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if tls is None else tls.context()
            self._contexts[tls] = context
        limits = httpx.Limits(max_connections=1, max_keepalive_connections=0)
        return httpx.AsyncHTTPTransport(verify=context, limits=limits, trust_env=False)

    async def _exchange(self, target: Target, ask: Ask, content: bytes, progress: _Progress) -> None:
        """The exchange from beginning to end; what goes wrong is noted in `progress`."""
        url = _join(target.base, ask.api.value)
        if url is None:
            return progress.ended(End.NO_CONNECTION, "the URL is not an http or https URL with a host")
        if target.key is not None and not (target.key.isascii() and target.key.isprintable()):
            return progress.ended(
                End.NO_CONNECTION, f"the key holds characters that cannot be sent in a header: {HOW_KEY}"
            )
        try:
            transport = self._transport(target)
        except (OSError, ValueError):
            return progress.ended(End.NO_CONNECTION, f"the TLS files cannot be used: {HOW_TLS}")
        try:
            try:
                await _post(transport, target, url, ask, content, progress)
            finally:
                if transport is not self._given:
                    await transport.aclose()
        except TooMuch as error:
            progress.ended(End.TOO_LARGE, error.what)
        except httpx.RemoteProtocolError as error:
            early = str(error).startswith(_ENDED_EARLY)
            progress.ended(End.BROKEN if early else End.UNREADABLE, _explain(error))
        except Exception as error:  # noqa: BLE001 - no answer may end the run, whatever it breaks in a library
            end = End.NO_CONNECTION if isinstance(error, _NEVER_SENT) else End.BROKEN
            progress.ended(end, _explain(error))
        return None


async def _content(ask: Ask) -> bytes:
    """The body of the request; a long one is made in a thread, so that other answers are still read."""
    if max(ask.length, ask.words or 0) < _LONG:
        return request_content(ask)
    return await asyncio.to_thread(request_content, ask)


async def _post(
    transport: Transport, target: Target, url: str, ask: Ask, content: bytes, progress: _Progress
) -> None:
    request = httpx.Request("POST", url, headers=request_headers(ask, target.key), content=content)
    response = await transport.handle_async_request(request)
    try:
        await _read(response, progress)
    finally:
        await response.aclose()


async def _read(response: httpx.Response, progress: _Progress) -> None:
    progress.headers_after = progress.now
    status = progress.status = response.status_code
    headers = response.headers
    if headers.get("content-encoding", "identity").strip().lower() not in ("identity", ""):
        return progress.ended(End.UNREADABLE, "a compressed answer, which was not asked for")
    stream = response.stream
    if not isinstance(stream, httpx.AsyncByteStream):
        return progress.ended(End.UNREADABLE, "the answer cannot be read piece by piece")
    if headers.get("content-type", "").lower().startswith("text/event-stream"):
        await _read_events(stream, progress)
    else:
        length = headers.get("content-length", "")
        if length.isascii() and length.isdigit() and (len(length) > 9 or int(length) > MAX_BODY):
            raise TooMuch("the answer is longer than what is read of one")
        _read_whole(await _body(stream, progress), progress)
    if 300 <= status < 400:
        progress.trouble = "a redirect, which is not followed"
    return None


async def _body(stream: httpx.AsyncByteStream, progress: _Progress) -> bytes:
    pieces: list[bytes] = []
    async for piece in stream:
        progress.received += len(piece)
        if progress.received > MAX_BODY:
            raise TooMuch("the answer is longer than what is read of one")
        if len(pieces) >= MAX_PIECES:
            raise TooMuch("the answer came in too many small pieces")
        pieces.append(piece)
    return b"".join(pieces)


def _read_whole(body: bytes, progress: _Progress) -> None:
    if body.lstrip()[:5] == b"data:":
        # Some routers send events under another name.
        events = Events()
        for data in (*events.feed(body), *events.end()):
            if _take_event(data, progress):
                break
        return _stream_ended(progress, done=True)
    value = parse(body)
    if value is Unreadable:
        _take_text(body, progress)
    else:
        progress.reader.value(value, status=progress.status)
    _note_output(progress)
    _judge(progress)
    return None


async def _read_events(stream: httpx.AsyncByteStream, progress: _Progress) -> None:
    events, pieces = Events(), 0
    async for piece in stream:
        progress.received += len(piece)
        pieces += 1
        if pieces > MAX_PIECES:
            raise TooMuch("the stream came in too many small pieces")
        for data in events.feed(piece):
            if _take_event(data, progress):
                return _stream_ended(progress, done=True)
    for data in events.end():
        if _take_event(data, progress):
            return _stream_ended(progress, done=True)
    return _stream_ended(progress, done=False)


def _take_event(data: bytes, progress: _Progress) -> bool:
    """Read one event; True where it is the last."""
    if data.strip() == DONE:
        return True
    progress.events += 1
    value = parse(data)
    if value is Unreadable:
        _take_text(data, progress)
    elif not progress.reader.value(value, status=progress.status):
        progress.unreadable += 1
    _note_output(progress)
    return False


def _take_text(data: bytes, progress: _Progress) -> None:
    if not progress.reader.text(data[:LONGEST].decode("utf-8", "replace"), status=progress.status):
        progress.unreadable += 1


def _note_output(progress: _Progress) -> None:
    if progress.first_output_after is None and progress.reader.outputs:
        progress.first_output_after = progress.now


def _stream_ended(progress: _Progress, *, done: bool) -> None:
    if not done and progress.reader.known and not progress.reader.ended:
        return progress.ended(End.BROKEN, "the stream ended before its answer did")
    return _judge(progress)


def _judge(progress: _Progress) -> None:
    """An answer has come to its end: could it be read?"""
    progress.judge_status()
    if not progress.reader.known:
        progress.ended(End.UNREADABLE, "no answer of a known form")
    elif progress.unreadable:
        progress.ended(End.COMPLETE, f"events that could not be read: {progress.unreadable}")
    else:
        progress.ended(End.COMPLETE)
