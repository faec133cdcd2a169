"""A loopback server that answers as Prometheus would, or as nobody should; over TLS if wanted."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


@dataclass
class Asked:
    query: str
    headers: Mapping[str, str]
    client: str
    """Common name of the certificate that the client showed."""


@dataclass
class Fake:
    """Answers each query by `answer`, which gives the result part, raw bytes, or (status, headers, bytes)."""

    answer: Callable[[str], Any]
    asked: list[Asked] = field(default_factory=list)
    url: str = ""


def sample(labels: Mapping[str, str], value: object, at: float | None = None) -> dict[str, Any]:
    return {"metric": dict(labels), "value": [time.time() if at is None else at, value]}


def _client(connection: object) -> str:
    shown = connection.getpeercert() if isinstance(connection, ssl.SSLSocket) else None
    names: Any = (shown or {}).get("subject", ())
    return "".join(value for part in names for key, value in part if key == "commonName")


@contextmanager
def serving(answer: Callable[[str], Any], tls: ssl.SSLContext | None = None) -> Iterator[Fake]:
    fake = Fake(answer)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            query = parse_qs(urlsplit(self.path).query).get("query", [""])[0]
            fake.asked.append(Asked(query, dict(self.headers.items()), _client(self.connection)))
            result = fake.answer(query)
            status, headers, body = 200, {"content-type": "application/json"}, result
            if isinstance(result, tuple):
                status, more, body = result
                headers |= more
            elif not isinstance(result, bytes):
                content = {"status": "success", "data": {"resultType": "vector", "result": result}}
                body = json.dumps(content).encode()
            self.send_response(status)
            for name, text in {"content-length": str(len(body)), **headers}.items():
                self.send_header(name, text)
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            del format, args

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            del request, client_address  # a client that refuses a certificate is no news

    server = Quiet(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    fake.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
