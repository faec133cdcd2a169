"""Bounded GET requests: the only module that knows httpx.

A fetch ends by its deadline (over the whole exchange: a trickle does not extend it), by a limit on the size
of the body, or by an answer. It follows no redirect, reads no proxies from the environment, keeps no cookies
and asks for nothing that is not on the list of passive paths below. What goes wrong becomes a `Failed` whose
reason is written here and holds no byte of what the other side sent.

Requests go through httpx's transport rather than its client: that leaves out cookie jars, redirects,
authentication flows and the log line with the URL, none of which is wanted here.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

import httpx

Transport = httpx.AsyncBaseTransport
MIB = 1024 * 1024
MAX_PIECES = 50_000
IDLE_A_POOL = 2
BOOTSTRAP_ROUTE = "/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1"

LIMITS: dict[str, int] = {
    # engines
    "/server_info": 4 * MIB,
    "/get_server_info": 4 * MIB,
    "/v1/models": MIB,
    "/v1/loads": MIB,
    "/model_info": MIB,
    "/metrics": 16 * MIB,
    # a prefill's bootstrap server
    BOOTSTRAP_ROUTE: MIB // 16,
    # routers
    "/workers": 8 * MIB,
    "/list_workers": MIB,
}
"""Every path that may be asked for, with the largest body accepted. All are passive; /health is not."""

KEYED_PATHS = frozenset(LIMITS) - {"/metrics", BOOTSTRAP_ROUTE}
"""Paths that may want a key. The others are open on every version, so they are not shown one."""

HOW_KEY = "name the environment variable that holds the key under `auth:`"
HOW_TLS = "check the files under `tls:` in cluster.yaml"
HOW_URL = "check the URL in cluster.yaml and that this machine can reach it"


@dataclass(frozen=True, slots=True)
class Answer:
    """A body that came with HTTP 200 (empty where a sink took it)."""

    body: bytes


@dataclass(frozen=True, slots=True)
class Failed:
    """No usable answer. `status` is 0 where not even an HTTP status came."""

    reason: str
    how: str = HOW_URL
    status: int = 0


@dataclass(frozen=True, slots=True)
class Tls:
    """How TLS peers are checked; fields as in cluster.yaml, paths already absolute."""

    ca_file: str | None = None
    client_cert_file: str | None = None
    client_key_file: str | None = None
    insecure: bool = False

    def context(self) -> ssl.SSLContext:
        """The context for connections; unreadable files raise OSError (ssl.SSLError is one)."""
        context = ssl.create_default_context(cafile=self.ca_file)
        if self.client_cert_file:
            context.load_cert_chain(self.client_cert_file, self.client_key_file)
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


PLAIN = Tls()


class Fetcher:
    """Fetches for one run. `transport` replaces the network in tests."""

    def __init__(self, *, timeout: float, connections: int, transport: Transport | None = None) -> None:
        self._timeout = timeout
        self._limits = httpx.Limits(max_connections=None, max_keepalive_connections=IDLE_A_POOL)
        self._pools = max(1, connections)
        self._given = transport
        self._made: dict[tuple[Tls | None, int], Transport] = {}

    async def close(self) -> None:
        """Close every connection."""
        made = list(self._made.values())
        self._made.clear()
        for transport in made:
            await transport.aclose()

    def _transport(self, base: str, tls: Tls) -> Transport:
        if self._given is not None:
            return self._given
        secure = base[:6].lower() == "https:"
        # A pool looks at each of its connections for every request: many small ones cost far less than one
        # large one. Plain HTTP's context trusts nobody, which spares loading the CA store.
        place = (tls if secure else None, zlib.crc32(base.encode()) % self._pools)
        transport = self._made.get(place)
        if transport is None:
            context = tls.context() if secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            transport = httpx.AsyncHTTPTransport(verify=context, limits=self._limits, trust_env=False)
            self._made[place] = transport
        return transport

    async def get(
        self,
        base: str,
        path: str,
        *,
        key: str | None = None,
        tls: Tls = PLAIN,
        sink: Callable[[bytes], None] | None = None,
    ) -> Answer | Failed:
        """GET `path` below `base`. With a `sink` the body goes there piece by piece and is not kept."""
        limit = LIMITS[path]
        url = _join(base, path)
        if url is None:
            return Failed("the URL in cluster.yaml is not an http or https URL with a host")
        headers = {"accept": "*/*", "accept-encoding": "identity", "user-agent": "pdguard"}
        if key is not None and path in KEYED_PATHS:
            if not (key.isascii() and key.isprintable()):
                return Failed("the key holds characters that cannot be sent in a header", HOW_KEY)
            headers["authorization"] = f"Bearer {key}"
        try:
            transport = self._transport(base, tls)
        except (OSError, ValueError):
            return Failed("the TLS files named in cluster.yaml cannot be used", HOW_TLS)
        began = [False]
        try:
            async with asyncio.timeout(self._timeout):
                request = httpx.Request("GET", url, headers=headers)
                return await _exchange(transport, request, limit, sink, began)
        except TimeoutError:
            what = "the answer did not end" if began[0] else "no answer"
            return Failed(f"{what} within {self._timeout:g} s")
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError, UnicodeError) as error:
            return Failed(_explain(error))


async def _exchange(
    transport: Transport,
    request: httpx.Request,
    limit: int,
    sink: Callable[[bytes], None] | None,
    began: list[bool],
) -> Answer | Failed:
    response = await transport.handle_async_request(request)
    try:
        began[0] = True
        failed = _refusal(response, limit)
        if failed is not None:
            return failed
        stream = response.stream
        if not isinstance(stream, httpx.AsyncByteStream):
            return Failed("the answer cannot be read piece by piece")
        pieces: list[bytes] = []
        take, size, count = sink or pieces.append, 0, 0
        async for piece in stream:
            size += len(piece)
            count += 1
            if size > limit:
                return _too_big(limit)
            if count > MAX_PIECES:
                return Failed("the answer came in too many small pieces", status=200)
            take(piece)
        return Answer(pieces[0] if len(pieces) == 1 else b"".join(pieces))
    finally:
        await response.aclose()


def bootstrap_base(url: str, port: int) -> str:
    """The address of a prefill's bootstrap server, which speaks plain HTTP on the engine's host."""
    host = _split(url).hostname or ""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:  # a malformed IPv6 host
        return SplitResult("", "", "", "", "")


def _join(base: str, path: str) -> str | None:
    parts = _split(base)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        return None
    return base.rstrip("/") + path


def _too_big(limit: int) -> Failed:
    size = f"{limit // MIB} MiB" if limit >= MIB else f"{limit // 1024} KiB"
    return Failed(f"the answer is longer than {size}, the most that is read here", status=200)


def _refusal(response: httpx.Response, limit: int) -> Failed | None:
    """Why this answer is not read, from its status and headers alone."""
    status = response.status_code
    if status in (401, 403):
        return Failed(f"HTTP {status}: it wants a key, or another one", HOW_KEY, status)
    if 300 <= status < 400:
        return Failed(f"HTTP {status}: a redirect, which is not followed", status=status)
    if status >= 500:
        return Failed(
            f"HTTP {status}", "the server is starting or in trouble: look at its log, audit again", status
        )
    if status != 200:
        return Failed(f"HTTP {status}", status=status)
    headers = response.headers
    if headers.get("content-encoding", "identity").lower() != "identity":
        return Failed("a compressed answer, which was not asked for", status=200)
    length = headers.get("content-length", "")
    if length.isascii() and length.isdigit() and (len(length) > 18 or int(length) > limit):
        return _too_big(limit)
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and everything behind it, the members of groups included."""
    todo, seen = [error], 0
    while todo and seen < 50:
        current = todo.pop()
        seen += 1
        yield current
        todo.extend(e for e in (current.__cause__, current.__context__) if e is not None)
        if isinstance(current, BaseExceptionGroup):
            todo.extend(current.exceptions)


def _explain(error: BaseException) -> str:
    """A sentence of our own for an error; its own text may quote the other side and is not used."""
    kinds = tuple(_chain(error))
    for kind, text in (
        (ssl.SSLCertVerificationError, "TLS: the certificate is not trusted, or is for another name"),
        (ssl.SSLError, "TLS: no common ground with the other side (does it speak TLS at all?)"),
        (socket.gaierror, "the host name does not resolve"),
        (ConnectionRefusedError, "connection refused"),
        (ConnectionResetError, "the connection was reset"),
        (httpx.ConnectError, "cannot connect"),
        (httpx.RemoteProtocolError, "the connection ended too early, or what came is not HTTP"),
        (httpx.ReadError, "the connection broke"),
        (httpx.WriteError, "the connection broke"),
        (httpx.InvalidURL, "the URL in cluster.yaml cannot be used"),
        (UnicodeError, "the host name cannot be used"),
    ):
        if any(isinstance(e, kind) for e in kinds):
            return text
    return "the request failed"
