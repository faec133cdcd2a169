"""HTTP messages: a request as h11 parsed it, an answer as the bytes that go out."""

from __future__ import annotations

import email.utils
import json
import time
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import parse_qsl

import h11

_JSON = ((b"content-type", b"application/json"),)
_clock: list[Any] = [0, b""]


def http_date() -> bytes:
    """The Date header's value, made once a second."""
    now = int(time.time())
    if _clock[0] != now:
        _clock[0], _clock[1] = now, email.utils.formatdate(now, usegmt=True).encode()
    return cast(bytes, _clock[1])


class Request:
    """One request, read whole."""

    __slots__ = ("body", "headers", "keep_alive", "method", "path", "query", "version")

    def __init__(self, event: h11.Request) -> None:
        target = event.target.decode("latin-1")
        self.path, _, self.query = target.partition("?")
        self.method = event.method.decode("latin-1")
        self.headers = event.headers
        self.version = event.http_version
        self.body = b""
        self.keep_alive = event.http_version == b"1.1" and b"close" not in self.header(b"connection").lower()

    def header(self, name: bytes) -> bytes:
        """A header's value by its lower-case name, empty if absent."""
        for key, value in self.headers:
            if key == name:
                return value
        return b""

    def param(self, name: str, default: str = "") -> str:
        """A query parameter."""
        for key, value in parse_qsl(self.query, keep_blank_values=True):
            if key == name:
                return value
        return default


class Answer:
    """A whole answer, kept as the bytes that follow the Date header."""

    __slots__ = ("body", "head", "status", "tail")

    def __init__(
        self,
        status: int,
        body: bytes = b"",
        headers: tuple[tuple[bytes, bytes], ...] = _JSON,
        *,
        server: bytes = b"uvicorn",
        length: int | None = None,
    ) -> None:
        self.status = status
        self.body = body
        self.head = status_line(status)
        lines = [
            b"\r\nserver: ",
            server,
            b"\r\ncontent-length: ",
            str(len(body) if length is None else length).encode(),
        ]
        for name, value in headers:
            lines += [b"\r\n", name, b": ", value]
        self.tail = b"".join(lines)

    def wire(self, *, close: bool) -> bytes:
        """The bytes to send."""
        end = b"\r\nconnection: close\r\n\r\n" if close else b"\r\n\r\n"
        return b"".join((self.head, http_date(), self.tail, end, self.body))


def json_answer(status: int, value: Any) -> Answer:
    """An answer with a compact JSON body."""
    return Answer(status, json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())


def text_answer(status: int, text: str, content_type: bytes = b"text/plain; charset=utf-8") -> Answer:
    """An answer with a text body."""
    return Answer(status, text.encode(), ((b"content-type", content_type),))


def status_line(status: int) -> bytes:
    """The bytes before the Date header's value."""
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Unknown"
    return f"HTTP/1.1 {status} {phrase}\r\ndate: ".encode()
