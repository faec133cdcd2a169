"""The six situations of an abort in mid-transfer, driven alike whether its sides are here or apart."""

# ruff: noqa: D102 - the sides' methods are described where they are written

from __future__ import annotations

import time
from typing import Any, Protocol

SITUATIONS = (
    "quiescent",
    "in-flight",
    "cleared-before-drain",
    "cleared-before-abort",
    "failed-send",
    "two-decode-ranks",
)
TOGETHER = "come-together"
"""Not one of the six: only whether decode and prefill understand each other up to the first write."""
HOLD_SECONDS = 1.5
"""T_hold of an exercise. What is released sooner was acknowledged: slowness can only err to `timeout`."""
_SETTLE = 0.25
_STEP = 0.01
_IDEAL = {"failed-send": "timeout"}
_WHY = {
    "drained": "released when prefill had confirmed that its writes were over",
    "timeout": "no acknowledgement came: released after the whole hold",
    "no hold": "released at once, whatever prefill still writes",
    "early ack": "released on an acknowledgement while a write could still land",
    "partial": "one decode rank was acknowledged, the other waited out the hold",
    "unnoticed": "decode never learnt of the failure",
}


class PrefillSide(Protocol):
    """Prefill as the driver sees it."""

    def open(self, room: int) -> Any: ...
    def ready(self, room: int) -> Any: ...
    def send(self, room: int) -> Any: ...
    def set_writes(self, mode: str) -> Any: ...
    def cancel(self, room: int) -> Any: ...
    def clear(self, room: int) -> Any: ...
    def failed(self, room: int) -> Any: ...


class DecodeSide(Protocol):
    """One rank of decode as the driver sees it."""

    def open(self, room: int) -> Any: ...
    def abort(self, room: int) -> Any: ...
    def tick(self) -> Any: ...
    def state(self, room: int) -> Any: ...


class Stuck(Exception):
    """The exercise did not reach the situation; the text says where it stopped."""


def drive(situation: str, prefill: PrefillSide, decodes: list[DecodeSide], room: int) -> dict[str, Any]:
    """Bring about one situation and name its outcome."""
    _handshake(prefill, decodes, room)
    if situation == TOGETHER:
        prefill.set_writes("pass")
        if not prefill.send(room):
            raise Stuck("prefill started no write")
        return {"outcome": "together", "state": "pass", "why": "destination announced, write started"}
    flight = situation != "quiescent"
    if flight:
        prefill.set_writes("fail" if situation == "failed-send" else "hold")
        if not prefill.send(room):
            raise Stuck("prefill started no write")
    if situation == "cleared-before-abort":
        prefill.cancel(room)
    if situation == "failed-send":
        outcome = _after_failure(prefill, decodes[0], room)
    else:
        outcome = _after_abort(situation, prefill, decodes, room)
    prefill.set_writes("pass")
    ideal = _IDEAL.get(situation, "drained")
    return {"outcome": outcome, "state": "pass" if outcome == ideal else "fail", "why": _WHY[outcome]}


def _handshake(prefill: PrefillSide, decodes: list[DecodeSide], room: int) -> None:
    prefill.open(room)
    for decode in decodes:
        if not decode.open(room):
            raise Stuck("decode could not announce its destination")
    if not prefill.ready(room):
        raise Stuck("prefill did not take decode's destination")


def _after_abort(situation: str, prefill: PrefillSide, decodes: list[DecodeSide], room: int) -> str:
    for decode in decodes:
        decode.abort(room)
    for decode in decodes:
        decode.tick()
    if all(decode.state(room) == "at once" for decode in decodes):
        return "no hold"
    if situation not in ("quiescent", "cleared-before-abort") and not prefill.failed(room):
        raise Stuck("prefill did not take the abort")
    if situation == "cleared-before-drain":
        prefill.clear(room)
    if situation != "quiescent" and "drained" in _watch(decodes, room, _SETTLE):
        return "early ack"
    prefill.set_writes("pass")
    ends = set(_watch(decodes, room, 2 * HOLD_SECONDS + 5))
    if ends <= {"drained", "timeout"}:
        return ends.pop() if len(ends) == 1 else "partial"
    raise Stuck(f"the hold ended as {', '.join(sorted(ends))}")


def _after_failure(prefill: PrefillSide, decode: DecodeSide, room: int) -> str:
    """The send failed, but may still be running: no acknowledgement can be right."""
    if not prefill.failed(room):
        raise Stuck("prefill did not notice that its send failed")
    end = time.monotonic() + HOLD_SECONDS
    while decode.state(room) == "queued":
        if time.monotonic() > end:
            return "unnoticed"
        decode.tick()
        time.sleep(_STEP)
    (how,) = _watch([decode], room, 2 * HOLD_SECONDS + 5)
    return {"at once": "no hold", "drained": "early ack", "timeout": "timeout"}[how]


def _watch(decodes: list[DecodeSide], room: int, seconds: float) -> list[str]:
    """Turn the schedulers until every rank has released, at most so long; how each stands then."""
    end = time.monotonic() + seconds
    while True:
        for decode in decodes:
            decode.tick()
        states = [str(decode.state(room)) for decode in decodes]
        if not {"queued", "held"} & set(states) or time.monotonic() > end:
            return states
        time.sleep(_STEP)
