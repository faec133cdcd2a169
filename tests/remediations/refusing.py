"""A prefill as fix X6 meets it: manager, queue, and the loop of its bootstrap thread with the seams in it."""

from __future__ import annotations

import sys
import threading
from collections import defaultdict
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.remediations.engine import Abort, KVPoll, request
from tests.remediations.payload import payload

FAKE = "2.2.2.2"
TOO_LONG = "Input length (9 tokens) exceeds the maximum allowed length (8 tokens). Use a shorter input."
LENGTH = 9
LENGTHS = "Input length (9 tokens) exceeds the maximum allowed length (8 tokens)"


class Address:
    """The engine's network address, as much of it as is used."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.is_ipv6 = ":" in host

    def to_tcp(self) -> str:
        return f"tcp://{self.host}:{self.port}"


def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """What X6 imports of the engine beyond the common stand-ins."""
    utils: Any = sys.modules["sglang.srt.disaggregation.utils"]
    utils.FAKE_BOOTSTRAP_HOST = FAKE
    network: Any = ModuleType("sglang.srt.utils.network")
    network.NetworkAddress = Address
    for name in ("sglang.srt.utils", "sglang.srt.utils.network"):
        monkeypatch.setitem(sys.modules, name, network)
    zmq: Any = ModuleType("zmq")
    zmq.NOBLOCK = 1
    monkeypatch.setitem(sys.modules, "zmq", zmq)


class Socket:
    def __init__(self, sent: list[tuple[str, list[bytes]]], endpoint: str) -> None:
        self._sent, self._endpoint = sent, endpoint

    def send_multipart(self, parts: list[bytes], flags: int = 0) -> None:
        assert flags == 1, "the scheduler and the bootstrap thread wait for no peer"
        self._sent.append((self._endpoint, parts))


class Manager:
    """A KV manager of prefill. A room that is not there is only made by a request's opening status."""

    def __init__(self) -> None:
        self.request_status: dict[int, int] = {}
        self.transfer_infos: dict[int, dict[bytes, Any]] = {}
        self.req_to_decode_prefix_len: dict[int, int] = {}
        self.failure_records: dict[int, str] = {}
        self.failure_lock = threading.Lock()
        self.kv_args = SimpleNamespace(page_size=4)
        self.sent: list[tuple[str, list[bytes]]] = []
        self._socket_send_locks: dict[str, threading.Lock] = defaultdict(threading.Lock)

    def _connect(self, endpoint: str, is_ipv6: bool = False) -> Socket:
        return Socket(self.sent, endpoint)

    def record_failure(self, room: int, reason: str) -> None:
        with self.failure_lock:
            self.failure_records[room] = reason

    def update_status(self, room: int, status: int) -> None:
        now = self.request_status.get(room)
        if now is None:
            if status in (KVPoll.Bootstrapping, KVPoll.WaitingForInput):
                self.request_status[room] = status
        elif status == KVPoll.Failed:
            self.request_status[room] = status
        elif now != KVPoll.Failed:
            self.request_status[room] = max(now, status)


class NixlManager(Manager):
    pass


NixlManager.__module__ = "sglang.srt.disaggregation.nixl.conn"


class Sender:
    """What polls a room: it must find it, as the engine's scheduler ends where it does not."""

    def __init__(self, manager: Manager, room: int) -> None:
        self.manager, self.room = manager, room
        self.conclude_state: int | None = None
        manager.update_status(room, KVPoll.Bootstrapping)

    def poll(self) -> int:
        if self.conclude_state is None:
            status = self.manager.request_status[self.room]
            if status in (KVPoll.Failed, KVPoll.Success):
                self.conclude_state = status
            return status
        return self.conclude_state

    def clear(self) -> str | None:
        self.conclude_state = KVPoll.Failed
        for table in (
            self.manager.request_status,
            self.manager.req_to_decode_prefix_len,
            self.manager.transfer_infos,
        ):
            table.pop(self.room, None)
        return self.manager.failure_records.pop(self.room, None)


class Prefill:
    """Prefill: its scheduler (`refuse`, `open`, `met`) and its bootstrap thread (`take`)."""

    def __init__(self, kind: type[Manager] = Manager, backend: str = "mooncake", ranks: int = 1) -> None:
        self.manager = kind()
        self.ranks = ranks
        self.queue = SimpleNamespace(
            kv_manager=self.manager, transfer_backend=SimpleNamespace(value=backend), queue=[]
        )
        self.doors = payload("refusals")

    def request(self, room: int | None, **state: Any) -> Any:
        given: dict[str, Any] = {"bootstrap_room": room, "bootstrap_host": "10.0.0.1", "bootstrap_port": 8998}
        given |= {"origin_input_ids": [0] * LENGTH, **state}
        return request([], **given)

    def refuse(self, room: int | None, message: str = TOO_LONG, **state: Any) -> None:
        self.doors.at_prefill(self.queue, self.request(room, to_finish=Abort(message), **state))

    def open(self, room: int, length: int = LENGTH) -> Any:
        """The first half of an admission: the sender is made."""
        req = self.request(room, origin_input_ids=[0] * length)
        req.disagg_kv_sender = Sender(self.manager, room)
        return req

    def met(self, req: Any) -> Any:
        """The second half."""
        self.doors.met(self.queue, req)
        return req.disagg_kv_sender

    def admit(self, room: int) -> Any:
        return self.met(self.open(room))

    def take(self, frames: Sequence[bytes]) -> None:
        """One turn of the bootstrap thread, as the engines have it, with the two seams."""
        parts, manager = list(frames), self.manager
        if self.doors.heard(manager, parts):
            return
        room = int(parts[1])
        if parts[0] == b"ABORT":
            if manager.request_status.get(room) not in (None, KVPoll.Success):
                manager.update_status(room, KVPoll.Failed)
            return
        manager.transfer_infos.setdefault(room, {})[parts[2]] = SimpleNamespace(
            endpoint="10.0.1.1", dst_port=int(parts[2]), is_dummy=parts[3:] == [b"dummy"]
        )
        if len(manager.transfer_infos[room]) == self.ranks:
            manager.req_to_decode_prefix_len[room] = 0
            self.doors.bootstrapped(manager, room)

    def kinds(self) -> dict[int, str]:
        """What is remembered, by room."""
        return {room: one.state for room, one in self.doors.doors(self.manager).rooms.items()}


def word(room: int, rank: int = 0, reason: str = LENGTHS) -> list[bytes]:
    """A decode rank has refused the request."""
    head = [b"ABORT", str(room).encode(), b"10.0.1.1", str(20000 + rank).encode(), b"0", b"0"]
    return [*head, payload("refusals").MARK, reason.encode()]


def asks(room: int, rank: int = 0, *more: bytes) -> list[bytes]:
    """A decode rank has accepted the request, and announces where its pages are."""
    return [b"handshake", str(room).encode(), str(20000 + rank).encode(), *more]


class Clock:
    """In the place of `time`: it stands still unless it is told to go on."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now
