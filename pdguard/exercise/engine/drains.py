"""MORI's ways to an acknowledgement that the handshakes do not take: no write may follow one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from pdguard.exercise.engine import boot, peers, receiving, situations, stand, wires

_ROOM = 47
_SETTLE = 0.3
_PATIENCE = 5.0


class Case:
    """A prefill and a decode that have come together for one room."""

    def __init__(self, backend: str) -> None:
        stand.switch("on", situations.HOLD_SECONDS)
        self.prefill = peers.Prefill(backend)
        self.net = wires.Net()
        wires.lay(self.net, self.prefill.bootstrap.web)
        self.prefill.start()
        self.decode = receiving.Decode(backend)
        self.decode.start()
        self.prefill.open(_ROOM)
        if not self.decode.open(_ROOM) or not self.prefill.ready(_ROOM):
            raise boot.Unavailable("the two managers did not come together")
        self.manager = self.prefill.manager

    def send(self, mode: str) -> None:
        """Prefill sends everything; the write stays in flight (hold) or is over at once (pass)."""
        self.prefill.set_writes(mode)
        if not self.prefill.send(_ROOM):
            raise boot.Unavailable("prefill started no write")

    def until(self, done: Callable[[], bool], what: str) -> None:
        """Wait for something that must come about; the exercise ends without a result where it does not."""
        end = time.monotonic() + _PATIENCE
        while not done():
            if time.monotonic() > end:
                raise boot.Unavailable(what)
            time.sleep(0.005)

    def watch(self, seconds: float) -> str:
        """Turn decode's scheduler until the pages are given back, at most so long; how it stands then."""
        end = time.monotonic() + seconds
        while True:
            self.decode.tick()
            state = self.decode.state(_ROOM)
            if state not in ("queued", "held") or time.monotonic() > end:
                return state
            time.sleep(0.01)


def drain(backend: str, case: str) -> dict[str, Any]:
    """One way to an acknowledgement, which must not be sent while a write may land."""
    made = Case(backend)
    {
        "unknown-room": _unknown,
        "failed-room": _failed,
        "concluded-room": _concluded,
        "skip-after-submit": _skipped,
        "broken-submit": _broken,
        "time-limit": _late,
    }[case](made)
    in_flight = not made.prefill.writes.settled
    seen = made.watch(_SETTLE if in_flight else 2 * situations.HOLD_SECONDS)
    if in_flight and seen == "drained":
        return _told("early ack", "fail", "acknowledged while a write could still land")
    made.prefill.set_writes("pass")
    ends = made.watch(2 * situations.HOLD_SECONDS + 5)
    if ends == "at once":
        return _told("no hold", "fail", "released at once, whatever prefill still writes")
    lost = case in ("broken-submit", "time-limit")
    if ends == "drained":
        return _told("drained", "pass", "acknowledged when the writes were over")
    if ends == "timeout":
        why = (
            "what was lost sight of is waited out"
            if lost
            else "nobody said so: released after the whole hold"
        )
        return _told("timeout", "pass" if lost else "fail", why)
    return _told("unnoticed" if ends == "queued" else "for ever", "fail", "the pages were never given back")


def _told(outcome: str, state: str, why: str) -> dict[str, Any]:
    return {"outcome": outcome, "state": state, "why": why}


def _unknown(made: Case) -> None:
    """Prefill has given the request up before it sent anything, and forgotten it."""
    made.prefill.cancel(_ROOM)
    made.decode.abort(_ROOM)


def _failed(made: Case) -> None:
    """Prefill has failed the request by itself; its scheduler has not cleared it yet."""
    made.manager.update_status(_ROOM, boot.member("base", "KVPoll").Failed)
    made.decode.abort(_ROOM)


def _concluded(made: Case) -> None:
    """Prefill is through, and the client hangs up before decode has heard of it."""
    success = boot.member("base", "KVPoll").Success
    with made.net.paused():
        made.send("pass")
        made.until(lambda: made.manager.request_status.get(_ROOM) == success, "the transfer did not end")
        made.decode.abort_while_messages_arrive(_ROOM)


def _skipped(made: Case) -> None:
    """The abort is taken after the writes have begun and before the worker looks at the room again."""
    begun, aborted, submit = threading.Event(), threading.Event(), made.manager._submit_kv_transfer

    def submitted(*arguments: Any, **named: Any) -> Any:
        given = submit(*arguments, **named)
        begun.set()
        aborted.wait(_PATIENCE)
        return given

    made.manager._submit_kv_transfer = submitted
    made.send("hold")
    made.until(begun.is_set, "the worker did not come back from its submission")
    made.decode.abort(_ROOM)
    if not made.prefill.failed(_ROOM):
        raise boot.Unavailable("prefill did not take the abort")
    aborted.set()


def _broken(made: Case) -> None:
    """The submission raises when some of its writes have begun, and gives nothing back to wait for."""
    send = made.manager.send_kvcache

    def broken(*arguments: Any, **named: Any) -> Any:
        send(*arguments, **named)
        raise RuntimeError("broken off by the exercise")

    made.manager.send_kvcache = broken
    made.send("hold")
    if not made.prefill.failed(_ROOM):
        raise boot.Unavailable("prefill did not notice that its submission broke off")


def _late(made: Case) -> None:
    """The writes take longer than MORI is told to wait."""
    made.send("hold")
    if not made.prefill.failed(_ROOM):
        raise boot.Unavailable("prefill did not give up")
