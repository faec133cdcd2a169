"""What pdguard remembers of one KV manager: who waits for an acknowledgement, and which rooms never get one.

The engine's own count of chunks stays where it is (`_staging_outstanding`); it is only changed under the lock
that is kept here. The lock is never held while a message is sent.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

FAILED, BOOTSTRAPPING, WAITING, SUCCESS = 0, 1, 2, 4
"""Values of the engine's KVPoll, the same in every release that is patched. Up to WAITING nothing is sent."""

REMEMBERED = 65_536
"""Poisoned rooms that are kept; beyond that the oldest is forgotten. Rooms are random, so few ever return."""

Endpoint = tuple[str, int]


@dataclass
class Ledger:
    """The books of one manager. `lock` guards all of it, and the engine's count of chunks besides."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    owed: dict[int, dict[Endpoint, None]] = field(default_factory=dict)
    """Room to the decode endpoints that wait for its writes to end, in the order in which they asked."""
    poisoned: OrderedDict[int, None] = field(default_factory=OrderedDict)
    """Rooms of which a write may still be under way although nobody can say when it ends."""

    def poison(self, room: int) -> None:
        """Never acknowledge this room; the lock is held by the caller."""
        self.owed.pop(room, None)
        self.poisoned[room] = None
        self.poisoned.move_to_end(room)
        while len(self.poisoned) > REMEMBERED:
            self.poisoned.popitem(last=False)


def ledger(manager: Any) -> Ledger:
    """The books of `manager`; made when they are first asked for, by whichever thread comes first."""
    found = manager.__dict__.get("_pdguard_ledger")
    if found is None:
        found = manager.__dict__.setdefault("_pdguard_ledger", Ledger())
    made: Ledger = found
    return made


def counts(manager: Any) -> Any:
    """The engine's count of chunks by room, or an empty one where the backend does not count."""
    return getattr(manager, "_staging_outstanding", None) or {}


def holds(manager: Any) -> bool:
    """Whether deferred release is on for this manager, and with it drain acknowledgements."""
    return bool(getattr(manager, "enable_deferred_decode_kv_release", False))
