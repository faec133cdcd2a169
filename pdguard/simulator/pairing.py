"""Where the two halves of a request meet: rooms, by number, for as long as a half is inside."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Transfer:
    """What prefill has sent: every page of the prompt, or the one page of a stub."""

    first_token: int
    whole: bool


@dataclass(slots=True)
class Room:
    """One handoff."""

    decode_ready: asyncio.Event = field(default_factory=asyncio.Event)
    decode_left: asyncio.Event = field(default_factory=asyncio.Event)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    transfer: Transfer | None = None
    writing_until: float = 0.0
    prefill_version: str = ""
    inside: int = 0

    def deliver(self, transfer: Transfer) -> None:
        """Prefill has sent its last page."""
        self.transfer = transfer
        self.arrived.set()


class Rendezvous:
    """All rooms of a cluster; one is dropped when its last half has left."""

    def __init__(self) -> None:
        self._rooms: dict[int, Room] = {}

    def __len__(self) -> int:
        return len(self._rooms)

    @contextmanager
    def enter(self, number: int) -> Iterator[Room]:
        """Be in a room."""
        room = self._rooms.setdefault(number, Room())
        room.inside += 1
        try:
            yield room
        finally:
            room.inside -= 1
            if room.inside == 0 and self._rooms.get(number) is room:
                del self._rooms[number]


async def within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event; False when it did not come in time."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


class Background:
    """Work that outlives a request, such as a hold; ended with the cluster."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something on the side."""
        self.adopt(asyncio.get_running_loop().create_task(work))

    def adopt(self, task: asyncio.Task[None]) -> None:
        """Keep something that is running already."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """End everything."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
