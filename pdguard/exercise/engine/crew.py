"""The processes of several ranks, and their driver's hold on them; the group that joins them is gloo's own.

Every rank has the engine's manager, receiver and queue, and a prefill of its own that confirms when it is
told to. Nothing but the loopback address is bound. Ranks end with their driver, whatever ends it.
"""

from __future__ import annotations

import ctypes
import datetime
import importlib
import json
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from pdguard.exercise.engine import boot, main, peers, receiving, wires

RANKS = 3
BOUND = 12.0
"""Seconds that a step of a rank may take; a rank that takes longer waits for ever."""
_LIFE = 90
_LOOPBACK = "127.0.0.1"
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 1
_DIE_WITH_PARENT = 1
_COLLECTIVES = ("all_reduce", "get_world_size", "get_rank", "barrier")


class Judged(Exception):
    """The exercise has shown what it is about: outcome, state and why."""

    def __init__(self, outcome: str, state: str, why: str) -> None:
        super().__init__(why)
        self.verdict: dict[str, Any] = {"outcome": outcome, "state": state, "why": why}


class Crew:
    """The ranks, as their driver sees them."""

    def __init__(self, backend: str, patience: float) -> None:
        self._backend, self._patience = backend, patience
        self._store = os.memfd_create("pdguard-ranks")
        self._children: dict[int, int] = {}
        self._to: dict[int, int] = {}
        self._from: dict[int, int] = {}
        self.left: list[int] = []

    def __enter__(self) -> Crew:
        _loopback()
        for rank in range(RANKS):
            self._start(rank)
        try:
            for rank in range(RANKS):
                for note in self._reply(rank, BOUND + _LIFE / 2) or ():
                    boot.note(note)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _where: TracebackType | None,
    ) -> None:
        for child in self._children.values():
            os.kill(child, signal.SIGKILL)
        for child in self._children.values():
            os.waitpid(child, 0)

    def _start(self, rank: int) -> None:
        down, up = os.pipe(), os.pipe()
        driver = os.getpid()
        child = os.fork()
        if child == 0:
            for end in (down[1], up[0], *self._to.values(), *self._from.values()):
                os.close(end)
            _be(rank, driver, self._store, self._backend, self._patience, down[0], up[1])
        os.close(down[0])
        os.close(up[1])
        self._children[rank], self._to[rank], self._from[rank] = child, down[1], up[0]
        self.left.append(rank)

    def end(self, rank: int) -> None:
        """The rank is gone, as if its process had been killed."""
        os.kill(self._children[rank], signal.SIGKILL)
        os.waitpid(self._children.pop(rank), 0)
        self.left.remove(rank)

    def halt(self, rank: int) -> None:
        """The rank does nothing any more, but its connections stay."""
        os.kill(self._children[rank], signal.SIGSTOP)
        self.left.remove(rank)

    def _say(self, rank: int, what: str, **more: Any) -> None:
        main.write_line(self._to[rank], {"do": what, **more})

    def _reply(self, rank: int, seconds: float) -> Any:
        """What the rank answers; None where it does not in time."""
        if not select.select([self._from[rank]], [], [], seconds)[0]:
            return None
        line = main.read_line(self._from[rank])
        if not line:
            raise boot.Unavailable(f"rank {rank} ended without a word")
        answer = json.loads(line)
        if "failed" in answer:
            raise boot.Unavailable(f"rank {rank}: {answer['failed']}")
        return answer["said"]

    def ask(self, rank: int, what: str, **more: Any) -> Any:
        """One rank alone does something."""
        self._say(rank, what, **more)
        return self._told(rank, self._reply(rank, BOUND))

    def each(self, what: str, room: int, how: Mapping[int, str] | None = None) -> None:
        """All do the same, but as `how` says for some."""
        for rank in self.left:
            self._say(rank, what, room=room, how=(how or {}).get(rank, "in-flight"))
        for rank in self.left:
            self._told(rank, self._reply(rank, BOUND))

    def round(self) -> list[dict[str, str]]:
        """A turn of every scheduler; how the requests stand on each rank."""
        states = []
        for rank, reply in self.round_of_the_left().items():
            told = self._told(rank, reply)
            if "broke" in told:
                raise Judged("broke", "fail", f"rank {rank} would die: {told['broke']}")
            states.append(told["states"])
        return states

    def round_of_the_left(self) -> dict[int, Any]:
        """The same for those that are left; None for one that does not come back."""
        for rank in self.left:
            self._say(rank, "tick")
        return {rank: self._reply(rank, BOUND) for rank in self.left}

    def _told(self, rank: int, reply: Any) -> Any:
        if reply is None:
            raise Judged("hangs", "fail", f"rank {rank} waits in a collective that not all ranks enter")
        return reply


def _loopback() -> None:
    """A namespace of its own has a loopback device that is down; nothing else is reached through it."""
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        ask = struct.pack("16sH14s", b"lo", 0, b"")
        try:
            (flags,) = struct.unpack_from("H", fcntl.ioctl(any_socket, _GET_FLAGS, ask), 16)
            if not flags & _UP:
                fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sH14s", b"lo", flags | _UP, b""))
        except OSError as error:
            raise boot.Unavailable(f"there is no loopback device for the ranks: {error}") from None


class _Clock:
    """Time as the queue of this rank sees it."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


class _Rank:
    """One rank, in its process: the engine's manager, receiver and queue, and a prefill of its own."""

    def __init__(self, group: Any, backend: str) -> None:
        distributed: Any = importlib.import_module("torch.distributed")
        real = {name: getattr(distributed, name) for name in _COLLECTIVES}
        self._prefill = peers.Prefill(backend)
        net = wires.Net()
        wires.lay(net, self._prefill.bootstrap.web)
        self._prefill.start()
        self._decode = receiving.Decode(backend)
        self._decode.start()
        self._decode.queue.gloo_group = group
        self._clock: Any = _Clock()
        boot.part("decode").time = self._clock
        self._rooms: list[int] = []
        self._entered = 0

        def all_reduce(*arguments: Any, **named: Any) -> Any:
            self._entered += 1
            return real["all_reduce"](*arguments, **named)

        vars(distributed).update(real, all_reduce=all_reduce)

    def open(self, room: int, how: str) -> bool:
        """A request; its transfer is in flight, only announced (quiescent), or has met no prefill."""
        self._rooms.append(room)
        if how == "unmet":
            self._decode.open_unmet(room)
            return True
        self._prefill.open(room)
        if not self._decode.open(room) or not self._prefill.ready(room):
            raise boot.Unavailable("the two managers did not come together")
        if how == "in-flight":
            self._prefill.set_writes("hold")
            if not self._prefill.send(room):
                raise boot.Unavailable("prefill started no write")
        return True

    def abort(self, room: int, **_how: Any) -> bool:
        """The client hangs up."""
        self._decode.abort(room)
        return True

    def settle(self) -> bool:
        """What is in flight arrives."""
        self._prefill.set_writes("pass")
        return True

    def acked(self, room: int) -> bool:
        """Whether prefill has confirmed to this rank that it writes no more."""
        return peers.until(lambda: self._decode.manager.is_abort_release_safe(room, 1))

    def jump(self, seconds: float) -> bool:
        """The clock of this rank is ahead from now on."""
        self._clock.ahead += seconds
        return True

    def tick(self) -> dict[str, Any]:
        """One turn of the scheduler; it dies of what its queue raises, as the engine does."""
        before = self._entered
        told: dict[str, Any] = {}
        try:
            self._decode.tick()
        except Exception as error:  # noqa: BLE001 - whatever the engine raises is what the rank comes to
            told["broke"] = f"{type(error).__name__}: {error}"[:200]
        states = {str(room): self._decode.state(room) for room in self._rooms}
        return {**told, "states": states, "collectives": self._entered - before}


def _be(
    rank: int, driver: int, store: int, backend: str, patience: float, commands: int, answers: int
) -> None:
    """In the fork: never returns."""
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    signal.alarm(_LIFE)
    try:
        if os.getppid() == driver:
            mine = _Rank(_group(rank, store, patience), backend)
            main.write_line(answers, {"said": _notes()})
            while line := main.read_line(commands):
                command = json.loads(line)
                main.write_line(answers, {"said": getattr(mine, command.pop("do"))(**command)})
    except BaseException as error:  # noqa: BLE001 - reported to the driver as it is
        main.write_line(answers, {"failed": main.failed(error)["why"]})
    finally:
        os._exit(0)


def _group(rank: int, store: int, patience: float) -> Any:
    """A process group of all ranks; nothing but the loopback address is bound."""
    distributed: Any = importlib.import_module("torch.distributed")
    gloo = distributed.ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=_LOOPBACK)]
    options._timeout = datetime.timedelta(seconds=patience)
    shared = distributed.FileStore(f"/proc/{os.getppid()}/fd/{store}", RANKS)
    return gloo(shared, rank, RANKS, options)


def _notes() -> list[str]:
    single = "torch.distributed: a world of one rank"
    return [
        f"torch.distributed: {RANKS} ranks, each a process with a prefill of its own, gloo on {_LOOPBACK}"
    ] + [note for note in boot.stand_ins if note != single]
