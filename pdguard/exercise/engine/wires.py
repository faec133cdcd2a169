"""Messages in memory: what the engine sends over ZeroMQ and HTTP reaches the other manager, nobody else."""

# ruff: noqa: D102 - the public methods of sockets and requests are their libraries' own

from __future__ import annotations

import asyncio
import importlib
import inspect
import itertools
import json
import queue
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pdguard.exercise.engine import boot

Frames = list[bytes]
Outward = Callable[[str, Frames], None]
Web = Callable[[str, str, Any], "tuple[int, bytes]"]


class Net:
    """Endpoints of this process by address; frames for an address that is not here go to `outward`."""

    def __init__(self, outward: Outward | None = None) -> None:
        self.outward = outward
        self.boxes: dict[str, queue.Queue[Frames]] = {}
        self.linger = 0.0
        """Seconds that a send takes after the frames have arrived: for messages that cross."""
        self._waiting: list[tuple[str, Frames]] | None = None
        self._lock = threading.Lock()
        self._ports = itertools.count(20001)

    def bind(self, host: str) -> tuple[int, queue.Queue[Frames]]:
        """A new endpoint at `host`, as `tcp://address`."""
        port = next(self._ports)
        box: queue.Queue[Frames] = queue.Queue()
        self.boxes[f"{host}:{port}"] = box
        return port, box

    def send(self, endpoint: str, frames: Frames) -> None:
        """Deliver, here or outward; to nobody where the endpoint is unknown."""
        if not self.send_here(endpoint, frames) and self.outward is not None:
            self.outward(endpoint, frames)
        if self.linger:
            time.sleep(self.linger)

    def send_here(self, endpoint: str, frames: Frames) -> bool:
        """Deliver to an endpoint of this process, if it is one."""
        box = self.boxes.get(endpoint)
        if box is None:
            return False
        with self._lock:
            if self._waiting is None:
                box.put(frames)
            else:
                self._waiting.append((endpoint, frames))
        return True

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What arrives here meanwhile is delivered afterwards."""
        with self._lock:
            self._waiting = []
        try:
            yield
        finally:
            with self._lock:
                late, self._waiting = self._waiting or [], None
            for endpoint, frames in late:
                self.send_here(endpoint, frames)


class Socket:
    """As much of a ZeroMQ socket as the managers use."""

    def __init__(self, net: Net) -> None:
        self._net = net
        self._box: queue.Queue[Frames] = queue.Queue()
        self._peer = ""

    def bind_to_random_port(self, address: str, *_range: Any, **_named: Any) -> int:
        port, self._box = self._net.bind(address)
        return port

    def connect(self, endpoint: str) -> None:
        self._peer = endpoint

    def send_multipart(self, parts: list[Any], *_flags: Any, **_named: Any) -> None:
        self._net.send(self._peer, [bytes(part) for part in parts])

    def recv_multipart(self, flags: int = 0, *_more: Any, **_named: Any) -> Frames:
        if flags:
            zmq: Any = importlib.import_module("zmq")
            try:
                return self._box.get_nowait()
            except queue.Empty:
                raise zmq.Again from None
        return self._box.get()

    def get_monitor_socket(self, *_events: Any) -> Socket:
        return Socket(self._net)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_arguments, **_named: 0


class Context:
    """A ZeroMQ context whose sockets are queues."""

    net = Net()

    def socket(self, *_kind: Any) -> Socket:
        return Socket(Context.net)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_arguments, **_named: 0


def lay(net: Net, web: Web) -> None:
    """Put `net` in the place of ZeroMQ, and `web` in the place of HTTP, for every module of the engine."""
    zmq: Any = importlib.import_module("zmq")
    requests: Any = importlib.import_module("requests")
    real = zmq.Context
    Context.net = net
    zmq.Context = Context
    for key in ("common", "mooncake", "nixl", "mori"):
        try:
            module = boot.part(key)
        except boot.Unavailable:
            continue
        for value in list(vars(module).values()):
            if inspect.isclass(value) and isinstance(value.__dict__.get("_ctx"), real):
                setattr(value, "_ctx", Context())  # noqa: B010 - unknown to the type checker

    def send(_adapter: Any, request: Any, **_named: Any) -> Any:
        body = json.loads(request.body) if request.body else None
        status, content = web(request.method, request.url, body)
        response = requests.Response()
        response.status_code, response._content = status, content
        response.url, response.request = request.url, request
        return response

    requests.adapters.HTTPAdapter.send = send
    boot.note("ZeroMQ and HTTP: messages in memory, no socket is opened")


class KnownFields:
    """Looks at prefill's answer about itself with this engine's eyes; can drop what it does not know.

    Engines read that answer into a class of theirs, and one unknown name makes them refuse all of it.
    """

    def __init__(self, web: Web, drop: bool) -> None:
        self._web, self._drop = web, drop
        self.unknown: list[str] = []

    def web(self, method: str, url: str, body: Any) -> tuple[int, bytes]:
        """Ask, and look."""
        status, content = self._web(method, url, body)
        query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(url).query))
        if status != 200 or query.get("prefill_dp_rank") != "-1":
            return status, content
        answer = json.loads(content)
        known = getattr(boot.member("common", "PrefillServerInfo"), "__dataclass_fields__", answer)
        self.unknown = sorted(set(answer) - set(known))
        if not self._drop or not self.unknown:
            return status, content
        boot.note("prefill's bootstrap answer, without what decode does not know: " + ", ".join(self.unknown))
        return status, json.dumps({name: answer[name] for name in answer if name in known}).encode()


class _Request:
    """As much of an aiohttp request as the bootstrap server's handlers use."""

    def __init__(self, method: str, query: dict[str, str], body: Any) -> None:
        self.method, self.query, self._body = method, query, body

    async def json(self) -> Any:
        return self._body


class Bootstrap:
    """The engine's own bootstrap server, its handlers called directly."""

    def __init__(self, kind: type) -> None:
        quiet: Any = type("Bootstrap", (kind,), {"run": lambda _self: None})
        self._server = quiet("10.77.0.1", 8998)
        self._lock = threading.Lock()

    def web(self, method: str, url: str, body: Any) -> tuple[int, bytes]:
        """Answer one request."""
        parts = urllib.parse.urlsplit(url)
        if parts.path == "/health":
            return 200, b"OK"
        if parts.path != "/route":
            return 404, b"no such path"
        request = _Request(method, dict(urllib.parse.parse_qsl(parts.query)), body)
        with self._lock:
            response: Any = asyncio.run(self._server._handle_route(request))
        content = response.body if response.body is not None else (response.text or "").encode()
        return int(response.status), bytes(content)
