"""Fix X6, the answer to decode: prefill says that a room was refused as it says that one has failed.

Nothing on the wire is new. A rank that no prefill has, and for NIXL the reason, tell a hardened decode that
the request itself is at fault; a stock decode of any release takes it for a failure like another.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from . import holds, state
from .state import FAILED

logger = logging.getLogger(__name__)

RANK = -1
"""Prefill's rank in the status of a refused room. No release reads the rank of a failure."""

BY_PREFILL = "prefill has refused the request at its door"
BY_DECODE = "decode has refused the request at its door"

MOMENT = 0.1
"""Seconds that a message to decode may wait for another one; its sender has other requests to serve."""


def status(message: str) -> HTTPStatus:
    """The status of a half that failed: where the other has refused, the request is at fault."""
    refused = BY_PREFILL in message or BY_DECODE in message
    return HTTPStatus.BAD_REQUEST if refused else HTTPStatus.INTERNAL_SERVER_ERROR


# Prefill.


def answer(manager: Any, room: int, infos: Mapping[Any, Any], reason: str) -> None:
    """Tell every decode rank that takes part that `room` has failed, in the engine's own words."""
    from sglang.srt.utils.network import NetworkAddress

    parts = [str(room).encode(), str(FAILED).encode(), str(RANK).encode()]
    if _is_nixl(manager):
        parts = [b"KV_STATUS", *parts, (f"{BY_PREFILL}: {reason}" if reason else BY_PREFILL).encode()]
    for endpoint, port in dict.fromkeys((i.endpoint, i.dst_port) for i in infos.values() if not _is_dummy(i)):
        try:
            address = NetworkAddress(endpoint, port)
            _post(manager, address.to_tcp(), address.is_ipv6, parts)
        except Exception:
            logger.warning("decode at %s was not told that room %s is refused", endpoint, room, exc_info=True)


def _post(manager: Any, endpoint: str, is_ipv6: bool, parts: list[bytes]) -> None:
    """Send as the engine does, but to a peer that takes nothing do not wait: others would have to as well."""
    zmq: Any = importlib.import_module("zmq")

    socket = manager._connect(endpoint, is_ipv6=is_ipv6)
    lock = manager._socket_send_locks[endpoint]
    if not lock.acquire(timeout=MOMENT):
        raise TimeoutError(f"another message to {endpoint} is being sent")
    try:
        socket.send_multipart(parts, zmq.NOBLOCK)
    finally:
        lock.release()


def _is_dummy(info: Any) -> bool:
    asked = info.is_dummy
    return bool(asked() if callable(asked) else asked)


def _is_nixl(manager: Any) -> bool:
    return any(".nixl." in f"{one.__module__}." for one in type(manager).__mro__)


# Decode, of what prefill says.


def ended(queue: Any, held: Any, message: str) -> HTTPStatus:
    """The status of decode's half, before its client has it.

    What is held is told to prefill before that: the next request of a client that uses the number again at
    once would else be ended by it.
    """
    found = status(message)
    # A fake receiver has no manager in every release.
    manager = getattr(held.kv_receiver, "kv_mgr", None)
    if found == HTTPStatus.BAD_REQUEST and queue.enable_deferred_kv_release and state.holds(manager):
        holds.told(held.kv_receiver)
    return found


def reason(status: int, rank: int, told: str | None) -> str | None:
    """Why a room has failed, as prefill tells it: a rank that no prefill has stands for its door."""
    if status != FAILED or rank != RANK:
        return told
    return told if told and BY_PREFILL in told else BY_PREFILL


def noted(manager: Any, room: int, rank: int) -> None:
    """The same for 0.5.19 and Mooncake, whose message carries no reason: it has put down one of its own."""
    if rank != RANK:
        return
    with manager.failure_lock:
        if room in manager.request_status:
            manager.failure_records[room] = BY_PREFILL
        else:
            manager.failure_records.pop(room, None)


def told(manager: Any, parts: list[bytes]) -> bool:
    """Take a status of NIXL's prefill on 0.5.19, which does not know of them; True where it is one."""
    if len(parts) < 4 or parts[0] != b"KV_STATUS":
        return False
    try:
        room, state, rank = (int(part) for part in parts[1:4])
    except ValueError:
        return True
    if state == FAILED and room in manager.request_status:
        text = parts[4].decode("utf-8", "replace") if len(parts) > 4 else ""
        manager.record_failure(room, reason(state, rank, text) or "prefill says that the transfer has failed")
        manager.update_status(room, FAILED)
    return True
