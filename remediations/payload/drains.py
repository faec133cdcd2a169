"""Prefill's side of a held release: an acknowledgement says that no write can land any more, or is not sent.

Fixes 40645, 41402 and 43719, the part of 37077 that needs no other wire format, and X3 for NIXL. Three
threads meet here: the bootstrap thread takes ABORTs, transfer workers write, the scheduler clears. The order
that makes it safe is the engine's: a chunk is counted before its room's status is looked at, and a room is
marked failed before anybody waits for its acknowledgement. So once a failed room counts nothing, nothing more
is written.
"""

from __future__ import annotations

from typing import Any

from .state import FAILED, SUCCESS, WAITING, Endpoint, counts, holds, ledger


def counted(manager: Any, room: int) -> None:
    """A worker has taken a chunk of `room`; two workers may do so at the same time."""
    with ledger(manager).lock:
        manager._staging_outstanding[room] = manager._staging_outstanding.get(room, 0) + 1


def uncounted(manager: Any, room: int) -> None:
    """One chunk of `room` is done with; those that other workers write stay counted."""
    with ledger(manager).lock:
        left = manager._staging_outstanding.get(room, 0) - 1
        if left > 0:
            manager._staging_outstanding[room] = left
        else:
            manager._staging_outstanding.pop(room, None)


def finished(manager: Any, chunk: Any) -> None:
    """A chunk is written, or was counted and will not be."""
    if chunk.staging_counted:
        chunk.staging_counted = False
        uncounted(manager, chunk.room)


def skipped(manager: Any, chunk: Any) -> None:
    """A chunk is dropped because its room has failed or is gone: it may have been the last one waited for."""
    finished(manager, chunk)
    if holds(manager):
        manager._maybe_ack_drained_abort(chunk.room)


def sent(manager: Any, room: int, status: int) -> None:
    """A send has returned. One that failed may be running still: it can only be waited out."""
    if status != 0:
        poison(manager, room)


def broke(manager: Any, chunk: Any) -> None:
    """A worker met an error in mid-chunk: some of its writes may have begun, and nobody watches them now."""
    if chunk is not None and chunk.staging_counted:
        poison(manager, chunk.room)
        if _own_poison(manager) is None:
            finished(manager, chunk)


def postponed(manager: Any, chunk: Any, writes: Any) -> None:
    """A chunk goes back into the queue; `writes` that were begun for it are lost sight of."""
    if writes:
        poison(manager, chunk.room)


def poison(manager: Any, room: int) -> None:
    """No acknowledgement leaves for `room` any more, not even to an ABORT that comes later."""
    own = _own_poison(manager)
    if holds(manager) and own is not None:
        own(room)
    elif holds(manager):
        books = ledger(manager)
        with books.lock:
            books.poison(room)


def withheld(manager: Any, room: int) -> bool:
    """Whether `room` is poisoned; asked where every acknowledgement passes."""
    books = ledger(manager)
    with books.lock:
        return room in books.poisoned


def unsettled(manager: Any, room: int, active: bool) -> bool:
    """Whether an ABORT has to wait: its room is alive, or is not and has writes under way all the same."""
    return bool(active) or counts(manager).get(room, 0) > 0


def owe(manager: Any, room: int, ip: str, port: int) -> None:
    """A decode rank waits for `room`; it joins those that wait already."""
    books = ledger(manager)
    with books.lock:
        if room not in books.poisoned:
            books.owed.setdefault(room, {})[ip, port] = None


def due(manager: Any, room: int) -> list[Endpoint]:
    """Everybody who is to be told now that `room` has drained; each is named once, and then forgotten."""
    books = ledger(manager)
    with books.lock:
        # A room that is neither failed nor over may be given another chunk at any time.
        if counts(manager).get(room, 0) > 0 or _alive(manager, room):
            return []
        waiting = books.owed.pop(room, {})
        # What code that knows nothing of the books has put down counts as well.
        noted = manager._deferred_ack_targets.pop(room, None)
        if noted is not None:
            waiting[noted] = None
        return [] if room in books.poisoned else list(waiting)


def cleared(manager: Any, room: int) -> None:
    """The scheduler forgets `room`. Who waits for it is told now or, with writes under way, by the worker."""
    if hasattr(manager, "_staging_outstanding"):
        manager._maybe_ack_drained_abort(room)
    else:
        _forget(manager, room, poison_too=False)


def opened(manager: Any, room: int) -> None:
    """Another request takes the number of `room`: who waits for the old one, and its poison, are forgotten.

    An ABORT of the old one that comes after this would be answered for the new one; rooms are random numbers
    of 63 bits, and the engine itself cannot tell them apart.
    """
    _forget(manager, room, poison_too=True)


def stays_over(manager: Any, room: int, status: int) -> bool:
    """Whether `status` would bring a room of prefill back that has failed, or that was cleared.

    Decode gave such a room up and may have its pages back; one that lives takes new chunks. Only a new
    request, which begins with a status up to WAITING, makes a room that is not there.
    """
    if not hasattr(manager, "_deferred_ack_targets") or not holds(manager):
        return False
    now = manager.request_status.get(room)
    return status > WAITING if now is None else bool(now == FAILED)


def _own_poison(manager: Any) -> Any:
    """What releases from 0.5.22 on do themselves with such a room; they also count its chunks down."""
    return getattr(manager, "poison_deferred_ack_room", None)


def _alive(manager: Any, room: int) -> bool:
    status = getattr(manager, "request_status", {}).get(room)
    return status is not None and status not in (FAILED, SUCCESS)


def _forget(manager: Any, room: int, *, poison_too: bool) -> None:
    books = ledger(manager)
    with books.lock:
        books.owed.pop(room, None)
        getattr(manager, "_deferred_ack_targets", {}).pop(room, None)
        if poison_too:
            books.poisoned.pop(room, None)
