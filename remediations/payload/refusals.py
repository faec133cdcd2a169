"""Fix X6, prefill's side: a request that one half refuses at its door is ended on the other half at once.

Without this the half that accepted waits for its peer until the timeout (300 s unless set otherwise),
holding what it has reserved. Prefill answers the handshake of a room that it has refused as it answers that
of a failed one, and takes decode's word (see `errands`) for a room that decode has refused.

Two threads meet here: the scheduler refuses and opens rooms, the bootstrap thread hears from decode. What
they decide about a room is decided under one lock, so whichever comes second finds what the first has left.
"""

from __future__ import annotations

import re
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

from .answers import BY_DECODE, answer
from .state import BOOTSTRAPPING, FAILED, WAITING

MARK = b"pdguard-refused"
"""The seventh part of an ABORT from a door. Engines read an ABORT's parts by number and pass over more."""

PLACE = 6

KEPT = 300.0
"""Seconds for which a refused room's handshake is answered; decode may wait for memory before it asks."""

HEARD = 60.0
"""Seconds for which decode's word waits for its request, and a room that is over takes no second one."""

MOST = 65_536
"""Rooms that are remembered; beyond that the oldest is forgotten, and its peer waits as without this."""

_LENGTH = re.compile(
    r"Input length \((\d+) tokens\) exceeds the maximum allowed length \(\d+ tokens\)"
    r"|exceeds the maximum number of tokens: (\d+) > \d+"
)

HERE, THERE, OVER = "refused here", "refused there", "over"


@dataclass(slots=True)
class _Room:
    state: str
    until: float
    why: str = ""
    by: frozenset[bytes] = frozenset()
    """The decode ranks that have said so: each does once, so a rank's second word is of another request."""


@dataclass
class Doors:
    """What one KV manager remembers of refused rooms. `lock` guards all of it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    rooms: OrderedDict[int, _Room] = field(default_factory=OrderedDict)
    left: set[int] = field(default_factory=set)
    """Rooms whose handshake is over; the bootstrap thread, which alone adds to the table of handshakes, takes
    it out."""
    senders: WeakValueDictionary[int, Any] = field(default_factory=WeakValueDictionary)
    """The sender of every room that has one: whoever polls it must find its room."""

    def note(
        self, room: int, state: str, seconds: float, why: str = "", by: frozenset[bytes] = frozenset()
    ) -> None:
        """Remember `room`, and forget what is too old or too much."""
        now = time.monotonic()
        self.rooms.pop(room, None)
        self.rooms[room] = _Room(state, now + seconds, why, by)
        while self.rooms:
            oldest = next(iter(self.rooms))
            if len(self.rooms) <= MOST and self.rooms[oldest].until > now:
                break
            del self.rooms[oldest]

    def take(self, room: int) -> _Room | None:
        """What is remembered of `room`, forgotten with that; None where it is too old."""
        found = self.rooms.pop(room, None)
        return found if found is not None and found.until > time.monotonic() else None


def doors(manager: Any) -> Doors:
    """The memory of `manager`; made when it is first asked for, by whichever thread comes first."""
    found = manager.__dict__.get("_pdguard_doors")
    if found is None:
        found = manager.__dict__.setdefault("_pdguard_doors", Doors())
    made: Doors = found
    return made


def is_refused(req: Any) -> bool:
    """Whether intake has refused the request before it got anything; by the engine's rule if it has one."""
    from sglang.srt.disaggregation import utils

    own = getattr(utils, "is_unadmitted_reject", None)
    if own is not None:
        return bool(own(req))
    from . import doors as at_door

    return at_door.is_refused(req)


def speaks(queue: Any, req: Any) -> bool:
    """Whether both halves of `req` can tell each other: a real room, a backend with known messages."""
    from sglang.srt.disaggregation.utils import FAKE_BOOTSTRAP_HOST

    return (
        queue.transfer_backend.value in ("mooncake", "nixl", "ascend")
        and req.bootstrap_room is not None
        and req.bootstrap_host != FAKE_BOOTSTRAP_HOST
        and not getattr(queue.kv_manager, "defer_decode_allocation", False)
    )


def why(req: Any) -> str:
    """The reason that the peer is told: the lengths, if it was those; other reasons may quote the request."""
    verdict = req.finished_reason or req.to_finish
    return _lengths(str(getattr(verdict, "message", "") or ""))


def _lengths(text: str) -> str:
    found = _LENGTH.search(text)
    return found[0] if found else ""


def _refused_length(reason: str) -> int:
    """How many tokens a request had that was refused with `reason`; 0 where it was not its length."""
    found = _LENGTH.search(reason)
    return int(found[1] or found[2]) if found else 0


# Prefill's scheduler.


def at_prefill(queue: Any, req: Any) -> None:
    """A request comes to prefill's door; one that intake has refused is refused for decode as well."""
    if speaks(queue, req) and is_refused(req):
        _refuse(queue, req)


def over_capacity(queue: Any, req: Any, exceeds: bool) -> bool:
    """Pass on whether the request exceeds prefill's capacity, which has answered it by now."""
    if exceeds and speaks(queue, req):
        _refuse(queue, req)
    return exceeds


def met(queue: Any, req: Any) -> None:
    """A request has got its sender: what is remembered of its room is over, or ends it."""
    if not speaks(queue, req):
        return
    manager, room = queue.kv_manager, int(req.bootstrap_room)
    kept, sender = doors(manager), req.disagg_kv_sender
    sender.pdguard_tokens = len(req.origin_input_ids)
    with kept.lock:
        kept.senders[room] = req.disagg_kv_sender
        found = kept.rooms.get(room)
        if found is None or found.state == OVER:
            return  # a rank of decode may have its word still to say of the request before this one
        kept.take(room)
        if found.state == HERE or found.until <= time.monotonic():
            return
        kept.note(room, OVER, HEARD, by=found.by)
        if _is_of_another(sender, found.why):
            return
    _end(manager, room, found.why)


def _is_of_another(sender: Any, reason: str) -> bool:
    """Whether decode has refused a request of another length, which has had this number before."""
    refused = _refused_length(reason)
    return bool(refused and sender.pdguard_tokens and refused != sender.pdguard_tokens)


def _refuse(queue: Any, req: Any) -> None:
    manager, room, reason = queue.kv_manager, int(req.bootstrap_room), why(req)
    kept = doors(manager)
    with kept.lock:
        found = kept.take(room)
        if found is not None and found.state == THERE:
            kept.note(room, OVER, HEARD, by=found.by)
            return
        now = manager.request_status.get(room)
        if now is None:
            kept.note(room, HERE, KEPT, reason)
            return
        if now not in (WAITING, FAILED) or _is_served(kept, room):
            return
        if now == WAITING and _is_shorter(manager, room, _refused_length(reason)):
            return  # decode asks for another request of this number, which is still to come
        # Decode was quicker: its handshake is in and complete, and no sender will ever come for it.
        manager.request_status.pop(room, None)
        infos = dict(manager.transfer_infos.get(room) or {})
        kept.left.add(room)
    if now == WAITING:
        answer(manager, room, infos, reason)
        return
    # It has taken it back already; what is written down of that nobody would ever read.
    with manager.failure_lock:
        manager.failure_records.pop(room, None)


def _is_served(kept: Doors, room: int) -> bool:
    """Whether another request of this number is on its way; it must not lose its room."""
    return _sender(kept, room) is not None


def _sender(kept: Doors, room: int) -> Any:
    """The sender that has the room and is not over; None before `met` as well."""
    sender = kept.senders.get(room)
    return sender if sender is not None and getattr(sender, "conclude_state", None) is None else None


# Prefill's bootstrap thread.


def heard(manager: Any, parts: list[bytes]) -> bool:
    """Take decode's word that it has refused a request; True where the message says that and nothing else."""
    kept = manager.__dict__.get("_pdguard_doors")
    if kept is not None and kept.left:
        _clean(manager, kept)
    if len(parts) <= PLACE or parts[0] != b"ABORT" or parts[PLACE] != MARK:
        return False
    try:
        room = int(parts[1])
    except ValueError:
        return True
    teller = b":".join(parts[2:4])
    reason = _lengths(parts[PLACE + 1].decode("utf-8", "replace")) if len(parts) > PLACE + 1 else ""
    kept = doors(manager)
    with kept.lock:
        found = kept.take(room)
        sender = _sender(kept, room) if room in manager.request_status else None
        before = frozenset[bytes]() if found is None or teller in found.by else found.by
        ended = found is not None and (
            found.state == HERE or (found.state == OVER and teller not in found.by)
        )
        # A sender that `met` has not seen yet finds the word there.
        state = OVER if sender is not None or ended else THERE
        kept.note(room, state, HEARD, "" if state == OVER else reason, before | {teller})
    if sender is not None and not _is_of_another(sender, reason):
        _end(manager, room, reason)
    return True


def bootstrapped(manager: Any, room: int) -> None:
    """All decode ranks have announced themselves for `room`: it may begin, or was refused and is answered."""
    kept = doors(manager)
    with kept.lock:
        found = kept.rooms.get(room)
        if (
            found is None
            or found.state != HERE
            or found.until <= time.monotonic()
            or _is_shorter(manager, room, _refused_length(found.why))
        ):
            if found is not None and found.state != OVER:
                del kept.rooms[room]  # decode has accepted another request of this number
            manager.update_status(room, WAITING)
            return
        del kept.rooms[room]
    infos = manager.transfer_infos.pop(room, {})
    manager.req_to_decode_prefix_len.pop(room, None)
    answer(manager, room, infos, found.why)


def _is_shorter(manager: Any, room: int, refused: int) -> bool:
    """Whether decode has made room for fewer tokens than were refused: then it asks for another request."""
    infos = manager.transfer_infos.get(room) or {}
    pages = max((len(getattr(info, "dst_kv_indices", ())) for info in infos.values()), default=0)
    if not refused or not pages:
        return False
    there = manager.req_to_decode_prefix_len.get(room) or 0
    return int(there + pages * manager.kv_args.page_size) < refused


def _clean(manager: Any, kept: Doors) -> None:
    with kept.lock:
        rooms, kept.left = kept.left, set()
    for room in rooms:
        manager.transfer_infos.pop(room, None)
        manager.req_to_decode_prefix_len.pop(room, None)


def _end(manager: Any, room: int, reason: str) -> None:
    """Fail a room of prefill that decode has refused.

    Decode never asks for a room that it has refused: one that any of its ranks has asked for is another
    request of this number. One that is over already stays as it is.
    """
    if manager.request_status.get(room) != BOOTSTRAPPING or room in manager.transfer_infos:
        return
    manager.record_failure(room, f"{BY_DECODE}: {reason}" if reason else BY_DECODE)
    manager.update_status(room, FAILED)
