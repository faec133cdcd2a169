"""The bounded fetch over real sockets: deadlines, sizes, proxies, TLS, servers that break the protocol."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from pdguard.facts import _fetch
from pdguard.facts._fetch import Answer, Failed, Fetcher, Tls

OK = b"HTTP/1.1 200 OK\r\n"
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def raw(*pieces: bytes, pause: float = 0.0, hold: float = 0.0) -> Serve:
    """A server that sends these bytes whatever is asked."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read(64)
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(pause)
            await asyncio.sleep(hold)
        except ConnectionError:
            return
        finally:
            writer.close()

    return serve


def fetch(
    serve: Serve,
    path: str = "/server_info",
    *,
    tls: ssl.SSLContext | None = None,
    client: Tls | None = None,
    scheme: str = "",
) -> Answer | Failed:
    async def body() -> Answer | Failed:
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
        port = server.sockets[0].getsockname()[1]
        fetcher = Fetcher(timeout=0.5, connections=4)
        try:
            return await fetcher.get(f"{scheme or 'http'}://127.0.0.1:{port}", path, tls=client or Tls())
        finally:
            await fetcher.close()
            server.close()

    return asyncio.run(body())


def failure(answer: Answer | Failed) -> str:
    assert isinstance(answer, Failed)
    return answer.reason


def test_an_answer() -> None:
    assert fetch(raw(OK + b"content-length: 2\r\n\r\n", b"{}")) == Answer(b"{}")
    assert fetch(
        raw(OK + b"transfer-encoding: chunked\r\n\r\n", b"1\r\n{\r\n", b"1\r\n}\r\n0\r\n\r\n")
    ) == Answer(b"{}")


def test_the_deadline_is_over_everything() -> None:
    began = time.monotonic()
    trickle = raw(OK + b"content-length: 1000\r\n\r\n", *([b" "] * 1000), pause=0.05)
    assert failure(fetch(trickle)) == "the answer did not end within 0.5 s"
    header = raw(OK, *(b"x-%d: y\r\n" % n for n in range(100)), pause=0.05)
    assert failure(fetch(header)) == "no answer within 0.5 s"
    assert failure(fetch(raw(hold=3))) == "no answer within 0.5 s"
    assert time.monotonic() - began < 4


@pytest.mark.parametrize("path", sorted(_fetch.LIMITS))
def test_sizes(path: str) -> None:
    limit = _fetch.LIMITS[path]
    announced = fetch(raw(OK + b"content-length: %d\r\n\r\n" % (limit + 1), b"x"), path)
    assert "longer than" in failure(announced)
    if limit <= _fetch.MIB:
        block = b"x" * 65536
        sent = raw(OK + b"\r\n", *([block] * (limit // len(block))), b"x")
        assert "longer than" in failure(fetch(sent, path))


def test_a_length_with_thousands_of_digits() -> None:
    assert isinstance(fetch(raw(OK + b"content-length: " + b"9" * 5000 + b"\r\n\r\n")), Failed)


def test_too_many_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_fetch, "MAX_PIECES", 100)
    flood = raw(OK + b"transfer-encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 200)
    assert "too many small pieces" in failure(fetch(flood))


@pytest.mark.parametrize(
    ("wire", "words"),
    [
        (b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/sk-secret\r\n\r\n", "a redirect"),
        (b"HTTP/1.1 403 Forbidden\r\n\r\n", "HTTP 403: it wants a key"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", "HTTP 204"),
        (OK + b"content-encoding: gzip\r\ncontent-length: 9\r\n\r\nsk-secret", "a compressed answer"),
        (b"220 sk-secret SMTP\r\n", "not HTTP"),
        (b"\x16\x03\x01sk-secret", "not HTTP"),
        (OK + b"content-length: 100\r\n\r\nsk-secret", "ended too early"),
        (OK + b"transfer-encoding: chunked\r\n\r\nsk-secret", "ended too early, or what came is not HTTP"),
        (b"", "ended too early"),
    ],
)
def test_what_is_not_an_answer(wire: bytes, words: str) -> None:
    answer = fetch(raw(wire))
    assert words in failure(answer)
    assert "sk-secret" not in repr(answer)


def test_no_connection() -> None:
    async def body(url: str) -> Answer | Failed:
        fetcher = Fetcher(timeout=5, connections=1)
        try:
            return await fetcher.get(url, "/workers")
        finally:
            await fetcher.close()

    assert failure(asyncio.run(body("http://127.0.0.1:1"))) == "connection refused"
    assert failure(asyncio.run(body("http://no-such-host.invalid"))) == "the host name does not resolve"
    assert failure(asyncio.run(body("http://" + "a" * 70 + ".example"))) in (
        "the host name does not resolve",
        "the host name cannot be used",
    )


def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert fetch(raw(OK + b"content-length: 2\r\n\r\n{}")) == Answer(b"{}")


def test_paths_outside_the_list_cannot_be_asked() -> None:
    for path in ("/health", "/health_generate", "/flush_cache", "/abort_request", "/server_info?x", "/"):
        with pytest.raises(KeyError):
            asyncio.run(Fetcher(timeout=1, connections=1).get("http://127.0.0.1:1", path))


def test_tls_against_plain_http() -> None:
    assert "TLS" in failure(fetch(raw(OK + b"\r\n"), scheme="https"))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not here to make a certificate")
def test_tls(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=127.0.0.1",
    ]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    serve = raw(OK + b"content-length: 2\r\n\r\n{}")
    assert "not trusted" in failure(fetch(serve, tls=context, scheme="https"))
    assert fetch(serve, tls=context, scheme="https", client=Tls(ca_file=str(cert))) == Answer(b"{}")
    assert fetch(serve, tls=context, scheme="https", client=Tls(insecure=True)) == Answer(b"{}")
    missing = Tls(ca_file=str(tmp_path / "none.pem"))
    assert "TLS files" in failure(fetch(serve, tls=context, scheme="https", client=missing))
