"""MORI's side of a held release (fix X2): writes are counted and waited for before anything is acknowledged.

The books and their rules are those of `drains`. What is MORI's own: a write has a status that says in
progress, succeeded or failed, and only success says that it is over. A chunk of an aborted room is waited for
by the worker that began it, as one of a living room is: no further thread is needed for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from .drains import counted, poison, skipped
from .state import FAILED, SUCCESS, holds

_ACKNOWLEDGED = b"ABORT_ACK"


def prepare(manager: Any) -> None:
    """Begin to count chunks by room; before the first worker starts."""
    manager._staging_outstanding = {}


def begun(manager: Any, chunk: Any) -> None:
    """A worker has taken a chunk; nothing of it is looked at before this."""
    if holds(manager) and not chunk.staging_counted:
        counted(manager, chunk.room)
        chunk.staging_counted = True


def skips(manager: Any, room: int) -> bool:
    """Whether a chunk of a room that is over is left alone although its writes have begun.

    While releases are held it is not: they are waited for like any others, and then the chunk is dropped.
    """
    return not holds(manager) and bool(manager._should_skip_transfer(room))


def waited(manager: Any, room: int, failure: str | None) -> None:
    """The wait for a chunk has ended, well only without a `failure`.

    One that failed, or took too long, may write on, and the writes begun with it are not looked at any more.
    """
    if failure is not None:
        poison(manager, room)


def done(manager: Any, chunk: Any) -> None:
    """A worker is through with a chunk, however that ended; it may have been the last one waited for."""
    skipped(manager, chunk)


def asked(manager: Any, frames: Sequence[bytes]) -> None:
    """The engine has taken an ABORT: who sent it is answered when nothing of the room can land any more."""
    if not holds(manager) or len(frames) < 4:
        return
    try:
        room, ip, port = int(frames[1]), frames[2].decode("ascii"), int(frames[3])
    except ValueError:
        return
    if _may_come(manager, room):
        return
    if manager.request_status.get(room) not in (None, FAILED, SUCCESS):
        # It began after the engine had looked.
        manager._handle_abort_message(frames)
    manager.register_deferred_ack_target(room, ip, port)
    manager._maybe_ack_drained_abort(room)


def taken(manager: Any, frames: Sequence[bytes]) -> bool:
    """Whether a message to decode ends here: an acknowledgement, or metadata that comes too late."""
    if not frames or frames[0] != _ACKNOWLEDGED:
        return late(manager, frames)
    if holds(manager) and len(frames) >= 3:
        manager.note_abort_ack(int(frames[1]), int(frames[2]))
    return True


def late(manager: Any, frames: Sequence[bytes]) -> bool:
    """Whether a message to decode is metadata of a room that is over.

    Metadata comes by a way of its own, on which an acknowledgement may overtake it, and its slot may have a
    new owner once that is counted. One thread reads both, so what is dropped here cannot harm that owner.
    """
    if not holds(manager) or not frames or frames[0] != manager.AUX_DATA_HEADER:
        return False
    return manager.request_status.get(int(frames[1])) in (None, FAILED)


def settled(manager: Any, room: int, statuses: Iterable[Any], failure: str | None = None) -> None:
    """0.5.22, which waits and counts by itself: a write that failed may land all the same.

    `failure` is what the wait ended with; no status may own up to it.
    """
    if failure is not None or any(status.Failed() for status in statuses):
        broken(manager, room)


def broken(manager: Any, room: int) -> None:
    """0.5.22: an error in a worker; writes may have begun that it has lost sight of."""
    if holds(manager):
        with manager._abort_ack_lock:
            manager.poison_deferred_ack_room(room)


def unanswered(manager: Any, room: int) -> bool:
    """0.5.22: whether an ABORT of `room` gets no answer; asked with its lock held."""
    return room in manager._deferred_ack_poisoned_rooms or _may_come(manager, room)


def _may_come(manager: Any, room: int) -> bool:
    """Whether some ranks of decode have announced a room, of which the request is still to come.

    It may yet be written, for all of them: those that gave up are not told that it is over.
    """
    return manager.request_status.get(room) is None and bool(manager.transfer_infos.get(room))
