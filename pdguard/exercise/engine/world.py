"""Several ranks at once: a process for each, and collectives that say at once when the ranks part ways.

Where the engine's own collectives would wait for ever, or mix up two calls, the hub here sees what every rank
has entered, and ends the exercise of all of them.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import time
from collections.abc import Callable
from typing import Any

from pdguard.exercise.engine import boot

_PATIENCE = 60.0
_REDUCE: dict[str, Callable[..., Any]] = {"MIN": min, "MAX": max, "SUM": sum}


class Parted(Exception):
    """The ranks are not in the same collective any more."""


def run(ranks: int, work: Callable[[int], dict[str, Any]]) -> list[dict[str, Any]]:
    """`work` of every rank in a process of its own; what each has come to, by rank.

    A rank that was left alone in a collective comes to {"parted": why}, one that broke to {"broke": why}.
    """
    boot.note(f"torch.distributed: a world of {ranks} ranks, each a process, over pipes")
    hub = _Hub(ranks)
    for rank in range(ranks):
        hub.start(rank, work)
    return hub.serve()


class _Hub:
    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._up: dict[int, int] = {}
        self._down: dict[int, int] = {}
        self._children: dict[int, int] = {}
        self._entered: dict[int, dict[str, Any]] = {}
        self._ended: dict[int, dict[str, Any]] = {}

    def start(self, rank: int, work: Callable[[int], dict[str, Any]]) -> None:
        up, down = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            _be(_Link(down[0], up[1]), self._ranks, rank, work)
        os.close(up[1])
        os.close(down[0])
        self._up[rank], self._down[rank], self._children[rank] = up[0], down[1], child

    def serve(self) -> list[dict[str, Any]]:
        """Answer collectives until every rank has ended."""
        try:
            self._serve()
        finally:
            for rank, child in self._children.items():
                if rank not in self._ended:
                    os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
        return [self._ended[rank] for rank in range(self._ranks)]

    def _serve(self) -> None:
        lines = {rank: _Lines(end) for rank, end in self._up.items()}
        deadline = time.monotonic() + _PATIENCE
        while len(self._ended) < self._ranks:
            waiting = [rank for rank in lines if rank not in self._ended and rank not in self._entered]
            left = max(0.0, deadline - time.monotonic())
            ready = select.select([self._up[rank] for rank in waiting], [], [], left)[0]
            if not ready:
                raise boot.Unavailable("the ranks of the exercise do not come to an end")
            for rank in waiting:
                if self._up[rank] in ready:
                    self._take(rank, lines[rank].next())
            self._answer()

    def _take(self, rank: int, line: bytes) -> None:
        message = json.loads(line) if line else {"ended": {"broke": "the process ended without a result"}}
        if "ended" in message:
            self._ended[rank] = message["ended"]
        else:
            self._entered[rank] = message

    def _answer(self) -> None:
        """Answer the collective that all have entered, or tell those that wait why it never comes about."""
        if not self._entered or len(self._entered) + len(self._ended) < self._ranks:
            return
        said = list(self._entered.values())
        kinds = {(one["op"], one["kind"], len(one["values"])) for one in said}
        answer: dict[str, Any]
        if self._ended:
            answer = {"parted": "a rank waits for one that has ended"}
        elif len(kinds) > 1:
            answer = {"parted": "the ranks are in different collectives"}
        else:
            reduce = _REDUCE[said[0]["op"]]
            columns = zip(*(one["values"] for one in said), strict=True)
            answer = {"values": [reduce(column) for column in columns]}
        for rank in list(self._entered):
            del self._entered[rank]
            os.write(self._down[rank], json.dumps(answer).encode("ascii") + b"\n")


class _Lines:
    def __init__(self, end: int) -> None:
        self._file = os.fdopen(end, "rb", buffering=0, closefd=False)

    def next(self) -> bytes:
        return bytes(self._file.readline())


class _Link:
    """A rank's way to the hub."""

    def __init__(self, down: int, up: int) -> None:
        self._lines, self._up = _Lines(down), up

    def say(self, message: dict[str, Any]) -> None:
        os.write(self._up, json.dumps(message).encode("ascii") + b"\n")

    def all_reduce(self, tensor: Any, op: Any = None, **_named: Any) -> None:
        """In the place of torch.distributed.all_reduce."""
        name = "SUM" if op is None else str(op).rpartition(".")[2]
        values = tensor.reshape(-1).tolist()
        self.say({"op": name, "kind": str(tensor.dtype), "values": values})
        answer = json.loads(self._lines.next() or b'{"parted": "the hub is gone"}')
        if "parted" in answer:
            raise Parted(answer["parted"])
        torch: Any = importlib.import_module("torch")
        tensor.copy_(torch.tensor(answer["values"], dtype=tensor.dtype).reshape(tensor.shape))


def _be(link: _Link, ranks: int, rank: int, work: Callable[[int], dict[str, Any]]) -> None:
    """In the fork: never returns."""
    try:
        distributed: Any = importlib.import_module("torch.distributed")
        distributed.all_reduce = lambda tensor, op=None, *_rest, **_named: link.all_reduce(tensor, op)
        distributed.get_world_size = lambda *_arguments, **_named: ranks
        distributed.get_rank = lambda *_arguments, **_named: rank
        ended = work(rank)
    except Parted as error:
        ended = {"parted": str(error)}
    except BaseException as error:  # noqa: BLE001 - whatever the engine raises is what the rank has come to
        ended = {"broke": f"{type(error).__name__}: {error}"[:200]}
    link.say({"ended": ended})
    os._exit(0)
