"""A small HTTP client for the lab: no proxies, no exceptions for HTTP errors, every answer timed."""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_FAILED = 400
_EVENT, _END = "data: ", "[DONE]"


@dataclass(frozen=True)
class Answer:
    """What came back. `status` is None when there was no HTTP answer at all; `body` then says why."""

    status: int | None
    body: str
    seconds: float

    def json(self) -> Any:
        """The body; of a streamed answer the last event, which repeats all tokens before it."""
        if not self.body.startswith(_EVENT):
            return json.loads(self.body)
        events = [line.removeprefix(_EVENT) for line in self.body.splitlines() if line.startswith(_EVENT)]
        return json.loads([event for event in events if event != _END][-1])

    @property
    def tokens(self) -> list[int]:
        """Generated token ids of a `/generate` answer."""
        return list(self.json()["output_ids"])

    @property
    def prompt_tokens(self) -> int:
        return int(self.json()["meta_info"]["prompt_tokens"])

    @property
    def finish(self) -> str:
        """Why a `/generate` answer ended: `length`, `stop` or `abort`."""
        return str(self.json()["meta_info"]["finish_reason"]["type"])

    @property
    def ok(self) -> bool:
        return self.status is not None and self.status < _FAILED


def call(url: str, body: Mapping[str, Any] | None = None, timeout: float = 60) -> Answer:
    """GET, or POST of JSON when there is a body."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})
    started = time.monotonic()
    status: int | None = None
    try:
        with _OPENER.open(request, timeout=timeout) as response:
            status, text = response.status, response.read().decode(errors="replace")
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read().decode(errors="replace")
    except (OSError, HTTPException) as error:
        text = repr(error)
    return Answer(status, text, time.monotonic() - started)


def call_all(bodies: Mapping[str, Mapping[str, Any]], timeout: float = 60) -> dict[str, Answer]:
    """POST to several URLs at the same moment."""
    answers: dict[str, Answer] = {}

    def one(url: str, body: Mapping[str, Any]) -> None:
        answers[url] = call(url, body, timeout)

    threads = [threading.Thread(target=one, args=item) for item in bodies.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def send_only(url: str, body: Mapping[str, Any]) -> socket.socket:
    """POST without waiting for the answer. Closing the returned connection is a client that leaves."""
    where = urlsplit(url)
    data = json.dumps(body).encode()
    head = (
        f"POST {where.path} HTTP/1.1\r\nHost: {where.netloc}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    connection = socket.create_connection((where.hostname or "", where.port or 80), timeout=20)
    connection.sendall(head.encode() + data)
    return connection


def prompt(length: int, seed: int = 0) -> list[int]:
    """Token ids of a prompt: any length, the same every time, another for another seed."""
    return [(index * 7 + seed) % 256 for index in range(length)]


def generate_body(input_ids: Sequence[int], new_tokens: int, **more: Any) -> dict[str, Any]:
    """The body of a greedy `/generate` request."""
    sampling = {"max_new_tokens": new_tokens, "temperature": 0}
    return {"input_ids": list(input_ids), "sampling_params": sampling, **more}
