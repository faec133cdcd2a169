"""The server side of HTTP/1.1: one asyncio protocol for every simulated socket.

h11 parses requests; answers are bytes prepared beforehand, so that a static answer costs one parse and
one write. An application returns either an `Answer`, which is written at once, or a coroutine function
that receives a `Reply` and may take its time; it is cancelled when the client leaves.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Protocol, cast

import h11

from pdguard.simulator.messages import Answer, Request, http_date, status_line, text_answer

HOST = "127.0.0.1"
MAX_BODY = 64 * 1024 * 1024
_MAX_PIPELINED = 256 * 1024
_LOG = logging.getLogger(__name__)


class Reply:
    """Where an application writes an answer that it makes piece by piece."""

    __slots__ = ("_protocol", "chunked", "started")

    def __init__(self, protocol: HttpProtocol) -> None:
        self._protocol = protocol
        self.started = False
        self.chunked = False

    def start(
        self, status: int, headers: tuple[tuple[bytes, bytes], ...], *, server: bytes = b"uvicorn"
    ) -> None:
        """Send the headers of a chunked answer."""
        self.started = self.chunked = True
        lines = [status_line(status), http_date(), b"\r\nserver: ", server, b"\r\ntransfer-encoding: chunked"]
        for name, value in headers:
            lines += [b"\r\n", name, b": ", value]
        lines.append(b"\r\nconnection: close\r\n\r\n" if self._protocol.closing else b"\r\n\r\n")
        self._protocol.write(b"".join(lines))

    async def write(self, data: bytes) -> None:
        """Send one chunk, waiting while the client does not read."""
        self._protocol.write(b"%x\r\n%s\r\n" % (len(data), data))
        await self._protocol.drain()

    def raw(self, data: bytes) -> None:
        """Send bytes as they are; the connection is closed afterwards."""
        self.started = True
        self._protocol.closing = True
        self._protocol.write(data)

    async def drain(self) -> None:
        """Wait while the client does not read."""
        await self._protocol.drain()


Work = Callable[[Reply], Awaitable[Answer | None]]


class App(Protocol):
    """What answers the requests of one socket."""

    def handle(self, request: Request) -> Answer | Work:
        """Answer at once, or say what to run."""
        ...


class HttpProtocol(asyncio.Protocol):
    """One connection."""

    def __init__(self, app: App, connections: set[HttpProtocol]) -> None:
        self._app = app
        self._connections = connections
        self._conn = h11.Connection(h11.SERVER)
        self._transport: asyncio.Transport | None = None
        self._request: Request | None = None
        self._body: list[bytes] = []
        self._size = 0
        self._task: asyncio.Task[None] | None = None
        self._writable: asyncio.Event | None = None
        self._backlog = bytearray()
        self.closing = False

    @property
    def task(self) -> asyncio.Task[None] | None:
        """The application's work in progress."""
        return self._task

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the connection."""
        self._transport = cast(asyncio.Transport, transport)
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the application that its client has left."""
        del exc
        self._connections.discard(self)
        self._transport = None
        if self._writable is not None:
            self._writable.set()
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        """The client reads too slowly."""
        self._writable = asyncio.Event()

    def resume_writing(self) -> None:
        """The client has caught up."""
        if self._writable is not None:
            self._writable.set()
            self._writable = None

    def write(self, data: bytes) -> None:
        """Send bytes, unless the client has gone."""
        if self._transport is not None:
            self._transport.write(data)

    async def drain(self) -> None:
        """Wait until the client has room."""
        if self._writable is not None:
            await self._writable.wait()

    def abort(self) -> None:
        """Drop the connection now."""
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Feed the parser; while an answer is being made, keep what comes for later."""
        if self._task is not None:
            self._backlog += data
            if len(self._backlog) > _MAX_PIPELINED:
                self.abort()
            return
        try:
            self._conn.receive_data(data)
            self._parse()
        except h11.RemoteProtocolError as error:
            self._refuse(error.error_status_hint)

    def _refuse(self, status: int) -> None:
        self.write(text_answer(status, "Invalid HTTP request received.").wire(close=True))
        if self._transport is not None:
            self._transport.close()

    def _parse(self) -> None:
        while self._transport is not None:
            event = self._conn.next_event()
            if event is h11.NEED_DATA:
                if self._conn.they_are_waiting_for_100_continue:
                    self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                    self._conn.send(h11.InformationalResponse(status_code=100, headers=[]))
                return
            if isinstance(event, h11.Request):
                self._request = Request(event)
                self._body, self._size = [], 0
            elif isinstance(event, h11.Data):
                self._body.append(bytes(event.data))
                self._size += len(event.data)
                if self._size > MAX_BODY:
                    self._refuse(413)
                    return
            elif isinstance(event, h11.EndOfMessage):
                if not self._dispatch():
                    return
            else:
                if isinstance(event, h11.ConnectionClosed):
                    self._transport.close()
                return

    def _dispatch(self) -> bool:
        """Run the application; True when the answer is out and the next request may be parsed."""
        request = self._request
        assert request is not None  # noqa: S101 - h11 never ends a message that it did not begin
        self._request = None
        if self._body:
            request.body = b"".join(self._body)
            self._body = []
        self.closing = not request.keep_alive
        result = self._app.handle(request)
        if isinstance(result, Answer):
            return self._finish(result)
        self._task = asyncio.get_running_loop().create_task(self._run(result))
        return False

    def _finish(self, answer: Answer | None) -> bool:
        """Send what remains and make ready for the next request; False if the connection ends here."""
        if answer is not None:
            self.write(answer.wire(close=self.closing))
        if self._transport is None:
            return False
        if self.closing:
            self._transport.close()
            return False
        trailing = self._conn.trailing_data[0]
        self._conn = h11.Connection(h11.SERVER)
        if trailing or self._backlog:
            pending = trailing + bytes(self._backlog)
            self._backlog.clear()
            self._conn.receive_data(pending)
        return True

    async def _run(self, work: Work) -> None:
        reply = Reply(self)
        try:
            answer = await work(reply)
        except asyncio.CancelledError:
            raise
        except Exception:  # noqa: BLE001 - the double must say so itself rather than hang its client
            _LOG.exception("the simulator failed to answer")
            answer = None if reply.started else text_answer(500, "Internal Server Error")
            self.closing = True
        finally:
            self._task = None
        if reply.chunked:
            self.write(b"0\r\n\r\n")
        if self._finish(answer):
            try:
                self._parse()
            except h11.RemoteProtocolError as error:
                self._refuse(error.error_status_hint)


class Server:
    """Every listening socket of a simulated cluster, and every connection to them."""

    def __init__(self) -> None:
        self._servers: list[asyncio.Server] = []
        self._reserved: list[socket.socket] = []
        self._connections: set[HttpProtocol] = set()

    async def listen(self, app: App, port: int = 0) -> int:
        """Serve an application on a loopback port; 0 takes a free one."""
        loop = asyncio.get_running_loop()
        sock = _bound(port)
        try:
            server = await loop.create_server(
                lambda: HttpProtocol(app, self._connections), sock=sock, backlog=128
            )
        except BaseException:
            sock.close()
            raise
        self._servers.append(server)
        return cast(int, sock.getsockname()[1])

    def refuse(self, port: int = 0) -> int:
        """Keep a port on which every connection is refused."""
        sock = _bound(port)
        self._reserved.append(sock)
        return cast(int, sock.getsockname()[1])

    @property
    def open_connections(self) -> int:
        """How many connections are open."""
        return len(self._connections)

    async def stop(self) -> None:
        """Close every socket and wait until all work has ended."""
        for server in self._servers:
            server.close()
        tasks = [protocol.task for protocol in self._connections if protocol.task is not None]
        for protocol in list(self._connections):
            protocol.abort()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(server.wait_closed() for server in self._servers))
        for sock in self._reserved:
            sock.close()
        self._servers.clear()
        self._reserved.clear()
        await asyncio.sleep(0)


def _bound(port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setblocking(False)
        sock.bind((HOST, port))
    except BaseException:
        sock.close()
        raise
    return sock
